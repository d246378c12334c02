"""The gradients of the parts that one of several devices computes, and their exact sum over the parts of all devices.

Each part's gradients are kept until the backward pass is over. Then the gradients of all parts are added up,
parameter by parameter in the model's order. One device adds them in place as soon as they exist (update.py), in the
same order of the parts, so the bits are equal.
"""

from collections.abc import Sequence
from typing import Any

import torch

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.exchange_operator import sum_parts_
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.record import Recorder
from indb_tensile.executor.capture.update import like_parameter
from indb_tensile.scheduler.graph import Stage

_aten = torch.ops.aten


class PartGradients:
    """What this device's parts of a batch have computed. `parts` is the number of parts of the whole batch."""

    def __init__(self, recorder: Recorder, share: RankShare, parts: int) -> None:
        self._recorder = recorder
        self._counts = share.counts(parts)
        self._own: dict[str, list[torch.Tensor]] = {}

    def add(self, name: str, gradient: torch.Tensor) -> None:
        """Keep a part's gradient of the parameter."""
        self._own.setdefault(name, []).append(like_parameter(self._recorder, name, gradient))

    put = add  # the only part of a batch is exchanged like any other

    def totals(
        self, names: Sequence[str], losses: list[torch.Tensor], loss_type: torch.dtype
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Record the exchanges. Return the loss and the gradient of each named parameter, over all parts."""
        loss = self._sum(first_loss(self._recorder, losses, loss_type), losses, "sum_loss")
        return loss, {name: self._sum_of(name) for name in names}

    def _sum_of(self, name: str) -> torch.Tensor:
        like = self._recorder.fake(name)
        refuse_complex(name, like)
        return self._sum(like, self._own.get(name, []), f"sum_{name}")

    def _sum(self, like: torch.Tensor, own: list[torch.Tensor], name: str) -> torch.Tensor:
        total: torch.Tensor = self._recorder.call(
            Stage.BACKWARD, sum_parts_, like, own, counts=list(self._counts), name=name
        )
        return total


def first_loss(recorder: Recorder, losses: list[torch.Tensor], loss_type: torch.dtype) -> torch.Tensor:
    """Return the first part's loss; zero for a device without a part."""
    if losses:
        return losses[0]
    kind: dict[str, Any] = {"dtype": loss_type, "device": torch.device("cpu")}
    zero: torch.Tensor = recorder.call(Stage.BACKWARD, _aten.zeros.default, [], **kind)
    return zero


def refuse_complex(name: str, parameter: torch.Tensor) -> None:
    """Raise RequestError for a parameter of complex numbers."""
    if parameter.is_complex():
        raise RequestError(f"the parameter {name} is complex, and several devices exchange real numbers only")
