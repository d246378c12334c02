"""Check which arguments a training inherits from the model's last run. The model's owner can write anything into the
stored specification.
"""

import json
from typing import Any

import pytest

from indb_tensile import sql_api
from tests.sql_api.fakes import FakePlpy, plpy_with


def plpy_with_last_run(last: str, kind: str | None = None, advice: str | None = None) -> FakePlpy:
    """Return a database in which the last run of model `m`, job 5, had this specification and this kind of target."""
    row = {
        "own": True,
        "definition": None,
        "last_spec": last,
        "last_job_id": 5,
        "target_kind": kind,
        "advice": advice,
    }
    return plpy_with(model=[row])


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
def test_invalid_argument_of_the_last_run_is_no_default(last: str) -> None:
    plpy = plpy_with_last_run(last)

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
        ({"split": {"last": 0.2, "by": [1]}}, {"split": {}}),
    ],
)
def test_object_of_the_last_run_is_checked_like_an_argument(last: Any, explicit: Any) -> None:
    plpy, request = plpy_with_last_run(json.dumps(last)), {"model": "m", "relation": 5}

    assert sql_api.handle(plpy, "train", request)["error"]["sqlstate"] == "22023"
    assert sql_api.handle(plpy, "train", request | explicit)["ok"]


def test_error_of_an_inherited_target_names_the_last_run() -> None:
    answer = sql_api.handle(plpy_with_last_run('{"target": "digit"}'), "train", {"model": "m", "relation": 5})

    assert answer["error"] == {
        "sqlstate": "42703",
        "message": 'column "digit" of relation "public.iris" does not exist',
        "detail": "It is the target of the model's last run, as no target is given.",
        "hint": "Name the column to predict with target => '...'. Columns: id, petal, label.",
    }


PETAL = {"model": "m", "relation": 5, "target": "petal"}
LABEL = {"model": "m", "relation": 5, "target": "label"}


def train_spec(plpy: FakePlpy, request: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the specification that is enqueued."""
    answer = sql_api.handle(plpy, "train", request)
    assert answer["ok"], answer
    spec: dict[str, Any] = json.loads(str(plpy.executed[-1][1][4]))
    return spec


def test_one_notice_names_inherited_arguments_with_their_values() -> None:
    last = {
        "target": "label",
        "task": "classification",
        "architecture": {"type": "mlp", "hidden": [4]},
        "hyperparams": {},
        "features": None,
        "exclude": ["id"],
        "split": {"seed": 7},
        "metric": "log_loss",
        "early_stop": None,
    }
    plpy = plpy_with_last_run(json.dumps(last), "text")

    spec = train_spec(plpy, {"model": "m", "relation": 5, "split": {"seed": 8}})

    assert spec | last == spec | {"split": {"seed": 7}}
    assert plpy.notices == [
        'arguments left out are those of job 5: target "label", task "classification", '
        'architecture {"type": "mlp", "hidden": [4]}, exclude ["id"], metric "log_loss"'
    ]


def test_arguments_of_the_definition_are_not_named_as_inherited() -> None:
    definition = json.dumps({"architecture": {"type": "mlp"}, "hyperparams": {"epochs": 2}})
    row = {"own": True, "definition": definition, "last_spec": None, "last_job_id": None, "target_kind": None}
    row["advice"] = None
    plpy = plpy_with(model=[row])

    assert train_spec(plpy, LABEL)["architecture"] == {"type": "mlp"}
    assert not any("arguments left out" in notice for notice in plpy.notices)


def test_a_notice_repeats_what_the_last_run_advises_until_an_architecture_is_named() -> None:
    advice = "gradient boosting predicts the held-out rows better; train again with architecture => 'boosting'"
    last = json.dumps({"target": "label", "task": "classification"})
    again, named = (plpy_with_last_run(last, "text", advice) for _ in range(2))

    train_spec(again, {"model": "m", "relation": 5})
    train_spec(named, {"model": "m", "relation": 5, "architecture": "tabm"})

    assert f"job 5: {advice}" in again.notices
    assert not any(advice in notice for notice in named.notices)


@pytest.mark.parametrize("kind", ["text", "integer", None])
def test_task_is_not_inherited_if_the_targets_type_has_changed(kind: str | None) -> None:
    plpy = plpy_with_last_run('{"target": "petal", "task": "classification", "metric": "accuracy"}', kind)

    spec = train_spec(plpy, {"model": "m", "relation": 5})

    kind_note = f" and had values of kind {kind} then" if kind else ""
    assert (spec["target"], spec["task"], spec["metric"]) == ("petal", "regression", None)
    assert plpy.notices[:3] == [
        f'task "classification" of job 5 is not taken over, as target "petal" has type real{kind_note}',
        'task is regression, as target "petal" has type real',
        'metric "accuracy" of job 5 is not taken over, as regression has no such metric',
    ]


def test_task_is_inherited_for_an_unchanged_target() -> None:
    plpy = plpy_with_last_run('{"target": "petal", "task": "classification"}', "float")

    assert train_spec(plpy, {"model": "m", "relation": 5})["task"] == "classification"


@pytest.mark.parametrize(
    ("last", "notice"),
    [
        (
            {"features": ["petal", "colour"]},
            'features ["petal", "colour"] of job 5 is not taken over, as table "public.iris" has no column "colour"',
        ),
        (
            {"features": ["petal", "label"]},
            'features ["petal", "label"] of job 5 is not taken over, as "label" is the target now',
        ),
        (
            {"preprocess": {"missing": {"colour": "zero"}}},
            'preprocess {"missing": {"colour": "zero"}} of job 5 is not taken over, as table "public.iris" has no '
            'column "colour"',
        ),
        (
            {"early_stop": {"metric": "r2"}},
            'early_stop {"metric": "r2"} of job 5 is not taken over, as classification has no such metric',
        ),
    ],
)
def test_notice_names_an_argument_that_does_not_fit_the_relation(last: Any, notice: str) -> None:
    plpy = plpy_with_last_run(json.dumps(last))

    train_spec(plpy, LABEL)

    assert notice in plpy.notices


@pytest.mark.parametrize(
    ("explicit", "why"),
    [
        ({"architecture": "tabm"}, "architecture tabm is not trained as an ensemble"),
        ({"architecture": "linear"}, "architecture linear is not trained as an ensemble"),
    ],
)
def test_an_ensemble_is_not_inherited_by_a_model_that_cannot_be_one(explicit: dict[str, Any], why: str) -> None:
    plpy = plpy_with_last_run('{"hyperparams": {"ensemble": 3, "seed": 4}}')

    assert train_spec(plpy, LABEL | explicit)["hyperparams"] == {"seed": 4}
    assert f"ensemble 3 of job 5 is not taken over, as {why}" in plpy.notices


def test_what_only_several_devices_do_is_inherited_by_several_devices_only() -> None:
    options = {"reduce": "fast", "zero_stage": 1, "epochs": 2}
    plpy = plpy_with_last_run(json.dumps({"target": "label", "hyperparams": options}))
    request = {"model": "m", "relation": 5}

    assert train_spec(plpy, request | {"devices": 2})["hyperparams"] == options
    assert not any("not taken over" in notice for notice in plpy.notices)
    assert train_spec(plpy, request)["hyperparams"] == {"epochs": 2}
    assert 'reduce "fast" of job 5 is not taken over, as one device trains' in plpy.notices
    assert "zero_stage 1 of job 5 is not taken over, as one device trains" in plpy.notices
