"""Which rows train, validate and test: a seeded hash of each row's identity decides, or a column of the table.

A row's draw is a number below 2**53 that depends on its primary key, else on its values, and on the seed: never on
its position. So a row stays where it is when the table is read again or grows, and two models of one seed are judged
on the same rows. Rows without a key that are equal are told apart by counting them, in any order, since they may
stand for one another. What was decided is kept as a rule of a few numbers (`Parts.rule`), by which `tensile_split`
says of each row which part it is in: `sql_api/membership.py` computes the same with the standard library.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, RequestError
from indb_tensile.learning.columns import ColumnData, Kind, Mask, Rows
from indb_tensile.learning.parameters import Specification, check_parameters

Hashes = npt.NDArray[np.uint64]

SPLIT: dict[str, Specification] = {
    "test_size": {"type": "number", "above": 0, "below": 1, "default": 0.15},
    "valid_size": {"type": "number", "minimum": 0, "below": 1, "default": 0.15},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1, "default": 0},
    "last": {"type": "number", "above": 0, "below": 1, "default": None},
    "by": {"type": "text", "default": None},
    "column": {"type": "text", "default": None},
}
PARTS = ("train", "valid", "test")
ORDERED = (Kind.DATE, Kind.TIME, Kind.INTEGER, Kind.FLOAT)  # what "by" may be
NAMING = (Kind.BOOLEAN, Kind.TEXT)  # what "column" may be

_IDENTITY_SEED = 0x7E45_11E0_7E45_11E0  # any constant: it makes row hashes ours
_MISSING = 0x9AE1_6A3B_2F90_404F  # what NULL hashes to; unlike any small number
_DRAW_BITS = 53  # of a double's mantissa, so that a share of the draws is exact
_FEWEST_TRAIN_ROWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Shares of the table, by default 70 % to train, 15 % to validate, 15 % to test.

    With `last`, that share of the rows with the greatest values of the column `by` tests, and the rows just before
    them validate. With `column`, that column says it: true or 'test' tests, 'valid' validates; where no row is named
    'valid', `valid_size` is a share of the rows that do not test.
    """

    test_size: float = 0.15
    valid_size: float = 0.15
    seed: int = 0
    last: float | None = None
    by: str | None = None
    column: str | None = None

    def __post_init__(self) -> None:
        test_size = self.test_size if self.last is None else self.last
        if self.column is None and test_size + self.valid_size >= 1:
            name = "test_size" if self.last is None else "last"
            sizes = f"{name} {test_size} and valid_size {self.valid_size}"
            raise RequestError(f"split: {sizes} leave no rows to train on", hint="Keep their sum below 1.")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "Split":
        """Raises RequestError for an unknown name, a wrong type, a value out of range or a contradiction."""
        options = check_parameters("split", given, SPLIT)
        if (options["last"] is None) != (options["by"] is None):
            raise RequestError('split: "last" and "by" are given together', hint=_BY_HINT)
        for name, others in (("column", ("last", "test_size")), ("last", ("test_size",))):
            both = [other for other in others if given.get(name) is not None and given.get(other) is not None]
            if both:
                raise RequestError(f'split: "{name}" and "{both[0]}" contradict each other', hint="Leave one out.")
        return cls(**options)

    @property
    def divider(self) -> str | None:
        """The column that decides about rows, if there is one."""
        return self.by or self.column


_BY_HINT = 'Give both, as in split => \'{"last": 0.2, "by": "created_at"}\'.'


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """Positions of the rows of each part, ascending.

    `rule` has what decided, as plain data. `ranked` says that a part would have been empty by its hashes alone, so
    that rows were chosen by the rank of their draws.
    """

    train: Rows
    valid: Rows
    test: Rows
    rule: dict[str, Any] = field(default_factory=dict)
    ranked: bool = False


def divide(row_hash: Hashes, split: Split, decisive: ColumnData | None = None, *, keyed: bool = True) -> Parts:
    """Raises DataError where no row falls to training or to the test; `valid` may be empty.

    `decisive` has the values of `split.divider`. Rows without a key (`keyed` False) may be equal: they are spread.
    """
    drawn = draws(row_hash if keyed else told_apart(row_hash), split.seed)
    if split.by is not None:
        return _last(drawn, split, _known("by", split.by, decisive, ORDERED))
    if split.column is not None:
        return _named(drawn, split, _known("column", split.column, decisive, NAMING))
    return _drawn(drawn, split)


def draws(row_hash: Hashes, seed: int) -> Hashes:
    """Each row's number below 2**53."""
    return _mixed(row_hash ^ _mixed(np.array([seed], np.uint64))) >> np.uint64(64 - _DRAW_BITS)


def told_apart(row_hash: Hashes) -> Hashes:
    """The same hashes, except that the second of equal rows, the third and so on each have another one."""
    order = np.argsort(row_hash, kind="stable")
    ordered = row_hash[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    if first.all():
        return row_hash
    places = np.arange(len(ordered))
    ordinal = (places - np.maximum.accumulate(np.where(first, places, 0))).astype(np.uint64)
    apart = np.empty_like(row_hash)
    apart[order] = np.where(ordinal == 0, ordered, _mixed(ordered ^ _mixed(ordinal)))
    return apart


def _drawn(drawn: Hashes, split: Split) -> Parts:
    """The lowest draws test, those after them validate."""
    limits = _limit(split.test_size), _limit(split.test_size + split.valid_size)
    counts = [int((drawn < limit).sum()) for limit in limits]
    wanted = _sizes(len(drawn), counts[0], counts[1] - counts[0], validates=split.valid_size > 0)
    ends = wanted[0], wanted[0] + wanted[1]
    if ends != tuple(counts) and len(drawn):
        ranks = [int(draw) for draw in np.sort(drawn)] + [1 << _DRAW_BITS]
        limits = ranks[ends[0]], ranks[ends[1]]
    test = drawn < limits[0]
    valid = ~test & (drawn < limits[1])
    rule = {"kind": "hash", "seed": split.seed, "test_below": limits[0], "valid_below": limits[1]}
    return _parts(test, valid, split, rule, ranked=ends != tuple(counts))


def _last(drawn: Hashes, split: Split, by: ColumnData) -> Parts:
    """The greatest values test, those before them validate; among equal values the draw decides."""
    assert split.last is not None
    rows = len(drawn)
    test_rows, valid_rows = round(split.last * rows), round(split.valid_size * rows)
    wanted = _sizes(rows, test_rows, valid_rows, validates=split.valid_size > 0)
    order = np.lexsort((drawn, by.values))
    test, valid = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    test[order[rows - wanted[0] :]] = True
    valid[order[rows - wanted[0] - wanted[1] : rows - wanted[0]]] = True

    def bound(rank: int) -> list[Any]:
        row = order[rank]
        return [repr(by.values[row].item()), int(drawn[row])]  # as text: JSON has no infinity

    test_from = bound(rows - wanted[0])
    valid_from = bound(rows - sum(wanted)) if wanted[1] else test_from
    rule = {"kind": "last", "seed": split.seed, "by": split.by, "test_from": test_from, "valid_from": valid_from}
    return _parts(test, valid, split, rule, ranked=wanted != (test_rows, valid_rows))


def _named(drawn: Hashes, split: Split, column: ColumnData) -> Parts:
    """As the column says; without a row named 'valid', the lowest draws of the rows that do not test validate."""
    if column.kind is Kind.BOOLEAN:
        test = column.values.astype(np.bool_)
        valid = np.zeros(len(test), np.bool_)
    else:
        strange = ~np.isin(column.values.astype(str), PARTS)
        if strange.any():
            raise DataError(
                f'split: column "{split.column}" is neither train, valid nor test in {int(strange.sum())} rows',
                hint="Set it to 'train', 'valid' or 'test' in each row, or name a boolean column.",
            )
        test, valid = column.values == "test", column.values == "valid"
    valid_below, ranked = 0, False
    if not valid.any() and split.valid_size > 0:
        rest = drawn[~test]
        valid_below = _limit(split.valid_size)
        count = int((rest < valid_below).sum())
        _, wanted = _sizes(len(rest) + 1, 1, count, validates=True)
        if ranked := wanted != count:
            valid_below = int(np.sort(rest)[wanted])
        valid = ~test & (drawn < valid_below)
    rule = {"kind": "column", "seed": split.seed, "column": split.column, "valid_below": valid_below}
    return _parts(test, valid, split, rule, ranked=ranked)


def _parts(test: Mask, valid: Mask, split: Split, rule: dict[str, Any], *, ranked: bool) -> Parts:
    train = ~test & ~valid
    for name, part in (("test", test), ("train", train)):
        if not part.any():
            raise _empty(name, len(test), split)
    positions = (np.flatnonzero(part) for part in (train, valid, test))
    return Parts(**dict(zip(PARTS, positions, strict=True)), rule=rule, ranked=ranked)


def _sizes(rows: int, test: int, valid: int, *, validates: bool) -> tuple[int, int]:
    """How many rows test and validate: as many as given, unless a part had none or too few were left to train.

    No part is empty where there are four rows, two of which train; of three rows none validates.
    """
    least_valid = int(validates and rows >= len(PARTS) - 1 + _FEWEST_TRAIN_ROWS)
    test, valid = max(test, 1), max(valid, least_valid)
    while test + valid > max(rows - _FEWEST_TRAIN_ROWS, 1) and (test > 1 or valid > least_valid):
        test, valid = (test - 1, valid) if test > 1 and (test >= valid or valid <= least_valid) else (test, valid - 1)
    return test, valid


def _limit(share: float) -> int:
    """The draws below it are this share of all."""
    return math.ceil(share * 2.0**_DRAW_BITS)


def _known(option: str, name: str, data: ColumnData | None, kinds: Sequence[Kind]) -> ColumnData:
    """The column that decides. Raises RequestError for a wrong kind, DataError where it says nothing of a row."""
    if data is None or data.kind not in kinds:
        kind = "missing" if data is None else f"of kind {data.kind}"
        raise RequestError(
            f'split: column "{name}" is {kind}', hint=f'"{option}" names a column of kind {" or ".join(kinds)}.'
        )
    unknown = data.missing | np.isnan(data.values) if data.kind is Kind.FLOAT else data.missing
    if unknown.any():
        raise DataError(
            f'split: column "{name}" is NULL in {int(unknown.sum())} of the {len(unknown)} rows with a target',
            detail="It decides which part each row is in.",
            hint="Fill it, or set the target of these rows to NULL to leave them out.",
        )
    return data


def _empty(name: str, rows: int, split: Split) -> DataError:
    message = f"none of the {rows} rows falls to the {name} part"
    if split.column is not None:
        hint = "It must name rows of both: true or 'test' for those that test."
        return DataError(message, detail=f'Column "{split.column}" decides.', hint=hint)
    detail = f"Shares: test {split.last or split.test_size}, valid {split.valid_size}, seed {split.seed}."
    return DataError(message, detail=detail, hint="Add rows: three are the fewest to train and test on.")


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
        case Kind.FLOAT | Kind.DATE | Kind.TIME:
            words = (column.values.astype(np.float64, copy=False) + 0.0).view(np.uint64)  # adding zero makes -0.0 0.0
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
