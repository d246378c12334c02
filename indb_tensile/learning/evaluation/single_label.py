"""Scored rows as a binary classification by one label: a class against all others, or a label of a set."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.job import Task
from indb_tensile.learning.evaluation.model_metrics import finite_outputs, label_probabilities, probabilities
from indb_tensile.learning.metrics.vector_metrics import area_of

# Of one label, and whether a higher value is better.
LABEL_METRICS = {
    "precision": True,
    "recall": True,
    "f1": True,
    "accuracy": True,
    "roc_auc": True,
    "log_loss": False,
}

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelRows:
    """Which rows have a label, for which rows it is predicted, and its probability in each."""

    actual: Mask
    predicted: Mask
    chances: npt.NDArray[np.float64]

    def confusion(self) -> list[tuple[str, str, int]]:
        """Return how many rows have the label or not, and how many of these it is predicted for or not."""
        pairs = [
            ("true" if actual else "false", "true" if predicted else "false", actual, predicted)
            for actual in (False, True)
            for predicted in (False, True)
        ]
        counts = [
            (shown, answered, int(((self.actual == actual) & (self.predicted == predicted)).sum()))
            for shown, answered, actual, predicted in pairs
        ]
        return [pair for pair in counts if pair[2]]

    def metrics(self, names: Sequence[str] = tuple(LABEL_METRICS)) -> dict[str, float]:
        """Return those of these metrics that the rows define: `roc_auc` needs rows with the label and without it.

        Precision, recall and F1 are 0 where they would be a share of nothing, as in the means over labels.
        """
        right = int((self.actual & self.predicted).sum())
        occurring, answered = int(self.actual.sum()), int(self.predicted.sum())
        values = {
            "precision": right / max(answered, 1),
            "recall": right / max(occurring, 1),
            "f1": 2 * right / max(occurring + answered, 1),
            "accuracy": float((self.actual == self.predicted).mean()),
        }
        if "log_loss" in names:
            least = np.finfo(np.float64).eps
            own = np.where(self.actual, self.chances, 1 - self.chances)
            values["log_loss"] = float(-np.log(own.clip(least, 1)).mean())
        if "roc_auc" in names and 0 < occurring < len(self.actual):
            values["roc_auc"] = area_of(self.chances, self.actual)
        return {name: values[name] for name in names if name in values}


def label_rows(task: Task, outputs: Array, targets: Array, place: int) -> LabelRows:
    """Return the rows of the label at this place of a classification's classes, or of a set's labels."""
    return next(_of_labels(task, outputs, targets, [place]))


def all_label_rows(task: Task, outputs: Array, targets: Array) -> Iterator[LabelRows]:
    """Yield the rows of each label in the order of the outputs."""
    return _of_labels(task, outputs, targets, range(outputs.shape[1]))


def _of_labels(task: Task, outputs: Array, targets: Array, places: Iterable[int]) -> Iterator[LabelRows]:
    outputs = finite_outputs(outputs)
    if task is Task.MULTILABEL:
        for place in places:
            own = outputs[:, place]
            yield LabelRows(actual=targets[:, place] > 0.5, predicted=own >= 0, chances=label_probabilities(own))
        return
    answers, chances = outputs.argmax(axis=1), probabilities(outputs)
    for place in places:
        yield LabelRows(actual=targets == place, predicted=answers == place, chances=chances[:, place])
