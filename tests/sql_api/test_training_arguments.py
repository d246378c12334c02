"""Check that an argument of the wrong form is refused with its name, its value and a hint."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from indb_tensile import sql_api
from indb_tensile.sql_api.training_arguments import SIZE
from tests.sql_api.fakes import Row, plpy_with


def error_of(**arguments: Any) -> dict[str, str]:
    """Return the error of a training with these arguments."""
    answer = sql_api.handle(plpy_with(), "train", {"model": "m", "relation": 5} | arguments)
    error: dict[str, str] = answer["error"]
    return error


@pytest.mark.parametrize("argument", ["hyperparams", "split", "preprocess", "early_stop"])
@pytest.mark.parametrize(("value", "shown"), [([], "[]"), (0, "0"), (False, "false"), ("", '""'), ([{}], "[{}]")])
def test_value_that_is_no_object_is_refused(argument: str, value: Any, shown: str) -> None:
    error = error_of(**{argument: value})

    assert (error["sqlstate"], error["message"]) == ("22023", f"{argument} must be a JSON object, not {shown}")
    assert error["hint"].startswith("Known parameters of such an object: ")


@pytest.mark.parametrize("argument", ["hyperparams", "split", "preprocess", "early_stop"])
@pytest.mark.parametrize("value", [None, {}])
def test_null_and_an_empty_object_are_accepted(argument: str, value: Any) -> None:
    assert sql_api.handle(plpy_with(), "train", {"model": "m", "relation": 5, argument: value})["ok"]


@pytest.mark.parametrize("huge", [10**400, float("inf"), -(10**400)])
def test_number_beyond_double_precision_is_refused(huge: float) -> None:
    for arguments in (
        {"hyperparams": {"learning_rate": huge}},
        {"split": {"seed": huge}},
        {"split": {"test_size": huge}},
    ):
        assert error_of(**arguments)["sqlstate"] == "22023"
    error = error_of(max_runtime_s=huge)
    assert (error["sqlstate"], error["message"][:14]) == ("22023", "max_runtime is")


def test_hidden_layers_with_too_many_weights_are_refused_at_enqueue() -> None:
    error = error_of(architecture='{"type": "mlp", "hidden": [10, 65536, 65536]}')
    assert (error["sqlstate"], error["message"], error["hint"]) == (
        "22023",
        "architecture mlp: the hidden layers have 4295622656 weights, more than 2000000000",
        "Make its layers narrower.",
    )
    request = {"model": "m", "relation": 5, "architecture": '{"type": "mlp", "hidden": [65536, 10, 65536]}'}
    assert sql_api.handle(plpy_with(), "train", request)["ok"], "a worker checks the other weights against its budget"


def test_hint_for_a_too_long_runtime_is_to_leave_it_out() -> None:
    assert error_of(max_runtime_s=2**31)["hint"] == (
        "Give an interval of 2147483647 seconds or less, or leave it out for no limit."
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{}", 'architecture {} lacks the key "type"'),
        ('{"hidden": [3]}', 'architecture {"hidden": [3]} lacks the key "type"'),
        ('{"type": 5}', "unknown architecture 5"),
        ("foo", 'unknown architecture "foo"'),
    ],
)
def test_unknown_type_of_an_architecture_is_refused(value: str, message: str) -> None:
    error = error_of(architecture=value)

    assert (error["sqlstate"], error["message"]) == ("22023", message)
    assert error["hint"].startswith("Give a name (auto, mlp, cnn, resnet, vit, timm, layers, tabm")


def test_too_deeply_nested_architecture_is_refused() -> None:
    error = error_of(architecture='{"type":' + "[" * 100_000)

    assert error["sqlstate"] == "22023"
    assert error["message"].startswith("architecture is not valid JSON: ")


def test_size_that_postgresql_refuses_is_named_as_the_memory_limit() -> None:
    error = _error_of_size("22003", "bigint out of range")

    assert error == {
        "sqlstate": "22023",
        "message": 'memory_limit is "9 ZB"',
        "detail": "PostgreSQL says: bigint out of range.",
        "hint": "Give a size above 0, such as '512 MB'.",
    }
    assert _error_of_size("57014", "canceling statement due to user request")["sqlstate"] == "57014"


def _error_of_size(sqlstate: str, message: str) -> dict[str, str]:
    plpy = plpy_with()
    default_execute = plpy.execute

    def execute(plan: Any, arguments: Sequence[object] = ()) -> Iterable[Row]:
        if plan != SIZE:
            return default_execute(plan, arguments)
        error = plpy.SPIError(message)
        error.sqlstate, error.spidata = sqlstate, (sqlstate, None, "")
        raise error

    plpy.execute = execute  # type: ignore[method-assign]
    refusal: dict[str, str] = sql_api.handle(plpy, "train", {"model": "m", "relation": 5, "memory_limit": "9 ZB"})[
        "error"
    ]
    return refusal


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"early_stop": {"on": 0}}, 'early_stop: "on" is 0'),
        ({"early_stop": {"on": False, "patience": 3}}, 'early_stop: "patience" means nothing with "on" false'),
        (
            {"early_stop": {}, "split": {"valid_size": 0}},
            "early_stop needs validation rows, and the split's valid_size is 0",
        ),
    ],
)
def test_contradictory_early_stopping_is_refused(value: Any, message: str) -> None:
    error = error_of(**value)
    assert (error["sqlstate"], error["message"]) == ("22023", message)
    assert error["hint"]


@pytest.mark.parametrize(
    ("value", "has_notice"),
    [
        ({}, True),
        ({"early_stop": {"on": False}}, False),
        ({"hyperparams": {"epochs": 3}}, False),
        ({"split": {"valid_size": 0.1}}, False),
    ],
)
def test_notice_says_that_a_training_cannot_stop_early(value: Any, has_notice: bool) -> None:
    plpy = plpy_with()
    request = {"model": "m", "relation": 5, "split": {"valid_size": 0}} | value
    assert sql_api.handle(plpy, "train", request)["ok"]
    notice = "training does not stop early, as the split's valid_size is 0"
    assert (notice in plpy.notices) is has_notice
