"""Functions that make the values of a skewed column comparable before the column is standardised."""

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from sklearn.preprocessing import PowerTransformer

from indb_tensile.learning.moments import FIT_BLOCK_NUMBERS, Blocks, finite_values
from indb_tensile.learning.row_storage import MEMORY, RowStorage

Values = npt.NDArray[np.float64]

_QUANTILES = 256  # references of the distribution; more would follow the noise of the training rows
_TAIL = 1e-3  # a value beyond all references has the score of this share of a normal distribution: +-3.09


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A monotone function of one column. NaN stays NaN.

    `log` is sign(x) log(1 + |x|). `power` is the function of Yeo and Johnson (2000) with the exponent `power`.
    `quantile` gives each value the normal score of its rank among the training rows; `references` are their
    quantiles.
    """

    function: str
    power: float = 1.0
    references: tuple[float, ...] = ()

    def apply(self, values: Values) -> Values:
        """Return the function of each value."""
        match self.function:
            case "log":
                return np.asarray(np.sign(values) * np.log1p(np.abs(values)))
            case "power":
                return self._yeo_johnson(values)
            case _:
                return self._normal_scores(values)

    @cached_property
    def _tables(self) -> tuple[Values, Values]:
        """Return the references and the normal scores of their ranks."""
        shares = np.linspace(0.0, 1.0, len(self.references)).clip(_TAIL, 1.0 - _TAIL)
        return np.array(self.references), np.array([NormalDist().inv_cdf(share) for share in shares.tolist()])

    def _yeo_johnson(self, values: Values) -> Values:
        with np.errstate(over="ignore", invalid="ignore"):
            rising = _box_cox(np.maximum(values, 0.0) + 1.0, self.power)
            falling = _box_cox(1.0 - np.minimum(values, 0.0), 2.0 - self.power)
            powers = np.where(values >= 0, rising, -falling)
        # A power of a large finite value may overflow. The value is known, so it must not become a missing one.
        return np.where(np.isnan(values), np.nan, np.clip(powers, -_LARGEST_POWER, _LARGEST_POWER))

    def _normal_scores(self, values: Values) -> Values:
        references, scores = self._tables
        if not len(references):
            return np.where(np.isnan(values), np.nan, 0.0)
        # The mean of both directions gives equal references, a frequent value, the middle of their scores.
        rising = np.interp(values, references, scores)
        falling = -np.interp(-values, -references[::-1], -scores[::-1])
        return np.asarray((rising + falling) / 2.0)


def _box_cox(positive: Values, power: float) -> Values:
    """Return the power of Box and Cox (1964): the logarithm where the exponent is 0."""
    logs = np.log(positive)
    return logs if power == 0.0 else np.asarray(np.expm1(power * logs) / power)


_LARGEST_POWER = 1e100  # largest result of a power: its square does not overflow a double


def fit_scaling(function: str, blocks: Blocks, storage: RowStorage = MEMORY) -> Scaling:
    """Fit a function to the training rows of a column, NaN where missing.

    Quantiles are those of all rows, of which `storage` gets a copy. The exponent of a power is fitted to evenly
    spaced rows, at most `FIT_BLOCK_NUMBERS` of them, because the fit needs several copies in memory.
    """
    if function == "quantile":
        with finite_values(blocks, storage) as known:
            if len(known):
                shares = np.linspace(0.0, 1.0, min(_QUANTILES, len(known)))
                references = np.quantile(known, shares, overwrite_input=True)  # orders the copy in its place
                return Scaling(function=function, references=tuple(references.tolist()))
    if function == "power":
        with finite_values(blocks, storage) as known:
            sample = known[:: max(1, -(-len(known) // FIT_BLOCK_NUMBERS))].copy()
        if len(sample) > 1 and sample.min() < sample.max():
            transformer = PowerTransformer(standardize=False).fit(sample[:, None])
            return Scaling(function=function, power=float(transformer.lambdas_[0]))
    return Scaling(function=function)
