"""The moments of many columns together are those of each column alone."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from indb_tensile.errors import DataError
from indb_tensile.learning.storage import moments as subject
from indb_tensile.learning.storage.moments import Matrix, moments, moments_by_column

COLUMNS = st.integers(1, 40).flatmap(
    lambda rows: st.lists(
        arrays(np.float64, rows, elements=st.floats(-1e9, 1e9) | st.just(float("nan"))), min_size=1, max_size=12
    )
)


def _alone(column: Matrix, rows: int) -> tuple[float, float]:
    mean, scale = moments((block[:, None] for block in _blocks(column, rows)), ["x"])
    return float(mean[0]), float(scale[0])


def _blocks(column: Matrix, rows: int) -> list[Matrix]:
    return [column[start : start + rows] for start in range(0, len(column), rows)]


@given(COLUMNS, st.sampled_from([8, 1000]))
def test_columns_have_together_the_bits_that_each_has_alone(columns: list[Matrix], rows: int) -> None:
    named = [(str(place), lambda own=own: iter(_blocks(own, rows))) for place, own in enumerate(columns)]
    assert list(moments_by_column(named)) == [_alone(own, rows) for own in columns]


def test_columns_of_more_numbers_than_a_block_are_computed_in_several_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.random.default_rng(0).normal(size=(7, 10))
    monkeypatch.setattr(subject, "FIT_BLOCK_NUMBERS", 25)
    named = [(str(place), partial(iter, [own])) for place, own in enumerate(drawn)]
    assert list(moments_by_column(named)) == [_alone(own, 10) for own in drawn]


def test_the_column_that_is_too_large_is_named() -> None:
    small, large = np.ones(3), np.full(3, 1e200)
    with pytest.raises(DataError, match='column "b" holds 1e\\+200, too large to standardise'):
        list(moments_by_column([("a", partial(iter, [small])), ("b", partial(iter, [large]))]))
