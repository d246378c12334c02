"""Check how the bridge sends rows to the service, and returns answers that PostgreSQL's JSON can hold."""

import json
import math
from typing import Any

import pytest

from indb_tensile import sql_api
from indb_tensile.sql_api import predictions
from tests.sql.fakes import result
from tests.sql_api.conftest import Serve


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("{1,2}", [1, 2]),
        ("{{1,-2.5e3},{3,4}}", [[1, -2500.0], [3, 4]]),
        ('{"a": "{"}', {"a": "{"}),
        ("7", 7),
        ('{"a": [1e400, -1e400]}', {"a": ["Infinity", "-Infinity"]}),
        ("1" + "0" * 5000, "Infinity"),
    ],
)
def test_literal_is_json_or_an_array(serve: Serve, text: str, row: Any) -> None:
    service, plpy = serve(lambda _: result({"values": [0]}))

    answer = json.loads(sql_api.answer(plpy, "predict", '{"model": "m", "form": "literal"}', [json.dumps(text)]))

    assert answer["ok"]
    assert service.requests[0]["rows"] == [row]


def test_text_of_a_value_is_no_literal(serve: Serve) -> None:
    service, plpy = serve(lambda _: result({"values": [0]}))

    assert json.loads(sql_api.answer(plpy, "predict", '{"model": "m"}', ['"NaN"']))["ok"]
    assert service.requests[0]["rows"] == ["NaN"]


@pytest.mark.parametrize("rows", [None, "1", [1], ['1], "version": 2, "rows": [1']])
def test_rows_outside_the_rows_argument_are_never_sent(serve: Serve, rows: Any) -> None:
    service, plpy = serve(lambda _: result({"values": [0]}))

    request = {"model": "m"} | ({} if rows is None else {"rows": rows})
    answer = json.loads(sql_api.answer(plpy, "predict", json.dumps(request)))

    assert answer["error"]["message"] == 'the bridge\'s argument "rows" is not an array of jsonb'
    assert service.requests == []


def test_predictions_keep_the_positions_of_nulls(serve: Serve) -> None:
    service, plpy = serve(lambda request: result({"values": [row * 10 for row in request["rows"]]}))

    request = '{"model": "m", "kind": "value"}'
    answer = json.loads(sql_api.answer(plpy, "predict", request, ["1", None, "3", "null"]))

    assert answer == {"ok": True, "result": {"values": [10, None, 30, None], "version": 1}}
    assert service.requests == [{"verb": "predict", "version": 700, "rows": [1, 3], "kind": "value"}]


def test_numbers_that_postgresqls_json_cannot_hold_become_text() -> None:
    answer = {"a": [math.nan, math.inf, -math.inf, 1.5, None], "b": True}

    storable = predictions.storable(answer)

    assert json.dumps(storable, allow_nan=False) == '{"a": ["NaN", "Infinity", "-Infinity", 1.5, null], "b": true}'
