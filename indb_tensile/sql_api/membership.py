"""Which part of a split a row is in: the hashes of learning/splits.py, value for value, as a test compares.

A version's rule has what decided when it was trained, so a table that has grown since is answered for as well.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Any

from .spi import Json

_WORD = (1 << 64) - 1
_IDENTITY_SEED = 0x7E45_11E0_7E45_11E0
_MISSING = 0x9AE1_6A3B_2F90_404F
_DRAW_BITS = 53
_SINCE_1970_S = 946_684_800.0  # of the year 2000, from which PostgreSQL counts
_ITEMS = {"float4[]": "f", "float8[]": "d"}


def row_hash(values: Sequence[Any], forms: Sequence[str]) -> int:
    """The hash of a row's identity. A form says what a value is: integer, float, boolean, text, time or an array."""
    hashed = _IDENTITY_SEED
    for value, form in zip(values, forms, strict=True):
        hashed = _mixed(hashed ^ (_MISSING if value is None else _mixed(_word(value, form))))
    return hashed


def draw(hashed: int, seed: int) -> int:
    """The row's number below 2**53."""
    return _mixed(hashed ^ _mixed(seed)) >> (64 - _DRAW_BITS)


def seconds(text: str, form: str) -> float:
    """Seconds since 1970 of days (date) or microseconds since 2000, or of an infinity."""
    if text.endswith("infinity"):
        return math.inf if text == "infinity" else -math.inf
    return float(int(text)) * (86_400.0 if form == "date" else 1e-6) + _SINCE_1970_S


class Membership:
    """The rule of a version's split at work on rows, each of which is asked for once."""

    def __init__(self, rule: Json) -> None:
        self._rule = rule
        self._seen: dict[int, int] | None = None if rule["keyed"] else {}

    def part(self, hashed: int, decisive: Any) -> str | None:
        """The part of a row with a target; None where the column that decides says nothing."""
        drawn = draw(self._told_apart(hashed), self._rule["seed"])
        if self._rule["kind"] == "last":
            return self._by_order(decisive, drawn)
        if self._rule["kind"] == "column":
            named = {True: "test", False: "train"}.get(decisive, decisive)
            valid = named == "train" and drawn < self._rule["valid_below"]
            return "valid" if valid else named if named in ("train", "valid", "test") else None
        if drawn < self._rule["test_below"]:
            return "test"
        return "valid" if drawn < self._rule["valid_below"] else "train"

    def _by_order(self, value: float | None, drawn: int) -> str | None:
        if value is None or value != value:
            return None
        for name in ("test", "valid"):
            text, least = self._rule[f"{name}_from"]
            if (value, drawn) >= (int(text) if text.lstrip("-").isdigit() else float(text), least):
                return name
        return "train"

    def _told_apart(self, hashed: int) -> int:
        """Equal rows without a key are counted: the second and later ones have hashes of their own."""
        if self._seen is None:
            return hashed
        ordinal = self._seen.get(hashed, 0)
        self._seen[hashed] = ordinal + 1
        return _mixed(hashed ^ _mixed(ordinal)) if ordinal else hashed


def _word(value: Any, form: str) -> int:
    if form in _ITEMS:
        numbers = _flat(value)
        return _digest(struct.pack(f"<{len(numbers)}{_ITEMS[form]}", *numbers))
    if form == "text":
        return _digest(value.encode())
    if form in ("float", "time"):
        packed: int = struct.unpack("<Q", struct.pack("<d", value + 0.0))[0]
        return packed
    return int(value) & _WORD


def _flat(value: Any) -> list[float]:
    if not isinstance(value, list):
        return [value]
    return [number for item in value for number in _flat(item)]


def _digest(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _mixed(word: int) -> int:
    """The finalizer of splitmix64, on words of 64 bits."""
    word = (word + 0x9E37_79B9_7F4A_7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58_476D_1CE4_E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D0_49BB_1331_11EB) & _WORD
    return word ^ (word >> 31)
