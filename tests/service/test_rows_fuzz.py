"""Check that any JSON value as a row is predicted or refused, with the bridge's encoding, the service's decoding
and a real model.
"""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indb_tensile.errors import RequestError
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.sql_api import predictions
from tests.learning.tables import bundle, spec, table
from worker.serving.answers import SCORE, Answers
from worker.serving.requests import Evaluate, Predict, RowError, encode, parse

from .json_values import VALUES

DESCRIBED = [
    ("a", "double precision"),
    ("b", "text"),
    ("c", "real[]"),
    ("t", "date"),
    ("y", "text"),
]


@pytest.fixture(scope="module")
def answers() -> Answers:
    """A small model with every kind of column and with initial weights."""
    rows = [(n / 7, "pqr"[n % 3], [n, n % 5, 1.0], f"2020-01-{n + 1:02}", "no" if n % 2 else "yes")
            for n in range(30)]  # fmt: skip
    prepared = assemble(table(DESCRIBED, rows), spec("y"))
    return Answers(ModelPredictor(bundle(prepared)))


GOOD = {"a": 1.0, "b": "p", "c": [1, 2, 3], "t": "2020-01-01", "y": "no"}
ROWS = st.one_of(
    VALUES,
    st.fixed_dictionaries(dict.fromkeys(GOOD, VALUES)),
    st.sampled_from(sorted(GOOD)).flatmap(lambda name: VALUES.map(lambda value: GOOD | {name: value})),
)


@given(rows=st.lists(ROWS, min_size=1, max_size=4))
@example(rows=[GOOD | {"a": 10**400}])
@example(rows=[GOOD | {"c": [1, 10**400, 2]}])
@example(rows=[GOOD | {"a": float("inf")}])
@example(rows=[GOOD | {"b": "\ud800"}])
@example(rows=[GOOD | {"b": "\x00", "a": "\x00"}])
@example(rows=[GOOD | {"a": 10**300}])
@example(rows=[{"f1": 1, "f2": "x", "f3": [1, 2, 3], "f4": None}])
@example(rows=['{"a": 1e400}', '{"a": NaN}', "[" * 10_000])
def test_row_is_predicted_or_refused_with_its_number(answers: Answers, rows: list[Any]) -> None:
    check_rows(answers, rows)


@pytest.mark.parametrize("column", sorted(GOOD))
def test_deepest_readable_row_is_refused(answers: Answers, column: str) -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    check_rows(answers, [deep])
    check_rows(answers, [GOOD | {column: deep}])


def check_rows(answers: Answers, rows: list[Any]) -> None:
    """Check that the bridge sends or refuses each row, and that the service computes or refuses each sent row. No
    error is an internal fault.
    """
    sent: list[bytes] = []
    refusal: RequestError | None = None
    try:
        for number, row in enumerate(rows, 1):
            form = "literal" if isinstance(row, str) else "value"
            with suppress(RecursionError):  # a row nested so deep contains no number that is not finite
                row = predictions.storable(row)
            sent.append(predictions._service_row(json.dumps(row).encode(), form, number))
    except RequestError as error:
        refusal = error
    if refusal is not None:
        assert refusal.sqlstate == "22P02"
        assert f"row {len(sent) + 1}" in refusal.message
        return
    for verb, kind, suffix in (("predict", "label", b""), ("predict", "label", _UNNAMED), ("evaluate", SCORE, b"")):
        body = b'{"verb": "%b", "version": 1, "rows": [%b]%b}' % (verb.encode(), b", ".join(sent), suffix)
        row_error = _find_error(answers, body, kind)
        if isinstance(row_error, RowError):
            assert 0 <= row_error.row < len(rows)
        assert row_error is None or row_error.sqlstate[:2] in ("22", "42", "08")


_UNNAMED = b', "unnamed": true'


def _find_error(answers: Answers, body: bytes, kind: str) -> RequestError | None:
    """Return the error with which the request's rows are refused; None if they are computed."""
    try:
        request = parse(body)
        assert isinstance(request, Predict | Evaluate)
        rows = request.marked_rows if isinstance(request, Predict) else request.rows
        values = answers.predict_rows(rows, kind)
    except RequestError as error:
        return error
    assert len(values) == len(request.rows)
    if kind != SCORE:
        encode(values)
    return None


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("c", [[[1]]], 'column "c" holds arrays of shape 1 x 1 x 1; the model was trained on 3'),
        ("t", [1] * 1_000_000, "is not a date or timestamp in ISO form"),
        ("y", "perhaps", 'target "y": the model does not know the label perhaps'),
        ("y", None, 'target "y" is NULL'),
    ],
)
def test_error_names_the_row_that_does_not_fit(answers: Answers, column: str, value: Any, message: str) -> None:
    rows = [GOOD] * 100 + [GOOD | {column: value}] + [GOOD] * 27

    with pytest.raises(RowError) as caught:
        answers.predict_rows(rows, SCORE)

    assert caught.value.row == 100
    start, _, end = message.partition("...")
    assert start[:20] in caught.value.message
    assert end.strip() in caught.value.message
    assert "row" not in caught.value.message
