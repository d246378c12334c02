"""Bins of a calibration are counted as by hand, and their error as in the paper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.learning.metrics.calibration import CalibrationBin, calibration, calibration_error


def test_bins_hold_the_mean_probability_and_the_share_of_right_predictions() -> None:
    chances = np.array([[0.9, 0.1], [0.3, 0.7], [0.8, 0.2], [0.5, 0.5], [1.0, 0.0]])
    right = np.array([True, True, False, True, True])
    bins = calibration(chances, right, 2)
    assert bins == (
        CalibrationBin(bin=1, mean_predicted=0.5, observed_share=1.0, rows=1),
        CalibrationBin(bin=2, mean_predicted=(0.9 + 0.7 + 0.8 + 1.0) / 4, observed_share=0.75, rows=4),
    )
    assert calibration_error(bins) == pytest.approx((0.5 * 1 + 0.1 * 4) / 5)


@given(st.integers(1, 200), st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_every_row_is_in_one_bin_and_the_bin_contains_its_mean(rows: int, seed: int, count: int) -> None:
    source = np.random.default_rng(seed)
    chances = source.dirichlet((0.3, 0.3, 0.3), rows)
    bins = calibration(chances, source.random(rows) < chances.max(axis=1), count)
    assert sum(part.rows for part in bins) == rows
    for part in bins:
        assert (part.bin - 1) / count - 1e-9 <= part.mean_predicted <= part.bin / count + 1e-9
        assert 0 <= part.observed_share <= 1
    assert [part.bin for part in bins] == sorted({part.bin for part in bins})
