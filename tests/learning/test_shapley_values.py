"""Shapley values equal their definition, sum to the difference of the predictions, and are equal for equal seeds."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import Task
from indb_tensile.learning.encoding.baseline_input import baseline_input
from indb_tensile.learning.evaluation.shapley_values import EXACT_COLUMNS, MOST_PAIRS, shapley_game
from indb_tensile.learning.training.preparation import assemble
from tests.learning.tables import spec, table


def names(count: int) -> list[str]:
    return [f"c{i}" for i in range(count)]


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_exact_values_are_the_mean_over_all_orders(columns: int, seed: int) -> None:
    game = shapley_game(names(columns), seed=0)
    worth = np.random.default_rng(seed).normal(size=1 << columns)
    expected = np.zeros(columns)
    for order in itertools.permutations(range(columns)):
        coalition = 0
        for column in order:
            expected[column] += worth[coalition | 1 << column] - worth[coalition]
            coalition |= 1 << column
    attributions = game.attributions(worth)
    assert [each.value for each in attributions] == pytest.approx((expected / math.factorial(columns)).tolist())
    assert {each.error for each in attributions} == {0.0}


@given(st.integers(EXACT_COLUMNS + 1, 40), st.integers(0, 2**32 - 1))
def test_drawn_values_sum_to_the_difference_whatever_the_predictions_are(columns: int, seed: int) -> None:
    game = shapley_game(names(columns), seed)
    worth = np.random.default_rng(seed).normal(size=len(game.coalitions))
    assert sum(each.value for each in game.attributions(worth)) == pytest.approx(worth[-1] - worth[0])
    assert not game.coalitions[0].any()
    assert game.coalitions[-1].all()
    again = shapley_game(names(columns), seed)
    assert np.array_equal(game.coalitions, again.coalitions)


@pytest.mark.parametrize("columns", [4, 25])
def test_of_a_sum_of_columns_each_has_its_own_part(columns: int) -> None:
    source = np.random.default_rng(0)
    x, baseline, weights = source.normal(size=(3, columns, 2)).astype(np.float32)
    game = shapley_game(names(columns), seed=1)
    positions = [np.array([2 * i, 2 * i + 1]) for i in range(columns)]
    rows = game.rows(x, baseline, positions).array()
    worth = (rows.astype(np.float64) * weights).sum(axis=(1, 2))
    attributions = game.attributions(worth)
    expected = ((x - baseline) * weights).sum(axis=1).tolist()
    assert [each.value for each in attributions] == pytest.approx(expected, abs=1e-5)
    assert max(each.error for each in attributions) < 1e-5


def test_drawn_values_approach_the_exact_ones_within_a_few_errors() -> None:
    """The worth of 12 columns is a product of two sums, of which the exact values are known."""
    columns = 12
    source = np.random.default_rng(3)
    a, b = source.normal(size=(2, columns))
    game = shapley_game(names(columns), seed=5)
    worth = (game.coalitions @ a) * (game.coalitions @ b)
    exact = (a * b.sum() + b * a.sum()) / 2  # each pair of columns shares its product equally
    for each, value in zip(game.attributions(worth), exact, strict=True):
        assert abs(each.value - value) <= 5 * each.error + 1e-9
        assert each.error < 1.0
    assert game.orders is not None
    assert len(game.orders) == 2 * MOST_PAIRS


def test_many_columns_have_one_pair_of_orders_and_an_unknown_error() -> None:
    game = shapley_game(names(1600), seed=0)
    assert len(game.coalitions) == 2 * 1599 + 2
    attributions = game.attributions(game.coalitions.sum(axis=1).astype(np.float64))
    assert {each.value for each in attributions} == {1.0}
    assert all(math.isnan(each.error) for each in attributions)


def test_baseline_has_means_of_numbers_and_the_most_frequent_category() -> None:
    rows = [(i, float(i % 7), "rare" if i % 5 == 0 else "usual", i * 1.0) for i in range(100)]
    described = [("id", "int"), ("a", "double precision"), ("kind", "text"), ("y", "double precision")]
    prepared = assemble(table(described, rows), spec("y", Task.REGRESSION))
    baseline = baseline_input(prepared.train.x, prepared.preprocessor)
    assert baseline is not None
    places = prepared.preprocessor.positions
    assert baseline[places["a"][0]] == pytest.approx(0.0, abs=1e-6), "numbers are standardised"
    usual = prepared.preprocessor.transform_rows([{"a": 0.0, "kind": "usual"}])[0]
    assert [baseline[place] for place in places["kind"]] == usual[places["kind"]].tolist()
    assert baseline_input(prepared.train.x[:0], prepared.preprocessor) is None
