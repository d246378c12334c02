"""What the outputs of a forecasting network mean, how they are judged, and the loss that trains them.

The network has three outputs for each value: the lower end of the interval, the median and the upper end, in the
unit of the window (windows.py). The loss of a quantile is the pinball loss (Koenker and Bassett 1978).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Array = npt.NDArray[Any]

QUANTILES = 3  # the ends of the interval, and the median between them
_MEDIAN = 1
_FEWEST_OUTCOMES = 20  # with fewer outcomes, the intervals stay as the network gives them
_WIDEST = 10.0
STEP_METRICS = ("mase", "mae", "rmse", "smape")


@dataclass(frozen=True, kw_only=True)
class ForecastValues:
    """The values that a forecast has: steps for each target, and the share of values that the interval holds.

    `width` is the factor by which the network's intervals are widened (`interval_width`).
    """

    horizon: int
    targets: int
    interval: float
    width: float = 1.0

    @property
    def count(self) -> int:
        """Return the number of values: steps times targets."""
        return self.horizon * self.targets

    @property
    def quantiles(self) -> tuple[float, float, float]:
        """Return the quantiles of the outputs in their order."""
        tail = (1 - self.interval) / 2
        return tail, 0.5, 1 - tail

    def split(self, packed: Array) -> "Outcomes":
        """Return the parts of packed targets (windows.py)."""
        count, targets = self.count, self.targets
        rows = len(packed)
        by_step = (rows, self.horizon, targets)
        rest = packed[:, 2 * count :].reshape(rows, 3, targets).astype(np.float64)
        return Outcomes(
            scaled=packed[:, :count].reshape(by_step).astype(np.float64),
            present=packed[:, count : 2 * count].reshape(by_step) > 0.5,
            level=rest[:, 0],
            spread=rest[:, 1],
            naive_error=rest[:, 2],
        )

    def ordered(self, outputs: Array) -> npt.NDArray[np.float64]:
        """Return lower ends, medians and upper ends in the window's unit: (rows, 3, horizon, targets)."""
        whole = outputs.reshape(len(outputs), QUANTILES, self.horizon, self.targets).astype(np.float64)
        whole = np.sort(whole, axis=1)  # a network for tables does not keep them in order
        middle = whole[:, _MEDIAN : _MEDIAN + 1]
        return middle + (whole - middle) * self.width

    def restored(self, outputs: Array, level: Array, spread: Array) -> npt.NDArray[np.float64]:
        """Return the same in the unit of the targets. `level` and `spread` are (rows, targets)."""
        restored: npt.NDArray[np.float64] = self.ordered(outputs) * spread[:, None, None] + level[:, None, None]
        return restored


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcomes:
    """What followed each origin: scaled values and whether they are known, (rows, horizon, targets).

    `level`, `spread` and `naive_error` are (rows, targets).
    """

    scaled: npt.NDArray[np.float64]
    present: npt.NDArray[np.bool_]
    level: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]
    naive_error: npt.NDArray[np.float64]

    @property
    def actual(self) -> npt.NDArray[np.float64]:
        """Return the values in the unit of the targets."""
        return self.scaled * self.spread[:, None] + self.level[:, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorSums:
    """Sums over rows of what the metrics of a forecast consist of, each (horizon, targets).

    Sums of several parts of the rows can be added.
    """

    rows: npt.NDArray[np.float64]
    absolute: npt.NDArray[np.float64]
    squared: npt.NDArray[np.float64]
    relative: npt.NDArray[np.float64]
    scaled_rows: npt.NDArray[np.float64]
    scaled: npt.NDArray[np.float64]
    inside: npt.NDArray[np.float64]
    pinball: npt.NDArray[np.float64]

    @classmethod
    def of(cls, values: ForecastValues, outcomes: Outcomes, predicted: Array) -> "ErrorSums":
        """Return the sums for forecasts (rows, 3, horizon, targets) in the unit of the targets."""
        present, actual = outcomes.present, outcomes.actual
        lower, middle, upper = (predicted[:, place] for place in range(QUANTILES))
        errors = np.where(present, np.abs(actual - middle), 0.0)
        size = np.abs(actual) + np.abs(middle)
        naive = np.broadcast_to(outcomes.naive_error[:, None], errors.shape)
        scalable = present & (naive > 0)
        losses = np.zeros_like(errors)
        for place, quantile in enumerate(values.quantiles):
            rest = actual - predicted[:, place]
            losses += np.maximum(quantile * rest, (quantile - 1) * rest)
        return cls(
            rows=present.sum(axis=0).astype(np.float64),
            absolute=errors.sum(axis=0),
            squared=np.square(errors).sum(axis=0),
            relative=np.where(size > 0, 2 * errors / np.where(size > 0, size, 1.0), 0.0).sum(axis=0),
            scaled_rows=scalable.sum(axis=0).astype(np.float64),
            scaled=np.where(scalable, errors / np.where(scalable, naive, 1.0), 0.0).sum(axis=0),
            inside=(present & (lower <= actual) & (actual <= upper)).sum(axis=0).astype(np.float64),
            pinball=np.where(present, losses / QUANTILES, 0.0).sum(axis=0),
        )

    def metrics(self) -> dict[str, float]:
        """Return the metrics over all steps and targets; one that no row defines is left out."""
        return self._figures(*(float(part.sum()) for part in self._parts()))

    def by_step(self, step: int, target: int) -> dict[str, float]:
        """Return the metrics of one step of one target."""
        return self._figures(*(float(part[step, target]) for part in self._parts()))

    def _parts(self) -> tuple[npt.NDArray[np.float64], ...]:
        first = (self.rows, self.absolute, self.squared, self.relative)
        return (*first, self.scaled_rows, self.scaled, self.inside, self.pinball)

    def to_json(self) -> list[Any]:
        """Return the sums as plain data."""
        return [part.tolist() for part in self._parts()]

    @classmethod
    def from_json(cls, stored: list[Any]) -> "ErrorSums":
        """Restore what `to_json` returned."""
        rows, absolute, squared, relative, scaled_rows, scaled, inside, pinball = (np.array(own) for own in stored)
        return cls(
            rows=rows,
            absolute=absolute,
            squared=squared,
            relative=relative,
            scaled_rows=scaled_rows,
            scaled=scaled,
            inside=inside,
            pinball=pinball,
        )

    @staticmethod
    def _figures(
        rows: float,
        absolute: float,
        squared: float,
        relative: float,
        scaled_rows: float,
        scaled: float,
        inside: float,
        pinball: float,
    ) -> dict[str, float]:
        if not rows:
            return {}
        figures = {"mase": scaled / scaled_rows} if scaled_rows else {}
        return figures | {
            "mae": absolute / rows,
            "rmse": float(np.sqrt(squared / rows)),
            "smape": relative / rows,
            "pinball": pinball / rows,
            "coverage": inside / rows,
        }


def interval_width(values: ForecastValues, outputs: Array, packed: Array) -> float:
    """Return the factor that makes the intervals of these rows hold the share that they are meant to hold.

    The rows are those that validate, so the network has not learned from them (split conformal prediction: Lei and
    others, "Distribution-Free Predictive Inference for Regression", 2018). The factor is at least 1, because the rows
    have chosen the best epoch.
    """
    outcomes, predicted = values.split(packed), values.ordered(outputs)
    lower, middle, upper = (predicted[:, place] for place in range(QUANTILES))
    rest = outcomes.scaled - middle
    half = np.maximum(np.where(rest >= 0, upper - middle, middle - lower), np.finfo(np.float32).tiny)
    ratios = (np.abs(rest) / half)[outcomes.present]
    if len(ratios) < _FEWEST_OUTCOMES or not np.isfinite(ratios).all():
        return 1.0
    share = min(1.0, values.interval * (1 + 1 / len(ratios)))
    return float(np.clip(np.quantile(ratios, share, method="higher"), 1.0, _WIDEST))


def added(parts: Sequence[ErrorSums]) -> ErrorSums | None:
    """Return the sums of all parts, or None if there is none."""
    if not parts:
        return None
    lists = [part.to_json() for part in parts]
    return ErrorSums.from_json([np.sum(own, axis=0) for own in zip(*lists, strict=True)])


def forecast_metrics(values: ForecastValues, outputs: Array, packed: Array) -> dict[str, float]:
    """Return every metric of a network's outputs for rows with packed targets."""
    outcomes = values.split(packed)
    predicted = values.restored(outputs, outcomes.level, outcomes.spread)
    if not np.isfinite(predicted).all():  # of a network that diverged
        return {name: float("inf") for name in ("mase", "mae", "rmse", "smape", "pinball")} | {"coverage": 0.0}
    return ErrorSums.of(values, outcomes, predicted).metrics()


class PinballLoss(nn.Module):
    """The mean pinball loss of the outputs' quantiles over the values that are known, in the window's unit."""

    def __init__(self, values: ForecastValues) -> None:
        super().__init__()
        self.count = values.count
        self.quantiles = values.quantiles

    def forward(self, outputs: Tensor, packed: Tensor) -> Tensor:
        """Return the mean for outputs (rows, 3 * values) and packed targets. An unknown value counts as 0."""
        outputs = outputs.float()
        actual, present = packed[:, : self.count], packed[:, self.count : 2 * self.count]
        total: Tensor | None = None
        for place, quantile in enumerate(self.quantiles):
            errors = actual - outputs[:, place * self.count : (place + 1) * self.count]
            losses = torch.maximum(quantile * errors, (quantile - 1) * errors) * present
            total = losses if total is None else total + losses
        assert total is not None
        return total.mean()
