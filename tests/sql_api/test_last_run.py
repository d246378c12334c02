"""What a model's last run left for the next: its owner can write anything there."""

import json
from typing import Any

import pytest

from indb_tensile import sql_api
from tests.sql_api.fakes import FakePlpy, plpy_with


def remembering(last: str) -> FakePlpy:
    """A database whose model `m` last ran with this specification."""
    return plpy_with(model=[{"own": True, "definition": None, "last_spec": last}])


@pytest.mark.parametrize(
    "last",
    [
        *("3", "[]", '"x"', "null", "false", "[" * 100_000, "1" * 5000),
        *('{"features":5}', '{"features":[5]}', '{"exclude":[[]]}', '{"exclude":"label"}', '{"target":{}}'),
        *('{"target":"label","task":"foo"}', '{"target":"label"}', '{"task":[]}', '{"architecture":3}'),
        *('{"hyperparams":[]}', '{"split":0}', '{"preprocess":""}', '{"metric":[[]]}', '{"early_stop":[1]}'),
    ],
    ids=lambda last: last[:40],
)
def test_what_is_no_argument_is_no_default(last: str) -> None:
    plpy = remembering(last)

    assert sql_api.handle(plpy, "train", {"model": "m", "relation": 5}) == {"ok": True, "result": {"job": 7}}
    spec = json.loads(str(plpy.executed[-1][1][4]))
    assert (spec["target"], spec["task"], spec["architecture"]) == ("label", "classification", {"type": "auto"})


@pytest.mark.parametrize(
    ("last", "explicit"),
    [
        ({"hyperparams": {"epochs": "x"}}, {"hyperparams": {"epochs": 1}}),
        ({"architecture": {"type": "foo"}}, {"architecture": "mlp"}),
        ({"architecture": {}}, {"architecture": "mlp"}),
        ({"split": {"test_size": 2}}, {"split": {}}),
    ],
)
def test_an_object_of_the_last_run_is_checked_as_if_given_now(last: Any, explicit: Any) -> None:
    plpy, request = remembering(json.dumps(last)), {"model": "m", "relation": 5}

    assert sql_api.handle(plpy, "train", request)["error"]["sqlstate"] == "22023"
    assert sql_api.handle(plpy, "train", request | explicit)["ok"]


def test_a_target_that_was_inherited_says_so() -> None:
    answer = sql_api.handle(remembering('{"target": "digit"}'), "train", {"model": "m", "relation": 5})

    assert answer["error"] == {
        "sqlstate": "42703",
        "message": 'column "digit" of relation "public.iris" does not exist',
        "detail": "It is the target of the model's last run, as no target is given.",
        "hint": "Name the column to predict with target => '...'. Columns: id, petal, label.",
    }
