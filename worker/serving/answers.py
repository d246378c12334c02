"""A predictor's predictions in the form that was asked for."""

from collections.abc import Callable, Sequence
from typing import Any

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.artifacts import Prediction, Predictor

from .requests import Kind


class Answers:
    """One version, as the compute thread asks it."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._forms = _forms(predictor)

    def predict_rows(self, rows: Sequence[Any], kind: str) -> list[Any]:
        """One answer per row. Raises RequestError where the model has no answer of this kind."""
        form = self._forms[Kind(kind)]
        if isinstance(form, RequestError):
            # A new one each time: a raised exception collects its traces.
            raise type(form)(form.message, hint=form.hint)
        return [form(prediction) for prediction in self._predictor.predict_rows(rows)]


_Form = Callable[[Prediction], Any]


def _forms(predictor: Predictor) -> dict[Kind, _Form | RequestError]:
    labels, target = predictor.labels, predictor.preprocessor.target.name
    forms: dict[Kind, _Form | RequestError] = {
        Kind.VALUE: lambda p: p.value,
        Kind.LABEL: lambda p: p.label,
        Kind.PROBA: lambda p: dict(zip(labels, p.probabilities, strict=True)),
        Kind.VECTOR: lambda p: list(p.vector),
    }
    if predictor.task is Task.REGRESSION:
        hint = "Ask for its value with tensile_predict(...)."
        forms[Kind.LABEL] = RequestError(f'the model predicts "{target}", a number, and has no labels', hint=hint)
        forms[Kind.PROBA] = RequestError(
            f'the model predicts "{target}", a number, and has no probabilities', hint=hint
        )
    elif predictor.preprocessor.target.numbers is None:
        hint = "Ask for it with tensile_predict_label(...)."
        forms[Kind.VALUE] = RequestError(f'the model predicts "{target}", a text label and not a number', hint=hint)
    return forms
