"""The gradients of the parts that one of several devices computes, and their exchange with the other devices.

Each part's gradients are kept until the backward pass is over. Then the gradients of all parts are added up,
parameter by parameter in the model's order. One device adds them in place as soon as they exist (update.py), in the
same order of the parts, so the bits are equal.
"""

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

    def __getitem__(self, name: str) -> torch.Tensor:
        """Record the exchange of the parameter's gradient, and return the sum over all parts."""
        like = self._recorder.fake(name)
        if like.is_complex():
            raise RequestError(f"the parameter {name} is complex, and several devices exchange real numbers only")
        return self._sum(like, self._own.get(name, []), f"sum_{name}")

    def add(self, name: str, gradient: torch.Tensor) -> None:
        """Keep a part's gradient of the parameter."""
        self._own.setdefault(name, []).append(like_parameter(self._recorder, name, gradient))

    put = add  # the only part of a batch is exchanged like any other

    def total_loss(self, losses: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """Record the exchange of the loss, and return the sum over all parts."""
        kind: dict[str, Any] = {"dtype": dtype, "device": torch.device("cpu")}
        like = losses[0] if losses else self._recorder.call(Stage.BACKWARD, _aten.zeros.default, [], **kind)
        return self._sum(like, losses, "sum_loss")

    def _sum(self, like: torch.Tensor, own: list[torch.Tensor], name: str) -> torch.Tensor:
        total: torch.Tensor = self._recorder.call(
            Stage.BACKWARD, sum_parts_, like, own, counts=list(self._counts), name=name
        )
        return total
