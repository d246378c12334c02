"""The functions that scale skewed columns keep the order of values, their finiteness, and what is missing."""

import json
from collections.abc import Iterator
from functools import partial

import msgspec
import numpy as np
import pytest
from sklearn.preprocessing import PowerTransformer

from indb_tensile.learning.encoding.encoders import Numbers
from indb_tensile.learning.encoding.scalings import fit_scaling
from indb_tensile.learning.storage import moments
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, ColumnRows
from indb_tensile.learning.storage.moments import most_frequent
from indb_tensile.learning.storage.row_storage import MEMORY

_SKEWED = np.exp(np.random.default_rng(3).normal(size=500) * 2) - 1


@pytest.mark.parametrize("function", ["log", "power", "quantile"])
@pytest.mark.parametrize(
    "values", [_SKEWED, -_SKEWED, np.array([0.0, 0.0, 1.0]), np.full(3, 7.0), np.full(2, np.nan)]
)
def test_a_scaling_keeps_order_and_missing_values_and_every_result_is_finite(
    function: str, values: np.ndarray
) -> None:
    scaling = fit_scaling(function, lambda: iter([values]))
    probes = np.array([-1e150, -1e3, -1.0, 0.0, 1e-9, 1.0, 1e3, 1e150])
    scaled = scaling.apply(probes)
    assert np.isfinite(scaled).all()
    assert (np.diff(scaled) >= 0).all()
    assert np.isnan(scaling.apply(np.array([np.nan]))).all()


def test_power_is_the_function_of_yeo_and_johnson_and_quantiles_are_normal() -> None:
    expected = PowerTransformer(standardize=False).fit_transform(_SKEWED[:, None])[:, 0]
    np.testing.assert_allclose(fit_scaling("power", _blocks).apply(_SKEWED), expected, rtol=1e-9)
    scores = fit_scaling("quantile", _blocks).apply(_SKEWED)
    assert (abs(scores.mean()) < 0.01, abs(scores.std() - 1) < 0.05) == (True, True)
    scores = fit_scaling("quantile", lambda: iter([np.array([1.0, 5.0, 5.0, 5.0, 9.0])])).apply(np.array([5.0]))
    assert scores == pytest.approx(0.0)


def _blocks() -> Iterator[np.ndarray]:
    return iter(np.split(_SKEWED, 2))


def test_the_most_frequent_value_is_found_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "FIT_BLOCK_NUMBERS", 3)
    for values, expected in (
        ([4.0, 1.0, 2.0, 1.0, 2.0, 2.0, 2.0, np.nan, np.inf], 2.0),
        ([5.0, 5.0, 7.0, 7.0, 0.0], 5.0),
        ([3.0] * 7 + [1.0] * 6, 3.0),
        ([np.nan], None),
    ):
        assert most_frequent(partial(map, np.array, [values]), MEMORY) == expected


@pytest.mark.parametrize(
    ("rule", "replacement"), [("median", 2.0), ("most_frequent", 8.0), ("zero", 0.0), (5.0, 5.0)]
)
def test_a_replacement_is_given_in_the_columns_own_unit_and_scaled_like_other_values(
    rule: str | float, replacement: float
) -> None:
    column = np.array([1.0, 1.5, 2.0, 8.0, 8.0, np.nan, np.inf])
    column[1:3] = 1.25, 2.0
    data = ColumnData(kind=ColumnKind.FLOAT, values=column, missing=np.isnan(column))
    numbers = Numbers.fit(["a"], [ColumnRows(data, np.arange(7))], [True], [rule], scaled_by=["log"])
    if rule == "median":
        replacement = float(np.median([1.0, 1.25, 2.0, 8.0, 8.0]))
    encoded = numbers.apply(np.array([[np.nan], [replacement]]))
    assert encoded[0] == pytest.approx(encoded[1])
    stored = msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(numbers))), Numbers)
    assert stored.apply(np.array([[np.nan], [7.0]])).tolist() == numbers.apply(np.array([[np.nan], [7.0]])).tolist()


@pytest.mark.parametrize("function", ["log", "power", "quantile"])
def test_an_infinite_value_is_missing_also_after_its_scaling(function: str) -> None:
    column = np.array([1.0, 2.0, 9.0, -np.inf, np.inf, np.nan])
    data = ColumnData(kind=ColumnKind.FLOAT, values=column, missing=np.isnan(column))
    numbers = Numbers.fit(["a"], [ColumnRows(data, np.arange(6))], [True], ["indicator"], scaled_by=[function])
    encoded = numbers.apply(column[:, None])
    assert encoded[3].tolist() == encoded[4].tolist() == encoded[5].tolist()
    assert encoded[:, 1].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def test_one_value_says_nothing_of_the_quantiles_of_others() -> None:
    only = fit_scaling("quantile", lambda: iter([np.array([np.nan, 5.0, np.inf])]))
    np.testing.assert_equal(only.apply(np.array([-1.0, 5.0, 9.0, np.nan])), [0.0, 0.0, 0.0, np.nan])
