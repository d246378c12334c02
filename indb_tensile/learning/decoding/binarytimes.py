"""Converts PostgreSQL's binary dates, timestamps, times of day and intervals to seconds.

`request/time_texts.py` converts their texts, to results that are equal bit for bit.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.storage.columns import ColumnKind, CopyEncoding
from indb_tensile.request.time_texts import interval_seconds, time_of_day_seconds

Seconds = npt.NDArray[np.float64]

INTERVAL_ITEM, ZONED_ITEM = "V16", "V12"  # the dtypes of values that consist of several integers
_INTERVAL = np.dtype([("time_us", ">i8"), ("days", ">i4"), ("months", ">i4")])
_ZONED = np.dtype([("time_us", ">i8"), ("west_s", ">i4")])
_EPOCH_S = 946_684_800  # 2000-01-01, PostgreSQL's epoch, in seconds since 1970
_LARGEST, _LEAST = (2**63 - 1, 2**31 - 1, 2**31 - 1), (-(2**63), -(2**31), -(2**31))  # infinity since PostgreSQL 17


def to_seconds(values: npt.NDArray[Any], wire: CopyEncoding) -> Seconds:
    """Convert a column of dates, timestamps, times of day or intervals."""
    match wire.kind:
        case ColumnKind.DURATION:
            return _of_intervals(values)
        case ColumnKind.CLOCK:
            return _of_times_of_day(values, zoned=wire.item == ZONED_ITEM)
        case _:
            return _since_1970(values)


def _since_1970(values: npt.NDArray[Any]) -> Seconds:
    """Convert days (4 bytes) or microseconds (8 bytes) since 2000 to seconds since 1970; infinity stays infinite."""
    limits = np.iinfo(values.dtype)
    scale = 86_400.0 if values.dtype.itemsize == 4 else 1e-6
    seconds = values.astype(np.float64) * scale + _EPOCH_S
    seconds[values == limits.max] = np.inf
    seconds[values == limits.min] = -np.inf
    return seconds


def _of_intervals(values: npt.NDArray[Any]) -> Seconds:
    fields = values.view(_INTERVAL)
    return _of_distinct(fields, lambda time_us, days, months: _interval(months, days, time_us))


def _interval(months: int, days: int, time_us: int) -> float:
    if (time_us, days, months) in (_LARGEST, _LEAST):
        return float("inf") if days > 0 else float("-inf")
    return interval_seconds(months, days, time_us)


def _of_times_of_day(values: npt.NDArray[Any], *, zoned: bool) -> Seconds:
    if not zoned:
        return values.astype(np.float64) / 1e6
    return _of_distinct(values.view(_ZONED), lambda time_us, west_s: time_of_day_seconds(time_us, -west_s))


def _of_distinct(fields: npt.NDArray[Any], convert: Any) -> Seconds:
    """Convert each distinct value once, with Python's integers: 64 bits would overflow for long intervals."""
    known: dict[tuple[int, ...], float] = {}
    seconds = np.empty(len(fields))
    for row, value in enumerate(fields.tolist()):
        own = known.get(value)
        if own is None:
            own = known[value] = convert(*value)
        seconds[row] = own
    return seconds
