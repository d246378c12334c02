"""Computes the figures of a model: the quality of scored rows, the importance of columns, and what explains a row."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import InvariantError, RequestError
from indb_tensile.job import Task
from indb_tensile.learning.evaluation.class_figures import calibration_rows, confusion_rows, roc_rows
from indb_tensile.learning.evaluation.model_metrics import (
    HIGHER_IS_BETTER,
    evaluate,
    label_probabilities,
    probabilities,
)
from indb_tensile.learning.evaluation.output_report import output_report
from indb_tensile.learning.evaluation.permutation_importance import permuted_columns
from indb_tensile.learning.evaluation.shapley_values import ShapleyGame, shapley_game
from indb_tensile.learning.evaluation.single_label import LABEL_METRICS
from indb_tensile.learning.evaluation.single_metric import single_metric
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.storage.encoded_rows import EncodedRows
from indb_tensile.request.abbreviation import shown
from indb_tensile.request.figure_rules import CLASS_FIGURES, METRIC_OF_LABEL, check_bins, figure_title
from indb_tensile.request.task_rules import check_metric

from .requests import Figure, FigureOptions

_NAMED_LABELS = 20  # labels that an error message names


class NoBaselineError(RequestError):
    """The version was stored without what an explanation needs."""

    sqlstate = "55000"


class ModelFigures:
    """The figures of one version of a model. Rows are encoded or scored already."""

    def __init__(self, predictor: ModelPredictor) -> None:
        self._predictor = predictor

    def metrics(self, outputs: npt.NDArray[np.float32], targets: npt.NDArray[Any]) -> dict[str, float]:
        """Return the metrics of scored rows."""
        return evaluate(self._predictor.task, outputs, targets, self._predictor.preprocessor, each=True)

    def check_figure(self, figure: Figure, options: FigureOptions) -> None:
        """Raise RequestError for a figure that the model does not have."""
        target, task = self._predictor.preprocessor.target, self._predictor.task
        if task is Task.ANOMALY and figure is not Figure.METRICS:
            raise RequestError(
                f"the model finds anomalies, and has no {figure_title(figure)}",
                hint="Ask for its metrics with tensile_evaluate(...), and for what is odd about a row with "
                "tensile_explain_prediction(...).",
            )
        if task is Task.PAIRS and figure is not Figure.METRICS:
            raise RequestError(
                f"the model learns pairs, and has no {figure_title(figure)}",
                hint="Ask for its metrics with tensile_evaluate(...).",
            )
        number = task is Task.REGRESSION and not target.values
        if (figure in CLASS_FIGURES and task is Task.REGRESSION) or (figure is Figure.LABEL_METRICS and number):
            predicted = "a number" if number else "several numbers"
            raise RequestError(
                f'the model predicts "{target.name}", {predicted}, and has no {figure_title(figure)}',
                hint="Ask for its metrics with tensile_evaluate(...).",
            )
        if figure is Figure.FEATURE_IMPORTANCE:
            check_metric(task, options.metric)
            if options.label is not None and task is Task.CLASSIFICATION:
                raise RequestError(
                    f'the model predicts one label of "{target.name}", whose importance is that of the prediction',
                    hint="Leave label out. It names a label of a set, or one of several targets.",
                )
        self._check_label(options.label)
        if figure is Figure.CONFUSION_MATRIX and task is Task.MULTILABEL and options.label is None:
            raise RequestError(
                "a model of sets of labels has a confusion matrix for each label, and label is left out",
                hint=f"Name one of {', '.join(target.names[:_NAMED_LABELS])} with label => '...'.",
            )

    def _check_label(self, label: str | None) -> None:
        target = self._predictor.preprocessor.target
        names = target.values or target.names
        if label is not None and label not in names:
            noun = "values" if target.values else "labels"
            known = (
                f"Its {noun} are {', '.join(names[:_NAMED_LABELS])}."
                if names
                else "It predicts a number: leave label out."
            )
            raise RequestError(f"the model does not know the label {shown(label)}", hint=known)

    def figure(
        self, figure: Figure, options: FigureOptions, outputs: npt.NDArray[np.float32], targets: npt.NDArray[Any]
    ) -> Sequence[Sequence[Any]]:
        """Return the rows of a figure of scored rows."""
        task, names, label = self._predictor.task, self._predictor.preprocessor.target.names, options.label
        match figure:
            case Figure.CONFUSION_MATRIX:
                return confusion_rows(task, outputs, targets, names, label)
            case Figure.ROC_CURVE:
                return roc_rows(task, outputs, targets, names, label)
            case Figure.CALIBRATION:
                bins = check_bins(options.bins, stored=False)
                return calibration_rows(task, outputs, targets, names, label, bins)
            case Figure.LABEL_METRICS:
                report = output_report(task, outputs, targets, self._predictor.preprocessor)
                return [
                    (name, metric, value, rows)
                    for name, rows, metrics in report
                    for metric, value in metrics.items()
                    if label in (None, name)
                ]
            case other:
                raise InvariantError(f"{other} is not a figure of scored rows")

    def permuted_columns(
        self, x: npt.NDArray[np.float32], repeats: int, seed: int
    ) -> Iterator[tuple[str, list[EncodedRows]]]:
        """Yield each column with the encoded rows of its permutations."""
        return permuted_columns(x, self._predictor.preprocessor, repeats, seed)

    def judge(self, options: FigureOptions, outputs: npt.NDArray[np.float32], targets: npt.NDArray[Any]) -> float:
        """Return the metric that an importance is a loss in, NaN if the rows do not define it."""
        task, preprocessor = self._predictor.task, self._predictor.preprocessor
        return single_metric(options.metric, task, outputs, targets, preprocessor, label=options.label)

    def judged_by(self, options: FigureOptions) -> tuple[str, bool]:
        """Return the name of that metric, such as f1(red) for a label, and whether a higher value is better."""
        if options.label is None:
            return options.metric, HIGHER_IS_BETTER[options.metric]
        if self._predictor.task is Task.REGRESSION:
            return f"{options.metric}({options.label})", HIGHER_IS_BETTER[options.metric]
        metric = METRIC_OF_LABEL[options.metric]
        return f"{metric}({options.label})", LABEL_METRICS[metric]

    def shapley_game(
        self, x: npt.NDArray[np.float32], label: str | None, seed: int
    ) -> tuple[ShapleyGame, EncodedRows]:
        """Return the coalitions of the columns of an encoded row, and the encoded rows to predict for.

        Raises RequestError for an unknown label, and if the version has no baseline.
        """
        self._check_label(label)
        baseline, positions = self._predictor.bundle.baseline, self._predictor.preprocessor.positions
        if baseline is None:
            raise NoBaselineError(
                "this version has no baseline row to explain a prediction against",
                detail="Release 0.1 stored none, and rows of more than 16384 numbers have none.",
                hint="Train the model again, or see which columns it needs: tensile_feature_importance(...).",
            )
        game = shapley_game(tuple(positions), seed)
        flat = np.array(baseline, np.float32)
        return game, game.rows(x, flat, tuple(positions.values()))

    def attributions(self, game: ShapleyGame, outputs: npt.NDArray[np.float32], label: str | None) -> list[list[Any]]:
        """Return what each column adds to the prediction (Shapley values). `outputs` are for `game.rows`.

        A row has the column, its share, the standard error of that, the label or None, and the predictions for the
        baseline and for the row. The largest share is first.
        """
        target = self._predictor.preprocessor.target
        if target.values:
            place = 0 if label is None else target.values.index(label)
            label, values = target.values[place], target.restore(outputs)[:, place]
        elif self._predictor.task in (Task.REGRESSION, Task.PAIRS):
            values = target.restore(outputs)
        else:
            several = self._predictor.task is Task.MULTILABEL
            place = int(outputs[-1].argmax()) if label is None else target.names.index(label)
            chances = label_probabilities(outputs) if several else probabilities(outputs)
            label, values = target.names[place], chances[:, place]
        ranked = sorted(game.attributions(values), key=lambda each: (-abs(each.value), each.feature))
        ends = [label, float(values[0]), float(values[-1])]
        return [[each.feature, each.value, each.error, *ends] for each in ranked]

    def odd_columns(self, outputs: npt.NDArray[np.float32]) -> list[list[Any]] | None:
        """Return what each column adds to the raw score of a row, from its outputs; None for a model of another task.

        The rows are those of `attributions`: the shares add up to the raw score, and none has an error.
        """
        target = self._predictor.preprocessor.target
        if target.anomaly is None:
            return None
        columns, added = target.anomaly.contributions(outputs)
        label = target.names[int(target.anomaly.flags(target.anomaly.scores(outputs))[0])]
        ranked = sorted(zip(columns, added[0].tolist(), strict=True), key=lambda each: (-each[1], each[0]))
        return [[name, share, 0.0, label, 0.0, float(added[0].sum())] for name, share in ranked]
