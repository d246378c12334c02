"""Check that an obstacle stops an upgrade without a change, and that it comes to an end beside other sessions."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from indb_tensile.catalog import install
from indb_tensile.catalog.install import VERSION, Installation
from indb_tensile.cluster import Cluster
from indb_tensile.errors import DatabaseError
from tests.catalog.copies import drop_database, new_database
from tests.catalog.listing import list_catalog
from tests.catalog.old_release import BOTH_WAYS, Connection, connect_as, fetch_all, until


@pytest.mark.nightly
@pytest.mark.by_day("extension")
@pytest.mark.postgres
@BOTH_WAYS
def test_function_of_another_role_with_our_name_stops_the_upgrade_without_a_change(
    old_catalog: Connection, way: str
) -> None:
    old_catalog.execute("grant create on schema public to bob")
    function_signature = "tensile_set_quota(regrole, integer, integer, text, integer)"
    with connect_as(old_catalog, "bob") as bob:
        bob.execute(f"create function public.{function_signature} returns void language sql return null".encode())
    before = list_catalog(old_catalog)
    with pytest.raises(psycopg.errors.DuplicateFunction) as caught:
        install.install(old_catalog)
    named = function_signature.replace(", ", ",")
    assert f'function public.{named} belongs to role "bob"' in str(caught.value)
    assert caught.value.diag.message_hint == f"If it is not needed: drop routine public.{named}; then upgrade again."
    assert list_catalog(old_catalog) == before
    old_catalog.execute(f"drop routine public.{function_signature}".encode())
    install.install(old_catalog)
    install.check_version(old_catalog)


@pytest.mark.by_day("script")
@pytest.mark.postgres
@BOTH_WAYS
def test_view_that_uses_a_removed_column_stops_the_upgrade_without_a_change(
    old_catalog: Connection, way: str
) -> None:
    old_catalog.execute("create view public.bundles as select bundle from tensile.model_versions")
    before = list_catalog(old_catalog)
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="bundle"):
        install.install(old_catalog)
    assert list_catalog(old_catalog) == before
    old_catalog.execute("drop view public.bundles")
    install.install(old_catalog)


@pytest.mark.postgres
def test_deadlock_with_a_session_ends_the_sessions_statement_and_not_the_upgrade(
    old_catalog: Connection,
) -> None:
    upgrading = threading.Thread(target=install.install, args=(old_catalog,))
    waits = "select from pg_locks where relation = 'tensile.jobs'::regclass and not granted"
    with connect_as(old_catalog, "alice") as alice, connect_as(old_catalog, "postgres") as observer:
        alice.execute("begin")
        alice.execute("select from tensile.jobs")
        upgrading.start()
        until(lambda: fetch_all(observer, waits))
        with pytest.raises(psycopg.errors.DeadlockDetected):
            alice.execute("select from tensile.workers")
        alice.execute("rollback")
        upgrading.join(120)
        assert not upgrading.is_alive()
        assert fetch_all(observer, "select tensile.catalog_version()") == [(VERSION,)]


@pytest.mark.by_day("script")
@pytest.mark.postgres
@BOTH_WAYS
def test_second_concurrent_upgrade_waits_and_changes_nothing(old_catalog: Connection, way: str) -> None:
    expected = Installation(way=way, version=VERSION)
    assert _install_twice_at_once(old_catalog) == [expected, expected]


@pytest.mark.nightly
@pytest.mark.by_day("extension")
@pytest.mark.postgres
@BOTH_WAYS
def test_second_concurrent_installation_waits_and_changes_nothing(upgrade_server: Cluster, way: str) -> None:
    expected = Installation(way=way, version=VERSION)
    with new_database(upgrade_server, "twice") as connection:
        assert _install_twice_at_once(connection, way=way) == [expected, expected]
    drop_database(upgrade_server, "twice")


def _install_twice_at_once(connection: Connection, *, way: str | None = None) -> list[Installation]:
    """Install in two sessions at once, and return both results. Both begin while a third session holds the lock that
    they need.
    """
    waiting = (
        "select count(*) = 2 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    )
    with (
        connect_as(connection, "postgres") as first_session,
        connect_as(connection, "postgres") as other,
        ThreadPoolExecutor(2) as threads,
    ):
        with connection.transaction():
            connection.execute("select from pg_database where datname = current_database() for update")
            results = [threads.submit(install.install, session, way=way) for session in (first_session, other)]
            with connect_as(connection, "postgres") as observer:
                until(lambda: fetch_all(observer, waiting)[0][0])
        return [result.result(timeout=60) for result in results]


@pytest.mark.postgres
def test_version_without_an_upgrade_path_is_refused(old_catalog: Connection) -> None:
    old_catalog.execute("create or replace function tensile.catalog_version() returns text immutable return '0.0.1'")
    with pytest.raises(DatabaseError) as caught:
        install.install(old_catalog)
    assert caught.value.message == f"the catalog has version 0.0.1, and there is no way from it to {VERSION}"
