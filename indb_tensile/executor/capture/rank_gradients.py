"""The gradients of one of several devices, and their sum over all devices by the library's all-reduce.

A device adds up the gradients of its parts in place, like a device that trains alone (update.py). So it sends one
gradient a step, whatever the number of its parts. After the backward pass the devices' gradients are added up in
buckets: a bucket is one exchange of many small gradients, as in Li and others, "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training" (VLDB 2020), section 3.2.3. Which gradients a bucket has follows from the
parameters alone, so devices with different plans make the same exchanges. All devices get the same bits, which are
not those of one device: the library adds in another order than that of the parts (part_gradients.py).
"""

from collections.abc import Sequence
from typing import Any

import torch

from indb_tensile.executor.capture.exchange_operator import all_reduce_
from indb_tensile.executor.capture.part_gradients import buckets, first_loss, refuse_complex
from indb_tensile.executor.capture.update import Gradients, like_parameter, sharing
from indb_tensile.scheduler.graph import Stage

# A bucket is copied together, so an exchange needs scratch of this size. Larger gradients are exchanged in place.
BUCKET_BYTES = 4 << 20

_aten = torch.ops.aten


class RankGradients(Gradients):
    """The sums of the gradients of this device's parts; this device may have no part."""

    def totals(
        self, names: Sequence[str], losses: list[torch.Tensor], loss_type: torch.dtype
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Record the exchanges. Return the loss and the gradient of each named parameter, over all devices."""
        loss = first_loss(self._recorder, losses, loss_type)
        for other in losses[1:]:
            loss = self._call(_aten.add.Tensor, loss, other)
        own = {name: self._own(name) for name in names}
        shared = sharing(self._recorder, own)
        gradients = {name: self._call(_aten.clone.default, g) if name in shared else g for name, g in own.items()}
        values = {"loss": loss} | {f"of {name}": value for name, value in gradients.items()}
        for bucket in buckets(values, BUCKET_BYTES):
            self._call(all_reduce_, [values[key] for key in bucket])
        # The host copies the loss right after the operator that makes it, so that is to be one after the exchange.
        return self._call(_aten.clone.default, loss, name="sum_loss"), gradients

    def _own(self, name: str) -> torch.Tensor:
        parameter = self._recorder.fake(name)
        refuse_complex(name, parameter)
        if name in self:
            return like_parameter(self._recorder, name, self[name])
        kind: dict[str, Any] = {"dtype": parameter.dtype, "device": parameter.device}
        zeros: torch.Tensor = self._call(
            _aten.empty_strided.default, list(parameter.shape), list(parameter.stride()), name=f"grad_{name}", **kind
        )
        self._call(_aten.zero_.default, zeros)
        return zeros

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        return self._recorder.call(Stage.BACKWARD, target, *args, **kwargs)
