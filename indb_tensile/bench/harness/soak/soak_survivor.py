"""A job of `bench.soak` that the deaths of other jobs must not affect: it repeats a small real training.

    python -m indb_tensile.bench.harness.soak.soak_survivor FD SLOT EPOCH

FD is the descriptor of the device's shared file; SLOT and EPOCH are the job's slot there and the epoch of its use.
Every episode starts from the same parameters and random numbers, follows a plan that swaps and recomputes, and prints
a digest of its final state. With the preloaded allocator all its tensors are in the device's memory. The process ends
when a line arrives on its standard input, or when the input is closed.
"""

import hashlib
import json
import select
import sys
from contextlib import nullcontext

import torch
from torch import nn

from indb_tensile.bench.harness.execution.device_rig import emulated_on
from indb_tensile.bench.harness.execution.trial import StepTrial, TrainingSubject, workload
from indb_tensile.device.device import EmulatedDevice
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, floor, liveness_peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import plan_jobs

ITERATIONS = 5
_HOST_BYTES = 256 << 20
_SEED = 7
_FAST = Link(out_bytes_per_s=10**10, in_bytes_per_s=10**10)


def main() -> None:
    """Train until the standard input is readable."""
    torch.set_num_threads(1)
    torch.manual_seed(_SEED)
    fd, slot, epoch = map(int, sys.argv[1:])
    subject = _subject()
    step = subject.capture()
    with EmulatedDevice(fd, slot, epoch, _HOST_BYTES) as device:
        opened = emulated_on(device)
        with opened.serving.on() if opened.serving else nullcontext():
            trial = StepTrial(subject, step, opened)
            _follow_tight_plan(trial)
            while not select.select([sys.stdin], [], [], 0)[0]:
                row = {"digest": _episode(trial), "device_bytes": device.arena_usage().allocated_bytes}
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()
            trial.runner.close()


def _subject() -> TrainingSubject:
    module = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16 * 12 * 12, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    x, y = torch.randn(64, 1, 12, 12), torch.randint(0, 10, (64,))
    return TrainingSubject(name="survivor", module=module, loss=nn.CrossEntropyLoss(), x=x, y=y)


def _follow_tight_plan(trial: StepTrial) -> None:
    """Adopt a plan near the smallest possible budget, so that every iteration swaps and recomputes."""
    measured = trial.run(LIVENESS, 2)
    graph = trial.step.graph
    budget_bytes = floor(graph) + (liveness_peak(graph) - floor(graph)) // 4
    planned = plan_jobs((workload(trial.step, measured.latency_ns),), budget_bytes=budget_bytes, link=_FAST)
    plan = planned[0].plans[0] if isinstance(planned, tuple) else Plan(policy="liveness")
    trial.adopt(plan)


def _episode(trial: StepTrial) -> str:
    trial.restart()
    torch.manual_seed(_SEED)
    for _ in range(ITERATIONS):
        trial.iterate()
    digest = hashlib.sha256()
    for name, value in sorted(trial.state.export().items()):
        digest.update(name.encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
