"""Check which searches are refused, and that a forged one harms nobody."""

import json
from typing import Any, cast

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog.connection import Session
from worker.search_steward import SearchSteward

from .conftest import Connection, refused, value
from .search_progress import SPACE, OneSession, search, states

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trials => 0", 'search: "trials" is 0'),
        ("parallel => 0", 'search: "parallel" is 0'),
        ("sampler => 'x'", 'search: "sampler" is "x"'),
        ("prune => 'x'", 'unknown prune "x"'),
        ('prune => \'{"type": "asha", "factor": 99}\'', 'prune asha: "factor" is 99'),
        ("prune => '{'", "prune is not valid JSON"),
        ("search_seed => -1", 'search: "search_seed" is -1'),
        ("max_duration => '0 s'", 'search: "max_duration_s" is 0'),
        ("sampler => 'grid'", "the values of learning_rate are not countable"),
        ('architecture => \'{"choices": [{"type": "mlp"}, null]}\'', "architecture is null"),
        ("split => '{\"valid_size\": 0}'", "a search compares its trials on validation rows"),
        ('architecture => \'{"choices": [{"type": "mlp"}, {"type": "no"}]}\'', 'unknown architecture "no"'),
        (
            'architecture => \'{"type": "mlp", "dropout": {"range": [0.5, 1.5]}}\'',
            'architecture mlp: "dropout" is 1.5',
        ),
        ('preprocess => \'{"scale": {"choices": ["standard", "no"]}}\'', "preprocess"),
        ("metric => 'r2'", "metric"),
        (
            """architecture => '{"choices": ["mlp", "cnn"]}'""",
            "architecture cnn reads an image, and none of the 4 features is one",
        ),
    ],
)
def test_wrong_arguments_are_refused_when_the_search_is_enqueued(
    alice: Connection, arguments: str, message: str
) -> None:
    statement = f"select tensile_search('m', 'iris', 'species', hyperparams => '{SPACE}', {arguments})"
    refusal = refused(alice, statement)
    assert refusal.sqlstate == "22023"
    assert message in refusal.message
    assert refusal.hint


def test_every_choice_of_a_hyper_parameter_is_checked(alice: Connection) -> None:
    space = '{"batch_size": {"choices": [16, 32, 0]}}'
    assert refused(alice, "select tensile_search('m', 'iris', 'species', hyperparams => %s)", space).message == (
        'hyperparams: "batch_size" is 0'
    )
    space = '{"mixup": {"choices": [null, 0.2]}}'
    assert refused(alice, "select tensile_search('m', 'iris', 'species', hyperparams => %s)", space).message == (
        'hyperparams: "mixup" is 0.2, and the features are 0 images and 4 other columns'
    )
    for choice, message in (
        ("no_column", 'column "no_column" of relation "public.iris" does not exist'),
        ("species", 'hyperparams: the weight "species" is also the target'),
        (
            "label_known",
            'hyperparams: column "label_known" of table "public.iris" has type boolean, which cannot be a weight',
        ),
    ):
        space = json.dumps({"weight": {"choices": ["petal", choice]}})
        assert (
            refused(alice, "select tensile_search('m', 'iris', 'species', hyperparams => %s)", space).message
            == message
        )
    space = '{"class_weight": {"choices": [null, "balanced"]}}'
    assert refused(alice, "select tensile_search('m', 'iris', 'petal', hyperparams => %s)", space).message == (
        'hyperparams: "class_weight" is for classification and multilabel only'
    )
    space = '{"learning_rate": 0.1, "weight_decay": 0.1}'
    fixed = "select tensile_search('m', 'iris', 'species', 'classification', 'mlp', %s)"
    assert refused(alice, fixed, space).message == "nothing varies in this search"
    assert refused(alice, "select tensile_trial_info(999999)").sqlstate == "42704"


def test_a_forged_search_is_refused_or_fails_and_harms_nobody(alice: Connection, worker: Connection) -> None:
    good = search(alice)
    spec = value(alice, "select spec from tensile.jobs where job_id = %s", good)
    forge = """insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)
               select model_name, relation_oid, relation_schema, relation_name, %s
                 from tensile.jobs where job_id = %s"""
    refusals: list[Any] = [
        {}, {"space": {}}, {"space": {}, "trials": "x"}, {"space": {}, "trials": 0}, {"space": {}, "trials": 1.5},
        {"space": [], "trials": 3}, {"space": {}, "trials": 99999999999}, 7,
        *({"space": {}, "trials": 3, "max_duration_s": own} for own in ("abc", "-Infinity", 0)),
    ]  # fmt: skip
    for own in refusals:
        assert refused(alice, forge, Jsonb(spec | {"search": own}), good).sqlstate == "22023", own
    accepted: list[Any] = [
        {"space": {"spec": 1}, "trials": 3},
        {"space": {"hyperparams": "abc"}, "trials": 3},
        {"space": {"hyperparams": {"seed": {"choices": list(range(3000))}}}, "trials": 3, "sampler": "grid"},
        {"space": {"hyperparams": {"seed": {"range": [0, 1], "step": 1e-320}}}, "trials": 3, "sampler": "grid"},
        {"space": {"architecture": {"choices": [{"type": "mlp"}, None]}}, "trials": 3, "search_seed": -1},
    ]
    for own in accepted:
        alice.execute(forge.encode(), (Jsonb(spec | {"search": own}), good))
    SearchSteward(cast(Session, OneSession(worker))).attend()
    rows = alice.execute("select state::text from tensile.jobs where search_id = job_id order by job_id").fetchall()
    assert [row[0] for row in rows] == ["queued", *["failed"] * len(accepted)]
    assert len(states(alice, good)) == 2
    assert value(alice, "select count(*) from tensile.stat_searches") == len(accepted) + 1
    forged = value(alice, "select max(job_id) from tensile.jobs where search_id = job_id")
    assert refused(alice, "select tensile_retry(%s)", forged).sqlstate != "XX000"


def test_a_worker_cannot_add_a_trial_that_is_another_training(alice: Connection, worker: Connection) -> None:
    number = search(alice)
    spec = value(alice, "select spec from tensile.jobs where job_id = %s", number)
    for change in ({"relation": spec["relation"] | {"oid": 1}}, {"deploy": "always"}, {"query": "select 1"}):
        own = {name: part for name, part in spec.items() if name != "search"} | {"deploy": "never"} | change
        statement = "select tensile.add_trial(%s, 1, '{}', '{}', '{1}', %s)"
        assert refused(worker, statement, number, Jsonb(own)).sqlstate == "22023"


def test_search_on_several_devices_is_refused(alice: Connection) -> None:
    with pytest.raises(psycopg.Error, match="devices is 2, and each trial of a search trains on one device"):
        search(alice, more="trials => 4, devices => 2")
    with pytest.raises(psycopg.Error, match='"reduce" is fast, and one device trains'):
        search(alice, space='{"reduce": {"choices": ["exact", "fast"]}}', more="trials => 2")
