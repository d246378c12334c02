"""Registered networks belong to administrators: other roles see and use those that were granted to them."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, UndefinedObject

from indb_tensile.catalog import stored_networks
from indb_tensile.catalog.stored_networks import NewNetwork
from indb_tensile.errors import MissingError, PrivilegeError, RequestError
from tests.catalog.enqueue import enqueue
from tests.conftest import Database

pytestmark = pytest.mark.postgres

WEIGHTS = b"weights of a network"
LISTED = "select network, family, width, grantees::text[] from tensile.network_list order by network"


def network(name: str = "bert", digest: str = "a" * 64) -> NewNetwork:
    config = {"width": 8, "layers": 2, "positions": 32, "vocabulary": 9, "values": {}}
    return NewNetwork(
        name=name,
        digest=digest,
        family="bert",
        config=config,
        tokenizer="{}",
        parameters=100,
        weights_bytes=len(WEIGHTS),
    )


def register(connection: psycopg.Connection, new: NewNetwork, **options: bool) -> bool:
    parts = iter([memoryview(WEIGHTS[:5]), memoryview(WEIGHTS[5:])])
    return stored_networks.register(connection, new, parts, **{"replace": False, "force": False, **options})


def used_by_a_version(database: Database, digest: str) -> None:
    """Let a model have a version that needs the network of this digest."""
    with database.connect() as postgres:
        postgres.execute(
            """with m as (insert into tensile.models (name, definition) values ('reader', '{}') returning model_id)
               insert into tensile.model_versions (model_id, number, task, target, architecture, parameters,
                                                   weights_bytes, relation_oid, relation_schema, relation_name)
               select model_id, 1, 'classification', 'y',
                      jsonb_build_object('type', 'pretrained', 'from', 'bert', 'digest', %s::text), 1, 1, 1, 's', 't'
                 from m""",
            (digest,),
        )


@pytest.fixture
def admin(database: Database) -> Iterator[psycopg.Connection]:
    with database.connect("admin") as connection:
        yield connection


def test_a_network_is_seen_by_those_who_may_use_it(database: Database, admin: psycopg.Connection) -> None:
    assert register(admin, network())
    stored_networks.grant(admin, "bert", "alice")
    with database.connect("alice") as alice, database.connect("bob") as bob, database.connect("monitor") as monitor:
        expected: list[tuple[Any, ...]] = [("bert", "bert", 8, ["alice"])]
        assert alice.execute(LISTED).fetchall() == expected
        assert admin.execute(LISTED).fetchall() == monitor.execute(LISTED).fetchall() == expected
        assert bob.execute(LISTED).fetchall() == []
        stored_networks.grant(admin, "bert", "public")
        assert bob.execute(LISTED).fetchall() == [("bert", "bert", 8, ["public"])]
        stored_networks.revoke(admin, "bert", "public")
        assert bob.execute(LISTED).fetchall() == []
        for connection in (alice, bob, monitor):
            for secret in ("select tokenizer from tensile.networks", "select from tensile.network_chunks"):
                with pytest.raises(InsufficientPrivilege):
                    connection.execute(secret.encode())


def test_only_administrators_change_networks(database: Database, admin: psycopg.Connection) -> None:
    register(admin, network())
    statements = (
        "select tensile_grant_network('bert', 'bob')",
        "select tensile_revoke_network('bert', 'bob')",
        "select tensile_drop_network('bert', force => true)",
        "select tensile.set_network_privilege('bert', 'bob', true)",
        "select tensile.remove_network('bert', true)",
        "select tensile.may_use_network(10, 1)",
        "insert into tensile.networks (name) values ('x')",
        "insert into tensile.network_privileges (network_id, grantee_oid, grantee_name) values (1, 0, 'public')",
        "update tensile.networks set name = 'x'",
        "delete from tensile.networks",
    )
    for role in ("bob", "monitor", "tensile_worker"):
        with database.connect(role) as connection:
            for statement in statements:
                if role == "tensile_worker" and "may_use" in statement:
                    continue
                with pytest.raises(InsufficientPrivilege):
                    connection.execute(statement.encode())
    for statement in ("update tensile.networks set name = 'x'", "delete from tensile.network_chunks"):
        with pytest.raises(InsufficientPrivilege):
            admin.execute(statement.encode())


def test_wrong_names_are_told(admin: psycopg.Connection) -> None:
    register(admin, network())
    with pytest.raises(UndefinedObject, match='there is no registered network "gone"'):
        stored_networks.grant(admin, "gone", "alice")
    with pytest.raises(UndefinedObject, match='there is no role "nobody"'):
        stored_networks.grant(admin, "bert", "nobody")
    with pytest.raises(UndefinedObject, match='there is no registered network "gone"'):
        stored_networks.drop(admin, "gone", force=False)


def test_a_network_is_replaced_only_on_purpose_and_keeps_its_grants(admin: psycopg.Connection) -> None:
    register(admin, network())
    stored_networks.grant(admin, "bert", "alice")
    assert not register(admin, network())
    with pytest.raises(RequestError, match='another network is registered as "bert"') as refused:
        register(admin, network(digest="b" * 64))
    assert "--replace" in refused.value.hint
    assert register(admin, network(digest="b" * 64), replace=True)
    assert admin.execute("select digest, grantees::text[] from tensile.network_list").fetchall() == [
        ("b" * 64, ["alice"])
    ]


def test_a_network_that_versions_need_is_removed_only_by_force(database: Database, admin: psycopg.Connection) -> None:
    register(admin, network())
    used_by_a_version(database, "a" * 64)
    with pytest.raises(psycopg.Error, match='1 version of models need network "bert"') as refused:
        stored_networks.drop(admin, "bert", force=False)
    assert refused.value.diag.message_detail is not None
    assert '"reader"' in refused.value.diag.message_detail
    register(admin, network("copy"))
    stored_networks.drop(admin, "bert", force=False)  # another network has the same digest
    with pytest.raises(psycopg.Error, match="need network"):
        stored_networks.drop(admin, "copy", force=False)
    stored_networks.drop(admin, "copy", force=True)
    assert admin.execute(LISTED).fetchall() == []


def test_a_worker_loads_what_the_owner_may_use(database: Database, admin: psycopg.Connection) -> None:
    register(admin, network())
    declared = {"type": "pretrained", "from": "bert"}
    with database.connect("bob") as bob, database.connect("tensile_worker") as worker:
        job = enqueue(bob, "m")
        with pytest.raises(PrivilegeError, match='may not train from network "bert"'):
            stored_networks.load_network_of_job(worker, job, declared)
        stored_networks.grant(admin, "bert", "bob")
        stored = stored_networks.load_network_of_job(worker, job, declared)
        assert stored is not None
        assert (stored.name, stored.weights, stored.config["family"]) == ("bert", WEIGHTS, "bert")
        assert stored_networks.load_network_of_job(worker, job, {"type": "mlp"}) is None
        with pytest.raises(MissingError, match=f"digest {'c' * 12}..., which is not registered now"):
            stored_networks.load_network_of_job(worker, job, declared | {"digest": "c" * 64})
        of_version = stored_networks.load_network_of_version(
            worker, "version 1", {"type": "pretrained", "digest": "a" * 64}
        )
        assert of_version is not None
        assert of_version.weights == WEIGHTS
