"""Parses sizes and durations as users write them, with PostgreSQL's units.

A size is a number of bytes, or a number with the unit B, kB, MB, GB or TB, each 1024 times the previous one. A
duration is a number of seconds, or a number with the unit us, ms, s, min, h or d. Letters of sizes may be written in
either case, as no two units differ only in their case. Units of durations are lower-case, as in PostgreSQL.
"""

import math
import re
from fractions import Fraction

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>|B|[kMGT]i?B)", re.IGNORECASE)
_SIZE_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    spelling: 1024**power
    for power, letter in enumerate("kmgt", start=1)
    for spelling in (letter + "b", letter + "ib")
}
_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>us|ms|s|min|h|d)")
_DURATION_UNITS: dict[str, Fraction] = {
    "us": Fraction(1, 1_000_000),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86_400),
}


def parse_bytes(text: str) -> int:
    """Parse a size such as `1536`, `512kB` or `1.5 GB`. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    unit_bytes: int = _SIZE_UNITS[match["unit"].lower()]
    return round(Fraction(match["number"]) * unit_bytes)


def parse_seconds(text: str) -> float:
    """Parse a duration such as `15`, `0.5`, `15s`, `250ms` or `10 min` into seconds. Raises ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if match is not None:
        return float(Fraction(match["number"]) * _DURATION_UNITS[match["unit"]])
    seconds = float(text)
    if not math.isfinite(seconds):
        raise ValueError(text)
    return seconds
