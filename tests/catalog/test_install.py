"""Check that the extension and the script install the same catalog, and what a dump of the catalog contains."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from indb_tensile.catalog import install, jobs, models, snapshots
from indb_tensile.catalog.bridge_sources import literal
from indb_tensile.catalog.install import EXTENSION, SCRIPT, Installation
from indb_tensile.catalog.pgml_schema import install_pgml
from indb_tensile.cluster import Cluster
from indb_tensile.errors import DatabaseError, MissingError, PrivilegeError, RequestError
from indb_tensile.job import JobId
from tests.catalog.copies import copy_database, new_database
from tests.catalog.enqueue import claim, enqueue, publication, register
from tests.catalog.listing import list_catalog, without_members
from tests.catalog.own_server import own_server
from tests.conftest import ROLES, Database
from tests.open_directory import open_directory

ROOT = Path(install.__file__).parents[2]


@given(st.text())
def test_literal_evaluates_to_the_text_and_ends_no_dollar_quote(text: str) -> None:
    text_literal = literal(text)
    assert ast.literal_eval(text_literal) == text
    assert "$" not in text_literal
    assert text_literal.isascii()


def test_versions_of_the_catalog_and_the_package_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == install.VERSION


def test_script_contains_no_placeholder() -> None:
    for extension in (True, False):
        for source in (install.script(extension), *install.upgrade_scripts(extension).values()):
            assert "@VERSION@" not in source
            assert "@BRIDGE_SOURCES@" not in source
            assert "@TRAIN_" not in source.split("$bridge$")[0] + source.split("$bridge$")[2]
            assert "@DIGEST@" not in source
            assert ("pg_extension_config_dump" in source) is extension


@pytest.mark.postgres
def test_second_installation_changes_nothing(database: Database) -> None:
    with database.connect() as connection:
        before = list_catalog(connection)
        assert install.install(connection) == Installation(way=SCRIPT, version=install.VERSION)
        assert list_catalog(connection) == before
        install.check_version(connection)


@pytest.mark.postgres
def test_catalog_of_the_same_version_from_another_source_is_detected(database: Database) -> None:
    with database.connect() as connection:
        assert install.same_source(connection)
        connection.execute("create or replace function tensile.catalog_digest() returns text return 'another'")
        assert not install.same_source(connection)
        connection.execute("drop function tensile.catalog_digest()")
        assert not install.same_source(connection)
        install.check_version(connection)  # the version is enough for a controller


def test_catalog_of_another_version_is_refused_with_a_hint(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create or replace function tensile.catalog_version() returns text return '9.9'")
        for refuse in (install.check_version, install.install):
            with pytest.raises(DatabaseError, match=r"version 9\.9"):
                refuse(connection)
        with pytest.raises(DatabaseError) as caught:
            install.check_version(connection)
        assert "tensile init" in caught.value.hint


@pytest.mark.postgres
def test_database_without_the_catalog_is_refused_with_a_hint(cluster: Cluster) -> None:
    with psycopg.connect(cluster.dsn(database="template1"), autocommit=True) as connection:
        with pytest.raises(DatabaseError) as caught:
            install.check_version(connection)
        assert caught.value.message == 'the catalog is not installed in database "template1"'
        assert "tensile init" in caught.value.hint


@pytest.mark.postgres
def test_role_without_a_grant_is_refused_with_the_missing_grant(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("revoke tensile_user from bob")
    try:
        with database.connect("bob") as bob, pytest.raises(PrivilegeError) as caught:
            install.check_version(bob)
        assert caught.value.message == '"bob" may not use schema tensile'
        assert caught.value.hint == "As an administrator: grant tensile_user to bob."
    finally:
        with database.connect() as connection:
            connection.execute("grant tensile_user to bob")


@pytest.mark.postgres
def test_foreign_schema_named_tensile_is_refused(extension_server: Cluster) -> None:
    with new_database(extension_server, "strange") as connection:
        connection.execute("create schema tensile")
        with pytest.raises(RequestError, match="has a schema tensile that is not ours"):
            install.install(connection)


@pytest.mark.postgres
def test_hint_has_the_statements_that_drop_leftover_functions(
    extension_server: Cluster,
) -> None:
    with new_database(extension_server, "left") as connection:
        install.install(connection, way=SCRIPT)
        connection.execute("set client_min_messages = warning; drop schema tensile cascade")
        connection.execute("create function public.tensile_of_a_user() returns int return 1")
        with pytest.raises(DatabaseError) as caught:
            install.install(connection, way=SCRIPT)
        assert "has no schema tensile, but" in caught.value.message
        assert "tensile_of_a_user" not in caught.value.hint
        statements = caught.value.hint.removeprefix("As a superuser: ").removesuffix(" Then run this again.")
        connection.execute("set search_path = pg_catalog")
        connection.execute(statements.encode())
        assert install.install(connection, way=SCRIPT).version == install.VERSION


@pytest.mark.postgres
def test_only_a_superuser_installs(database: Database, cluster: Cluster) -> None:
    with database.connect() as connection:
        connection.execute("create database bare owner alice")
    try:
        with psycopg.connect(cluster.dsn(user="alice", database="bare"), autocommit=True) as connection:
            with pytest.raises(PrivilegeError, match='"alice" is not a superuser'):
                install.install(connection)
            assert install.installed(connection) is None
    finally:
        with database.connect() as connection:
            connection.execute("drop database bare with (force)")


@pytest.fixture(scope="module")
def extension_server() -> Iterator[Cluster]:
    """A server of the test's own, with the extension's files."""
    with open_directory("suite-own-") as directory:
        cluster, extensions = own_server(directory)
        install.write_extension(extensions)
        cluster.create(roles=ROLES)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop(mode="immediate")


@pytest.mark.postgres
def test_extension_and_script_create_the_same_catalog(extension_server: Cluster) -> None:
    with (
        new_database(extension_server, "extended") as extended,
        new_database(extension_server, "scripted") as scripted,
    ):
        assert install.install(extended).way == EXTENSION
        assert install.install(scripted, way=SCRIPT).way == SCRIPT
        assert without_members(list_catalog(extended)) == without_members(list_catalog(scripted))
        assert len(list_catalog(extended)) > 300
        for connection, other in ((extended, SCRIPT), (scripted, EXTENSION)):
            with pytest.raises(DatabaseError, match="was installed by"):
                install.install(connection, way=other)
        with pytest.raises(psycopg.errors.DuplicateSchema, match='schema "tensile" already exists'):
            scripted.execute("create extension tensile cascade")
        extended.execute("drop extension tensile")
        assert install.installed(extended) is None


@pytest.mark.by_day("script")
@pytest.mark.postgres
@pytest.mark.parametrize("way", [EXTENSION, SCRIPT])
def test_restored_dump_has_the_models_and_does_not_run_the_copied_queue(extension_server: Cluster, way: str) -> None:
    with new_database(extension_server, f"production_{way}") as production:
        install.install(production, way=way)
        install_pgml(production)
        version = _create_rows(production)
        stored = models.load_version(production, version)
        with new_database(extension_server, f"copied_{way}") as copied:
            copy_database(extension_server, f"production_{way}", f"copied_{way}")
            assert models.load_version(copied, version) == stored
            assert jobs.claim_job(copied, register(copied)) is None
            states = copied.execute("select state::text from tensile.jobs order by job_id").fetchall()
            assert states == ([("succeeded",)] if way == EXTENSION else [("succeeded",), ("queued",), ("starting",)])
            assert copied.execute("select value from tensile.settings").fetchall() == [("/run/x",)]
            listed = "select id, name, deployed from pgml.trained_models"  # a script's, so a dump has its functions
            assert copied.execute(listed).fetchall() == production.execute(listed).fetchall() != []
            kinds = copied.execute(
                "select kind from tensile.job_events where job_id = 1 order by event_id"
            ).fetchall()
            assert kinds == [("starting",), ("succeeded",)]
            fresh = enqueue(copied)
            assert fresh > 3, "the copy continues with production's next id"
            assert claim(copied, register(copied)).job == fresh


@pytest.mark.nightly
@pytest.mark.by_day("extension")
@pytest.mark.postgres
@pytest.mark.parametrize("way", [EXTENSION, SCRIPT])
def test_restored_dump_keeps_only_the_snapshots_of_its_own_jobs(extension_server: Cluster, way: str) -> None:
    with new_database(extension_server, f"snapped_{way}") as production:
        install.install(production, way=way)
        ended, queued = _enqueue_with_snapshot(production), _enqueue_with_snapshot(production)
        production.execute("update tensile.jobs set cancel_requested = true where job_id = %s", (ended,))
        snapshot = snapshots.find_snapshot(production, queued)
        assert snapshot is not None
        with new_database(extension_server, f"snapped_copy_{way}") as copied:
            copy_database(extension_server, f"snapped_{way}", f"snapped_copy_{way}")
            assert _list_snapshot_tables(copied) == [(f"job_{job}", "tensile_data", 3) for job in (ended, queued)]
            # A dump of the extension contains only ended jobs, which need no snapshot.
            assert snapshots.drop_ended(copied) == (2 if way == EXTENSION else 1)
            copied_snapshot = snapshots.find_snapshot(copied, queued)
            if way == EXTENSION:
                assert copied_snapshot is None
            else:
                assert copied_snapshot is not None
                assert (copied_snapshot.columns, copied_snapshot.key, copied_snapshot.rows) == (
                    snapshot.columns,
                    snapshot.key,
                    snapshot.rows,
                )
            copied.execute("select tensile.adopt_owners()")
            _enqueue_with_snapshot(copied)
        with new_database(extension_server, f"snapped_part_{way}") as copy_without_snapshots:
            copy_database(extension_server, f"snapped_{way}", f"snapped_part_{way}", "--exclude-table=tensile_data.*")
            assert _list_snapshot_tables(copy_without_snapshots) == []
            if way == SCRIPT:
                with pytest.raises(MissingError, match=f"the snapshot of job {queued} is gone"):
                    snapshots.find_snapshot(copy_without_snapshots, queued)
            snapshots.drop_ended(copy_without_snapshots)
            copy_without_snapshots.execute("select tensile.adopt_owners()")
            _enqueue_with_snapshot(copy_without_snapshots)
        if way == EXTENSION:
            production.execute("drop extension tensile cascade")
        else:
            production.execute("drop schema tensile, tensile_data cascade")
        assert install.installed(production) is None


def _enqueue_with_snapshot(connection: psycopg.Connection[Any]) -> JobId:
    """Enqueue a job with a sealed snapshot of three rows."""
    connection.execute("create table if not exists t (k int primary key, y float8)")
    with connection.transaction():
        row = connection.execute("select 't'::regclass::oid::int8").fetchone()
        assert row is not None
        spec = {"relation": {"oid": row[0], "schema": "public", "name": "t"}}
        job = enqueue(connection, relation_oid=row[0], spec=spec)
        connection.execute("select tensile.make_snapshot(%s, '{y}')", (job,))
        table = sql.Identifier("tensile_data", f"job_{job}")
        connection.execute(sql.SQL("insert into {} select i, i from generate_series(1, 3) as i").format(table))
        connection.execute("select tensile.seal_snapshot(%s)", (job,))
    return job


def _list_snapshot_tables(connection: psycopg.Connection[Any]) -> list[tuple[str, str, int]]:
    """Return the name, the owner and the number of rows of each snapshot table, as the reader sees them."""
    tables = connection.execute(
        "select tablename::text, tableowner::text from pg_tables where schemaname = 'tensile_data' order by 1"
    ).fetchall()
    snapshot_tables = []
    with connection.transaction():
        connection.execute("set local role tensile_reader")
        for name, owner in tables:
            row = connection.execute(
                sql.SQL("select count(*) from {}").format(sql.Identifier("tensile_data", name))
            ).fetchone()
            assert row is not None
            snapshot_tables.append((name, owner, row[0]))
    return snapshot_tables


def _create_rows(connection: psycopg.Connection[Any]) -> Any:
    """Create a finished job with its model, a queued job, a claimed job, and a setting."""
    worker = register(connection)
    enqueue(connection)
    version = models.publish_version(connection, claim(connection, worker), publication())
    enqueue(connection, priority=0)
    enqueue(connection, priority=1)
    claim(connection, worker)
    connection.execute("insert into tensile.settings (name, value) values ('socket_directory', '\"/run/x\"')")
    return version
