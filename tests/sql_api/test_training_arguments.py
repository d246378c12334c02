"""An argument of the wrong form is refused by its name, with its value and the way out."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from indb_tensile import sql_api
from indb_tensile.sql_api.training_arguments import SIZE
from tests.sql_api.fakes import Row, plpy_with


def error_of(**given: Any) -> dict[str, str]:
    """What a training with these arguments is told."""
    answer = sql_api.handle(plpy_with(), "train", {"model": "m", "relation": 5} | given)
    error: dict[str, str] = answer["error"]
    return error


@pytest.mark.parametrize("argument", ["hyperparams", "split", "preprocess", "early_stop"])
@pytest.mark.parametrize(("given", "shown"), [([], "[]"), (0, "0"), (False, "false"), ("", '""'), ([{}], "[{}]")])
def test_what_is_no_object_is_not_taken_for_an_empty_one(argument: str, given: Any, shown: str) -> None:
    error = error_of(**{argument: given})

    assert (error["sqlstate"], error["message"]) == ("22023", f"{argument} must be a JSON object, not {shown}")
    assert error["hint"].startswith("Known parameters of such an object: ")


@pytest.mark.parametrize("argument", ["hyperparams", "split", "preprocess", "early_stop"])
@pytest.mark.parametrize("given", [None, {}])
def test_null_and_an_empty_object_are_allowed(argument: str, given: Any) -> None:
    assert sql_api.handle(plpy_with(), "train", {"model": "m", "relation": 5, argument: given})["ok"]


@pytest.mark.parametrize("huge", [10**400, float("inf"), -(10**400)])
def test_a_number_beyond_all_floats_is_refused(huge: float) -> None:
    for given in (
        {"hyperparams": {"learning_rate": huge}},
        {"split": {"seed": huge}},
        {"split": {"test_size": huge}},
    ):
        assert error_of(**given)["sqlstate"] == "22023"
    error = error_of(max_runtime_s=huge)
    assert (error["sqlstate"], error["message"][:14]) == ("22023", "max_runtime is")


def test_hidden_layers_with_too_many_weights_are_refused_before_anything_is_queued() -> None:
    error = error_of(architecture='{"type": "mlp", "hidden": [10, 65536, 65536]}')
    assert (error["sqlstate"], error["message"], error["hint"]) == (
        "22023",
        "architecture mlp: the hidden layers have 4295622656 weights, more than 2000000000",
        "Make its layers narrower.",
    )
    given = {"model": "m", "relation": 5, "architecture": '{"type": "mlp", "hidden": [65536, 10, 65536]}'}
    assert sql_api.handle(plpy_with(), "train", given)["ok"], "a worker counts the rest against its budget"


def test_an_endless_runtime_is_told_to_be_left_out() -> None:
    assert error_of(max_runtime_s=2**31)["hint"] == (
        "Give an interval of 2147483647 seconds or less, or leave it out for no limit."
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{}", 'architecture {} lacks the key "type"'),
        ('{"hidden": [3]}', 'architecture {"hidden": [3]} lacks the key "type"'),
        ('{"type": 5}', "unknown architecture 5"),
        ("foo", 'unknown architecture "foo"'),
    ],
)
def test_an_architecture_has_a_known_type(given: str, message: str) -> None:
    error = error_of(architecture=given)

    assert (error["sqlstate"], error["message"]) == ("22023", message)
    assert error["hint"].startswith("Give a name (auto, mlp, cnn, layers)")


def test_an_architecture_nested_too_deep_is_refused() -> None:
    error = error_of(architecture='{"type":' + "[" * 100_000)

    assert error["sqlstate"] == "22023"
    assert error["message"].startswith("architecture is not valid JSON: ")


def test_a_size_that_postgresql_refuses_is_named_as_the_memory_limit() -> None:
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
    found = plpy.execute

    def execute(plan: Any, arguments: Sequence[object] = ()) -> Iterable[Row]:
        if plan != SIZE:
            return found(plan, arguments)
        error = plpy.SPIError(message)
        error.sqlstate, error.spidata = sqlstate, (sqlstate, None, "")
        raise error

    plpy.execute = execute  # type: ignore[method-assign]
    refusal: dict[str, str] = sql_api.handle(plpy, "train", {"model": "m", "relation": 5, "memory_limit": "9 ZB"})[
        "error"
    ]
    return refusal


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"early_stop": {"on": 0}}, 'early_stop: "on" is 0'),
        ({"early_stop": {"on": False, "patience": 3}}, 'early_stop: "patience" means nothing with "on" false'),
        (
            {"early_stop": {}, "split": {"valid_size": 0}},
            "early_stop needs validation rows, and the split's valid_size is 0",
        ),
    ],
)
def test_early_stopping_that_has_no_meaning_is_refused(given: Any, message: str) -> None:
    error = error_of(**given)
    assert (error["sqlstate"], error["message"]) == ("22023", message)
    assert error["hint"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, True),
        ({"early_stop": {"on": False}}, False),
        ({"hyperparams": {"epochs": 3}}, False),
        ({"split": {"valid_size": 0.1}}, False),
    ],
)
def test_a_training_that_cannot_stop_early_is_told_so(given: Any, told: bool) -> None:
    plpy = plpy_with()
    asked = {"model": "m", "relation": 5, "split": {"valid_size": 0}} | given
    assert sql_api.handle(plpy, "train", asked)["ok"]
    notice = "training does not stop early, as the split's valid_size is 0"
    assert (notice in plpy.notices) is told
