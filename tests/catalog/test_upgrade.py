"""A catalog of an older release becomes this one's, whichever way it was installed, and keeps what is in it."""

import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from indb_tensile.catalog import install, jobs, models
from indb_tensile.catalog.install import EXTENSION, SCRIPT, VERSION, Installation
from indb_tensile.catalog.upgrade import path_between
from indb_tensile.cli.statements import statement
from indb_tensile.cluster import Cluster, find_programs
from indb_tensile.errors import CatalogVersionError, DatabaseError, PrivilegeError
from indb_tensile.job import ModelVersionId, WorkerId
from tests.catalog import released
from tests.catalog.enqueue import claim, claim_or_fail, enqueue, publication, register
from tests.catalog.listing import catalog
from tests.catalog.own_server import own_server
from tests.conftest import ROLES

BOTH_WAYS = pytest.mark.parametrize("way", [SCRIPT, EXTENSION])
OLD = "0.1.0"

Connection = psycopg.Connection[Any]


def test_the_shortest_chain_of_steps_is_taken() -> None:
    steps = {("1", "2"): Path("a"), ("2", "3"): Path("b"), ("3", "4"): Path("c"), ("2", "4"): Path("d")}
    assert path_between("1", "4", steps) == (Path("a"), Path("d"))
    assert path_between("4", "4", steps) == ()
    assert path_between("4", "1", steps) == ()


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """A server that has the extension's files of this release and of the older ones."""
    directory = Path(tempfile.mkdtemp(prefix="tensile-upgrade-"))
    directory.chmod(0o755)
    cluster, extensions = own_server(directory)
    install.write_extension(extensions)
    released.write_extension(extensions, OLD)
    cluster.create(roles=ROLES)
    try:
        cluster.start()
        with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
            connection.execute("create role alice login; create role bob login")
        yield cluster
    finally:
        cluster.stop(mode="immediate")
        shutil.rmtree(directory)


@pytest.fixture
def way() -> str:
    """How the old catalog is installed, unless a test's parameter says it."""
    return SCRIPT


@pytest.fixture
def old(own: Cluster, way: str) -> Iterator[Connection]:
    """A superuser's connection to a new database with the catalog of 0.1.0."""
    with _new_database(own, "upgraded") as connection:
        released.install(connection, OLD, way)
        connection.execute("grant tensile_user to alice, bob")
        yield connection
    _drop_database(own, "upgraded")


def _as(connection: Connection, role: str) -> Connection:
    """A connection of this role to the same database."""
    return psycopg.connect(host=connection.info.host, dbname=connection.info.dbname, user=role, autocommit=True)


@pytest.mark.postgres
@BOTH_WAYS
def test_an_upgraded_catalog_equals_a_fresh_one(own: Cluster, old: Connection, way: str) -> None:
    assert install.install(old) == Installation(way=way, version=VERSION)
    assert install.same_source(old)
    with _new_database(own, "fresh") as fresh:
        install.install(fresh, way=way)
        assert catalog(old) == catalog(fresh)
    _drop_database(own, "fresh")


@pytest.mark.postgres
@BOTH_WAYS
def test_a_second_upgrade_changes_nothing(old: Connection, way: str) -> None:
    install.install(old)
    before = catalog(old)
    assert install.install(old) == Installation(way=way, version=VERSION)
    assert catalog(old) == before


@pytest.mark.postgres
@BOTH_WAYS
def test_models_grants_and_settings_are_kept(own: Cluster, old: Connection, way: str) -> None:
    with _as(old, "alice") as alice:
        trained = released.add_job(alice, "flowers")
        version = ModelVersionId(released.publish(old, trained, [b"wei", b"ghts"]))
        alice.execute("select tensile_create_model('later', 'mlp', '{\"epochs\": 3}')")
        alice.execute("select tensile_grant_model('flowers', 'bob')")
    old.execute("insert into tensile.settings (name, value) values ('socket_directory', '\"/run/x\"')")
    old.execute("insert into tensile.metrics (job_id, epoch, name, value) values (%s, 1, 'loss', 0.5)", (trained,))
    held = _held(old)

    install.install(old)

    assert _held(old) == held
    stored = models.load_version(old, version)
    assert (stored.weights, stored.bundle, stored.deployed) == (b"weights", {"columns": ["a"]}, True)
    assert models.deployed_version(old, "flowers") == version
    with _as(old, "bob") as bob:
        assert _all(bob, "select model, deployed from tensile.model_list") == [("flowers", 1)]
        assert _all(bob, "select bundle from tensile.version_bundles") == []
        assert _all(bob, "select chunk from tensile.artifacts") == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bob.execute("select tensile_drop_model('flowers')")
    with _as(old, "alice") as alice:
        assert _all(alice, "select bundle from tensile.version_bundles") == [({"columns": ["a"]},)]
        alice.execute("select tensile_revoke_model('flowers', 'bob')")
        enqueue(alice, "flowers")
    with _as(old, "bob") as bob:
        assert _all(bob, "select model from tensile.stat_jobs") == []
    second = models.publish_version(old, claim(old, register(old)), publication(incumbent=version))
    assert models.load_version(old, second).number == 2

    with _new_database(own, "restored") as restored:
        _copy(own, "upgraded", "restored")
        assert models.load_version(restored, version) == models.load_version(old, version)
        assert _held(restored) == _held(old)
    _drop_database(own, "restored")


def _held(connection: Connection) -> list[Any]:
    """What users see of their models and jobs, and the settings."""
    return [
        _all(connection, query)
        for query in (
            "select model_id, name, owner_oid, owner_name, definition, last_spec from tensile.models order by 1",
            "select job_id, model_name, owner_oid, spec, state, version_id, finished_at from tensile.jobs order by 1",
            "select version_id, number, metrics, weights_bytes, data_digest, deployed from tensile.model_versions",
            "select model_id, grantee_oid, grantee_name, granted_by, granted_at from tensile.model_privileges",
            "select job_id, kind, at from tensile.job_events order by event_id",
            "select * from tensile.metrics",
            "select * from tensile.settings",
        )
    ]


@pytest.mark.postgres
@BOTH_WAYS
def test_queued_jobs_can_be_claimed_and_published(old: Connection, way: str) -> None:
    with _as(old, "alice") as alice:
        queued = released.add_job(alice, "flowers", idempotency_key="once", priority=5)
        cancelled = released.add_job(alice, "weeds")
    install.install(old)
    with _as(old, "alice") as alice:
        assert _all(alice, "select tensile_cancel(%s)", cancelled) == [(True,)]
        with pytest.raises(psycopg.errors.UniqueViolation):
            enqueue(alice, "flowers", idempotency_key="once")
    # The names were reserved as for jobs that are enqueued now, and freed by the cancellation.
    assert _all(old, "select name, owner_name from tensile.models") == [("flowers", "alice")]
    with _as(old, "bob") as bob, pytest.raises(psycopg.errors.InsufficientPrivilege, match='"flowers" belongs to'):
        enqueue(bob, "flowers")
    claimed = claim(old, register(old))
    assert (claimed.job, claimed.attempt) == (queued, 1)
    version = models.publish_version(old, claimed, publication())
    assert models.deployed_version(old, "flowers") == version
    assert _all(old, "select number from tensile.model_versions") == [(1,)]


@pytest.mark.postgres
@BOTH_WAYS
def test_jobs_that_a_controller_of_the_old_release_had_go_back_into_the_queue_and_begin_again(
    old: Connection, way: str
) -> None:
    worker = released.add_worker(old, service="no socket of ours!")
    with _as(old, "alice") as alice:
        running, unwanted = released.add_job(alice, "flowers"), released.add_job(alice, "weeds")
    for job in (running, unwanted):
        released.claim(old, worker, job)
        released.save_checkpoint(old, job)
    old.execute(
        "insert into tensile.device_jobs (worker_id, job_id, granted_bytes, used_bytes, high_water_bytes)"
        " values (%s, %s, 1, 1, 1)",
        (worker, running),
    )
    old.execute("update tensile.jobs set cancel_requested = true where job_id = %s", (unwanted,))

    install.install(old)

    assert _all(old, "select from tensile.checkpoints") == []
    assert _all(old, "select from tensile.artifacts") == []
    assert _all(old, "select stopped_at is not null, service_name, took_leave from tensile.workers") == [
        (True, None, True)
    ]
    fresh = register(old)
    assert sorted(jobs.rescue(old)) == [running, unwanted]
    assert _all(old, "select job_id, state::text, faults, interruptions from tensile.jobs order by 1") == [
        (running, "queued", 0, 1),
        (unwanted, "cancelled", 0, 1),
    ]
    old.execute("update tensile.jobs set not_before = null where job_id = %s", (running,))
    claimed = claim(old, fresh)
    assert (claimed.job, claimed.attempt) == (running, 2)
    models.publish_version(old, claimed, publication())


@pytest.mark.postgres
def test_a_controller_of_the_old_release_that_still_runs_claims_nothing(old: Connection) -> None:
    released.add_worker(old)
    with _as(old, "alice") as alice:
        waiting = released.add_job(alice, "flowers")
    install.install(old)
    again = released.add_worker(old)  # it has lost its lease, and registers without asking for the version
    assert _all(old, "select job_id from tensile.claim_job(%s)", again) == []
    fresh = register(old)
    assert jobs.beat(old, fresh).version == VERSION
    assert jobs.claim_job(old, WorkerId(again)) is None
    assert claim(old, fresh).job == waiting


@pytest.mark.postgres
@BOTH_WAYS
def test_the_version_check_names_the_way_before_and_accepts_after(old: Connection, way: str) -> None:
    with pytest.raises(CatalogVersionError) as caught:
        install.check_version(old)
    assert caught.value.message == f'the catalog in database "upgraded" has version 0.1.0, this program has {VERSION}'
    assert caught.value.hint.startswith(
        "As a superuser: tensile init --dsn 'dbname=upgraded' brings an older catalog up"
    )
    install.install(old)
    install.check_version(old)


# Data that 0.1.0 accepted -----------------------------------------------------------------------------------


@pytest.mark.postgres
def test_names_and_keys_that_are_no_longer_taken_are_rewritten_and_their_jobs_run(old: Connection) -> None:
    trained = released.add_job(old, "a\nb")
    released.publish(old, trained, [b"one"])
    other = released.add_job(old, "a?b")
    released.publish(old, other, [b"two"])
    waiting = [
        released.add_job(old, "x\u202ey", idempotency_key="k\n"),
        released.add_job(old, "n" * 300, idempotency_key="k" * 201),
        released.add_job(old, "", idempotency_key=""),
    ]
    install.install(old)
    assert _all(old, "select model_name, idempotency_key from tensile.jobs order by job_id") == [
        ("a?b (2)", None),
        ("a?b", None),
        ("x?y", None),
        ("n" * 190, None),
        ("unnamed", None),
    ]
    assert _all(old, "select name, last_spec ->> 'model' from tensile.models order by model_id limit 2") == [
        ("a?b (2)", "a?b (2)"),
        ("a?b", "a?b"),
    ]
    worker = register(old)
    for job in waiting:
        claimed = claim(old, worker)
        assert claimed.job == job
        models.publish_version(old, claimed, publication())
    assert _all(old, "select count(*) from tensile.model_versions") == [(5,)]


@pytest.mark.postgres
@BOTH_WAYS
def test_specifications_of_any_size_are_kept_and_one_that_cannot_run_fails_and_says_so(
    old: Connection, way: str
) -> None:
    def noise(bytes_: int) -> dict[str, Any]:
        row = old.execute(
            "select string_agg(md5(i::text), '') from generate_series(1, %s) as i", (bytes_ // 32,)
        ).fetchone()
        assert row is not None
        return {"exclude": [row[0]]}

    large, too_large = noise(250_000), noise(900_000)
    ended = released.add_job(old, "done", spec=too_large)
    released.publish(old, ended, [b"weights"])
    refused = released.add_job(old, "refused", spec=too_large)
    repeated = released.add_job(old, "repeated", spec={"exclude": ["x" * 900_000]})  # compresses to next to nothing
    runs = released.add_job(old, "runs", spec=large)
    specs = _all(old, "select spec from tensile.jobs order by job_id")

    install.install(old)

    assert _all(old, "select spec from tensile.jobs order by job_id") == specs
    told = _all(
        old, "select job_id, state::text, error_sqlstate, error_message from tensile.jobs where state = 'failed'"
    )
    assert [(job, state, code) for job, state, code, _ in told] == [
        (refused, "failed", "54000"),
        (repeated, "failed", "54000"),
    ]
    assert all("and 0.2.0 takes at most 262144" in message for *_, message in told)
    assert _all(old, "select job_id from tensile.job_events where kind = 'failed' order by 1") == [
        (refused,),
        (repeated,),
    ]
    assert _all(old, "select name from tensile.models order by 1") == [("done",), ("runs",)]
    old.execute("update tensile.jobs set owner_name = 'renamed' where state <> 'queued'")  # as adopt_owners() does
    assert claim(old, register(old)).job == runs


@pytest.mark.postgres
def test_requests_that_mean_nothing_fail_one_by_one_when_they_are_claimed(old: Connection) -> None:
    nonsense = [
        released.add_job(old, "a", spec={"deploy": "sometimes"}),
        released.add_job(old, "b", spec={"memory_limit_bytes": -1}),
        released.add_job(old, "c", spec={"max_runtime_s": -5}),
        released.add_job(old, "d", spec={"features": "all"}),
    ]
    install.install(old)
    worker = register(old)
    assert [claim_or_fail(old, worker) for _ in nonsense] == [None] * 4
    assert _all(old, "select job_id, state::text from tensile.jobs order by 1") == [
        (job, "failed") for job in nonsense
    ]


@pytest.mark.postgres
def test_jobs_and_models_of_another_installation_stay_with_it(old: Connection) -> None:
    elsewhere = "00000000-0000-0000-0000-000000000001"
    foreign = released.add_job(old, "theirs", installation=elsewhere, owner_oid=424242, owner_name="gone")
    ended = released.add_job(old, "published", installation=elsewhere, owner_oid=424242, owner_name="alice")
    released.publish(old, ended, [b"weights"])
    old.execute(
        "insert into tensile.model_privileges (model_id, grantee_oid, grantee_name, installation)"
        " select model_id, 434343, 'bob', installation from tensile.models where name = 'published'"
    )
    install.install(old)
    assert _all(old, "select name, owner_oid::int8, installation::text from tensile.models order by 1") == [
        ("published", 424242, elsewhere),
        ("theirs", 424242, elsewhere),
    ]
    assert _all(old, "select owner_oid::int8 from tensile.model_privileges") == [(424242,)]
    assert jobs.claim_job(old, register(old)) is None  # and the models go to the roles of the same names
    assert jobs.foreign_jobs(old) == 1
    assert _all(old, "select state::text from tensile.jobs where job_id = %s", foreign) == [("queued",)]
    with _as(old, "alice") as alice, _as(old, "bob") as bob:
        assert _all(alice, "select name from tensile.models") == [("published",)]
        assert _all(bob, "select name from tensile.models") == [("published",)]


@pytest.mark.postgres
def test_of_two_owners_that_train_a_new_model_of_one_name_the_first_has_it(old: Connection) -> None:
    with _as(old, "alice") as alice, _as(old, "bob") as bob, alice.transaction():
        first = released.add_job(alice, "flowers")
        second = released.add_job(bob, "flowers")  # sees no job of that name yet
    install.install(old)
    worker = register(old)
    claimed = [claim(old, worker), claim(old, worker)]
    assert [c.job for c in claimed] == [first, second]
    with pytest.raises(PrivilegeError):
        models.publish_version(old, claimed[1], publication())
    models.publish_version(old, claimed[0], publication())


# What stands in the way ------------------------------------------------------------------------------------


@pytest.mark.postgres
@BOTH_WAYS
def test_a_function_that_another_role_has_planted_is_refused_by_name_and_nothing_is_changed(
    old: Connection, way: str
) -> None:
    old.execute("grant create on schema public to bob")
    planted = "tensile_set_quota(regrole, integer, integer, text, integer)"
    with _as(old, "bob") as bob:
        bob.execute(f"create function public.{planted} returns void language sql return null".encode())
    before = catalog(old)
    with pytest.raises(psycopg.errors.DuplicateFunction) as caught:
        install.install(old)
    named = planted.replace(", ", ",")
    assert f'function public.{named} belongs to role "bob"' in str(caught.value)
    assert caught.value.diag.message_hint == f"If it is not needed: drop routine public.{named}; then upgrade again."
    assert catalog(old) == before
    old.execute(f"drop routine public.{planted}".encode())
    install.install(old)
    install.check_version(old)


@pytest.mark.postgres
@BOTH_WAYS
def test_a_users_view_of_what_goes_away_keeps_its_column_and_nothing_is_changed(old: Connection, way: str) -> None:
    old.execute("create view public.bundles as select bundle from tensile.model_versions")
    before = catalog(old)
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="bundle"):
        install.install(old)
    assert catalog(old) == before
    old.execute("drop view public.bundles")
    install.install(old)


@pytest.mark.postgres
@BOTH_WAYS
def test_users_views_of_ours_and_grants_to_their_roles_are_kept(old: Connection, way: str) -> None:
    old.execute(
        "create view public.report as"
        " select j.*, q.position from tensile.stat_jobs as j join tensile.stat_queue as q using (job_id)"
    )
    old.execute("create view public.mine as select * from tensile.model_list")
    old.execute("grant select on tensile.stat_jobs to bob")
    released.publish(old, released.add_job(old, "flowers"), [b"weights"])
    released.add_job(old, "weeds")
    install.install(old)
    assert _all(old, "select model from public.report") == [("weeds",)]
    assert _all(old, "select model from public.mine") == [("flowers",)]
    assert _all(old, "select has_table_privilege('bob', 'tensile.stat_jobs', 'select')") == [(True,)]


@pytest.mark.postgres
def test_a_deadlock_with_a_session_that_still_works_ends_that_sessions_statement_and_not_the_upgrade(
    old: Connection,
) -> None:
    upgrading = threading.Thread(target=install.install, args=(old,))
    waits = "select from pg_locks where relation = 'tensile.jobs'::regclass and not granted"
    with _as(old, "alice") as alice, _as(old, "postgres") as observer:
        alice.execute("begin")
        alice.execute("select from tensile.jobs")
        upgrading.start()
        _until(lambda: _all(observer, waits))
        with pytest.raises(psycopg.errors.DeadlockDetected):
            alice.execute("select from tensile.workers")
        alice.execute("rollback")
        upgrading.join(30)
        assert not upgrading.is_alive()
        assert _all(observer, "select tensile.catalog_version()") == [(VERSION,)]


@pytest.mark.postgres
@BOTH_WAYS
def test_of_two_upgrades_at_once_one_waits_for_the_other_and_finds_its_work_done(old: Connection, way: str) -> None:
    expected = Installation(way=way, version=VERSION)
    assert _install_twice_at_once(old) == [expected, expected]


@pytest.mark.postgres
@BOTH_WAYS
def test_of_two_installations_at_once_one_waits_for_the_other_and_finds_its_work_done(own: Cluster, way: str) -> None:
    expected = Installation(way=way, version=VERSION)
    with _new_database(own, "twice") as connection:
        assert _install_twice_at_once(connection, way=way) == [expected, expected]
    _drop_database(own, "twice")


def _install_twice_at_once(connection: Connection, *, way: str | None = None) -> list[Installation]:
    """What each of two sessions finds in the end. Both begin while a third one has the lock that they need."""
    waiting = (
        "select count(*) = 2 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    )
    with _as(connection, "postgres") as one, _as(connection, "postgres") as other, ThreadPoolExecutor(2) as threads:
        with connection.transaction():
            connection.execute("select from pg_database where datname = current_database() for update")
            results = [threads.submit(install.install, session, way=way) for session in (one, other)]
            with _as(connection, "postgres") as observer:
                _until(lambda: _all(observer, waiting)[0][0])
        return [result.result(timeout=60) for result in results]


@pytest.mark.postgres
def test_a_version_without_a_way_to_this_one_is_named(old: Connection) -> None:
    old.execute("create or replace function tensile.catalog_version() returns text immutable return '0.0.1'")
    with pytest.raises(DatabaseError) as caught:
        install.install(old)
    assert caught.value.message == f"the catalog has version 0.0.1, and there is no way from it to {VERSION}"


@pytest.mark.postgres
def test_tensile_up_brings_an_embedded_database_of_the_old_release_up(own: Cluster, old: Connection) -> None:
    old.execute("create role demo login; grant tensile_user to demo; grant create on schema public to demo")
    old.execute("grant pg_read_all_data to tensile_worker")
    with _as(old, "demo") as demo:
        demo.execute("create table public.iris (a int)")
        waiting = released.add_job(demo, "flowers")
    try:
        own.map_roles()  # what `tensile up` does, in its order
        assert install.install(old) == Installation(way=SCRIPT, version=VERSION)
        assert install.same_source(old)
        old.execute(statement("prepare_embedded_roles"))
        old.execute(statement("set_socket_directory"), {"directory": "/run/x"})
        with _as(old, "demo") as demo:
            assert _all(demo, "select count(*) from iris") == [(0,)]
            demo.execute("create table weeds (a int)")
            assert _all(demo, "select 'weeds'::regclass::text, 'demo.weeds'::regclass = 'weeds'::regclass") == [
                ("weeds", True)
            ]
        with _as(old, "tensile_worker") as worker, _as(old, "tensile_reader") as reader:
            assert claim(worker, register(worker)).job == waiting
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute("select from public.iris")
            reader.execute("select from public.iris")
    finally:
        old.execute("drop owned by demo")
        old.execute("revoke pg_read_all_data from tensile_worker, tensile_reader")
        old.execute("alter role demo reset all; drop role demo")


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _all(connection: Connection, query: str, *values: Any) -> list[Any]:
    return connection.execute(query.encode(), values or None).fetchall()


def _new_database(cluster: Cluster, name: str) -> Connection:
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    return psycopg.connect(cluster.dsn(database=name), autocommit=True)


def _drop_database(cluster: Cluster, name: str) -> None:
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _copy(cluster: Cluster, source: str, target: str) -> None:
    """pg_dump into psql, stopping at the first error."""
    programs = find_programs()
    dump = subprocess.run(
        [programs.path("pg_dump"), "-d", cluster.dsn(database=source)], capture_output=True, check=False
    )
    assert dump.returncode == 0, dump.stderr.decode()
    psql = [programs.path("psql"), "-q", "-X", "-v", "ON_ERROR_STOP=1", "-d", cluster.dsn(database=target)]
    restore = subprocess.run(psql, input=dump.stdout, capture_output=True, check=False)
    assert restore.returncode == 0, restore.stderr.decode()
