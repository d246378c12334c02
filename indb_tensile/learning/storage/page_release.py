"""Returns the memory of an array to the system page by page while its contents are written elsewhere.

A column and the tensors made from it then never need to be in memory in full at the same time. The pages of rows that
are already encoded are returned, so both together need little more than the larger of the two.
"""

import ctypes
import mmap
from typing import Any

import numpy as np

_DONT_NEED = 4  # MADV_DONTNEED of linux/mman.h: frees the pages, which then read as zeros
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def empties(values: Any) -> bool:
    """Return whether `discard` frees pages of these values.

    It frees none of an array of objects, which owns the objects that it refers to, of what stands in place of an
    array, and of an array that shares another array's memory.
    """
    return (
        isinstance(values, np.ndarray)
        and not values.dtype.hasobject
        and values.flags.owndata
        and values.flags.c_contiguous
    )


def discard(values: Any, start: int, end: int) -> None:
    """Free the pages that contain only rows from `start` to `end`, if the values are an array that can be emptied.

    Afterwards the values of these rows are zero or unchanged.
    """
    if not empties(values) or not len(values):
        return
    row_bytes = values.nbytes // len(values)
    address = values.ctypes.data
    low = -(-(address + start * row_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    high = (address + end * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if low < high:
        _madvise(low, high - low, _DONT_NEED)  # if the system refuses, the pages stay allocated; that is not an error
