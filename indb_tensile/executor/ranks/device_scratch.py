"""Scratch memory of the thread that makes exchanges, for those whose room the step graph does not have.

The memory of a GPU is taken outside the job's regions, because torch serves the regions to the thread of the step
alone. It is kept, since taking and giving it back would let the host wait for the device.
"""

import torch
from torch import Tensor

from indb_tensile import _native


class DeviceScratch:
    """Scratch memory of one device. Each call of `take` gives the same memory again, and more if it is too small."""

    def __init__(self) -> None:
        self._kept: Tensor | None = None

    def take(self, like: Tensor, elements: int) -> Tensor:
        """Return so many elements of this type, with any values in them. In host memory they are new and zeros."""
        if like.is_cpu:
            return like.new_zeros(elements)
        size_bytes = elements * like.itemsize
        if self._kept is None or self._kept.numel() < size_bytes:
            self._kept = None  # given back first, because both may not fit
            _native.cuda_allocate_beside(True)
            try:
                self._kept = torch.empty(size_bytes, dtype=torch.uint8, device=like.device)
            finally:
                _native.cuda_allocate_beside(False)
        return self._kept[:size_bytes].view(like.dtype)
