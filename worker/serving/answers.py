"""Converts a predictor's predictions into the requested form."""

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.decoding.binary_rows import BinaryRows
from indb_tensile.learning.encoding.forecast_encoding import ErrorSums, added
from indb_tensile.learning.encoding.label_texts import label_sets
from indb_tensile.learning.encoding.preprocessor import NUMBERS
from indb_tensile.learning.encoding.row_columns import columns_of_rows
from indb_tensile.learning.evaluation.model_metrics import label_probabilities, probabilities
from indb_tensile.learning.evaluation.probability_texts import probability_texts, value_texts
from indb_tensile.learning.models.forecaster import Forecaster, SeriesRow
from indb_tensile.learning.models.model_predictor import ModelPredictor, Prediction
from indb_tensile.learning.storage.columns import Columns
from indb_tensile.learning.storage.encoded_rows import EncodedRows

from .answer_forms import AnswerForm, answer_forms
from .model_figures import ModelFigures
from .requests import EMBEDDING_KINDS, SIDE_OF_KIND, TABLE_KINDS, NextSteps, PredictionKind, RowError

SCORE = "score"  # used beside PredictionKind, but never requested by a client: the scores that an evaluation stores
INPUT = "input"  # likewise: the encoded row
ENCODED = "encoded"  # likewise: the encoded row and its target, from which the importance of columns is computed
FORECAST = "forecast"  # likewise: a request for whole series
OUTPUTS = "outputs"  # likewise: the network's outputs for rows that are encoded already


class Encoded(NamedTuple):
    """An encoded row, and the encoded value of its target."""

    x: npt.NDArray[np.float32]
    target: Any


class Scored(NamedTuple):
    """The network's outputs for a row, and the encoded value of the row's target."""

    outputs: npt.NDArray[np.float32]
    target: Any


def _numbers_text(numbers: Sequence[float]) -> str:
    """Return the numbers as JSON with their shortest exact digits, and NaN and infinity as PostgreSQL reads them.

    msgspec is ten times faster than the standard library, and writes null for numbers that are not finite.
    """
    text = msgspec.json.encode(numbers)
    return json.dumps(numbers) if b"n" in text else text.decode()  # null has the only letter n


def _quoted(label: str) -> str:
    """Return a label as an element of an array's text."""
    escaped = label.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Answers(ModelFigures):
    """One version of a model, as the compute thread uses it: its answers for rows, beside its figures."""

    def __init__(self, predictor: ModelPredictor) -> None:
        super().__init__(predictor)
        self._forms = answer_forms(predictor)

    def predict_rows(self, rows: Sequence[Any], kind: str) -> list[Any]:
        """Return one answer per row. Raises RequestError if the model has no answer of this kind.

        A row whose image cannot be read has the answer None, if the model skips such rows.
        Raises RowError for the first row that does not fit.
        """
        if kind == SCORE:
            return self._compute_located(self._score, rows)
        if kind == INPUT:
            return self._compute_located(lambda part: list(self._predictor.transform(part)), rows)
        if kind == ENCODED:
            return self._compute_located(self._encode, rows)
        if isinstance(rows, EncodedRows):
            return list(self._predictor.outputs(rows.array()))
        if kind in EMBEDDING_KINDS:
            embedded = self._compute_located(partial(self._embeddings, side=SIDE_OF_KIND.get(kind)), rows)
            if kind not in TABLE_KINDS:
                return embedded
            return [None if own is None else _numbers_text(own) for own in embedded]
        if kind in TABLE_KINDS:
            with_probabilities = kind == PredictionKind.TABLE_PROBA
            return self._compute_located(partial(self._table_entries, with_probabilities=with_probabilities), rows)
        if kind == FORECAST:
            return [self._forecast(request) for request in rows]
        form = self._forms[PredictionKind(kind)]
        if isinstance(form, RequestError):
            # A new exception each time: a raised one collects tracebacks.
            raise type(form)(form.message, hint=form.hint)
        return self._formed(self._compute_located(self._predictor.predict_rows, rows), form)

    def _formed(self, predictions: Sequence[Prediction], form: AnswerForm) -> list[Any]:
        """Return the answers, None for a row whose image cannot be read."""
        if self._predictor.preprocessor.skips:
            return [None if math.isnan(each.vector[0]) else form(each) for each in predictions]
        return [form(prediction) for prediction in predictions]

    def features(self, side: str | None = None) -> Sequence[tuple[str, str]]:
        """Return the names of the columns that a row needs, and their kinds. All numbers have one kind.

        With `side` it is a row of one side of pairs. Raises RequestError for a model without sides.
        """
        preprocessor = self._predictor.preprocessor
        kinds = preprocessor.feature_kinds if side is None else self._predictor.side(side).feature_kinds
        return [(name, "number" if kind in NUMBERS else kind.value) for name, kind in kinds.items()]

    def input_columns(self, rows: Sequence[Any], features: Sequence[str]) -> Columns:
        """Return these features of rows that the model has predicted for."""
        if isinstance(rows, BinaryRows):
            return rows.columns
        return columns_of_rows(self._predictor.preprocessor, rows, features)

    def forecast(self) -> dict[str, Any] | None:
        """Return the columns and the lengths that a forecast needs, or None for a model of another task."""
        recipe = self._predictor.bundle.forecast
        if recipe is None:
            return None
        columns = recipe.columns
        roles = {role: list(getattr(columns, role)) for role in ("series", "targets", "known", "observed", "static")}
        lengths = {"window": recipe.window, "horizon": recipe.horizon}
        return {"time": columns.time, **roles, **lengths, "duplicates": columns.duplicates}

    def _forecast(self, request: NextSteps) -> dict[str, Any]:
        forecaster = Forecaster(self._predictor)
        rows = [SeriesRow(later=later, values=values) for later, values in request.rows]
        if request.sums is None:
            return {"rows": forecaster.forecast(rows, request.horizon)}
        parts = [ErrorSums.from_json(request.sums)] if request.sums else []
        own = forecaster.judge(rows)
        total = added(parts if own is None else [*parts, own])
        return {"sums": [] if total is None else total.to_json(), "metrics": {} if total is None else total.metrics()}

    def _embeddings(self, rows: Sequence[Any], side: str | None) -> list[list[float] | None]:
        """Return the representation of each row, None for a row whose image cannot be read."""
        if side is not None:
            vectors = self._predictor.side(side)(rows)
            unread = np.isnan(vectors[:, 0])
            return [None if lacking else own for own, lacking in zip(vectors.tolist(), unread, strict=True)]
        x = self._predictor.transform(rows)
        embedded: list[list[float] | None] = self._predictor.embeddings(x).tolist()
        if self._predictor.preprocessor.skips:
            for row in np.flatnonzero(np.isnan(x).reshape(len(x), -1).any(axis=1)):
                embedded[int(row)] = None
        return embedded

    def own_kind(self) -> str:
        """Return the kind of prediction that suits the model: value, label, labels or values."""
        if self._predictor.task is Task.MULTILABEL:
            return "labels"
        if self._predictor.preprocessor.target.values:
            return "values"
        return "label" if isinstance(self._forms[PredictionKind.VALUE], RequestError) else "value"

    def several(self) -> bool:
        """Return whether the target consists of several columns."""
        return bool(self._predictor.preprocessor.target.columns)

    def table_answer(self, entries: Sequence[Any], kind: str) -> dict[str, str | None]:
        """Return the answers for rows of a table, from what `predict_rows` has returned for them.

        They are the texts of arrays, which PostgreSQL reads faster than JSON; the probabilities are a list of JSON
        objects. An array is null if the model has no such answers. An answer None is NULL.
        """
        target = self._predictor.preprocessor.target
        # Only these can be without an answer; to compare each of the other entries would take as long as to write it.
        if (self._predictor.preprocessor.skips or kind in EMBEDDING_KINDS) and None in entries:
            return self._answer_with_gaps(entries, kind)
        nothing = {"values": None, "labels": None, "probabilities": None, "targets": None}
        if target.values or kind in EMBEDDING_KINDS:
            return nothing | {"targets": f"[{','.join(entries)}]"}
        if self._predictor.task in (Task.REGRESSION, Task.PAIRS):
            return nothing | {"values": f"{{{_numbers_text(entries)[1:-1]}}}"}
        with_probabilities = kind == PredictionKind.TABLE_PROBA
        places = [place for place, _ in entries] if with_probabilities else entries
        chances = f"[{','.join([own for _, own in entries])}]" if with_probabilities else None
        if self._predictor.task is Task.MULTILABEL:
            return nothing | {"labels": f"{{{','.join(map(_quoted, places))}}}", "probabilities": chances}
        if target.anomaly is not None:
            scores, flags = zip(*entries, strict=True) if entries else ((), ())
            return nothing | {"values": f"{{{_numbers_text(scores)[1:-1]}}}", "labels": f"{{{','.join(flags)}}}"}
        labels = [_quoted(name) for name in target.names]
        numbers = None if target.numbers is None else list(map(repr, target.numbers))
        return {
            "values": None if numbers is None else f"{{{','.join([numbers[place] for place in places])}}}",
            "labels": f"{{{','.join([labels[place] for place in places])}}}",
            "probabilities": chances,
            "targets": None,
        }

    def _answer_with_gaps(self, entries: Sequence[Any], kind: str) -> dict[str, str | None]:
        """Return the answers for rows. A row that is None has no answer, and each other row is answered by itself."""
        answers = [None if entry is None else self.table_answer([entry], kind) for entry in entries]
        known = next((answer for answer in answers if answer is not None), None)
        if known is None:  # no row has an answer: whatever the model predicts is NULL
            arrays = dict.fromkeys(("values", "labels"), f"{{{','.join(['NULL'] * len(entries))}}}")
            lists = dict.fromkeys(("probabilities", "targets"), f"[{','.join(['null'] * len(entries))}]")
            own = self.table_answer([], kind)
            return {name: None if own[name] is None else (arrays | lists)[name] for name in own}
        joined: dict[str, str | None] = {}
        for name, text in known.items():
            gap = "NULL" if name in ("values", "labels") else "null"
            parts = [gap if answer is None else (answer[name] or gap)[1:-1] for answer in answers]
            joined[name] = None if text is None else f"{text[0]}{','.join(parts)}{text[-1]}"
        return joined

    def _table_entries(self, rows: Sequence[Any], *, with_probabilities: bool) -> list[Any]:
        """Return the value of a regression for each row, or the place of its label, and probabilities as JSON.

        Several values are the text of their JSON, and sets of labels the text of an array.
        """
        outputs = self._predictor.outputs(self._predictor.transform(rows))
        unreadable = np.flatnonzero(np.isnan(outputs[:, 0])) if self._predictor.preprocessor.skips else ()
        entries = self._entries(outputs, with_probabilities=with_probabilities)
        for row in unreadable:
            entries[int(row)] = None
        return entries

    def _entries(self, outputs: npt.NDArray[np.float32], *, with_probabilities: bool) -> list[Any]:
        target = self._predictor.preprocessor.target
        if target.values:
            return value_texts(target, target.restore(outputs))
        if self._predictor.task in (Task.REGRESSION, Task.PAIRS):
            numbers: list[float] = target.restore(outputs).tolist()
            return numbers
        if target.anomaly is not None:
            scores = target.anomaly.scores(outputs)
            flags = [target.names[int(flag)] for flag in target.anomaly.flags(scores)]
            return list(zip(scores.tolist(), flags, strict=True))
        several = self._predictor.task is Task.MULTILABEL
        places: list[Any] = label_sets(target.names, outputs) if several else outputs.argmax(axis=1).tolist()
        if not with_probabilities:
            return places
        chances = label_probabilities(outputs) if several else probabilities(outputs)
        return list(zip(places, probability_texts(target.names, chances), strict=True))

    def _encode(self, rows: Sequence[Any]) -> list[Encoded | None]:
        """Return the encoded rows, None for one whose image cannot be read."""
        targets = self._predictor.preprocessor.targets_of(rows)
        encoded = self._predictor.preprocessor.transform_rows(rows)
        pairs = zip(encoded, targets, strict=True)
        if self._predictor.preprocessor.skips:
            return [None if np.isnan(x).any() else Encoded(x, target) for x, target in pairs]
        return [Encoded(*pair) for pair in pairs]

    def _score(self, rows: Sequence[Any]) -> list[Scored | None]:
        """Return the outputs for the rows, None for one whose image cannot be read."""
        targets = self._predictor.preprocessor.targets_of(rows)
        outputs = self._predictor.outputs(self._predictor.preprocessor.transform_rows(rows))
        pairs = zip(outputs, targets, strict=True)
        if self._predictor.preprocessor.skips:
            return [None if np.isnan(own[0]) else Scored(own, target) for own, target in pairs]
        return [Scored(*pair) for pair in pairs]

    def _compute_located(self, compute: Callable[[Sequence[Any]], list[Any]], rows: Sequence[Any]) -> list[Any]:
        """Compute the rows. If `compute` refuses them, find the row at fault by halving and raise RowError for it."""
        try:
            return compute(rows)
        except RequestError as error:
            refusal = error
        except RecursionError:
            refusal = RequestError("a value is nested too deep", hint="Give lists that are nested less deep.")
        begin, end = 0, len(rows)
        while end - begin > 1:
            middle = (begin + end) // 2
            error_of_half = self._error_of(compute, rows[begin:middle])
            begin, end = (begin, middle) if error_of_half else (middle, end)
            refusal = error_of_half or refusal
        # The last half may be valid by itself: arrays of two shapes are refused only together.
        refusal = self._error_of(compute, rows[begin:end]) or refusal
        refusal.message = _OWN_ROW.sub("", refusal.message)
        raise RowError(refusal, begin) from None

    def _error_of(self, compute: Callable[[Sequence[Any]], list[Any]], rows: Sequence[Any]) -> RequestError | None:
        try:
            compute(rows)
        except RequestError as error:
            return error
        except RecursionError:
            return RequestError("a value is nested too deep", hint="Give lists that are nested less deep.")
        return None


# A row number in a message counts within one pass. RowError has the row's number in the request.
_OWN_ROW = re.compile(r", row \d+(?=:)| in row \d+$")
