"""Transfers of PyTorch's own ways to train: the batch to the device, and saved tensors to the host and back.

On a GPU torch's own transfers are used. An emulated device's memory is the host's, so `save_on_cpu` would leave saved
tensors in place. It is therefore implemented again with the same hooks as torch's own. The hooks copy every saved
tensor through the emulated link, in order with the computation, as torch's own does on a GPU's one stream.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from indb_tensile.device.device import Device, HostBuffer

SAVE_ON_CPU: Final = "save_on_cpu"


class Transfers(Protocol):
    """Moves the batch to the device, and the tensors that the backward pass needs to the host and back."""

    label: str  # name of the contender that keeps saved tensors on the host

    def upload(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Return a function that brings this tensor to the device at each call."""
        ...

    def offload_saved_tensors(self) -> Any:
        """Return a context manager for a forward and backward pass whose saved tensors are kept on the host."""
        ...

    def close(self) -> None:
        """Release host memory."""
        ...


class TorchTransfers:
    """Torch's own transfers, from and to pinned memory if the device is a GPU."""

    label = SAVE_ON_CPU

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._pins = place.type == "cuda"

    def upload(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Return a function that copies the tensor anew each time, as a data loader that pins its batches does."""
        pinned = tensor.pin_memory() if self._pins else tensor
        return lambda: pinned.to(self._place, non_blocking=True, copy=True)

    def offload_saved_tensors(self) -> Any:
        """Return torch.autograd.graph.save_on_cpu."""
        return save_on_cpu(pin_memory=self._pins)

    def close(self) -> None:
        """Do nothing: the pinned batch is released with its last reference."""


class LinkTransfers:
    """Transfers through the lanes of an emulated device."""

    label = f"{SAVE_ON_CPU}, emulated link"

    def __init__(self, device: Device) -> None:
        self._device = device
        self._host: list[HostBuffer] = []

    def upload(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Return a function that copies the tensor from a buffer of the host pool."""
        buffer = HostBuffer(self._device.host_allocate(tensor.nbytes))
        self._host.append(buffer)
        self._device.wait(self._device.copy_out(buffer, tensor.data_ptr(), tensor.nbytes))

        def bring() -> torch.Tensor:
            copied = torch.empty_like(tensor)
            self._device.wait(self._device.copy_in(copied.data_ptr(), buffer, tensor.nbytes))
            return copied

        return bring

    def offload_saved_tensors(self) -> saved_tensors_hooks:
        """Return the hooks of save_on_cpu, through the link."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def close(self) -> None:
        """Release the batch's buffers."""
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
    """A saved tensor on the host. Its memory is released when autograd drops it."""

    def __init__(self, device: Device, tensor: torch.Tensor) -> None:
        self.shape, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype
        self._device = device
        self.buffer = device.host_allocate(max(1, tensor.nbytes))

    def __del__(self) -> None:
        self._device.host_free(self.buffer)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if its bytes are contiguous in any order, else a copy for which that is true."""
    like = torch.empty_like(tensor, device="meta")
    return tensor if like.stride() == tensor.stride() else tensor.clone()
