"""Check trainings through the schema pgml: what its calls become, and what is refused with a way out."""

from typing import Any
from zlib import crc32

import pytest

from .conftest import Connection, refused, value

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database, pytest.mark.usefixtures("pgml")]

Json = dict[str, Any]
TRAIN = "select (pgml.train({}, {})).job"
IRIS = "'iris', 'species'"
SPLIT = {"test_size": 0.25, "valid_size": 0.1125}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            f"'classification', {IRIS}",
            {
                "task": "classification",
                "target": "species",
                "architecture": {"type": "mlp", "hidden": []},
                "hyperparams": {},
                "preprocess": {},
                "split": SPLIT,
                "metric": "f1_macro",
                "deploy": "if_better",
            },
        ),
        (
            "'regression', 'public.iris', 'petal', 'mlp', automatic_deploy => false, test_sampling => 'random', "
            """hyperparams => '{"hidden": [8], "epochs": 3, "random_state": 4, "n_jobs": 2, "fit_intercept": true,
                                "optimizer": "rmsprop", "alpha": 0.9}', test_size => 0.2, """
            "runtime => 'python'",
            {
                "architecture": {"type": "mlp", "hidden": [8]},
                "hyperparams": {"epochs": 3, "seed": 4, "optimizer": "rmsprop", "alpha": 0.9},
                "split": {"test_size": 0.2, "valid_size": 0.12},
                "metric": "r2",
                "deploy": "never",
            },
        ),
        (
            """'regression', 'public.iris', 'petal', preprocess => '{
                 "sepal": {"impute": "median", "scale": "standard"}, "kind": {"scale": "preserve", "impute": "zero"},
                 "species": {"encode": "one_hot"}}'""",
            {
                "preprocess": {
                    "missing": {"sepal": "median", "kind": "zero"},
                    "standardize": {"sepal": True, "kind": False},
                    "categories": {"species": 10000},
                }
            },
        ),
        (
            """'regression', 'public.iris', 'petal', preprocess => '{
                 "sepal": {"impute": "mode"}, "species": {"encode": {"ordinal": ["setosa", "virginica"]}}}'""",
            {
                "preprocess": {
                    "missing": {"sepal": "most_frequent"},
                    "encode": {"species": ["setosa", "virginica"]},
                }
            },
        ),
        (
            """'regression', 'public.iris', 'petal', preprocess => '{"species": {"encode": "target"}}'""",
            {"preprocess": {"encode": {"species": "target"}}},
        ),
        (f"'classification', {IRIS}, test_sampling => 'stratified'", {"split": {**SPLIT, "stratify": "species"}}),
        (f"'classification', {IRIS}, materialize_snapshot => true", {"snapshot": True}),
        (
            """'regression', 'public.iris', 'petal', 'hist_gradient_boosting',
               hyperparams => '{"max_iter": 50, "l2_regularization": 0.5, "random_state": 4}'""",
            {"architecture": {"type": "boosting", "iterations": 50, "l2": 0.5}, "hyperparams": {"seed": 4}},
        ),
        ("null, 'iris', 'petal', 'auto'", {"architecture": {"type": "auto"}, "task": "regression"}),
        ("'regression', '\"Ärger im Haus\".\"My.table\"', 'x'", {"target": "x"}),
        ("'regression', 'Ärger im Haus.my Table', 'x'", {"target": "x"}),
    ],
)
def test_arguments_become_those_of_tensile_train(
    alice: Connection, admin: Connection, arguments: str, expected: Json
) -> None:
    admin.execute(
        """create schema if not exists "Ärger im Haus";
           grant usage, create on schema "Ärger im Haus" to alice;
           grant usage on schema "Ärger im Haus" to tensile_reader"""
    )
    alice.execute(
        """create table if not exists "Ärger im Haus"."My.table" as
             select n * 0.5 as x, n % 2 as y from generate_series(1, 9) as n;
           create table if not exists "Ärger im Haus"."my Table" as
             select n * 0.5 as x, n % 2 as y from generate_series(1, 9) as n;
           grant select on all tables in schema "Ärger im Haus" to tensile_reader"""
    )
    row = alice.execute(f"select * from pgml.train('p {crc32(arguments.encode())}', {arguments})".encode()).fetchone()
    assert row is not None
    spec = value(alice, "select spec from tensile.jobs where job_id = %s", row[-1])
    assert row[1:5] == (spec["task"], row[2], False, "queued")
    assert {name: spec[name] for name in expected} == expected


def test_a_later_training_repeats_relation_target_task_and_split(alice: Connection) -> None:
    arguments = """'regression', 'iris', 'petal', test_size => 0.3, preprocess => '{"sepal": {"impute": "zero"}}'"""
    alice.execute("select tensile_create_model('again')")
    value(alice, TRAIN.format("'again'", arguments))
    second = value(alice, TRAIN.format("'again'", "algorithm => 'mlp', task => 'regression'"))

    spec = value(alice, "select spec from tensile.jobs where job_id = %s", second)
    assert (spec["relation"]["name"], spec["target"], spec["task"]) == ("iris", "petal", "regression")
    assert (spec["split"]["test_size"], spec["preprocess"]) == (0.3, {"missing": {"sepal": "zero"}})
    assert refused(alice, TRAIN.format("'again'", "'classification'")).message == (
        'project "again" has the task regression, not classification'
    )
    alice.execute(
        "select tensile_cancel(job_id) from tensile.stat_jobs where model = 'again'; "
        "select tensile_drop_model('again')"
    )
    assert refused(alice, TRAIN.format("'again'", "'regression'")).sqlstate == "55000"
    value(alice, TRAIN.format("'again'", "'classification', 'iris', 'species'"))


def test_a_search_becomes_a_search_whose_trials_are_trained_to_their_end(alice: Connection) -> None:
    job = value(
        alice,
        """select job from pgml.train('searched', 'classification', 'iris', 'species', 'mlp', search => 'random',
             hyperparams => '{"epochs": 3}', search_params => '{"hidden": [[4], [8]], "learning_rate": [0.1, 0.01]}',
             search_args => '{"n_iter": 3, "random_state": 7}')""",
    )
    options = value(alice, "select spec -> 'search' from tensile.jobs where job_id = %s", job)
    assert options == {
        "trials": 3,
        "parallel": 4,
        "sampler": "random",
        "prune": {"type": "none"},
        "search_seed": 7,
        "max_duration_s": None,
        "space": {
            "architecture": {"type": "mlp", "hidden": {"choices": [[4], [8]]}},
            "hyperparams": {"epochs": 3, "learning_rate": {"choices": [0.1, 0.01]}},
            "preprocess": {},
        },
    }


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "word"),
    [
        (f"'classification', {IRIS}, 'xgboost'", "0A000", "hist_gradient_boosting"),
        (f"'classification', {IRIS}, 'knn'", "0A000", "mlp"),
        (f"'classification', {IRIS}, 'ridge'", "0A000", "weight_decay"),
        (f"'classification', {IRIS}, null", "0A000", "mlp"),
        (f"'clustering', {IRIS}", "0A000", "classification"),
        (f"'anomaly', {IRIS}", "0A000", "classification"),
        (f"'classification', {IRIS}, search => 'bayes'", "0A000", "random"),
        (f"'classification', {IRIS}, search => 'grid'", "22023", "lists of values"),
        (f"""'classification', {IRIS}, search_params => '{{"alpha": [1]}}'""", "22023", "search =>"),
        (f"""'classification', {IRIS}, search => 'grid', search_params => '{{"epochs": 1}}'""", "22023", "lists"),
        (f"""'classification', {IRIS}, search => 'grid', search_params => '{{"epochs": [0]}}'""", "22023", "epochs"),
        (
            f"""'classification', {IRIS}, search => 'grid', search_params => '{{"epochs": [1]}}',
                search_args => '{{"n_iter": 3}}'""",
            "0A000",
            "n_iter",
        ),
        (f"'classification', {IRIS}, hyperparams => '[1]'", "22023", "object"),
        (f"""'classification', {IRIS}, hyperparams => '{{"C": 1}}'""", "0A000", "weight_decay"),
        (f"""'classification', {IRIS}, hyperparams => '{{"fit_intercept": false}}'""", "0A000", "Leave"),
        (f"""'classification', {IRIS}, hyperparams => '{{"hidden": [4]}}'""", "22023", "mlp"),
        (f"""'classification', {IRIS}, hyperparams => '{{"epoch": 4}}'""", "22023", "epochs"),
        (f"'classification', {IRIS}, test_size => 100", "22023", "share"),
        (f"'classification', {IRIS}, test_size => 'NaN'", "22023", "share"),
        ("'classification', 'iris', test_sampling => 'stratified'", "22023", "column"),
        ("'regression', 'iris', 'petal', test_sampling => 'stratified'", "22023", "integer"),
        (f"'classification', {IRIS}, test_sampling => 'grouped'", "0A000", "stratified"),
        (f"'classification', {IRIS}, test_sampling => null", "0A000", "random"),
        (f"'classification', {IRIS}, runtime => 'java'", "22023", "Leave"),
        (f"""'classification', {IRIS}, preprocess => '{{"petal": {{"scale": "robust"}}}}'""", "0A000", "view"),
        (
            """'regression', 'iris', 'petal', preprocess => '{"species": {"encode": {"ordinal": []}}}'""",
            "22023",
            "list",
        ),
        (f"""'classification', {IRIS}, preprocess => '{{"petal": {{"impute": "min"}}}}'""", "0A000", "view"),
        (
            f"""'classification', {IRIS}, preprocess => '{{"petal": {{"encode": {{"ordinal": 1}}}}}}'""",
            "0A000",
            "view",
        ),
        (f"""'classification', {IRIS}, preprocess => '{{"petal": 1}}'""", "0A000", "view"),
        (f"""'classification', {IRIS}, preprocess => '{{"petall": {{"impute": "zero"}}}}'""", "42703", "petal"),
        ("'classification', 'nowhere', 'x'", "42P01", "schema.name"),
        ("'classification', 'a.b.c.d', 'x'", "42P01", "schema.name"),
        ("'classification', '\"', 'x'", "42P01", "schema.name"),
        ("'classification'", "55000", "relation_name"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_the_way_out(
    alice: Connection, arguments: str, sqlstate: str, word: str
) -> None:
    error = refused(alice, TRAIN.format("'refused'", arguments))
    assert error.sqlstate == sqlstate
    assert word in (error.hint or "")
    assert refused(alice, f"call pgml.train_and_wait('refused', {arguments})").sqlstate == sqlstate


def test_functions_without_a_counterpart_say_what_to_do(alice: Connection) -> None:
    for call in (
        "embed('m', 'text')",
        "embed('m', array['text'])",
        "rank('m', 'q', array['d'])",
        "transform('translation')",
        """transform('{"task": "x"}'::jsonb, inputs => array['a'])""",
        "generate('p', 'text')",
        "generate('p', array['text'])",
        "chunk('s', 'text')",
        "tune('p')",
        "predict_joint('p', array[1.0])",
        "train_joint('p')",
        "decompose('p', array[1.0])",
        "snapshot('iris', 'species')",
        "load_dataset('iris', \"limit\" => 3)",
    ):
        error = refused(alice, f"select pgml.{call}")
        assert (error.sqlstate, bool(error.hint)) == ("0A000", True), call


def test_train_and_wait_refuses_a_transaction_block(alice: Connection) -> None:
    with alice.transaction():
        error = refused(alice, "call pgml.train_and_wait('waited', 'classification', 'iris', 'species')")
    assert error.sqlstate == "2D000"
    assert "pgml.train(...)" in (error.hint or "")
