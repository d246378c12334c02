"""Batch size, epochs and patience depend on the number of rows."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.learning.networks.training_length import batch_size, epochs, patience

ROWS = st.integers(2, 10**9)


@given(ROWS)
def test_a_batch_is_a_power_of_two_within_bounds(rows: int) -> None:
    size = batch_size(rows)
    assert 16 <= size <= 1024
    assert size & (size - 1) == 0


@given(ROWS, ROWS)
def test_batch_size_grows_with_the_rows_and_epochs_fall_with_the_steps(first: int, second: int) -> None:
    few, many = sorted((first, second))
    assert batch_size(few) <= batch_size(many)
    assert epochs(few) >= epochs(many)


@given(st.integers(10, 10**6))
def test_every_table_is_trained_for_at_least_300_steps(rows: int) -> None:
    steps_an_epoch = math.ceil(rows / batch_size(rows))
    assert epochs(steps_an_epoch) * steps_an_epoch >= 300


@given(st.integers(1, 10**5))
def test_patience_is_at_least_one_and_at_most_the_epochs_or_five(planned: int) -> None:
    assert 1 <= patience(planned) <= max(planned, 5)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(105, (16, 429, 86)), (3_500, (128, 108, 22)), (229_000, (1024, 14, 5)), (10**7, (1024, 12, 5))],
)
def test_batch_size_epochs_and_patience_for_given_rows(rows: int, expected: tuple[int, int, int]) -> None:
    planned = epochs(math.ceil(rows / batch_size(rows)))
    assert (batch_size(rows), planned, patience(planned)) == expected
