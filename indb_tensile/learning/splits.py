"""Which rows train, validate and test: a seeded hash of each row's identity decides, never its position.

So a row stays where it is when the table is read again or grows, and two models of one seed are judged on the
same rows.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, RequestError
from indb_tensile.learning.columns import ColumnData, Kind, Rows
from indb_tensile.learning.parameters import Specification, check_parameters

Hashes = npt.NDArray[np.uint64]

SPLIT: dict[str, Specification] = {
    "test_size": {"type": "number", "above": 0, "below": 1, "default": 0.15},
    "valid_size": {"type": "number", "minimum": 0, "below": 1, "default": 0.15},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1, "default": 0},
}

_IDENTITY_SEED = 0x7E45_11E0_7E45_11E0  # any constant: it makes row hashes ours
_MISSING = 0x9AE1_6A3B_2F90_404F  # what NULL hashes to; unlike any small number


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Shares of the table, by default 70 % to train, 15 % to validate, 15 % to test."""

    test_size: float = 0.15
    valid_size: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if self.test_size + self.valid_size >= 1:
            sizes = f"test_size {self.test_size} and valid_size {self.valid_size}"
            raise RequestError(f"split: {sizes} leave no rows to train on", hint="Keep their sum below 1.")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "Split":
        """Raises RequestError for an unknown name, a wrong type or a value out of range."""
        return cls(**check_parameters("split", given, SPLIT))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """Positions of the rows of each part, ascending."""

    train: Rows
    valid: Rows
    test: Rows


def divide(row_hash: Hashes, split: Split) -> Parts:
    """Raises DataError where no row falls to training or to the test; `valid` may be empty."""
    drawn = _mixed(row_hash ^ _mixed(np.array([split.seed], np.uint64))) >> np.uint64(11)
    share = drawn.astype(np.float64) * 2.0**-53
    test = share < split.test_size
    valid = ~test & (share < split.test_size + split.valid_size)
    train = ~test & ~valid
    for name, part in (("test", test), ("train", train)):
        if not part.any():
            raise _empty(name, row_hash, split)
    return Parts(train=np.flatnonzero(train), valid=np.flatnonzero(valid), test=np.flatnonzero(test))


def _empty(name: str, row_hash: Hashes, split: Split) -> DataError:
    detail = f"Shares: test {split.test_size}, valid {split.valid_size}, seed {split.seed}."
    hint = 'Add rows, or change the shares or the seed, as in split => \'{"test_size": 0.3, "seed": 1}\'.'
    different = len(np.unique(row_hash))
    if different < len(row_hash):
        detail += f" Rows that are equal stay together, and {different} differ."
        hint = f"Give the table a primary key, which tells its rows apart. {hint}"
    return DataError(f"none of the {len(row_hash)} rows falls to the {name} part", detail=detail, hint=hint)


def row_hashes(identity: Sequence[ColumnData], rows: int) -> Hashes:
    """One hash per row of these columns' values, in order."""
    hashes = np.full(rows, _IDENTITY_SEED, np.uint64)
    for column in identity:
        hashes ^= _hashed(column)
        _mix(hashes)
    return hashes


def _hashed(column: ColumnData) -> Hashes:
    match column.kind:
        case Kind.TEXT:
            words = _texts(column)
        case Kind.ARRAY:
            words = np.fromiter((_digest(row.tobytes()) for row in column.values), np.uint64, len(column.values))
        case Kind.FLOAT | Kind.TIME:
            words = (column.values + 0.0).view(np.uint64)  # adding zero makes -0.0 equal 0.0
        case _:
            words = column.values.astype(np.int64).view(np.uint64)
    _mix(words)
    if column.missing.any():
        words[column.missing] = _MISSING
    return words


def _texts(column: ColumnData) -> Hashes:
    known: dict[str | None, int] = {None: 0}
    for text in column.values:
        if text not in known:
            known[text] = _digest(text.encode())
    return np.fromiter((known[text] for text in column.values), np.uint64, len(column.values))


def _digest(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _mixed(words: Hashes) -> Hashes:
    mixed = words.copy()
    _mix(mixed)
    return mixed


def _mix(words: Hashes) -> None:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014), in place: every input bit reaches every output bit."""
    spare = np.empty_like(words)
    words += np.uint64(0x9E37_79B9_7F4A_7C15)  # arrays of integers wrap around silently
    for shift, factor in ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)):
        words ^= np.right_shift(words, np.uint64(shift), out=spare)
        words *= np.uint64(factor)
    words ^= np.right_shift(words, np.uint64(31), out=spare)
