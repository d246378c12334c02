"""The gradients of the parts that one of several devices computes, and their exact sum over the parts of all devices.

Each part's gradients are kept until the backward pass is over. Then the gradients of all parts are added up, in
buckets of consecutive parameters in the model's order. One device adds them in place as soon as they exist
(update.py), in the same order of the parts, so the bits are equal.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.exchange_operator import sum_parts_
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.record import Recorder
from indb_tensile.executor.capture.update import like_parameter
from indb_tensile.scheduler.graph import Stage

# Small gradients are exchanged together, which needs scratch of several times this size; a larger one is alone.
BUCKET_BYTES = 1 << 20

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
        values = {"loss": (first_loss(self._recorder, losses, loss_type), losses)}
        for name in names:
            parameter = self._recorder.fake(name)
            refuse_complex(name, parameter)
            values[f"of {name}"] = parameter, self._own.get(name, [])
        totals: dict[str, torch.Tensor] = {}
        for number, bucket in enumerate(buckets({key: like for key, (like, _) in values.items()}, BUCKET_BYTES)):
            totals |= zip(bucket, self._sums([values[key] for key in bucket], f"sum_{number}"), strict=True)
        return totals["loss"], {name: totals[f"of {name}"] for name in names}

    def _sums(self, bucket: list[tuple[torch.Tensor, list[torch.Tensor]]], name: str) -> list[torch.Tensor]:
        """Record the exchange of a bucket: pairs of a tensor like the sum and the values of this device's parts."""
        like = [value for value, _ in bucket]
        own = [value for part in zip(*(values for _, values in bucket), strict=True) for value in part]
        totals: list[torch.Tensor] = self._recorder.call(
            Stage.BACKWARD, sum_parts_, like, own, counts=list(self._counts), name=name
        )
        return totals


def buckets(values: Mapping[str, torch.Tensor], size_bytes: int) -> Iterator[list[str]]:
    """Yield the names of values that make one exchange, in order: of one type, and of at most so many bytes.

    A larger value is alone.
    """
    bucket: list[str] = []
    taken_bytes = 0
    for name, value in values.items():
        taken_bytes += value.nbytes
        if bucket and (taken_bytes > size_bytes or value.dtype != values[bucket[0]].dtype):
            yield bucket
            bucket, taken_bytes = [], value.nbytes
        bucket.append(name)
    yield bucket


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
