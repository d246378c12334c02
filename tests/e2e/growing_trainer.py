"""A trainer whose networks have an operator that needs more scratch memory after some runs (test_growing.py)."""

import os
from typing import Any

import torch
from torch import nn

from indb_tensile.learning.training.preparation import prepare
from indb_tensile.learning.training.prepared_training import Prepared
from tests.executor.growing import Need, Scratch
from worker import trainer
from worker.training import row_reading


class _GrowingRelu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grown: torch.Tensor = torch.ops.tensile_tests.growing(torch.relu(x))
        return grown


def _prepare(*arguments: Any, **options: Any) -> Prepared:
    prepared = prepare(*arguments, **options)
    for parent in tuple(prepared.module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, _GrowingRelu())
    return prepared


def main() -> int:
    """Run the real trainer with such networks. The environment says when the operator grows, and to how much."""
    if "GROWS_AFTER" in os.environ:
        Need.grows_after = int(os.environ["GROWS_AFTER"])
        Need.grown = Scratch(
            at_once=int(os.environ["GROWS_TO"]), first=int(os.environ.get("GROWS_FIRST", "0")), in_turn=1
        )
    names = vars(row_reading)
    assert names["prepare"] is prepare, "the trainer prepares its network by another name: no operator would grow"
    names.update(prepare=_prepare)
    return trainer.main()
