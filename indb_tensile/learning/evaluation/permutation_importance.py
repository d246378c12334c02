"""Permutation importance: how much worse a model gets when it sees the values of a column in another order.

Breiman (2001, "Random Forests", section 10) permutes a column of the rows that a tree has not seen; Fisher, Rudin and
Dominici (2019, "All Models are Wrong, but Many are Useful") define the same for any model as its reliance on the
column. The importance is the mean over `repeats` permutations of the loss in the model's metric, in its unit: above
zero if the model needs the column. Two columns that say the same share their importance, so both look small.

Encoded rows are permuted, not raw ones. The numbers of a column in an encoded row depend on no other column, so both
give the same, and nothing is encoded again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.evaluation.model_metrics import HIGHER_IS_BETTER
from indb_tensile.learning.storage.encoded_rows import EncodedRows

Array = npt.NDArray[Any]


class Importance(NamedTuple):
    """Mean and standard deviation, over the permutations of a column, of the loss in the metric."""

    feature: str
    importance: float
    deviation: float


def permuted_rows(x: Array, positions: npt.NDArray[np.int64], order: npt.NDArray[np.int64]) -> EncodedRows:
    """Return the rows of `x` in which the numbers at `positions` come from the rows in `order`."""
    flat = x.reshape(len(x), -1)

    def make(begin: int, end: int) -> Array:
        part = x[begin:end].copy()
        part.reshape(end - begin, -1)[:, positions] = flat[order[begin:end]][:, positions]
        return part

    return EncodedRows(make, 0, len(x))


def permuted_columns(
    x: Array, preprocessor: Preprocessor, repeats: int, seed: int
) -> Iterator[tuple[str, list[EncodedRows]]]:
    """Yield each column with the rows of its permutations, which depend on the seed and the column's place alone."""
    for place, (name, positions) in enumerate(preprocessor.positions.items()):
        source = np.random.default_rng([seed, place])
        yield name, [permuted_rows(x, positions, source.permutation(len(x))) for _ in range(repeats)]


def importance_of(feature: str, base: float, permuted: Sequence[float], *, higher_is_better: bool) -> Importance:
    """Return the importance of a column: how much worse the metric is, on average, when its values are permuted.

    `base` is the metric of the rows as they are, and `permuted` holds the metric of each permutation.
    """
    losses = [base - value if higher_is_better else value - base for value in permuted]
    return Importance(feature=feature, importance=float(np.mean(losses)), deviation=float(np.std(losses)))


def permutation_importance(
    predict: Callable[[Array], Array],
    metric_of: Callable[[Array], float],
    x: Array,
    preprocessor: Preprocessor,
    *,
    metric: str,
    repeats: int,
    seed: int,
) -> list[Importance]:
    """Return the importance of each column, in the order of the columns."""
    base = metric_of(predict(x))
    return [
        importance_of(
            name,
            base,
            [metric_of(predict(rows.array())) for rows in permutations],
            higher_is_better=HIGHER_IS_BETTER[metric],
        )
        for name, permutations in permuted_columns(x, preprocessor, repeats, seed)
    ]
