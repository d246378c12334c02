"""Computes which part of a split a row is in, with the hashes of learning/storage/splits.py; a test compares both.

The stored rule of a version describes the decision at the time of its training. So rows that were added to the table
since then also have a part.
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
_EPOCH_S = 946_684_800.0  # PostgreSQL's epoch, 2000-01-01, in seconds since 1970
_ARRAY_FORMATS = {"float4[]": "f", "vector": "f", "float8[]": "d", "bool[]": "?"}
_LABEL_END = "\0"


def row_hash(values: Sequence[Any], forms: Sequence[str]) -> int:
    """Return the hash of the values that identify a row.

    `forms` contains the form of each value: integer, float, boolean, text, time, labels or an array.
    """
    hashed = _IDENTITY_SEED
    for value, form in zip(values, forms, strict=True):
        hashed = _mix(hashed ^ (_MISSING if value is None else _mix(_word(value, form))))
    return hashed


def draw(hashed: int, seed: int) -> int:
    """Return the row's draw, a number below 2**53."""
    return _mix(hashed ^ _mix(seed)) >> (64 - _DRAW_BITS)


def seconds(text: str, form: str) -> float:
    """Return the seconds since 1970 for a number of days (date) or microseconds since 2000.

    Accepts infinity and -infinity.
    """
    if text.endswith("infinity"):
        return math.inf if text == "infinity" else -math.inf
    return float(int(text)) * (86_400.0 if form == "date" else 1e-6) + _EPOCH_S


class Membership:
    """Applies the rule of a version's split to rows.

    `part` must be called once per row, because it counts equal rows. `form` is that of the dividing column's values.
    """

    def __init__(self, rule: Json, form: str = "") -> None:
        self._rule = rule
        self._form = form
        self._limits = {value: limits for value, *limits in rule.get("limits", ())}
        self._seen: dict[int, int] | None = None if rule["keyed"] else {}

    def part(self, hashed: int, decisive: Any) -> str | None:
        """Return the part of a row with a target, or None if the dividing column does not name a part."""
        row_draw = draw(self._distinct_hash(hashed), self._rule["seed"])
        kind, limits = self._rule["kind"], [self._rule.get(f"{name}_below", 0) for name in ("test", "valid")]
        if kind in ("group", "stratified") and decisive is None:
            return None
        if kind == "group":
            row_draw = draw(row_hash([decisive], [self._form]), self._rule["seed"])
        elif kind == "stratified":
            limits = self._limits.get(decisive, limits)
        if kind == "last":
            return self._part_by_order(decisive, row_draw)
        if kind == "column":
            named = {True: "test", False: "train"}.get(decisive, decisive)
            valid = named == "train" and row_draw < self._rule["valid_below"]
            return "valid" if valid else named if named in ("train", "valid", "test") else None
        if row_draw < limits[0]:
            return "test"
        return "valid" if row_draw < limits[1] else "train"

    def _part_by_order(self, value: float | None, row_draw: int) -> str | None:
        if value is None or value != value:
            return None
        for name in ("test", "valid"):
            text, least = self._rule[f"{name}_from"]
            if (value, row_draw) >= (int(text) if text.lstrip("-").isdigit() else float(text), least):
                return name
        return "train"

    def _distinct_hash(self, hashed: int) -> int:
        """Return the hash of the row, changed for repeated rows without a key.

        Equal rows are counted, so the second and later rows get different hashes.
        """
        if self._seen is None:
            return hashed
        ordinal = self._seen.get(hashed, 0)
        self._seen[hashed] = ordinal + 1
        return _mix(hashed ^ _mix(ordinal)) if ordinal else hashed


def _word(value: Any, form: str) -> int:
    if form in _ARRAY_FORMATS:
        numbers = _flat(value)
        return _digest(struct.pack(f"<{len(numbers)}{_ARRAY_FORMATS[form]}", *numbers))
    if form == "labels":
        return _digest(_LABEL_END.join(sorted({label for label in _flat(value) if label is not None})).encode())
    if form == "text":
        return _digest(value.encode())
    if form in ("float", "time"):
        packed: int = struct.unpack("<Q", struct.pack("<d", value + 0.0))[0]
        return packed
    return int(value) & _WORD


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    return [element for item in value for element in _flat(item)]


def _digest(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _mix(word: int) -> int:
    """Apply the finalizer of splitmix64 to a word of 64 bits."""
    word = (word + 0x9E37_79B9_7F4A_7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58_476D_1CE4_E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D0_49BB_1331_11EB) & _WORD
    return word ^ (word >> 31)
