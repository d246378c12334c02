"""Check init_from at the call: which version it names, who may use it, and which misfits are refused."""

import json
from typing import Any

import pytest

from indb_tensile.catalog import models
from indb_tensile.errors import MissingError
from tests.catalog.enqueue import claim, publication, register
from tests.conftest import Database

from .conftest import Connection, refused, value

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

TRAIN = "select tensile_train('new', 'iris', target => 'species', {})"
NO_FIT = 'init_from: the network does not fit the weights of version 1 of model "it\'s": '
MLP = {"type": "mlp", "hidden": [8]}


@pytest.fixture
def source(database: Database, alice: Connection) -> str:
    """The model `it's` of alice's with the versions 1 (mlp, deployed) and 2 (regression)."""
    training = {"features": ["petal", "sepal"]}
    with database.connect("tensile_worker") as worker:
        for task, target, architecture in (
            ("classification", "species", MLP),
            ("regression", "petal", MLP),
        ):
            deploy = "always" if task == "classification" else "never"
            alice.execute(
                "select tensile_train('it''s', 'iris', target => %s, task => %s, deploy => %s)",
                (target, task, deploy),
            )
            claimed = claim(worker, register(worker))
            version = publication(task=claimed.spec.task, target=target, architecture=architecture, training=training)
            models.publish_version(worker, claimed, version)
    return "it's"


def spec_of(connection: Connection) -> dict[str, Any]:
    return dict(value(connection, "select spec from tensile.jobs order by job_id desc limit 1"))


def test_the_network_and_the_features_are_those_of_the_version(alice: Connection, source: str) -> None:
    notices: list[str] = []
    alice.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    alice.execute("select tensile_train('new', 'iris', init_from => %s)", (source,))
    spec = spec_of(alice)
    assert (spec["architecture"], spec["features"], spec["target"], spec["task"]) == (
        MLP,
        ["petal", "sepal"],
        "species",
        "classification",
    )
    assert spec["init_from"] == {"model_id": 1, "model": source, "version": None}
    alice.execute("select tensile_rename_model(%s, 'renamed')", (source,))
    alice.execute(TRAIN.format("init_from => 'renamed@1', features => array['sepal', 'petal']").encode())
    assert spec_of(alice)["init_from"] == {"model_id": 1, "model": "renamed", "version": 1}
    assert spec_of(alice)["features"] == ["petal", "sepal"]


@pytest.mark.own_database
def test_a_name_with_a_number_is_the_whole_name_first(alice: Connection, source: str) -> None:
    alice.execute("select tensile_rename_model(%s, 'a@1')", (source,))
    alice.execute("select tensile_train('new', 'iris', init_from => 'a@1')")
    assert spec_of(alice)["init_from"] == {"model_id": 1, "model": "a@1", "version": None}
    alice.execute(
        "select tensile_train('other', 'iris', init_from => 'a@1@2', target => 'kind', task => 'regression')"
    )
    assert spec_of(alice)["init_from"] == {"model_id": 1, "model": "a@1", "version": 2}


@pytest.mark.by_day("'none'", "@2", "exclude")
@pytest.mark.parametrize(
    ("arguments", "sqlstate", "message"),
    [
        ("init_from => 'none'", "42704", 'init_from: there is no model "none"'),
        ("init_from => ''", "42704", 'init_from: there is no model ""'),
        ("init_from => 'it''s@9'", "42704", 'init_from: model "it\'s" has no version 9'),
        (
            "init_from => 'it''s@2'",
            "22023",
            'init_from: version 2 of model "it\'s" is a regression, and the new training a classification',
        ),
        (
            "init_from => 'it''s', architecture => '{\"type\": \"mlp\", \"hidden\": [9]}'",
            "22023",
            NO_FIT + '"hidden" is [9], and not [8]',
        ),
        (
            "init_from => 'it''s', architecture => '[{\"type\": \"linear\"}]'",
            "22023",
            NO_FIT + "its type is layers, and not mlp",
        ),
        (
            "init_from => 'it''s', exclude => array['sepal', 'label_known']",
            "22023",
            'init_from: the training is without "sepal", from which version 1 of model "it\'s" learned',
        ),
    ],
)
def test_a_version_that_does_not_fit_is_refused(
    alice: Connection, source: str, arguments: str, sqlstate: str, message: str
) -> None:
    for call in (TRAIN, TRAIN.replace("tensile_train(", "tensile_explain(")):
        refusal = refused(alice, call.format(arguments))
        assert (refusal.sqlstate, refusal.message) == (sqlstate, message)
        assert refusal.hint


def test_more_columns_stand_behind_those_of_the_version(alice: Connection, source: str) -> None:
    alice.execute(TRAIN.format("init_from => 'it''s', features => array['kind', 'sepal', 'petal']").encode())
    assert spec_of(alice)["features"] == ["petal", "sepal", "kind"]


def test_a_table_without_the_features_is_refused(alice: Connection, source: str) -> None:
    alice.execute("create table thin (petal real, species text); insert into thin values (1, 'a'), (2, 'b')")
    refusal = refused(alice, "select tensile_train('new', 'thin', init_from => %s)", source)
    assert refusal.sqlstate == "42703"
    assert refusal.message.endswith('thin" has no column "sepal", from which version 1 of model "it\'s" learned')


def test_weights_of_another_role_need_their_own_privilege(
    database: Database, alice: Connection, bob: Connection, source: str
) -> None:
    bob.execute(
        "create table own as select i % 7 as petal, i % 5 as sepal, (i %% 2)::text as species"
        " from generate_series(1, 60) as i; grant select on own to tensile_reader".replace("%%", "%")
    )
    call = "select tensile_train('bobs', 'own', init_from => 'it''s')"
    assert refused(bob, call).message == 'init_from: there is no model "it\'s"'
    alice.execute("select tensile_grant_model(%s, 'bob')", (source,))
    refusal = refused(bob, call)
    assert (refusal.sqlstate, refusal.detail) == (
        "42501",
        'Role "bob" may predict with it, and may not copy its weights.',
    )
    wrong = refused(alice, "select tensile_grant_model(%s, 'bob', 'all')", source)
    assert (wrong.sqlstate, wrong.message) == ("22023", 'there is no privilege "all"')
    alice.execute("select tensile_grant_model(%s, 'bob', 'weights')", (source,))
    bob.execute(call.encode())
    with database.connect("tensile_worker") as worker:
        claimed = claim(worker, register(worker))
        assert claimed.spec.init_from is not None
        alice.execute("select tensile_revoke_model(%s, 'bob')", (source,))
        with pytest.raises(MissingError, match='has no model "it\'s" with a deployed version to start from'):
            models.load_init_version(worker, claimed, claimed.spec.init_from)
    assert refused(bob, call).sqlstate == "42704"


def test_a_forged_specification_opens_no_model_of_another_role(
    database: Database, alice: Connection, bob: Connection, source: str
) -> None:
    forged = {"model_id": 1, "model": "mine", "version": 1}
    alice.execute("select tensile_grant_model(%s, 'bob')", (source,))
    bob.execute(
        """insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)
           values ('b', 1, 'public', 't', %s)""",
        (
            json.dumps(
                {
                    "model": "b",
                    "relation": {"oid": 1, "schema": "public", "name": "t"},
                    "target": "y",
                    "task": "regression",
                    "architecture": MLP,
                    "init_from": forged,
                }
            ),
        ),
    )
    with database.connect("tensile_worker") as worker:
        claimed = claim(worker, register(worker))
        assert claimed.spec.init_from is not None
        with pytest.raises(MissingError):
            models.load_init_version(worker, claimed, claimed.spec.init_from)


def test_a_later_attempt_starts_from_the_same_version(database: Database, alice: Connection, source: str) -> None:
    alice.execute("select tensile_train('new', 'iris', init_from => %s)", (source,))
    with database.connect("tensile_worker") as worker:
        claimed = claim(worker, register(worker))
        assert claimed.spec.init_from is not None
        assert models.load_init_version(worker, claimed, claimed.spec.init_from).number == 1
        alice.execute("select tensile_deploy(%s, 2)", (source,))
        assert models.load_init_version(worker, claimed, claimed.spec.init_from).number == 1


@pytest.mark.own_database
def test_a_model_without_a_version_needs_a_job_that_trains_it(alice: Connection) -> None:
    job = value(alice, "select tensile_train('first', 'iris', target => 'species')")
    refusal = refused(alice, TRAIN.format("init_from => 'first'"))
    assert (refusal.sqlstate, refusal.message) == ("55000", 'init_from: model "first" has no deployed version')
    alice.execute(TRAIN.format(f"init_from => 'first', depends_on => array[{job}]").encode())
    assert spec_of(alice)["init_from"] == {"model_id": 1, "model": "first", "version": None}


def test_what_follows_from_the_columns_is_not_taken_over(database: Database, alice: Connection, source: str) -> None:
    with database.connect() as admin:
        admin.execute(
            """update tensile.model_versions set architecture =
                 '{"type": "tabm", "hidden": [8], "members": 4, "numbers": 2, "categories": [5]}' where number = 1"""
        )
    alice.execute("select tensile_train('new', 'iris', init_from => %s)", (source,))
    assert spec_of(alice)["architecture"] == {"type": "tabm", "hidden": [8], "members": 4}


def test_frozen_layers_are_not_inherited_without_a_version_to_start_from(
    database: Database, alice: Connection, source: str
) -> None:
    notices: list[str] = []
    alice.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    hyperparams = '{"freeze": ["1"], "epochs": 3}'
    alice.execute("select tensile_train('new', 'iris', init_from => %s, hyperparams => %s)", (source, hyperparams))
    with database.connect() as admin:
        admin.execute(
            """update tensile.models as m set last_spec = j.spec, last_job_id = j.job_id
                 from tensile.jobs as j where j.model_name = 'new' and m.name = 'new'"""
        )
    alice.execute("select tensile_train('new', 'iris')")
    assert spec_of(alice)["hyperparams"] == {"epochs": 3}
    assert any("freeze" in notice and "as init_from is not given" in notice for notice in notices)
    alice.execute("select tensile_train('new', 'iris', init_from => %s)", (source,))
    assert spec_of(alice)["hyperparams"] == {"freeze": ["1"], "epochs": 3}
