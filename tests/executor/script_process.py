"""What test_script.py looks at: the models of the suite, calibrated where tensors are served from an arena."""

import sys
from typing import Any

import torch

from indb_tensile.executor.calibrate import add_scripts, apply_known, calibrate, unknown_signatures
from indb_tensile.executor.capture import CapturedStep
from tests.executor.models import make_job
from tests.executor.preloaded import answer

KINDS = ("mlp", "cnn", "transformer", "lstm", "regression")


def models() -> dict[str, Any]:
    """By model and step what was measured, and whether it is the same in a second calibration."""
    torch.set_num_threads(1)
    return {kind: _calibrated(make_job(kind).steps) for kind in KINDS}


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


if __name__ == "__main__":
    answer(sys.modules["__main__"])
