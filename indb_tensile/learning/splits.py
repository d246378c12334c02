"""Divides rows into training, validation and test rows: by a seeded hash of each row, or by a column of the table.

The draw of a row is a number below 2**53. It depends on the seed and on the row's primary key, or on its values if
there is no key, but never on the row's position. So a row stays in its part when the table is read again or grows,
and two models of one seed are evaluated on the same rows. Equal rows without a key are counted and get different
draws; their order does not matter, because equal rows are interchangeable. The decision is stored as a rule of a few
numbers (`Parts.rule`), from which `tensile_split` computes the part of each row: `sql_api/split_membership.py`
contains the same computation with the standard library.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, MissingColumnError
from indb_tensile.learning.columns import ColumnData, ColumnKind, Mask, Rows
from indb_tensile.request.parameter_rules import fill_defaults
from indb_tensile.request.split_rules import PARTS, SPLIT, check_split, check_split_column, require_order

Hashes = npt.NDArray[np.uint64]

_IDENTITY_SEED = 0x7E45_11E0_7E45_11E0  # an arbitrary constant, so that row hashes differ from other hashes
_MISSING = 0x9AE1_6A3B_2F90_404F  # the hash of NULL; differs from the hashes of small numbers
_DRAW_BITS = 53  # bits of a double's mantissa, so that a share of the draws is exact
_FEWEST_TRAIN_ROWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The shares of the parts, by default 70 % training, 15 % validation and 15 % test rows.

    With `last`, the test rows are that share of the rows that have the greatest values in the column `by`, and the
    validation rows are the rows just before them. With `column`, that column names the part: true or 'test' for test
    rows, 'valid' for validation rows. If no row is named 'valid', `valid_size` is a share of the rows that do not
    test.
    """

    test_size: float = SPLIT["test_size"]["default"]
    valid_size: float = SPLIT["valid_size"]["default"]
    seed: int = SPLIT["seed"]["default"]
    last: float | None = None
    by: str | None = None
    column: str | None = None

    @classmethod
    def parse(cls, request: Mapping[str, Any]) -> "Split":
        """Check the options of a split. Raises RequestError for an invalid or contradictory option."""
        options = check_split(request)
        require_order(options)
        return cls(**fill_defaults(options, SPLIT))

    @property
    def divider(self) -> str | None:
        """Return the column that decides the parts, or None if the hash decides."""
        return self.by or self.column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """The positions of the rows of each part, ascending.

    `rule` describes the decision as plain data. `ranked` is true if the hashes alone would have left a part empty or
    too small, so that rows were chosen by the rank of their draws.
    """

    train: Rows
    valid: Rows
    test: Rows
    rule: dict[str, Any] = field(default_factory=dict)
    ranked: bool = False


def divide(row_hash: Hashes, split: Split, decisive: ColumnData | None = None, *, keyed: bool = True) -> Parts:
    """Divide the rows into parts. `valid` may be empty.

    `decisive` contains the values of `split.divider`. If `keyed` is False, equal rows get different draws. Raises
    DataError if no row falls to the training part or to the test part.
    """
    drawn = draws(row_hash if keyed else distinct_hashes(row_hash), split.seed)
    if split.by is not None:
        return _divide_by_order(drawn, split, _require_divider("by", split.by, decisive))
    if split.column is not None:
        return _divide_by_column(drawn, split, _require_divider("column", split.column, decisive))
    return _divide_by_hash(drawn, split)


def draws(row_hash: Hashes, seed: int) -> Hashes:
    """Return each row's draw, a number below 2**53."""
    return _mix_copy(row_hash ^ _mix_copy(np.array([seed], np.uint64))) >> np.uint64(64 - _DRAW_BITS)


def distinct_hashes(row_hash: Hashes) -> Hashes:
    """Return the hashes, in which the second and further occurrences of an equal hash are changed."""
    order = np.argsort(row_hash, kind="stable")
    ordered = row_hash[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    if first.all():
        return row_hash
    places = np.arange(len(ordered))
    ordinal = (places - np.maximum.accumulate(np.where(first, places, 0))).astype(np.uint64)
    distinct = np.empty_like(row_hash)
    distinct[order] = np.where(ordinal == 0, ordered, _mix_copy(ordered ^ _mix_copy(ordinal)))
    return distinct


def _divide_by_hash(row_draws: Hashes, split: Split) -> Parts:
    """Divide by the draws: rows with the lowest draws test, rows with the next draws validate."""
    limits = _draw_limit(split.test_size), _draw_limit(split.test_size + split.valid_size)
    counts = [int((row_draws < limit).sum()) for limit in limits]
    sizes = _sizes(len(row_draws), counts[0], counts[1] - counts[0], validates=split.valid_size > 0)
    ends = sizes[0], sizes[0] + sizes[1]
    if ends != tuple(counts) and len(row_draws):
        ranks = [int(draw) for draw in np.sort(row_draws)] + [1 << _DRAW_BITS]
        limits = ranks[ends[0]], ranks[ends[1]]
    test = row_draws < limits[0]
    valid = ~test & (row_draws < limits[1])
    rule = {"kind": "hash", "seed": split.seed, "test_below": limits[0], "valid_below": limits[1]}
    return _parts(test, valid, split, rule, ranked=ends != tuple(counts))


def _divide_by_order(row_draws: Hashes, split: Split, by: ColumnData) -> Parts:
    """Divide by the order of a column: the greatest values test, the values before them validate.

    Among equal values the draw decides.
    """
    assert split.last is not None
    rows = len(row_draws)
    test_rows, valid_rows = round(split.last * rows), round(split.valid_size * rows)
    sizes = _sizes(rows, test_rows, valid_rows, validates=split.valid_size > 0)
    order = np.lexsort((row_draws, by.values))
    test, valid = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    test[order[rows - sizes[0] :]] = True
    valid[order[rows - sizes[0] - sizes[1] : rows - sizes[0]]] = True

    def bound(rank: int) -> list[Any]:
        row = order[rank]
        return [repr(by.values[row].item()), int(row_draws[row])]  # as text, because JSON has no infinity

    test_from = bound(rows - sizes[0])
    valid_from = bound(rows - sum(sizes)) if sizes[1] else test_from
    rule = {"kind": "last", "seed": split.seed, "by": split.by, "test_from": test_from, "valid_from": valid_from}
    return _parts(test, valid, split, rule, ranked=sizes != (test_rows, valid_rows))


def _divide_by_column(row_draws: Hashes, split: Split, column: ColumnData) -> Parts:
    """Divide as the column says.

    If no row is named 'valid', the lowest draws of the rows that do not test validate.
    """
    if column.kind is ColumnKind.BOOLEAN:
        test = column.values.astype(np.bool_)
        valid = np.zeros(len(test), np.bool_)
    else:
        unknown = ~np.isin(column.values.astype(str), PARTS)
        if unknown.any():
            raise DataError(
                f'split: column "{split.column}" is neither train, valid nor test in {int(unknown.sum())} rows',
                hint="Set it to 'train', 'valid' or 'test' in each row, or name a boolean column.",
            )
        test, valid = column.values == "test", column.values == "valid"
    valid_below, ranked = 0, False
    if not valid.any() and split.valid_size > 0:
        rest = row_draws[~test]
        valid_below = _draw_limit(split.valid_size)
        count = int((rest < valid_below).sum())
        _, valid_rows = _sizes(len(rest) + 1, 1, count, validates=True)
        if ranked := valid_rows != count:
            valid_below = int(np.sort(rest)[valid_rows])
        valid = ~test & (row_draws < valid_below)
    rule = {"kind": "column", "seed": split.seed, "column": split.column, "valid_below": valid_below}
    return _parts(test, valid, split, rule, ranked=ranked)


def _parts(test: Mask, valid: Mask, split: Split, rule: dict[str, Any], *, ranked: bool) -> Parts:
    train = ~test & ~valid
    for name, part in (("test", test), ("train", train)):
        if not part.any():
            raise _empty_part_error(name, len(test), split)
    positions = (np.flatnonzero(part) for part in (train, valid, test))
    return Parts(**dict(zip(PARTS, positions, strict=True)), rule=rule, ranked=ranked)


def _sizes(rows: int, test: int, valid: int, *, validates: bool) -> tuple[int, int]:
    """Return the numbers of test and validation rows.

    These are the requested numbers, unless a part would be empty or too few rows would be left for training. With
    four or more rows no part is empty and two rows train; with three rows none validates.
    """
    least_valid = int(validates and rows >= len(PARTS) - 1 + _FEWEST_TRAIN_ROWS)
    test, valid = max(test, 1), max(valid, least_valid)
    while test + valid > max(rows - _FEWEST_TRAIN_ROWS, 1) and (test > 1 or valid > least_valid):
        test, valid = (test - 1, valid) if test > 1 and (test >= valid or valid <= least_valid) else (test, valid - 1)
    return test, valid


def _draw_limit(share: float) -> int:
    """Return the limit below which this share of all draws lies."""
    return math.ceil(share * 2.0**_DRAW_BITS)


def _require_divider(option: str, name: str, data: ColumnData | None) -> ColumnData:
    """Return the column that decides the parts.

    Raises RequestError for a column of the wrong kind, DataError if the column is NULL in a row.
    """
    if data is None:
        raise MissingColumnError(f'split: column "{name}" does not exist in the table', hint="Name another column.")
    check_split_column(option, f'"{name}"', data.kind, f"is of kind {data.kind}")
    unknown = data.missing | np.isnan(data.values) if data.kind is ColumnKind.FLOAT else data.missing
    if unknown.any():
        raise DataError(
            f'split: column "{name}" is NULL in {int(unknown.sum())} of the {len(unknown)} rows with a target',
            detail="It decides which part each row is in.",
            hint="Fill it, or set the target of these rows to NULL to leave them out.",
        )
    return data


def _empty_part_error(name: str, rows: int, split: Split) -> DataError:
    message = f"none of the {rows} rows falls to the {name} part"
    if split.column is not None:
        hint = "It must name rows of both: true or 'test' for those that test."
        return DataError(message, detail=f'Column "{split.column}" decides.', hint=hint)
    detail = f"Shares: test {split.last or split.test_size}, valid {split.valid_size}, seed {split.seed}."
    return DataError(message, detail=detail, hint="Add rows: three are the fewest to train and test on.")


def row_hashes(identity: Sequence[ColumnData], rows: int) -> Hashes:
    """Return one hash per row, computed from these columns' values in their order."""
    hashes = np.full(rows, _IDENTITY_SEED, np.uint64)
    for column in identity:
        hashes ^= _column_hashes(column)
        _mix(hashes)
    return hashes


def _column_hashes(column: ColumnData) -> Hashes:
    match column.kind:
        case ColumnKind.TEXT:
            words = _text_hashes(column)
        case ColumnKind.ARRAY:
            words = np.fromiter((_digest(row.tobytes()) for row in column.values), np.uint64, len(column.values))
        case ColumnKind.FLOAT | ColumnKind.DATE | ColumnKind.TIME:
            # Adding zero turns -0.0 into 0.0.
            words = (column.values.astype(np.float64, copy=False) + 0.0).view(np.uint64)
        case _:
            words = column.values.astype(np.int64).view(np.uint64)
    _mix(words)
    if column.missing.any():
        words[column.missing] = _MISSING
    return words


def _text_hashes(column: ColumnData) -> Hashes:
    known: dict[str | None, int] = {None: 0}
    for text in column.values:
        if text not in known:
            known[text] = _digest(text.encode())
    return np.fromiter((known[text] for text in column.values), np.uint64, len(column.values))


def _digest(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _mix_copy(words: Hashes) -> Hashes:
    mixed = words.copy()
    _mix(mixed)
    return mixed


def _mix(words: Hashes) -> None:
    """Apply the finalizer of splitmix64 in place (Steele, Lea, Flood 2014).

    Every input bit affects every output bit.
    """
    spare = np.empty_like(words)
    words += np.uint64(0x9E37_79B9_7F4A_7C15)  # integer arrays wrap around without a warning
    for shift, factor in ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)):
        words ^= np.right_shift(words, np.uint64(shift), out=spare)
        words *= np.uint64(factor)
    words ^= np.right_shift(words, np.uint64(31), out=spare)
