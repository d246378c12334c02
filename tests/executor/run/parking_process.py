"""A process that answers test_parking.py: it parks and resumes with tensors at planned addresses.

Its arguments name the functions to call: `mlp` and `cnn` train with recorded iterations, `regions` trains in the
regions of an emulated device.
"""

import json
import os
import sys
from typing import Any

import torch

from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.device.device import REGION_BYTES, EmulatedDevice
from indb_tensile.device.ledger import Ledger
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.memory.peak import LIVENESS
from tests.device.memory_device import MemoryDevice
from tests.device.preloaded import private
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.plans import random_plan
from tests.executor.rewinding import RewindingGraphs

_EPOCHS = 3
_GRANT_BYTES = 32 * REGION_BYTES

torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)


def _recorded(kind: str) -> dict[str, Any]:
    """Park and resume under the same plans. `drive` seeds the generator, so each part has eager's random numbers."""
    job, steps = prepared(kind, settings=OptimizerSettings(kind="sgd", momentum=0.9))
    serving = private()
    eager, device, state = Eager(job), MemoryDevice(), job.state()
    graphs = RewindingGraphs(device, serving)
    placer = graphs.placer = Placer(serving)
    runner = Runner(device, state, steps, placer=placer, graphs=graphs, sample_every=10**6)
    same, recorded, launched = True, [], []
    left_open = -1
    for generation in (1, 2):
        runner.adopt((LIVENESS,) * len(steps), generation)
        before = graphs.recorded, runner.launched
        same = same and bits(drive(runner, job, _EPOCHS)) == bits(drive(eager, job, _EPOCHS))
        recorded.append(graphs.recorded - before[0])
        launched.append(runner.launched > before[1])
        runner.park()
        left_open = sum(not graph.closed for graph in graphs.made)
        assert device.used_bytes == 0
    same = same and state_bits(state.export()) == state_bits(eager.export())
    in_arena_bytes = serving.served().used_bytes
    runner.close()
    return {
        "bits": same,
        "launched": all(launched),
        "recorded anew": recorded[0] == recorded[1] > 0,
        "open graphs": left_open,
        "in the arena": in_arena_bytes,
    }


def mlp() -> dict[str, Any]:
    """A network without random numbers."""
    return _recorded("mlp")


def cnn() -> dict[str, Any]:
    """A network with dropout."""
    return _recorded("cnn")


def regions() -> dict[str, Any]:
    """Give all regions to another job while the first is parked, then take them back."""
    job, steps = prepared("cnn", settings=OptimizerSettings(kind="adamw", clip_norm=0.1))
    with Ledger.create(_GRANT_BYTES, REGION_BYTES, 10**9, 10**9) as ledger:
        slot, epoch = ledger.claim_slot(os.getpid())
        ledger.grant(slot, _GRANT_BYTES)
        with EmulatedDevice(ledger.fd, slot, epoch, 1 << 24) as device:
            serving = ArenaServing.of(device.hook_address())
            assert serving is not None
            eager, state = Eager(job), job.state()
            runner = Runner(device, state, steps, placer=Placer(serving, region_bytes=REGION_BYTES))
            same, held_bytes = True, []
            for seed in (1, 2, 3):
                plans = tuple(random_plan(step.graph, seed) for step in steps)
                runner.adopt(plans, seed, _GRANT_BYTES)
                same = same and bits(drive(runner, job)) == bits(drive(eager, job))
                runner.park()
                ledger.grant(slot, 0)
                held_bytes.append(ledger.usage(slot).held_bytes)
                other, _ = ledger.claim_slot(os.getpid())
                ledger.grant(other, _GRANT_BYTES)
                ledger.release_slot(other)
                ledger.grant(slot, _GRANT_BYTES)
            same = same and state_bits(state.export()) == state_bits(eager.export())
            planned = serving.served().planned > 0
            runner.close()
    return {"bits": same, "held bytes while parked": held_bytes, "at planned addresses": planned}


if __name__ == "__main__":
    print(json.dumps({name: globals()[name]() for name in sys.argv[1:]}), flush=True)  # noqa: T201 - read by `ask`
