"""A process that answers test_allocation_script.py: it calibrates the models that its arguments name, in an arena of
their own.
"""

import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch

from indb_tensile.executor.capture.allocation_script import record_script
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.calibrate import add_scripts, apply_known, calibrate, unknown_signatures
from tests.device.preloaded import answer, private
from tests.executor.models import make_job


def models() -> dict[str, Any]:
    """Return for each model and step what was measured, and whether a second calibration gives the same."""
    torch.set_num_threads(1)
    return {kind: _calibrated(make_job(kind).steps) for kind in sys.argv[1:]}


def _calibrated(captured: tuple[CapturedStep, ...]) -> list[dict[str, Any]]:
    outcome = calibrate(captured, unknown_signatures(captured, {}), {}, 1 << 30)
    again = add_scripts(apply_known(captured, outcome.measured))
    return [
        {
            "steady": all(script.steady for script in step.scripts.values()),
            "same again": step.scripts == other.scripts,
            "sizes": [tensor.size_bytes for tensor in step.graph.tensors],
            "workspaces": [operator.workspace_bytes for operator in step.graph.operators],
            "of scripts": [step.scripts[o.signature].workspace_bytes for o in step.graph.operators],
        }
        for step, other in zip(outcome.steps, again, strict=True)
    ]


def setting_up() -> dict[str, Any]:
    """Record an operator that repeats, one that keeps memory of its first run, and one that never repeats."""
    serving = private()
    (step, *_) = make_job("mlp").steps
    call = next(entry.kernel for entry in step.steps if entry.kernel.makes and entry.kernel.single)
    answers = {}
    for name, retained_lengths in (("repeats", ()), ("sets up", (1000,)), ("never", (1, 2, 3))):
        lengths = iter(retained_lengths)
        retained: list[torch.Tensor] = []
        script = record_script(serving, call, partial(_run, retained, lengths))
        answers[name] = (script.steady, [made.size_bytes for made in script.allocations], len(retained))
    return answers


def _run(retained: list[torch.Tensor], lengths: Iterator[int]) -> torch.Tensor:
    retained.extend(torch.empty(length) for length in islice(lengths, 1))
    return torch.empty(500)


if __name__ == "__main__":
    answer(sys.modules["__main__"])
