"""A predictor's predictions in the form that was asked for."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.artifacts import Prediction, Predictor
from indb_tensile.learning.evaluation import evaluate

from .requests import Kind, RowError

SCORE = "score"  # beside Kind, and never a client's: what an evaluation keeps of a row


class Scored(NamedTuple):
    """A row's outputs, and the encoded value that it should have."""

    outputs: npt.NDArray[np.float32]
    target: Any


class Answers:
    """One version, as the compute thread asks it."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._forms = _forms(predictor)

    def predict_rows(self, rows: Sequence[Any], kind: str) -> list[Any]:
        """One answer per row. Raises RequestError where the model has no answer of this kind.

        Raises RowError for the first row that does not fit.
        """
        if kind == SCORE:
            return self._located(self._score, rows)
        form = self._forms[Kind(kind)]
        if isinstance(form, RequestError):
            # A new one each time: a raised exception collects its traces.
            raise type(form)(form.message, hint=form.hint)
        return [form(prediction) for prediction in self._located(self._predictor.predict_rows, rows)]

    def metrics(self, outputs: npt.NDArray[np.float32], targets: npt.NDArray[Any]) -> dict[str, float]:
        """The metrics of scored rows."""
        return evaluate(self._predictor.task, outputs, targets, self._predictor.preprocessor)

    def _score(self, rows: Sequence[Any]) -> list[Scored]:
        targets = self._predictor.preprocessor.targets_of(rows)
        outputs = self._predictor.outputs(self._predictor.preprocessor.transform_rows(rows))
        return [Scored(*pair) for pair in zip(outputs, targets, strict=True)]

    def _located(self, compute: Callable[[Sequence[Any]], list[Any]], rows: Sequence[Any]) -> list[Any]:
        """What `compute` gives for the rows. Where it refuses them, halve them until one row is left."""
        try:
            return compute(rows)
        except RequestError as error:
            refusal = error
        except RecursionError:
            refusal = RequestError("a value is nested too deep", hint="Give lists that are nested less deep.")
        begin, end = 0, len(rows)
        while end - begin > 1:
            middle = (begin + end) // 2
            fault = self._fault(compute, rows[begin:middle])
            begin, end = (begin, middle) if fault else (middle, end)
            refusal = fault or refusal
        # The last half may be sound by itself: arrays of two shapes refuse each other, not themselves.
        refusal = self._fault(compute, rows[begin:end]) or refusal
        refusal.message = _OWN_ROW.sub("", refusal.message)
        raise RowError(refusal, begin) from None

    def _fault(self, compute: Callable[[Sequence[Any]], list[Any]], rows: Sequence[Any]) -> RequestError | None:
        try:
            compute(rows)
        except RequestError as error:
            return error
        except RecursionError:
            return RequestError("a value is nested too deep", hint="Give lists that are nested less deep.")
        return None


# A message that counts rows counts those of one pass: RowError says which row of the request it is.
_OWN_ROW = re.compile(r", row \d+(?=:)| in row \d+$")
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
