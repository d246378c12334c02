"""Check how requests are parsed and answers encoded."""

import json
import math
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import DataError, RequestError
from indb_tensile.job import JobSpec, ModelVersionId, Relation, Task
from indb_tensile.learning.decoding.jsonrows import SqlRecord
from indb_tensile.sql_api.refusals import RefusalError
from indb_tensile.sql_api.service_connection import page_of
from worker.serving.requests import (
    VERBS,
    AnyRequest,
    Dataset,
    Evaluate,
    Explain,
    Ping,
    Predict,
    PredictionKind,
    failure,
    parse,
    success,
    success_of_texts,
)
from worker.serving.service_frames import ProtocolError

SPEC = JobSpec(
    model="digits",
    relation=Relation(oid=16400, schema="public", name="digits"),
    target="label",
    task=Task.CLASSIFICATION,
    architecture={"type": "mlp", "hidden": [64]},
    features=("a", "b"),
)


@pytest.mark.parametrize(
    ("fields", "request_"),
    [
        ({"verb": "ping"}, Ping()),
        (
            {"verb": "predict", "version": 3, "rows": [{"a": 1}, [1.5], 2, None], "kind": "label"},
            Predict(version=ModelVersionId(3), rows=[{"a": 1}, [1.5], 2, None], kind=PredictionKind.LABEL),
        ),
        (
            {"verb": "evaluate", "version": 3, "rows": [{"a": 1}]},
            Evaluate(version=ModelVersionId(3), rows=[{"a": 1}]),
        ),
        ({"verb": "dataset", "name": "digits"}, Dataset(name="digits", offset=0, limit=2000)),
        (
            {"verb": "explain", "spec": msgspec.to_builtins(SPEC), "columns": [], "rows": 10, "budget_bytes": 7},
            Explain(spec=SPEC, columns=[], rows=10, budget_bytes=7),
        ),
    ],
)
def test_each_verb_is_parsed_into_its_request(fields: dict[str, Any], request_: AnyRequest) -> None:
    assert parse(json.dumps(fields).encode()) == request_


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", "is not understood"),
        (b"[1]", "is not understood"),
        (b'{"verb": 3}', "is not understood"),
        (b'{"rows": []}', "missing required field `verb`"),
        (b'{"verb": "shutdown"}', "knows no verb 'shutdown'"),
        (b'{"verb": "predict", "rows": []}', "missing required field `version`"),
        (b'{"verb": "predict", "version": "3", "rows": []}', "Expected `int`"),
        (b'{"verb": "predict", "version": 3, "rows": {}}', "Expected `array`"),
        (b'{"verb": "predict", "version": 3, "rows": [], "kind": "secret"}', "Invalid enum value 'secret'"),
        (b'{"verb": "evaluate", "version": 3, "rows": [1]}', "Expected `object`"),
        (b'{"verb": "\xff\xfe"}', "is not understood"),
    ],
)
def test_malformed_request_is_refused_with_the_reason(body: bytes, fault: str) -> None:
    with pytest.raises(ProtocolError, match=fault):
        parse(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_raise_a_protocol_error(body: bytes) -> None:
    with suppress(ProtocolError):
        parse(body)


def test_error_for_an_unknown_verb_names_the_known_verbs() -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(b'{"verb": "?"}')
    assert VERBS == (
        "attribute",
        "dataset",
        "evaluate",
        "explain",
        "features",
        "nextsteps",
        "ping",
        "predict",
        "read",
    )
    assert caught.value.hint == f"The verbs are {', '.join(VERBS)}."


def test_predictions_that_are_not_finite_are_encoded() -> None:
    values = json.loads(success([math.nan, math.inf, 1.5]))["result"]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, 1.5]


@given(st.lists(st.tuples(st.text(max_size=3), st.none() | st.text()), unique_by=lambda pair: pair[0], max_size=5))
def test_the_bridge_reads_the_texts_of_an_answer_as_the_service_wrote_them(
    texts: list[tuple[str, str | None]],
) -> None:
    named = {f"own {name}": text for name, text in texts}
    assert page_of(success_of_texts(7, named)) == {"rows": 7, **named}


def test_the_bridge_reads_an_answer_without_texts_too() -> None:
    assert page_of(success({"rows": 0})) == {"rows": 0}
    with pytest.raises(RefusalError, match="no such column"):
        page_of(failure(RequestError("no such column")))


def test_error_is_encoded_with_sqlstate_detail_and_hint() -> None:
    answer = json.loads(failure(DataError("row 3: no", detail="a is missing", hint="give a")))
    assert answer == {
        "ok": False,
        "error": {"sqlstate": "22000", "message": "row 3: no", "detail": "a is missing", "hint": "give a"},
    }


@pytest.mark.parametrize("number", ["1e400", "1" + "0" * 400 + ".5", "1" + "0" * 5000])
def test_number_beyond_double_precision_is_infinite(number: str) -> None:
    for verb in ("predict", "evaluate"):
        request = parse(f'{{"verb": "{verb}", "version": 3, "rows": [{{"a": {number}, "b": -{number}}}]}}'.encode())
        assert isinstance(request, Predict | Evaluate)
        assert request.rows == [{"a": math.inf, "b": -math.inf}]


def test_rows_of_unnamed_columns_are_records() -> None:
    rows = '"rows": [{"f1": 1}, [2], 3]'
    for suffix, kinds in ((', "unnamed": true', (SqlRecord, list, int)), ("", (dict, list, int))):
        request = parse(f'{{"verb": "predict", "version": 3, {rows}{suffix}}}'.encode())
        assert isinstance(request, Predict)
        assert tuple(map(type, request.marked_rows)) == kinds
