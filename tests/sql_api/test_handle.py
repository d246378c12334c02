"""One call: a verb, a request, and an answer that holds the result or says what went wrong and where."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from indb_tensile import sql_api
from tests.sql.fakes import result
from tests.sql_api.conftest import Serve
from tests.sql_api.fakes import Row, plpy_with


def test_an_unknown_verb_is_told_which_are_known() -> None:
    assert sql_api.handle(plpy_with(), "nothing", {}) == {
        "ok": False,
        "error": {
            "sqlstate": "22023",
            "message": "the bridge has no such verb",
            "detail": "",
            "hint": "Known verbs: train, explain, create_model, predict, evaluate, split, load_dataset, ping.",
        },
    }


@pytest.mark.parametrize("request_", [[], "train", 7, None])
def test_a_request_is_a_json_object(request_: Any) -> None:
    for verb in sql_api.VERBS:
        error = sql_api.handle(plpy_with(), verb, request_)["error"]

        assert (error["sqlstate"], error["message"]) == ("22023", "the request is not a JSON object")


def test_an_error_of_sql_keeps_its_parts() -> None:
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


def test_a_fault_names_the_module_and_the_line_that_it_came_from(serve: Serve) -> None:
    _, plpy = serve(lambda _: result({"predictions": []}))

    error = sql_api.handle(plpy, "predict", {"model": "m", "rows": [b"1"]})["error"]

    assert (error["sqlstate"], error["message"]) == ("XX000", "the bridge failed: KeyError: 'values'")
    last = error["detail"].splitlines()
    assert "predictions.py" in error["detail"]
    assert any('answer["values"]' in line for line in last)


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, '{"a":' * 5000 + "0" + "}" * 5000, "1" * 5000])
def test_a_request_that_python_cannot_read_is_refused(text: str) -> None:
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
            "Run: set transaction_read_only = off; or connect as a role whose sessions may write.",
        ),
    ],
)
def test_a_session_that_can_only_read_is_told_why_and_the_way_out(standby: bool, message: str, hint: str) -> None:
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
def test_names_and_keys_are_short_and_printable(request_: dict[str, Any], message: str) -> None:
    error = sql_api.handle(plpy_with(), "train", {"model": "m", "relation": 5, "target": "label"} | request_)["error"]

    assert (error["sqlstate"], error["message"]) == ("22023", message)
    assert error["hint"]
