"""Check one call of the bridge: a verb and a request, and an answer with the result or the error."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from indb_tensile import sql_api
from tests.sql.fakes import result
from tests.sql_api.conftest import Serve
from tests.sql_api.fakes import Row, plpy_with


def test_error_of_an_unknown_verb_names_the_known_verbs() -> None:
    assert sql_api.handle(plpy_with(), "nothing", {}) == {
        "ok": False,
        "error": {
            "sqlstate": "22023",
            "message": "the bridge has no such verb",
            "detail": "",
            "hint": "Known verbs: train, explain, search, retry, retrain, create_model, predict, "
            "explain_prediction, predict_table, predict_into, forecast, describe_prediction, evaluate, figure, "
            "split, load_dataset, ping.",
        },
    }


@pytest.mark.parametrize("request_", [[], "train", 7, None])
def test_request_that_is_no_object_is_refused(request_: Any) -> None:
    for verb in sql_api.VERBS:
        error = sql_api.handle(plpy_with(), verb, request_)["error"]

        assert (error["sqlstate"], error["message"]) == ("22023", "the request is not a JSON object")


def test_sql_error_keeps_its_fields() -> None:
    plpy = plpy_with()

    def execute(plan: Any, arguments: Sequence[object] = ()) -> Iterable[Row]:
        raise plpy.SPIError("canceling statement due to user request")

    plpy.execute = execute  # type: ignore[method-assign]

    assert sql_api.handle(plpy, "create_model", {"model": "m"})["error"] == {
        "sqlstate": "57014",
        "message": "canceling statement due to user request",
        "detail": "",
        "hint": "be patient",
    }


def test_fault_names_its_module_and_line(serve: Serve) -> None:
    _, plpy = serve(lambda _: result({"predictions": []}))

    error = sql_api.handle(plpy, "predict", {"model": "m", "rows": [b"1"]})["error"]

    assert (error["sqlstate"], error["message"]) == ("XX000", "the bridge failed: KeyError: 'values'")
    lines = error["detail"].splitlines()
    assert "predictions.py" in error["detail"]
    assert any('answer["values"]' in line for line in lines)


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, '{"a":' * 5000 + "0" + "}" * 5000, "1" * 5000])
def test_request_that_python_cannot_read_is_refused(text: str) -> None:
    error = json.loads(sql_api.answer(plpy_with(), "train", text))["error"]

    assert error["sqlstate"] == "22023"
    assert error["message"].startswith("the request cannot be read: ")


@pytest.mark.parametrize(
    ("standby", "message", "hint"),
    [
        (True, "this server is a standby, which takes no writes", "Connect to the primary server."),
        (
            False,
            "cannot execute INSERT in a read-only transaction",
            "Run: begin read write; or, for the whole session: set default_transaction_read_only = off;",
        ),
    ],
)
def test_read_only_session_is_refused_with_the_reason_and_a_hint(standby: bool, message: str, hint: str) -> None:
    plpy = plpy_with()

    class ReadOnlyError(plpy.SPIError):  # type: ignore[name-defined, misc]
        sqlstate = "25006"
        spidata = ("25006", None, None)

    def execute(plan: Any, arguments: Sequence[object] = ()) -> Iterable[Row]:
        if plan == sql_api.IN_RECOVERY:
            return [{"standby": standby}]
        raise ReadOnlyError("cannot execute INSERT in a read-only transaction")

    plpy.execute = execute  # type: ignore[method-assign]
    error = sql_api.handle(plpy, "train", {"model": "m", "relation": 5})["error"]

    assert (error["sqlstate"], error["message"], error["hint"]) == ("25006", message, hint)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"idempotency_key": "k" * 201}, "idempotency_key has 201 characters"),
        ({"idempotency_key": ""}, "idempotency_key has 0 characters"),
        (
            {"idempotency_key": "k\n"},
            'idempotency_key "k\\n" has a control character, a line separator or a mark of text direction',
        ),
        (
            {"model": "m\u202e"},
            'the model\'s name "m\\u202e" has a control character, a line separator or a mark of text direction',
        ),
    ],
)
def test_long_or_unprintable_names_and_keys_are_refused(request_: dict[str, Any], message: str) -> None:
    error = sql_api.handle(plpy_with(), "train", {"model": "m", "relation": 5, "target": "label"} | request_)["error"]

    assert (error["sqlstate"], error["message"]) == ("22023", message)
    assert error["hint"]
