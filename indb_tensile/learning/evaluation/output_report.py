"""The metrics of each output of a model by itself: of each class, of each label of a set, of each value."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.job import Task
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.evaluation.single_label import all_label_rows
from indb_tensile.learning.metrics.vector_metrics import value_figures

Array = npt.NDArray[Any]


def output_report(
    task: Task, outputs: Array, targets: Array, preprocessor: Preprocessor
) -> list[tuple[str, int, dict[str, float]]]:
    """Return the name of each output, the rows that have the label or value, and the metrics that the rows define.

    A regression of one number has no outputs to tell apart.
    """
    if not len(targets):
        return []
    if task is Task.REGRESSION:
        return list(_of_values(outputs, targets, preprocessor))
    labels = zip(preprocessor.target.names, all_label_rows(task, outputs, targets), strict=True)
    return [(name, int(own.actual.sum()), own.metrics()) for name, own in labels]


def _of_values(
    outputs: Array, targets: Array, preprocessor: Preprocessor
) -> Iterator[tuple[str, int, dict[str, float]]]:
    target = preprocessor.target
    if not target.values:
        return
    figures = value_figures(target.restore(outputs), target.decode(targets))
    for place, name in enumerate(target.values):
        own = {metric: float(values[place]) for metric, values in figures.items()}
        yield name, len(targets), {metric: value for metric, value in own.items() if not np.isnan(value)}
