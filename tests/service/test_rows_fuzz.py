"""Any JSON as a row, through the bridge's encoding, the service's decoding and a real model."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indb_tensile.errors import RequestError
from indb_tensile.learning.artifacts import ModelPredictor
from indb_tensile.learning.preparation import assemble
from indb_tensile.sql_api import predictions
from tests.learning.tables import bundle, spec, table
from worker.serving.answers import SCORE, Answers
from worker.serving.requests import Evaluate, Predict, RowError, encode, parse

from .test_fuzz import VALUES

DESCRIBED = [
    ("a", "double precision"),
    ("b", "text"),
    ("c", "real[]"),
    ("t", "date"),
    ("y", "text"),
]


@pytest.fixture(scope="module")
def answers() -> Answers:
    """A small model of every kind of column, as it was initialised."""
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
def test_a_row_is_predicted_or_refused_by_its_number(answers: Answers, rows: list[Any]) -> None:
    check(answers, rows)


@pytest.mark.parametrize("column", sorted(GOOD))
def test_a_row_that_is_nested_as_deep_as_can_be_read_is_refused(answers: Answers, column: str) -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    check(answers, [deep])
    check(answers, [GOOD | {column: deep}])


def check(answers: Answers, rows: list[Any]) -> None:
    """Each row is sent or refused, and then computed or refused, by an error that is not ours."""
    sent: list[bytes] = []
    unsent: RequestError | None = None
    try:
        for number, row in enumerate(rows, 1):
            form = "literal" if isinstance(row, str) else "value"
            with suppress(RecursionError):  # nested so deep, a row has no number that is not finite
                row = predictions.storable(row)
            sent.append(predictions._service_row(json.dumps(row).encode(), form, number))
    except RequestError as refusal:
        unsent = refusal
    if unsent is not None:
        assert unsent.sqlstate == "22P02"
        assert f"row {len(sent) + 1}" in unsent.message
        return
    for verb, kind, more in (("predict", "label", b""), ("predict", "label", _UNNAMED), ("evaluate", SCORE, b"")):
        body = b'{"verb": "%b", "version": 1, "rows": [%b]%b}' % (verb.encode(), b", ".join(sent), more)
        refused = _refusal(answers, body, kind)
        if isinstance(refused, RowError):
            assert 0 <= refused.row < len(rows)
        assert refused is None or refused.sqlstate[:2] in ("22", "42", "08")


_UNNAMED = b', "unnamed": true'


def _refusal(answers: Answers, body: bytes, kind: str) -> RequestError | None:
    """What is said of the request's rows, None where they are computed."""
    try:
        request = parse(body)
        assert isinstance(request, Predict | Evaluate)
        rows = request.marked_rows if isinstance(request, Predict) else request.rows
        found = answers.predict_rows(rows, kind)
    except RequestError as error:
        return error
    assert len(found) == len(request.rows)
    if kind != SCORE:
        encode(found)
    return None


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("c", [[[1]]], 'column "c" holds arrays of shape 1 x 1 x 1; the model was trained on 3'),
        ("t", [1] * 1_000_000, "is not a date or timestamp in ISO form"),
        ("y", "perhaps", 'target "y": the model does not know the label perhaps'),
        ("y", None, 'target "y" is NULL'),
    ],
)
def test_the_row_that_does_not_fit_is_found_among_many(answers: Answers, column: str, value: Any, said: str) -> None:
    rows = [GOOD] * 100 + [GOOD | {column: value}] + [GOOD] * 27

    with pytest.raises(RowError) as caught:
        answers.predict_rows(rows, SCORE)

    assert caught.value.row == 100
    start, _, end = said.partition("...")
    assert start[:20] in caught.value.message
    assert end.strip() in caught.value.message
    assert "row" not in caught.value.message
