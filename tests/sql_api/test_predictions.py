"""Rows as the service reads them, and answers as PostgreSQL can hold them."""

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
    [("{1,2}", [1, 2]), ("{{1,-2.5e3},{3,4}}", [[1, -2500.0], [3, 4]]), ('{"a": "{"}', {"a": "{"}), ("7", 7)],
)
def test_a_literal_is_json_or_an_array(serve: Serve, text: str, row: Any) -> None:
    service, plpy = serve(lambda _: result({"values": [0]}))

    assert sql_api.handle(plpy, "predict", {"model": "m", "rows": [text]})["ok"]
    assert service.requests[0]["rows"] == [row]


def test_a_prediction_keeps_the_places_of_nulls(serve: Serve) -> None:
    service, plpy = serve(lambda request: result({"values": [row * 10 for row in request["rows"]]}))

    answer = sql_api.handle(plpy, "predict", {"model": "m", "rows": [1, None, 3], "kind": "value"})

    assert answer == {"ok": True, "result": {"values": [10, None, 30], "version": 1}}
    assert service.requests == [{"verb": "predict", "version": 700, "rows": [1, 3], "kind": "value"}]


def test_what_json_in_postgresql_cannot_hold_becomes_text() -> None:
    given = {"a": [math.nan, math.inf, -math.inf, 1.5, None], "b": True}

    stored = predictions.storable(given)

    assert json.dumps(stored, allow_nan=False) == '{"a": ["NaN", "Infinity", "-Infinity", 1.5, null], "b": true}'
