"""The gradients of the parts that one of several devices computes, and their exact sum over the parts of all devices.

Each part's gradients are kept until those of the last part are there. Then the gradients of all parts are added up,
in buckets of consecutive parameters, the last ones in the model's order first (early_exchanges.py). One device adds
them in place as soon as they exist (update.py), in the same order of the parts, so the bits are equal.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.early_exchanges import EarlyExchanges, PlannedExchange
from indb_tensile.executor.capture.exchange_operator import finish_sum_parts_, start_sum_parts_
from indb_tensile.executor.capture.exchange_room import parts_elements
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.record import Recorder
from indb_tensile.executor.capture.update import like_parameter

# Small gradients are exchanged together, which needs scratch of several times this size; a larger one is alone.
BUCKET_BYTES = 1 << 20
# A value of more than this share of a bucket is alone, too: it would be copied, and end the bucket of the small ones.
# Layers of 512 by 512 had two exchanges each, of 1 MiB and of 2 KB.
_ALONE_SHARE = 0.5

_aten = torch.ops.aten


class PartGradients:
    """What this device's parts of a batch have computed. `parts` is the number of parts of the whole batch."""

    def __init__(self, recorder: Recorder, share: RankShare, parts: int) -> None:
        self._recorder = recorder
        self._counts = share.counts(parts)
        self._parts = len(share.own(parts))
        self._own: dict[str, list[torch.Tensor]] = {}

    def add(self, name: str, gradient: torch.Tensor) -> None:
        """Keep a part's gradient of the parameter."""
        self._own.setdefault(name, []).append(like_parameter(self._recorder, name, gradient))

    put = add  # the only part of a batch is exchanged like any other

    def totals(
        self,
        exchanges: EarlyExchanges,
        names: Sequence[str],
        losses: list[torch.Tensor],
        loss_type: torch.dtype,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Record the exchanges, after those planned before.

        Return the loss and the gradient of each named parameter, over all parts.
        """
        place = self._recorder.fake(names[0]).device
        loss = own_loss(exchanges, losses[:1], loss_type, place)
        firsts = {"loss": loss} | {f"of {name}": value for name, value in self._firsts(exchanges, names).items()}
        others = {"loss": losses[1:]} | {f"of {name}": self._own.get(name, [])[1:] for name in names}
        planned = [
            self._sum([firsts[key] for key in bucket], [others[key] for key in bucket])
            for bucket in buckets(backwards(firsts), BUCKET_BYTES)
        ]
        exchanges.record(planned, place)
        # The host copies the loss right after the operator that makes it, so that is to be one after the exchange.
        total = exchanges.call(_aten.clone.default, loss, name="sum_loss")
        return total, {name: firsts[f"of {name}"] for name in names}

    def _firsts(self, exchanges: EarlyExchanges, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the gradients of this device's first part, in whose place the sums come."""
        for name in names:
            refuse_complex(name, self._recorder.fake(name))
        if not self._parts:
            return {name: exchanges.empty(self._recorder.fake(name)) for name in names}
        among = [value for values in self._own.values() for value in values]
        own = exchanges.own([self._own[name][0] for name in names], among)
        return dict(zip(names, own, strict=True))

    def _sum(self, values: list[torch.Tensor], others: list[list[torch.Tensor]]) -> PlannedExchange:
        sizes = [value.numel() for value in values]
        elements = parts_elements(sizes, self._counts, self._parts)
        return PlannedExchange(
            start=start_sum_parts_,
            finish=finish_sum_parts_,
            values=values,
            others=([value for part in zip(*others, strict=True) for value in part],),
            numbers={"counts": list(self._counts), "own": self._parts},
            room_bytes=elements * values[0].dtype.itemsize,
        )


def backwards(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the first value, which is the loss, and then the others from the last to the second."""
    loss, *names = values
    return {name: values[name] for name in (loss, *reversed(names))}


def buckets(values: Mapping[str, torch.Tensor], size_bytes: int) -> Iterator[list[str]]:
    """Yield the names of values that make one exchange: of one type, and of at most so many bytes.

    A value of more than half as many bytes is alone. It does not end the bucket of the small ones before it, because
    fewer exchanges cost less.
    """
    bucket: list[str] = []
    taken_bytes = 0
    for name, value in values.items():
        if value.nbytes > _ALONE_SHARE * size_bytes:
            yield [name]
            continue
        taken_bytes += value.nbytes
        if bucket and (taken_bytes > size_bytes or value.dtype != values[bucket[0]].dtype):
            yield bucket
            bucket, taken_bytes = [], value.nbytes
        bucket.append(name)
    if bucket:
        yield bucket


def own_loss(
    exchanges: EarlyExchanges, losses: Sequence[torch.Tensor], loss_type: torch.dtype, place: torch.device
) -> torch.Tensor:
    """Record the sum of these losses, to be changed in place; zero for a device without a part."""
    if not losses:
        zero: torch.Tensor = exchanges.call(_aten.zeros.default, [], dtype=loss_type, device=place)
        return zero
    total: torch.Tensor = exchanges.call(_aten.clone.default, losses[0])
    for other in losses[1:]:
        exchanges.call(_aten.add_.Tensor, total, other)
    return total


def refuse_complex(name: str, parameter: torch.Tensor) -> None:
    """Raise RequestError for a parameter of complex numbers."""
    if parameter.is_complex():
        raise RequestError(f"the parameter {name} is complex, and several devices exchange real numbers only")
