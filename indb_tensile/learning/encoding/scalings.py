"""Functions that make the values of a skewed column comparable before the column is standardised."""

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from sklearn.preprocessing import PowerTransformer

from indb_tensile.learning.storage.moments import FIT_BLOCK_NUMBERS, Blocks, finite_values
from indb_tensile.learning.storage.row_storage import MEMORY, RowStorage

Values = npt.NDArray[np.float64]

_QUANTILES = 256  # quantiles stored for a column; more would follow the noise of the training rows
_TAIL = 1e-3  # a value beyond all stored quantiles has the normal score of this share: -3.09 or 3.09


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A monotone function of one column. NaN stays NaN.

    Function "log" is sign(x) log(1 + |x|). "power" is the transformation of Yeo and Johnson (2000); its exponent is
    the field `power`, and 1.0 leaves values as they are. "quantile" gives each value the normal score of its rank
    among the training rows, interpolated between `references`, which are quantiles of these rows; without any, all
    scores are 0.
    """

    function: str
    power: float = 1.0
    references: tuple[float, ...] = ()

    def apply(self, values: Values) -> Values:
        """Apply the function to each value."""
        match self.function:
            case "log":
                return np.asarray(np.sign(values) * np.log1p(np.abs(values)))
            case "power":
                return self._yeo_johnson(values)
            case "quantile":
                return self._normal_scores(values)
            case _:
                raise ValueError(f"there is no scaling {self.function}")

    @cached_property
    def _tables(self) -> tuple[Values, Values]:
        """Return the references and the normal scores of their ranks."""
        shares = np.linspace(0.0, 1.0, len(self.references)).clip(_TAIL, 1.0 - _TAIL)
        return np.array(self.references), np.array([NormalDist().inv_cdf(share) for share in shares.tolist()])

    def _yeo_johnson(self, values: Values) -> Values:
        with np.errstate(over="ignore", invalid="ignore"):
            of_positive = _box_cox(np.maximum(values, 0.0) + 1.0, self.power)
            of_negative = _box_cox(1.0 - np.minimum(values, 0.0), 2.0 - self.power)
            powers = np.where(values >= 0, of_positive, -of_negative)
        # A power of a large finite value may overflow to infinity, which later steps would take for a missing value.
        return np.where(np.isnan(values), np.nan, np.clip(powers, -_LARGEST_POWER, _LARGEST_POWER))

    def _normal_scores(self, values: Values) -> Values:
        references, scores = self._tables
        if not len(references):
            return np.where(np.isnan(values), np.nan, 0.0)
        # A frequent value is several equal references. Interpolation from below gives it the score of the last of
        # them, interpolation from above that of the first, and the mean lies in the middle.
        from_below = np.interp(values, references, scores)
        from_above = -np.interp(-values, -references[::-1], -scores[::-1])
        return np.asarray((from_below + from_above) / 2.0)


def _box_cox(positive: Values, power: float) -> Values:
    """Return the power of Box and Cox (1964): the logarithm where the exponent is 0."""
    logs = np.log(positive)
    return logs if power == 0.0 else np.asarray(np.expm1(power * logs) / power)


_LARGEST_POWER = 1e100  # largest result of a power: its square does not overflow a double


def fit_scaling(function: str, blocks: Blocks, storage: RowStorage = MEMORY) -> Scaling:
    """Fit the named function to a column's training values, which are NaN where they are missing.

    The fits of "quantile" and "power" store a copy of the finite values in `storage`, because the column may not fit
    into memory. Quantiles are those of all finite values. The exponent of "power" is fitted to every k-th value in
    the order of the rows, at most `FIT_BLOCK_NUMBERS` of them, because that fit needs several copies in memory. A
    column with fewer than two finite values gets exponent 1 or no quantiles, and one of equal values exponent 1.
    """
    if function == "quantile":
        with finite_values(blocks, storage) as known:
            if len(known) > 1:
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
