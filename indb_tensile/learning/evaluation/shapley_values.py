"""Shapley values: how much each column of a row moves the prediction away from that for a baseline row.

The columns are the players of a game (Shapley 1953; Štrumbelj and Kononenko 2014, "Explaining prediction models and
individual predictions with feature contributions"). A coalition is worth the prediction for the row in which the
columns outside it have the baseline's values. A column's value is what it adds to a coalition, on average over all
orders in which the columns may join. The values of all columns sum to the prediction less that for the baseline.

Integrated gradients need a network whose inputs are numbers; an embedded category is a position in a table and has no
gradient. Shapley values need predictions only, so all architectures have them. Up to `EXACT_COLUMNS` columns, all
coalitions are computed. Of more columns, orders are drawn, each together with its reverse, which cancels much of the
error (Mitchell et al. 2022, "Sampling permutations for Shapley value estimation"). The sum is exact in both cases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.storage.encoded_rows import EncodedRows

EXACT_COLUMNS = 10
MOST_PAIRS = 64  # most pairs of an order and its reverse
MOST_PREDICTIONS = 4096  # most predictions for one row, unless one pair of orders takes more

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The value of a column, and the standard error of it: 0 if it is exact, NaN if one pair of orders was drawn."""

    feature: str
    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapleyGame:
    """The coalitions to predict for, as a matrix of (coalitions, columns), and the drawn orders, if any.

    The first coalition is empty and the last one is all columns.
    """

    features: tuple[str, ...]
    coalitions: npt.NDArray[np.bool_]
    orders: npt.NDArray[np.int64] | None

    def rows(self, x: Array, baseline: Array, positions: Sequence[npt.NDArray[np.int64]]) -> EncodedRows:
        """Return the encoded row of each coalition. `x` and `baseline` have the shape of one row.

        `positions` are those of each column's numbers in a flat row.
        """
        owners = np.empty(x.size, np.int64)
        for column, own in enumerate(positions):
            owners[own] = column
        flat_x, flat_baseline = x.reshape(-1), baseline.reshape(-1)

        def make(begin: int, end: int) -> Array:
            chosen = np.where(self.coalitions[begin:end][:, owners], flat_x, flat_baseline)
            return chosen.reshape(end - begin, *x.shape)

        return EncodedRows(make, 0, len(self.coalitions))

    def attributions(self, values: npt.NDArray[np.float64]) -> list[Attribution]:
        """Return the value of each column, from the prediction for each coalition."""
        if self.orders is None:
            shares, errors = _exact(values, len(self.features)), np.zeros(len(self.features))
        else:
            shares, errors = _sampled(values, self.orders)
        return [
            Attribution(feature=name, value=float(value), error=float(error))
            for name, value, error in zip(self.features, shares, errors, strict=True)
        ]


def shapley_game(features: Sequence[str], seed: int) -> ShapleyGame:
    """Return the game of these columns. Equal columns and seed give equal orders."""
    columns = len(features)
    if columns <= EXACT_COLUMNS:
        numbers = np.arange(1 << columns)
        coalitions = (numbers[:, None] >> np.arange(columns)) & 1 == 1
        return ShapleyGame(features=tuple(features), coalitions=coalitions, orders=None)
    pairs = max(1, min(MOST_PAIRS, MOST_PREDICTIONS // (2 * columns)))
    source = np.random.default_rng(seed)
    drawn = [source.permutation(columns) for _ in range(pairs)]
    orders = np.array([order for order in drawn for order in (order, order[::-1])])
    # Of an order's coalitions, the first columns - 1 are neither empty nor complete.
    places = np.argsort(orders, axis=1)  # the place at which each column joins
    inner = places[:, None, :] <= np.arange(columns - 1)[None, :, None]
    ends = np.zeros((1, columns), np.bool_), np.ones((1, columns), np.bool_)
    coalitions = np.concatenate([ends[0], inner.reshape(-1, columns), ends[1]])
    return ShapleyGame(features=tuple(features), coalitions=coalitions, orders=orders)


def _exact(values: npt.NDArray[np.float64], columns: int) -> npt.NDArray[np.float64]:
    """Return the weighted mean of what each column adds. Coalition number n has the columns of the bits of n."""
    numbers = np.arange(1 << columns)
    sizes = np.array([number.bit_count() for number in range(1 << columns)])
    weights = np.array(
        [1 / (columns * comb(columns - 1, size)) if size < columns else 0.0 for size in range(columns + 1)]
    )
    shares = np.empty(columns)
    for column in range(columns):
        without = numbers[(numbers >> column) & 1 == 0]
        added = values[without | (1 << column)] - values[without]
        shares[column] = (weights[sizes[without]] * added).sum()
    return shares


def _sampled(
    values: npt.NDArray[np.float64], orders: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the mean over orders of what each column adds, and the standard error over pairs of orders."""
    count, columns = orders.shape
    inner = values[1:-1].reshape(count, columns - 1)
    steps = np.hstack([np.full((count, 1), values[0]), inner, np.full((count, 1), values[-1])])
    added = np.empty((count, columns))
    np.put_along_axis(added, orders, np.diff(steps, axis=1), axis=1)
    pairs = added.reshape(-1, 2, columns).mean(axis=1)
    if len(pairs) == 1:
        return pairs[0], np.full(columns, np.nan)
    return pairs.mean(axis=0), pairs.std(axis=0, ddof=1) / np.sqrt(len(pairs))
