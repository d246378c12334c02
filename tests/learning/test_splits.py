"""Membership by hash."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.errors import DataError, RequestError
from indb_tensile.learning.columns import ColumnData, Kind
from indb_tensile.learning.jsonrows import column_of
from indb_tensile.learning.splits import Parts, Split, divide, row_hashes


def keys(values: Iterable[int]) -> ColumnData:
    return column_of("id", Kind.INTEGER, list(values))


def members(parts: Parts, ids: range) -> dict[int, str]:
    named = {"train": parts.train, "valid": parts.valid, "test": parts.test}
    return {ids[row]: name for name, rows in named.items() for row in rows.tolist()}


@given(st.integers(100, 400), st.integers(1, 300), st.integers(0, 2**31 - 1))
@settings(max_examples=50, deadline=None)
def test_rows_stay_where_they_are_when_others_come(few: int, more: int, seed: int) -> None:
    split = Split(seed=seed)
    before, after = range(few), range(few + more)
    old = members(divide(row_hashes([keys(before)], few), split), before)
    new = members(divide(row_hashes([keys(after)], few + more), split), after)
    assert old == {row: part for row, part in new.items() if row < few}
    assert len(new) == few + more


def test_the_shares_are_those_asked_for() -> None:
    parts = divide(row_hashes([keys(range(20_000))], 20_000), Split(test_size=0.2, valid_size=0.1))
    assert len(parts.test) / 20_000 == pytest.approx(0.2, abs=0.01)
    assert len(parts.valid) / 20_000 == pytest.approx(0.1, abs=0.01)


def test_another_seed_gives_another_split() -> None:
    hashes = row_hashes([keys(range(1000))], 1000)
    first, second = divide(hashes, Split(seed=1)), divide(hashes, Split(seed=2))
    common = np.intersect1d(first.test, second.test)
    assert 0 < len(common) < len(first.test) / 2


def test_hashes_tell_apart_values_kinds_and_nulls() -> None:
    columns = [
        column_of("a", Kind.INTEGER, [0, None, 1, -1, 2**40]),
        column_of("a", Kind.FLOAT, [0.5, None, 1.5, -0.5, 1e300]),
        column_of("a", Kind.BOOLEAN, [True, None, False]),
        column_of("a", Kind.TEXT, ["", None, "a", "b", "aa"]),
        column_of("a", Kind.ARRAY, [[1.0, 2.0], None, [2.0, 1.0]]),
    ]
    for column in columns:
        assert len(set(row_hashes([column], len(column.missing)).tolist())) == len(column.missing)


def test_columns_are_hashed_in_order_and_minus_zero_is_zero() -> None:
    one, two = column_of("a", Kind.INTEGER, [1]), column_of("b", Kind.INTEGER, [2])
    assert row_hashes([one, two], 1) != row_hashes([two, one], 1)
    zeros = row_hashes([column_of("a", Kind.FLOAT, [0.0, -0.0])], 2)
    assert zeros[0] == zeros[1]


def test_the_hash_of_a_row_never_changes() -> None:
    """Stored versions were judged on rows found by it: another hash would judge them on rows they trained on."""
    table = [column_of("id", Kind.INTEGER, [1, 2]), column_of("name", Kind.TEXT, ["a", None])]
    assert row_hashes(table, 2).tolist() == [2_595_944_949_954_921_227, 14_084_481_902_747_847_351]


def test_a_part_without_rows_is_refused_with_a_way_out() -> None:
    with pytest.raises(DataError, match="none of the 2 rows falls to the test part") as caught:
        divide(row_hashes([keys(range(2))], 2), Split(test_size=0.001))
    assert "split =>" in caught.value.hint
    with pytest.raises(DataError, match="to the train part"):
        divide(row_hashes([keys(range(3))], 3), Split(test_size=0.99, valid_size=0.0))


def test_equal_rows_stay_together_and_an_empty_part_says_so() -> None:
    with pytest.raises(DataError, match="none of the 60 rows falls to the test part") as caught:
        divide(row_hashes([keys([7] * 60)], 60), Split(test_size=0.001))
    assert "Rows that are equal stay together, and 1 differ" in caught.value.detail
    assert "primary key" in caught.value.hint


def test_sizes_that_leave_nothing_to_train_on_are_refused() -> None:
    with pytest.raises(RequestError, match="leave no rows to train on"):
        Split.parse({"test_size": 0.5, "valid_size": 0.5})
    with pytest.raises(RequestError, match='unknown parameter "stratify"'):
        Split.parse({"stratify": True})
    assert Split.parse({"seed": 4}) == Split(test_size=0.15, valid_size=0.15, seed=4)
