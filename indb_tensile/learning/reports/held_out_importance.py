"""The importance of columns on held-out rows, which a training stores with its version if that takes little time.

The work is bounded by a count of multiplications, not by a clock, so equal trainings store equal figures.
"""

import math
from typing import Any

import numpy as np

from indb_tensile.learning.evaluation.permutation_importance import permutation_importance
from indb_tensile.learning.evaluation.single_metric import single_metric
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.storage.columns import Columns
from indb_tensile.request.estimator_rules import is_estimator

REPEATS = 5
SEED = 0
MOST_ROWS = 2_000
FEWEST_ROWS = 50
MOST_PRODUCTS = 2_000_000_000  # most multiplications of all passes together: about a second of one core
_METRIC_PRODUCTS = 400_000  # take about as long as computing a metric: a fifth of a millisecond
# Bytes of a stored boosting per multiplication for a row: of the 60 nodes of a tree, with 130 bytes each, a row
# visits about eight, and a visit takes as long as twenty multiplications.
_ESTIMATOR_BYTES = 50
_FEWEST_PARAMETERS = 2_000  # a row of a smaller network takes no less time


def stored_importance(bundle: ModelBundle, held_out: Columns, metric: str) -> dict[str, Any]:
    """Return the `rows` of the figure, or the `reason` why it is not stored: too few rows, or too much work.

    The rows are evenly spaced ones of those held out.
    """
    rows = len(held_out[bundle.preprocessor.target.name].missing)
    columns = len(bundle.preprocessor.positions)
    most = (MOST_PRODUCTS // (columns * REPEATS + 1) - _METRIC_PRODUCTS) // _row_products(bundle)
    chosen = min(rows, MOST_ROWS, most)
    if chosen < min(rows, FEWEST_ROWS) or not rows:
        return {
            "reason": f"to permute {columns} columns takes too long with this network"
            if rows
            else "no row is held out"
        }
    sample = np.arange(chosen, dtype=np.int64) * rows // chosen
    picked = {name: column.take(sample) for name, column in held_out.items()}
    predictor, preprocessor = ModelPredictor(bundle), bundle.preprocessor
    targets = preprocessor.target.encode(picked[preprocessor.target.name])
    importances = permutation_importance(
        predictor.outputs,
        lambda outputs: single_metric(metric, bundle.task, outputs, targets, preprocessor),
        preprocessor.transform(picked),
        preprocessor,
        metric=metric,
        repeats=REPEATS,
        seed=SEED,
    )
    if not all(math.isfinite(each.importance) for each in importances):
        return {"reason": f"{metric} is not defined on {chosen} held-out rows"}
    ranked = sorted(importances, key=lambda each: (-each.importance, each.feature))
    return {"rows": [[*each, metric] for each in ranked]}


def _row_products(bundle: ModelBundle) -> int:
    """Return about how many multiplications one row takes.

    A layer that is applied to each value of a row, such as a convolution, uses its weights once a value.
    """
    stored = sum(tensor.numel() for tensor in bundle.weights.values())
    if is_estimator(bundle.architecture):
        return max(_FEWEST_PARAMETERS, stored // _ESTIMATOR_BYTES)
    parameters = max(_FEWEST_PARAMETERS, stored)
    again = len(bundle.input_shape) > 1 or architectures.embeds(bundle.architecture)
    return parameters * (math.prod(bundle.input_shape) if again else 1)
