"""The gradients of one of several devices, and their sum over all devices by the library's all-reduce.

A device adds up the gradients of its parts in place, like a device that trains alone (update.py). So it sends one
gradient a step, whatever the number of its parts. While the backward pass of the last part goes on, the devices'
gradients are added up in buckets (early_exchanges.py): a bucket is one exchange of many small gradients. Which
gradients a bucket has follows from the parameters alone, so devices with different plans make the same exchanges. All
devices get the same bits, which are not those of one device: the library adds in another order than that of the parts
(part_gradients.py).
"""

from collections.abc import Sequence

import torch

from indb_tensile.executor.capture.early_exchanges import EarlyExchanges, PlannedExchange
from indb_tensile.executor.capture.exchange_operator import finish_all_reduce_, start_all_reduce_
from indb_tensile.executor.capture.exchange_room import reduced_elements
from indb_tensile.executor.capture.part_gradients import backwards, buckets, own_loss, refuse_complex
from indb_tensile.executor.capture.record import Recorder
from indb_tensile.executor.capture.update import Gradients, like_parameter

# A bucket is copied together, so an exchange needs room of this size. Larger gradients are exchanged in place. The
# messages of an all-reduce grow with the ranks, so many want larger buckets. With two ranks a transformer's step of
# 52 ms takes 2 ms longer with 4 MiB, and a perceptron's of 148 ms takes 8 ms longer with all 34 MB in one bucket.
BUCKET_BYTES = 4 << 20
BUCKET_BYTES_OF_TWO = 1 << 20

_aten = torch.ops.aten


class RankGradients(Gradients):
    """The sums of the gradients of this device's parts; this device, one of `ranks`, may have no part."""

    def __init__(self, recorder: Recorder, ranks: int) -> None:
        super().__init__(recorder)
        self._ranks = ranks

    def totals(
        self,
        exchanges: EarlyExchanges,
        names: Sequence[str],
        losses: list[torch.Tensor],
        loss_type: torch.dtype,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Record the exchanges, after those planned before.

        Return the loss and the gradient of each named parameter, over all devices.
        """
        place = self._recorder.fake(names[0]).device
        loss = own_loss(exchanges, losses, loss_type, place)
        own = [self._ready(exchanges, name) for name in names]
        gradients = dict(zip(names, exchanges.own(own, own), strict=True))
        values = {"loss": loss} | {f"of {name}": value for name, value in gradients.items()}
        planned = [
            _all_reduce([values[key] for key in bucket], self._ranks)
            for bucket in buckets(backwards(values), BUCKET_BYTES_OF_TWO if self._ranks == 2 else BUCKET_BYTES)
        ]
        exchanges.record(planned, place)
        # The host copies the loss right after the operator that makes it, so that is to be one after the exchange.
        return exchanges.call(_aten.clone.default, loss, name="sum_loss"), gradients

    def _ready(self, exchanges: EarlyExchanges, name: str) -> torch.Tensor:
        """Return the gradient of this device's parts in its parameter's memory order; zeros if it has no part."""
        parameter = self._recorder.fake(name)
        refuse_complex(name, parameter)
        if name in self:
            return like_parameter(self._recorder, name, self[name])
        zeros = exchanges.empty(parameter)
        exchanges.call(_aten.zero_.default, zeros)
        return zeros


def _all_reduce(values: list[torch.Tensor], ranks: int) -> PlannedExchange:
    elements = reduced_elements([value.numel() for value in values], ranks)
    return PlannedExchange(
        start=start_all_reduce_,
        finish=finish_all_reduce_,
        values=values,
        room_bytes=elements * values[0].dtype.itemsize,
    )
