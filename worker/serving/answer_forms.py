"""Says which kinds of answers a model has, and makes each of them from a prediction."""

from collections.abc import Callable
from typing import Any

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.models.model_predictor import ModelPredictor, Prediction

from .requests import PredictionKind

AnswerForm = Callable[[Prediction], Any]


def answer_forms(predictor: ModelPredictor) -> dict[PredictionKind, AnswerForm | RequestError]:
    """Return what each kind of answer is made of, or why the model has none of this kind."""
    labels, target = predictor.labels, predictor.preprocessor.target.name
    forms: dict[PredictionKind, AnswerForm | RequestError] = {
        PredictionKind.VALUE: lambda p: p.value,
        PredictionKind.LABEL: lambda p: p.label,
        PredictionKind.LABELS: lambda p: list(p.labels),
        PredictionKind.PROBA: lambda p: dict(zip(labels, p.probabilities, strict=True)),
        PredictionKind.VECTOR: lambda p: list(p.vector),
        PredictionKind.VALUES: lambda p: list(p.values),
    }
    if predictor.task is Task.REGRESSION:
        values = predictor.preprocessor.target.values
        hint = f"Ask for its value with tensile_predict{'_values' if values else ''}(...)."
        for kind in (PredictionKind.LABEL, PredictionKind.LABELS):
            forms[kind] = RequestError(f"the model predicts {_shown(predictor)}, and has no labels", hint=hint)
        forms[PredictionKind.PROBA] = RequestError(
            f"the model predicts {_shown(predictor)}, and has no probabilities", hint=hint
        )
        if values:
            hint = "Ask for them with tensile_predict_values(...)."
            forms[PredictionKind.VALUE] = RequestError(f"the model predicts {_shown(predictor)}", hint=hint)
        return forms
    if predictor.task is Task.PAIRS:
        hint = "Ask for the similarity of a query and an item with tensile_predict(...)."
        for kind in (PredictionKind.LABEL, PredictionKind.LABELS, PredictionKind.PROBA):
            forms[kind] = RequestError("the model learns pairs, and has no labels", hint=hint)
        return forms
    if predictor.task is Task.ANOMALY:
        hint = "Ask for the score with tensile_predict(...)."
        for kind in (PredictionKind.PROBA, PredictionKind.VALUES):
            forms[kind] = RequestError("the model finds anomalies, and has a score and no probabilities", hint=hint)
        return forms
    forms[PredictionKind.VALUES] = RequestError(
        f'the model predicts "{target}", a label and no values', hint="Ask for it with tensile_predict_label(...)."
    )
    if predictor.task is Task.MULTILABEL:
        hint = "Ask for them with tensile_predict_labels(...)."
        forms[PredictionKind.VALUE] = RequestError(
            f'the model predicts "{target}", a set of labels and not a number', hint=hint
        )
    elif predictor.preprocessor.target.numbers is None:
        hint = "Ask for it with tensile_predict_label(...)."
        forms[PredictionKind.VALUE] = RequestError(
            f'the model predicts "{target}", a text label and not a number', hint=hint
        )
    return forms


def _shown(predictor: ModelPredictor) -> str:
    """Name the target of a regression and what it consists of."""
    target = predictor.preprocessor.target
    name = target.name if target.columns else f'"{target.name}"'
    return f"{name}, {f'{len(target.values)} values' if target.values else 'a number'}"
