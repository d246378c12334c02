"""How PyTorch's own ways to train bring their batch to the device, and what they save for backward to the host.

On a GPU that is torch's own. On an emulated device memory is the host's, so `save_on_cpu` would keep what it saves
where it is: it is written again with the same hooks that torch's own uses, and copies every saved tensor through the
emulated link, in order with the computation, as torch's own does on a GPU's one stream.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from indb_tensile.executor.device import Device, HostBuffer

SAVE_ON_CPU: Final = "save_on_cpu"


class Transfers(Protocol):
    """How torch's own ways bring a batch to the device, and what backward needs to the host and back."""

    label: str  # of what is kept on the host

    def upload(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Brings this tensor to the device as often as it is called."""
        ...

    def saving(self) -> Any:
        """The context of a forward and backward whose saved tensors are kept on the host."""
        ...

    def close(self) -> None:
        """Give host memory back."""
        ...


class TorchTransfers:
    """Torch's own, from and to pinned memory where the device is a GPU."""

    label = SAVE_ON_CPU

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._pins = place.type == "cuda"

    def upload(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A new tensor each time, as from a data loader that pins its batches."""
        pinned = tensor.pin_memory() if self._pins else tensor
        return lambda: pinned.to(self._place, non_blocking=True, copy=True)

    def saving(self) -> Any:
        """torch.autograd.graph.save_on_cpu."""
        return save_on_cpu(pin_memory=self._pins)

    def close(self) -> None:
        """The pinned batch goes with its last user."""


class LinkTransfers:
    """The same through the lanes of an emulated device."""

    label = f"{SAVE_ON_CPU}, emulated link"

    def __init__(self, device: Device) -> None:
        self._device = device
        self._host: list[HostBuffer] = []

    def upload(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """From a buffer of the host pool."""
        buffer = HostBuffer(self._device.host_allocate(tensor.nbytes))
        self._host.append(buffer)
        self._device.wait(self._device.copy_out(buffer, tensor.data_ptr(), tensor.nbytes))

        def bring() -> torch.Tensor:
            copied = torch.empty_like(tensor)
            self._device.wait(self._device.copy_in(copied.data_ptr(), buffer, tensor.nbytes))
            return copied

        return bring

    def saving(self) -> saved_tensors_hooks:
        """What save_on_cpu does, by way of the link."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def close(self) -> None:
        """Give the batch's buffers back."""
        for buffer in self._host:
            self._device.host_free(buffer)

    def _pack(self, tensor: torch.Tensor) -> "_Packed":
        dense = _dense(tensor.detach())
        packed = _Packed(self._device, dense)
        if dense.nbytes:
            self._device.wait(self._device.copy_out(packed.buffer, dense.data_ptr(), dense.nbytes))
        return packed

    def _unpack(self, packed: "_Packed") -> torch.Tensor:
        tensor = torch.empty_strided(packed.shape, packed.stride, dtype=packed.dtype)
        if tensor.nbytes:
            self._device.wait(self._device.copy_in(tensor.data_ptr(), packed.buffer, tensor.nbytes))
        return tensor


class _Packed:
    """A saved tensor on the host; its memory goes back when autograd lets go of it."""

    def __init__(self, device: Device, tensor: torch.Tensor) -> None:
        self.shape, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype
        self._device = device
        self.buffer = device.host_allocate(max(1, tensor.nbytes))

    def __del__(self) -> None:
        self._device.host_free(self.buffer)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor if its bytes lie in one piece, in whatever order, else a copy of which that is true."""
    like = torch.empty_like(tensor, device="meta")
    return tensor if like.stride() == tensor.stride() else tensor.clone()
