"""Attack the import of models: rows of another's model, kinds that only some may import, and contradictions."""

from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import models
from indb_tensile.catalog.models import StoredVersion
from indb_tensile.errors import DatabaseError
from indb_tensile.job import ModelVersionId
from tests.conftest import Database
from worker.stored_predictors import predictor_of

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]

VERSION = """
insert into tensile.model_versions (model_id, number, task, target, architecture, metrics, parameters, weights_bytes,
                                    weights_digest)
select m.model_id, %(number)s, %(task)s, 'y', %(architecture)s, '{}', 1, %(size)s, %(digest)s
  from tensile.models as m where m.name = %(model)s
returning version_id"""
USUAL: dict[str, Any] = {
    "model": "of alice",
    "number": 1,
    "task": "regression",
    "architecture": '{"type": "mlp"}',
    "size": 10,
    "digest": "0" * 64,
}


@pytest.fixture
def alice(database: Database) -> Any:
    """A session of alice, who has a model without versions."""
    with database.connect("alice") as connection:
        connection.execute("insert into tensile.models (name) values ('of alice') on conflict do nothing")
        connection.execute("begin")
        yield connection
        connection.execute("rollback")


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": '{"type": "boosting"}'},
        {"architecture": '{"type": "linear"}'},
        {"architecture": '{"type": "pretrained", "digest": "d"}'},
        {"architecture": '{"hidden": [4]}'},
        {"task": "forecast"},
        {"task": "anomaly"},
        {"task": "pairs"},
        {"size": 2 << 30},
        {"digest": None},
    ],
    ids=str,
)
def test_a_user_inserts_no_version_of_a_kind_that_cannot_be_checked(alice: Any, change: dict[str, Any]) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
        alice.execute(VERSION, USUAL | change)


@pytest.mark.parametrize("column", ["job_id", "deployed", "training", "relation_name", "deployed_by"])
def test_no_user_writes_what_only_a_training_knows(alice: Any, column: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        alice.execute(f"insert into tensile.model_versions (model_id, {column}) values (1, default)".encode())


def test_a_user_writes_neither_versions_nor_weights_into_the_model_of_another(database: Database, alice: Any) -> None:
    version = alice.execute(VERSION, USUAL).fetchone()[0]
    alice.execute("insert into tensile.version_bundles (version_id, bundle) values (%s, '{}')", (version,))
    alice.execute("select tensile_grant_model('of alice', 'bob', 'weights')")
    alice.execute("commit")
    chunk = "insert into tensile.artifacts (version_id, chunk_no, chunk) values (%s, %s, 'x')"
    with database.connect("bob") as bob:
        for statement, values in (
            (VERSION, USUAL | {"number": 2}),
            (chunk, (version, 0)),
            ("insert into tensile.version_bundles (version_id, bundle) values (%s, '{}')", (version,)),
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                bob.execute(statement, values)
    alice.execute("begin")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):  # more chunks than the weights have
        alice.execute(chunk, (version, 1))
    alice.execute("rollback")
    with database.connect() as admin:
        admin.execute("delete from tensile.models")
    alice.execute("begin")


def test_a_user_writes_no_weights_into_a_version_that_a_training_published(database: Database, alice: Any) -> None:
    version = alice.execute(VERSION, USUAL | {"number": 7}).fetchone()[0]
    alice.execute("commit")
    with database.connect() as admin:
        admin.execute("update tensile.model_versions set job_id = 1")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            alice.execute(
                "insert into tensile.artifacts (version_id, chunk_no, chunk) values (%s, 0, 'x')", (version,)
            )
        admin.execute("delete from tensile.models")
    alice.execute("begin")


@pytest.mark.parametrize(
    ("bundle", "fault"),
    [
        ({"architecture": {"type": "linear"}, "task": "regression"}, "contradicts itself"),
        ({"architecture": {"type": "mlp"}, "task": "classification"}, "contradicts itself"),
        ({"architecture": {"type": "mlp"}, "task": "regression"}, "cannot be read"),
        ({"architecture": {"type": "mlp"}, "task": "regression", "forecast": {"a": 1}}, "cannot be imported"),
    ],
    ids=str,
)
def test_a_worker_refuses_rows_that_contradict_each_other(
    database: Database, alice: Any, bundle: dict[str, Any], fault: str
) -> None:
    weights = b"\2\0\0\0\0\0\0\0{}"
    digest = models._digest(weights)
    version = alice.execute(VERSION, USUAL | {"number": 3, "digest": digest}).fetchone()[0]
    values = (version, psycopg.types.json.Jsonb(bundle))
    alice.execute("insert into tensile.version_bundles (version_id, bundle) values (%s, %s)", values)
    alice.execute(
        "insert into tensile.artifacts (version_id, chunk_no, chunk) values (%s, 0, %s)", (version, weights)
    )
    alice.execute("commit")
    with database.connect("tensile_worker") as worker, database.connect() as admin:
        stored: StoredVersion = models.load_version(worker, ModelVersionId(version))
        admin.execute("delete from tensile.models")
    alice.execute("begin")

    assert stored.imported
    with pytest.raises(DatabaseError, match=fault):
        predictor_of(stored)
