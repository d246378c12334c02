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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, MissingColumnError
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, Mask, Rows
from indb_tensile.learning.storage.row_storage import MEMORY, RowStorage, positions_where, row_blocks
from indb_tensile.request.parameter_rules import fill_defaults
from indb_tensile.request.split_rules import (
    PARTS,
    SPLIT,
    TABLE_OPTIONS,
    check_split,
    check_split_column,
    require_order,
)

Hashes = npt.NDArray[np.uint64]

_IDENTITY_SEED = 0x7E45_11E0_7E45_11E0  # an arbitrary constant, so that row hashes differ from other hashes
_MISSING = 0x9AE1_6A3B_2F90_404F  # the hash of NULL; differs from the hashes of small numbers
_LABEL_END = "\0"  # no text of PostgreSQL contains this character
_DRAW_BITS = 53  # bits of a double's mantissa, so that a share of the draws is exact
_FEWEST_TRAIN_ROWS = 2
_SORTED_ROWS = 1 << 20  # hashes that are sorted at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The shares of the parts, by default 70 % training, 15 % validation and 15 % test rows.

    With `last`, the test rows are that share of the rows that have the greatest values in the column `by`, and the
    validation rows are the rows just before them. With `column`, that column names the part: true or 'test' for test
    rows, 'valid' for validation rows. If no row is named 'valid', `valid_size` is a share of the rows that do not
    test. With `group`, rows of one value of that column are all in one part. With `stratify`, each part has the same
    shares of the values of that column. With `key`, the values of these columns identify a row for its draw. With
    `valid` or `test`, the rows of that table are the part, and the share of the part is zero.
    """

    test_size: float = SPLIT["test_size"]["default"]
    valid_size: float = SPLIT["valid_size"]["default"]
    seed: int = SPLIT["seed"]["default"]
    last: float | None = None
    by: str | None = None
    column: str | None = None
    group: str | None = None
    stratify: str | None = None
    key: tuple[str, ...] | None = None
    valid: str | None = None
    test: str | None = None

    @classmethod
    def parse(cls, request: Mapping[str, Any]) -> "Split":
        """Check the options of a split. Raises RequestError for an invalid or contradictory option."""
        options = check_split(request)
        require_order(options)
        shares = {f"{part}_size": 0.0 for part in TABLE_OPTIONS if part in options}
        return cls(**fill_defaults(options, SPLIT) | shares)

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the parts that have tables of their own, in the order in which these are read."""
        return tuple(part for part in TABLE_OPTIONS if getattr(self, part) is not None)

    @property
    def divider(self) -> str | None:
        """Return the column by which the rows are divided, or None if only the hash decides."""
        return self.withheld or self.stratify

    @property
    def withheld(self) -> str | None:
        """Return the column by which the rows are divided if it is no feature by default."""
        return self.by or self.column or self.group


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


def divide(
    row_hash: Hashes,
    split: Split,
    decisive: ColumnData | None = None,
    *,
    keyed: bool = True,
    storage: RowStorage = MEMORY,
) -> Parts:
    """Divide the rows into parts. `valid` may be empty.

    `decisive` contains the values of `split.divider`. If `keyed` is False, equal rows get different draws. The
    positions of the rows are kept in `storage`. Raises DataError if no row falls to the training part or to the test
    part.
    """
    drawn = draws(row_hash if keyed else distinct_hashes(row_hash, storage), split.seed, storage)
    if split.by is not None:
        return _divide_by_order(drawn, split, _require_divider("by", split.by, decisive), storage)
    if split.column is not None:
        return _divide_by_column(drawn, split, _require_divider("column", split.column, decisive), storage)
    if split.group is not None:
        groups = row_hashes([_require_divider("group", split.group, decisive)], len(row_hash))
        return _divide_by_group(draws(groups, split.seed, storage), split, storage)
    if split.stratify is not None:
        return _divide_by_strata(drawn, split, _require_divider("stratify", split.stratify, decisive), storage)
    return _divide_by_hash(drawn, split, storage)


def divide_beside_tables(
    row_hash: Hashes,
    sections: Mapping[str, Rows],
    split: Split,
    *,
    keyed: bool = True,
    storage: RowStorage = MEMORY,
) -> Parts:
    """Divide the rows if tables of their own hold the test part, the validation part, or both.

    `row_hash` contains the hashes of the rows of the training relation, which come first. `sections` contains the
    positions of the rows of each other table. The rows of the training relation are divided by the hash into what is
    left: training and validation rows, training and test rows, or training rows only. Raises DataError if a table has
    no row, or if no row is left to train on.
    """
    for part, rows in sections.items():
        if not len(rows):
            name = getattr(split, part)
            raise DataError(
                f'split: table "{name}" of the {_PART_NAMES[part]} part has no row with a target',
                hint="Fill its target column, or name another table.",
            )
    drawn = draws(row_hash if keyed else distinct_hashes(row_hash, storage), split.seed, storage)
    share = split.valid_size if "test" in sections else split.test_size
    below = _draw_limit(share)
    count = held = int((drawn < below).sum())
    if share:  # two rows are left to train on
        least = 1 if "valid" in sections else int(len(drawn) > _FEWEST_TRAIN_ROWS)
        held = max(min(count, len(drawn) - _FEWEST_TRAIN_ROWS), least)
    if held != count:
        below = [*np.sort(drawn).tolist(), 1 << _DRAW_BITS][min(held, len(drawn))]
    held_out = drawn < below
    positions = {part: positions_where(held_out, storage) for part in TABLE_OPTIONS if part not in sections}
    positions |= {"train": positions_where(~held_out, storage), **sections}
    for part in ("train", "test"):
        if not len(positions[part]):
            raise _empty_part_error(part, len(drawn), split)
    test_below = 0 if "test" in sections else below
    rule = {"kind": "hash", "seed": split.seed, "test_below": test_below, "valid_below": below}
    return Parts(**positions, rule=rule, ranked=held != count)


_PART_NAMES = {"valid": "validation", "test": "test"}


def draws(row_hash: Hashes, seed: int, storage: RowStorage = MEMORY) -> Hashes:
    """Return each row's draw, a number below 2**53."""
    key, drawn = _mix_copy(np.array([seed], np.uint64)), storage.array(len(row_hash), (), np.uint64)
    for start, end in row_blocks(len(row_hash)):
        drawn.write(start, _mix_copy(row_hash[start:end] ^ key) >> np.uint64(64 - _DRAW_BITS))
    return drawn.values


def distinct_hashes(row_hash: Hashes, storage: RowStorage = MEMORY) -> Hashes:
    """Return the hashes, in which the second and further occurrences of an equal hash are changed."""
    copied = storage.array(len(row_hash), (), np.uint64)
    for start, end in row_blocks(len(row_hash)):
        copied.write(start, row_hash[start:end])
    distinct = copied.values
    for rows in hash_ranges(row_hash):
        hashes = row_hash[rows]
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        if not first.all():
            places = np.arange(len(ordered))
            ordinal = (places - np.maximum.accumulate(np.where(first, places, 0))).astype(np.uint64)
            changed = ordinal > 0
            distinct[rows[order[changed]]] = _mix_copy(ordered[changed] ^ _mix_copy(ordinal[changed]))
    return distinct


def hash_ranges(hashes: Hashes) -> Iterator[Rows]:
    """Yield the ascending positions of all hashes in one range of values after another.

    Equal hashes are in one range. A range has about `_SORTED_ROWS` hashes if they are evenly distributed.
    """
    bits = max(0, math.ceil(math.log2(max(1, len(hashes)) / _SORTED_ROWS)))
    if not bits:
        yield np.arange(len(hashes))
        return
    shift = np.uint64(64 - bits)
    for number in range(1 << bits):
        yield np.concatenate(
            [start + np.flatnonzero(hashes[start:end] >> shift == number) for start, end in row_blocks(len(hashes))]
        )


def _divide_by_hash(row_draws: Hashes, split: Split, storage: RowStorage) -> Parts:
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
    return _parts(test, valid, split, rule, storage, ranked=ends != tuple(counts))


def _divide_by_group(group_draws: Hashes, split: Split, storage: RowStorage) -> Parts:
    """Divide by the draws of groups, of which each row has that of its own group.

    If a part would have no group, the groups are chosen by rank.
    """
    groups = np.unique(group_draws)
    limits = [_draw_limit(split.test_size), _draw_limit(split.test_size + split.valid_size)]
    counts = [int((groups < limit).sum()) for limit in limits]
    sizes = _sizes(len(groups), counts[0], counts[1] - counts[0], validates=split.valid_size > 0)
    ranked = [sizes[0], sum(sizes)] != counts
    if ranked:
        ranks = [*(int(draw) for draw in groups), 1 << _DRAW_BITS]
        limits = [ranks[sizes[0]], ranks[sum(sizes)]]
    test = group_draws < limits[0]
    valid = ~test & (group_draws < limits[1])
    rule = {"kind": "group", "seed": split.seed, "group": split.group}
    rule |= {"test_below": limits[0], "valid_below": limits[1]}
    return _parts(test, valid, split, rule, storage, ranked=ranked)


def _divide_by_strata(row_draws: Hashes, split: Split, column: ColumnData, storage: RowStorage) -> Parts:
    """Divide the rows of each value of the column by the same shares, the lowest draws first.

    What is left of a share after rounding is carried to the next value, so the parts as a whole have their shares
    however rare the values are. A value that a later row has for the first time is divided by the hash.
    """
    values, codes = np.unique(column.values, return_inverse=True)
    if len(values) > _MOST_STRATA:
        raise DataError(
            f'split: column "{split.stratify}" has {len(values)} different values, {_MOST_STRATA} are the most',
            hint="Name a column with fewer values, such as a class.",
        )
    test, valid = np.zeros(len(row_draws), np.bool_), np.zeros(len(row_draws), np.bool_)
    ordered = np.lexsort((row_draws, codes))
    limits, start = [], 0
    test_carry = valid_carry = 0.5
    for value, rows in zip(values.tolist(), np.bincount(codes).tolist(), strict=True):
        test_carry, valid_carry = test_carry + split.test_size * rows, valid_carry + split.valid_size * rows
        test_rows = min(int(test_carry), rows - 1)
        valid_rows = min(int(valid_carry), rows - 1 - test_rows)
        test_carry, valid_carry = test_carry - test_rows, valid_carry - valid_rows
        own = ordered[start : start + rows]
        test[own[:test_rows]], valid[own[test_rows : test_rows + valid_rows]] = True, True
        ranks = [*row_draws[own[: test_rows + valid_rows + 1]].tolist()]
        limits.append([value, ranks[test_rows], ranks[test_rows + valid_rows]])
        start += rows
    rule = {"kind": "stratified", "seed": split.seed, "stratify": split.stratify, "limits": limits}
    rule |= {
        "test_below": _draw_limit(split.test_size),
        "valid_below": _draw_limit(split.test_size + split.valid_size),
    }
    return _parts(test, valid, split, rule, storage, ranked=False)


_MOST_STRATA = 1000  # the rule that is stored with the model has limits for each


def _divide_by_order(row_draws: Hashes, split: Split, by: ColumnData, storage: RowStorage) -> Parts:
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
    return _parts(test, valid, split, rule, storage, ranked=sizes != (test_rows, valid_rows))


def _divide_by_column(row_draws: Hashes, split: Split, column: ColumnData, storage: RowStorage) -> Parts:
    """Divide as the column says.

    If no row is named 'valid', the lowest draws of the rows that do not test validate.
    """
    if column.kind is ColumnKind.BOOLEAN:
        test = column.values.astype(np.bool_)
        valid = np.zeros(len(test), np.bool_)
    else:
        texts = column.values[:]
        unknown = ~np.isin(texts.astype(str), PARTS)
        if unknown.any():
            raise DataError(
                f'split: column "{split.column}" is neither train, valid nor test in {int(unknown.sum())} rows',
                hint="Set it to 'train', 'valid' or 'test' in each row, or name a boolean column.",
            )
        test, valid = texts == "test", texts == "valid"
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
    return _parts(test, valid, split, rule, storage, ranked=ranked)


def _parts(
    test: Mask, valid: Mask, split: Split, rule: dict[str, Any], storage: RowStorage, *, ranked: bool
) -> Parts:
    train = ~test & ~valid
    for name, part in (("test", test), ("train", train)):
        if not part.any():
            raise _empty_part_error(name, len(test), split)
    positions = (positions_where(part, storage) for part in (train, valid, test))
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
    if split.group is not None:
        hint = "Rows of one group stay together: name a column with more values, or leave group out."
        return DataError(message, detail=f'Column "{split.group}" groups the rows.', hint=hint)
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
        case ColumnKind.TEXT | ColumnKind.DOCUMENT:
            words = _text_hashes(column.values)
        case ColumnKind.LABELS:
            words = _text_hashes([None if labels is None else _LABEL_END.join(labels) for labels in column.values])
        case ColumnKind.IMAGE:
            words = np.fromiter((_digest(raw or b"") for raw in column.values), np.uint64, len(column.values))
        case ColumnKind.ARRAY:
            words = np.fromiter((_digest(row.tobytes()) for row in column.values), np.uint64, len(column.values))
        case ColumnKind.FLOAT | ColumnKind.DATE | ColumnKind.TIME | ColumnKind.CLOCK | ColumnKind.DURATION:
            # Adding zero turns -0.0 into 0.0.
            words = (column.values.astype(np.float64, copy=False) + 0.0).view(np.uint64)
        case _:
            words = column.values.astype(np.int64).view(np.uint64)
    _mix(words)
    if column.missing.any():
        words[column.missing] = _MISSING
    return words


def _text_hashes(texts: Any) -> Hashes:
    known: dict[str | None, int] = {None: 0}
    for text in texts:
        if text not in known:
            known[text] = _digest(text.encode())
    return np.fromiter((known[text] for text in texts), np.uint64, len(texts))


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
