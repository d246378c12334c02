"""Check the targets of several values or labels: what `tensile_train` resolves them to, and what it refuses."""

import json
from typing import Any

import pytest

from .conftest import Connection, Refused, Serve, refused, value
from .fakes import result

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]

TABLE = """
create type hue as enum ('red', 'blue');
create table people as
select n as id, n::float8 as x, n::float8 as height, n % 7 as weight, n % 2 = 0 as f, n % 3 = 0 as g,
       array[n, 1]::float8[] as v, array[n, 1] as pair, array_fill(n, array[n % 3]) as codes,
       array['a', 'b'] as tags, array['red'::hue] as hues, array[true, n % 2 = 0] as flags,
       array[[1, n], [2, 3]]::real[] as square, 'w' || n as word
  from generate_series(1, 60) as n;
grant select on people to tensile_reader"""
FEATURES = ", features => array['x']"
JOB = "select spec from tensile.jobs where job_id = %s"


@pytest.fixture
def people(alice: Connection) -> Connection:
    if value(alice, "select to_regclass('people') is null"):
        alice.execute(TABLE.encode())
    return alice


def spec(people: Connection, arguments: str, model: str = "m") -> Any:
    job = value(people, f"select tensile_train('{model}', 'people', {arguments}{FEATURES})")
    return value(people, JOB, job)


@pytest.mark.parametrize(
    ("target", "task", "columns"),
    [
        ('["height", "weight"]', "regression", ["height", "weight"]),
        ('["f","g"]', "multilabel", ["f", "g"]),
        ('["weight"]', "classification", None),
        ("v", "regression", None),
        ("pair", "regression", None),
        ("codes", "multilabel", None),
        ("tags", "multilabel", None),
        ("hues", "multilabel", None),
        ("flags", "multilabel", None),
    ],
)
def test_the_task_follows_from_the_columns(
    people: Connection, target: str, task: str, columns: list[str] | None
) -> None:
    resolved = spec(people, f"target => '{target}'", model=f"m_{target}")
    name = target if columns is None else json.dumps(columns)
    assert (resolved["task"], resolved.get("targets")) == (task, columns)
    assert resolved["target"] == ("weight" if target == '["weight"]' else name)
    read = {"x", *(columns or [resolved["target"]])}
    assert set(resolved["column_numbers"]) == read


def test_a_model_without_features_learns_from_all_columns_but_the_targets(people: Connection) -> None:
    arguments = """'all', 'people', target => '["height", "weight"]', exclude => array['codes', 'word']"""
    resolved = value(people, JOB, value(people, f"select tensile_train({arguments})"))
    assert (resolved["features"], resolved["exclude"]) == (None, ["codes", "word"])


def test_a_column_named_like_a_list_is_one_column(people: Connection) -> None:
    people.execute('create table odd (x float8, "[a]" float8)')
    people.execute(
        "insert into odd select n, n from generate_series(1, 9) as n; grant select on odd to tensile_reader"
    )
    job = value(people, "select tensile_train('odd', 'odd', target => '[a]')")
    assert (value(people, JOB, job)["target"], value(people, JOB, job).get("targets")) == ("[a]", None)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("""target => '["height"'""", "is not a JSON list of columns", """target => '["height", "weight"]'"""),
        ("""target => '["height", "nothing"]'""", 'column "nothing" of relation', "The columns are"),
        ("""target => '["height", "height"]'""", 'names column "height" 2 times', "Name it once."),
        ("""target => '["height", "word"]', task => 'regression'""", 'column "word" is of kind text', "cast it"),
        (
            """target => '["height", "f"]'""",
            'column "f" is of kind boolean',
            "all numbers (regression) or all boolean",
        ),
        (
            """target => '["height", "weight"]', task => 'classification'""",
            "classification predicts one column",
            "task",
        ),
        ("target => 'tags', task => 'classification'", "which classification cannot predict", "task => 'multilabel'"),
        ("target => 'flags', task => 'regression'", "which regression cannot predict", "task => 'multilabel'"),
        ("target => 'word', task => 'multilabel'", "which multilabel cannot predict", "task => 'classification'"),
        ("target => 'square'", "holds arrays of 2 dimensions", "one dimension"),
        ("target => 'codes', task => 'regression'", "holds arrays of different shapes", "task => 'multilabel'"),
        ("target => 'v', architecture => 'boosting'", "boosting cannot predict several values", "a model for each"),
        ("target => 'tags', architecture => 'linear'", "linear cannot predict sets of labels", "a model for each"),
        (
            """target => 'tags', hyperparams => '{"loss": "focal"}'""",
            'loss "focal" is not for',
            "binary_cross_entropy",
        ),
        (
            """target => 'height', hyperparams => '{"class_weight": "balanced"}'""",
            "for classification and multilabel only",
            "weight",
        ),
        (
            """target => '["f", "g"]', task => 'multilabel', hyperparams => '{"class_weight": {"h": 2}}'""",
            '"class_weight" names "h", which is no column of the target',
            "The labels are the columns f, g.",
        ),
        ("target => 'tags', metric => 'accuracy'", 'unknown metric "accuracy" for multilabel', "f1_micro"),
        (
            """target => 'f', architecture => 'tabm', hyperparams => '{"ensemble": 3}'""",
            '"ensemble" means nothing with architecture tabm',
            '"members"',
        ),
        (
            """target => 'f', architecture => 'linear', hyperparams => '{"ensemble": 3}'""",
            '"ensemble" means nothing with architecture linear',
            "Leave it out",
        ),
        ("""target => '["height", "x"]'""", '"x" is both target and feature', "Leave it out of features."),
        (
            """target => '["height", "weight"]', hyperparams => '{"weight": "weight"}'""",
            'the weight "weight" is also the target',
            "not learned from",
        ),
    ],
)
def test_what_cannot_be_predicted_is_refused_with_the_way_out(
    people: Connection, arguments: str, message: str, hint: str
) -> None:
    error = refused(people, f"select tensile_train('r', 'people', {arguments}{FEATURES})")
    assert isinstance(error, Refused)
    assert message in error.message
    assert hint in (error.hint or "")
    data = "holds arrays" in message
    assert error.sqlstate == ("42703" if "nothing" in arguments else "22000" if data else "22023")


def test_several_targets_and_their_task_are_those_of_the_last_run(people: Connection, admin: Connection) -> None:
    first = spec(people, """target => '["height", "weight"]', metric => 'mae'""", model="again")
    admin.execute(
        """update tensile.models as m set last_spec = j.spec, last_job_id = j.job_id
             from tensile.jobs as j where j.model_name = m.name and m.name = 'again'"""
    )
    again = value(people, JOB, value(people, "select tensile_train('again', 'people')"))
    taken = ("target", "targets", "task", "metric")
    assert {name: again[name] for name in taken} == {name: first[name] for name in taken}


def test_statistics_of_the_target_are_those_of_its_values_or_labels(people: Connection, serve: Serve) -> None:
    service = serve(lambda _: result({"rows": []}))
    for target, columns in (
        ('["height", "weight"]', [("height", "float", 60, []), ("weight", "integer", 7, [])]),
        ("v", [("v", "array", None, [2])]),
        ("flags", [("flags", "array", None, [2])]),
        ("codes", [("codes", "labels", 40, [])]),
        ("hues", [("hues", "labels", 1, [])]),
    ):
        people.execute(f"select * from tensile_explain('e', 'people', target => '{target}'{FEATURES})".encode())
        sent = service.requests[-1]["columns"][1:]
        assert [(own["name"], own["kind"], own["distinct"], own["shape"]) for own in sent] == columns
