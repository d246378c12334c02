"""Installation: one source, two ways, one catalog; and what a dump carries."""

import ast
import shutil
import subprocess
import tempfile
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
from indb_tensile.cluster import Cluster, find_programs
from indb_tensile.errors import DatabaseError, MissingError, PrivilegeError, RequestError
from indb_tensile.job import JobId
from tests.catalog.enqueue import claim, enqueue, publication, register
from tests.catalog.listing import catalog, members_aside
from tests.catalog.own_server import own_server
from tests.conftest import ROLES, Database

ROOT = Path(install.__file__).parents[2]


@given(st.text())
def test_a_literal_is_the_same_text_and_ends_no_dollar_quote(text: str) -> None:
    written = literal(text)
    assert ast.literal_eval(written) == text
    assert "$" not in written
    assert written.isascii()


def test_the_versions_of_the_catalog_and_the_package_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == install.VERSION


def test_no_placeholder_is_left_in_the_script() -> None:
    for extension in (True, False):
        for source in (install.script(extension), *install.upgrade_scripts(extension).values()):
            assert "@VERSION@" not in source
            assert "@BRIDGE_SOURCES@" not in source
            assert "@TRAIN_" not in source.split("$bridge$")[0] + source.split("$bridge$")[2]
            assert "@DIGEST@" not in source
            assert ("pg_extension_config_dump" in source) is extension


@pytest.mark.postgres
def test_installing_again_changes_nothing(database: Database) -> None:
    with database.connect() as connection:
        before = catalog(connection)
        assert install.install(connection) == Installation(way=SCRIPT, version=install.VERSION)
        assert catalog(connection) == before
        install.check_version(connection)


@pytest.mark.postgres
def test_a_catalog_of_another_source_of_the_same_version_is_told_apart(database: Database) -> None:
    with database.connect() as connection:
        assert install.same_source(connection)
        connection.execute("create or replace function tensile.catalog_digest() returns text return 'another'")
        assert not install.same_source(connection)
        connection.execute("drop function tensile.catalog_digest()")
        assert not install.same_source(connection)
        install.check_version(connection)  # works on, all the same


def test_a_catalog_of_another_version_is_refused_and_the_way_out_is_named(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create or replace function tensile.catalog_version() returns text return '9.9'")
        for refuse in (install.check_version, install.install):
            with pytest.raises(DatabaseError, match=r"version 9\.9"):
                refuse(connection)
        with pytest.raises(DatabaseError) as caught:
            install.check_version(connection)
        assert "tensile init" in caught.value.hint


@pytest.mark.postgres
def test_a_database_without_the_catalog_is_told_how_to_get_one(cluster: Cluster) -> None:
    with psycopg.connect(cluster.dsn(database="template1"), autocommit=True) as connection:
        with pytest.raises(DatabaseError) as caught:
            install.check_version(connection)
        assert caught.value.message == 'the catalog is not installed in database "template1"'
        assert "tensile init" in caught.value.hint


@pytest.mark.postgres
def test_a_role_without_a_grant_is_told_which_one_it_lacks(database: Database) -> None:
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
def test_a_schema_of_that_name_that_is_not_ours_is_left_alone(own: Cluster) -> None:
    with _new_database(own, "strange") as connection:
        connection.execute("create schema tensile")
        with pytest.raises(RequestError, match="has a schema tensile that is not ours"):
            install.install(connection)


@pytest.mark.postgres
def test_functions_that_a_dropped_schema_left_behind_are_named_with_the_statements_that_drop_them(
    own: Cluster,
) -> None:
    with _new_database(own, "left") as connection:
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
def own() -> Iterator[Cluster]:
    """A server of its own that has the extension's files."""
    directory = Path(tempfile.mkdtemp(prefix="tensile-own-"))
    directory.chmod(0o755)
    cluster, extensions = own_server(directory)
    install.write_extension(extensions)
    cluster.create(roles=ROLES)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop(mode="immediate")
        shutil.rmtree(directory)


@pytest.mark.postgres
def test_the_extension_and_the_script_make_the_samecatalog(own: Cluster) -> None:
    with _new_database(own, "extended") as extended, _new_database(own, "scripted") as scripted:
        assert install.install(extended).way == EXTENSION
        assert install.install(scripted, way=SCRIPT).way == SCRIPT
        assert members_aside(catalog(extended)) == members_aside(catalog(scripted))
        assert len(catalog(extended)) > 300
        for connection, other in ((extended, SCRIPT), (scripted, EXTENSION)):
            with pytest.raises(DatabaseError, match="was installed by"):
                install.install(connection, way=other)
        with pytest.raises(psycopg.errors.DuplicateSchema, match='schema "tensile" already exists'):
            scripted.execute("create extension tensile cascade")
        extended.execute("drop extension tensile")
        assert install.installed(extended) is None


@pytest.mark.postgres
@pytest.mark.parametrize("way", [EXTENSION, SCRIPT])
def test_a_dump_carries_models_and_never_runs_the_queue_of_what_it_copies(own: Cluster, way: str) -> None:
    with _new_database(own, f"production_{way}") as production:
        install.install(production, way=way)
        version = _fill(production)
        stored = models.load_version(production, version)
        with _new_database(own, f"copied_{way}") as copied:
            _copy(own, f"production_{way}", f"copied_{way}")
            assert models.load_version(copied, version) == stored
            assert jobs.claim_job(copied, register(copied)) is None
            carried = copied.execute("select state::text from tensile.jobs order by job_id").fetchall()
            assert carried == ([("succeeded",)] if way == EXTENSION else [("succeeded",), ("queued",), ("starting",)])
            assert copied.execute("select value from tensile.settings").fetchall() == [("/run/x",)]
            kinds = copied.execute(
                "select kind from tensile.job_events where job_id = 1 order by event_id"
            ).fetchall()
            assert kinds == [("starting",), ("succeeded",)]
            fresh = enqueue(copied)
            assert fresh > 3, "the copy counts on where production was"
            assert claim(copied, register(copied)).job == fresh


@pytest.mark.postgres
@pytest.mark.parametrize("way", [EXTENSION, SCRIPT])
def test_a_dump_with_snapshots_restores_and_the_copy_keeps_only_those_of_its_own_jobs(own: Cluster, way: str) -> None:
    with _new_database(own, f"snapped_{way}") as production:
        install.install(production, way=way)
        ended, waiting = _snapshot(production), _snapshot(production)
        production.execute("update tensile.jobs set cancel_requested = true where job_id = %s", (ended,))
        kept = snapshots.find_snapshot(production, waiting)
        assert kept is not None
        with _new_database(own, f"snapped_copy_{way}") as copied:
            _copy(own, f"snapped_{way}", f"snapped_copy_{way}")
            assert _snapshot_tables(copied) == [(f"job_{job}", "tensile_data", 3) for job in (ended, waiting)]
            # The extension's dump carries no job that has not ended, so nothing there needs a snapshot.
            assert snapshots.drop_ended(copied) == (2 if way == EXTENSION else 1)
            found = snapshots.find_snapshot(copied, waiting)
            if way == EXTENSION:
                assert found is None
            else:
                assert found is not None
                assert (found.columns, found.key, found.rows) == (kept.columns, kept.key, kept.rows)
            copied.execute("select tensile.adopt_owners()")
            _snapshot(copied)  # and new ones can be made
        with _new_database(own, f"snapped_part_{way}") as part:
            _copy(own, f"snapped_{way}", f"snapped_part_{way}", "--exclude-table=tensile_data.*")
            assert _snapshot_tables(part) == []
            if way == SCRIPT:
                with pytest.raises(MissingError, match=f"the snapshot of job {waiting} is gone"):
                    snapshots.find_snapshot(part, waiting)
            snapshots.drop_ended(part)
            part.execute("select tensile.adopt_owners()")
            _snapshot(part)
        if way == EXTENSION:
            production.execute("drop extension tensile cascade")
        else:
            production.execute("drop schema tensile, tensile_data cascade")
        assert install.installed(production) is None


def _snapshot(connection: psycopg.Connection[Any]) -> JobId:
    """A queued job with a sealed snapshot of three rows."""
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


def _snapshot_tables(connection: psycopg.Connection[Any]) -> list[tuple[str, str, int]]:
    """Name, owner and rows of each, as the reader sees them."""
    tables = connection.execute(
        "select tablename::text, tableowner::text from pg_tables where schemaname = 'tensile_data' order by 1"
    ).fetchall()
    counted = []
    with connection.transaction():
        connection.execute("set local role tensile_reader")
        for name, owner in tables:
            row = connection.execute(
                sql.SQL("select count(*) from {}").format(sql.Identifier("tensile_data", name))
            ).fetchone()
            assert row is not None
            counted.append((name, owner, row[0]))
    return counted


def _fill(connection: psycopg.Connection[Any]) -> Any:
    """One finished job with its model, one queued, one claimed, a setting."""
    worker = register(connection)
    enqueue(connection)
    version = models.publish_version(connection, claim(connection, worker), publication())
    enqueue(connection, priority=0)
    enqueue(connection, priority=1)
    claim(connection, worker)
    connection.execute("insert into tensile.settings (name, value) values ('socket_directory', '\"/run/x\"')")
    return version


def _new_database(cluster: Cluster, name: str) -> psycopg.Connection[Any]:
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    return psycopg.connect(cluster.dsn(database=name), autocommit=True)


def _copy(cluster: Cluster, source: str, target: str, *options: str) -> None:
    """pg_dump into psql, stopping at the first error."""
    programs = find_programs()
    dump = subprocess.run(
        [programs.path("pg_dump"), *options, "-d", cluster.dsn(database=source)], capture_output=True, check=False
    )
    assert dump.returncode == 0, dump.stderr.decode()
    restore = subprocess.run(
        [programs.path("psql"), "-q", "-X", "-v", "ON_ERROR_STOP=1", "-d", cluster.dsn(database=target)],
        input=dump.stdout,
        capture_output=True,
        check=False,
    )
    assert restore.returncode == 0, restore.stderr.decode()
