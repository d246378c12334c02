"""Gives an array's memory back to the system bit by bit, while what it held is written somewhere else.

A column as it was read and the tensors made of it need not both be there in full: of what is encoded already the
pages are handed back, so that both together take little more than the larger of them.
"""

import ctypes
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

_DONT_NEED = 4  # MADV_DONTNEED of linux/mman.h: the pages are gone, and read as zeros
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def discard(values: npt.NDArray[Any], start: int, end: int) -> None:
    """Give back the whole pages of the rows from `start` to `end`, whose values are zeros or unchanged afterwards.

    Does nothing for arrays of objects, which own what they point to, and for arrays that share another one's memory.
    """
    if values.dtype.hasobject or not values.flags.owndata or not values.flags.c_contiguous or not len(values):
        return
    row_bytes = values.nbytes // len(values)
    address = values.ctypes.data
    low = -(-(address + start * row_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    high = (address + end * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if low < high:
        _madvise(low, high - low, _DONT_NEED)  # where it is refused the pages stay, which is no fault


def discards(values: npt.NDArray[Any]) -> bool:
    """Whether `discard` gives back anything of this array."""
    return bool(not values.dtype.hasobject and values.flags.owndata and values.flags.c_contiguous and np.size(values))
