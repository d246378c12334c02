"""Check that an upgraded catalog of an older release, installed either way, equals a fresh one and keeps its data."""

from pathlib import Path
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import install, jobs, models
from indb_tensile.catalog.install import SCRIPT, VERSION, Installation
from indb_tensile.catalog.upgrade import path_between
from indb_tensile.cli.statements import statement
from indb_tensile.cluster import Cluster
from indb_tensile.errors import CatalogVersionError, PrivilegeError
from indb_tensile.job import ModelVersionId, WorkerId
from tests.catalog import released
from tests.catalog.copies import copy_database, drop_database, new_database
from tests.catalog.enqueue import claim, claim_or_fail, enqueue, publication, register
from tests.catalog.listing import list_catalog
from tests.catalog.old_release import BOTH_WAYS, Connection, connect_as, fetch_all


def test_shortest_chain_of_upgrade_scripts_is_used() -> None:
    steps = {("1", "2"): Path("a"), ("2", "3"): Path("b"), ("3", "4"): Path("c"), ("2", "4"): Path("d")}
    assert path_between("1", "4", steps) == (Path("a"), Path("d"))
    assert path_between("4", "4", steps) == ()
    assert path_between("4", "1", steps) == ()


@pytest.mark.by_day("script")
@pytest.mark.postgres
@BOTH_WAYS
def test_upgraded_catalog_equals_a_fresh_catalog(upgrade_server: Cluster, old_catalog: Connection, way: str) -> None:
    assert install.install(old_catalog) == Installation(way=way, version=VERSION)
    assert install.same_source(old_catalog)
    with new_database(upgrade_server, "fresh") as fresh:
        install.install(fresh, way=way)
        assert list_catalog(old_catalog) == list_catalog(fresh)
    drop_database(upgrade_server, "fresh")


@pytest.mark.nightly
@pytest.mark.by_day("extension")
@pytest.mark.postgres
@BOTH_WAYS
def test_second_upgrade_changes_nothing(old_catalog: Connection, way: str) -> None:
    install.install(old_catalog)
    before = list_catalog(old_catalog)
    assert install.install(old_catalog) == Installation(way=way, version=VERSION)
    assert list_catalog(old_catalog) == before


@pytest.mark.nightly
@pytest.mark.by_day("extension")
@pytest.mark.postgres
@BOTH_WAYS
def test_models_grants_and_settings_are_kept(upgrade_server: Cluster, old_catalog: Connection, way: str) -> None:
    with connect_as(old_catalog, "alice") as alice:
        trained = released.add_job(alice, "flowers")
        version = ModelVersionId(released.publish(old_catalog, trained, [b"wei", b"ghts"]))
        alice.execute("select tensile_create_model('later', 'mlp', '{\"epochs\": 3}')")
        alice.execute("select tensile_grant_model('flowers', 'bob')")
    old_catalog.execute("insert into tensile.settings (name, value) values ('socket_directory', '\"/run/x\"')")
    old_catalog.execute(
        "insert into tensile.metrics (job_id, epoch, name, value) values (%s, 1, 'loss', 0.5)", (trained,)
    )
    rows_before = _read_rows(old_catalog)

    install.install(old_catalog)

    assert _read_rows(old_catalog) == rows_before
    stored = models.load_version(old_catalog, version)
    assert (stored.weights, stored.bundle, stored.deployed) == (b"weights", {"columns": ["a"]}, True)
    assert models.deployed_version(old_catalog, "flowers") == version
    with connect_as(old_catalog, "bob") as bob:
        assert fetch_all(bob, "select model, deployed from tensile.model_list") == [("flowers", 1)]
        assert fetch_all(bob, "select bundle from tensile.version_bundles") == []
        assert fetch_all(bob, "select chunk from tensile.artifacts") == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bob.execute("select tensile_drop_model('flowers')")
    with connect_as(old_catalog, "alice") as alice:
        assert fetch_all(alice, "select bundle from tensile.version_bundles") == [({"columns": ["a"]},)]
        alice.execute("select tensile_revoke_model('flowers', 'bob')")
        enqueue(alice, "flowers")
    with connect_as(old_catalog, "bob") as bob:
        assert fetch_all(bob, "select model from tensile.stat_jobs") == []
    second = models.publish_version(
        old_catalog, claim(old_catalog, register(old_catalog)), publication(incumbent=version)
    )
    assert models.load_version(old_catalog, second).number == 2

    with new_database(upgrade_server, "restored") as restored:
        copy_database(upgrade_server, "upgraded", "restored")
        assert models.load_version(restored, version) == models.load_version(old_catalog, version)
        assert _read_rows(restored) == _read_rows(old_catalog)
    drop_database(upgrade_server, "restored")


def _read_rows(connection: Connection) -> list[Any]:
    """Return the rows of models, jobs and settings that users see."""
    return [
        fetch_all(connection, query)
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


@pytest.mark.by_day("extension")
@pytest.mark.postgres
@BOTH_WAYS
def test_queued_jobs_can_be_claimed_and_published(old_catalog: Connection, way: str) -> None:
    with connect_as(old_catalog, "alice") as alice:
        queued = released.add_job(alice, "flowers", idempotency_key="once", priority=5)
        cancelled = released.add_job(alice, "weeds")
    install.install(old_catalog)
    with connect_as(old_catalog, "alice") as alice:
        assert fetch_all(alice, "select tensile_cancel(%s)", cancelled) == [(True,)]
        with pytest.raises(psycopg.errors.UniqueViolation):
            enqueue(alice, "flowers", idempotency_key="once")
    # The upgrade reserves the names of queued jobs' models. The cancellation frees its model's name.
    assert fetch_all(old_catalog, "select name, owner_name from tensile.models") == [("flowers", "alice")]
    with (
        connect_as(old_catalog, "bob") as bob,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match='"flowers" belongs to'),
    ):
        enqueue(bob, "flowers")
    claimed = claim(old_catalog, register(old_catalog))
    assert (claimed.job, claimed.attempt) == (queued, 1)
    version = models.publish_version(old_catalog, claimed, publication())
    assert models.deployed_version(old_catalog, "flowers") == version
    assert fetch_all(old_catalog, "select number from tensile.model_versions") == [(1,)]


@pytest.mark.by_day("script")
@pytest.mark.postgres
@BOTH_WAYS
def test_running_jobs_of_the_old_release_are_requeued_and_start_again(old_catalog: Connection, way: str) -> None:
    worker = released.add_worker(old_catalog, service="invalid socket name!")
    with connect_as(old_catalog, "alice") as alice:
        running, cancelled_job = released.add_job(alice, "flowers"), released.add_job(alice, "weeds")
    for job in (running, cancelled_job):
        released.claim(old_catalog, worker, job)
        released.save_checkpoint(old_catalog, job)
    old_catalog.execute(
        "insert into tensile.device_jobs (worker_id, job_id, granted_bytes, used_bytes, high_water_bytes)"
        " values (%s, %s, 1, 1, 1)",
        (worker, running),
    )
    old_catalog.execute("update tensile.jobs set cancel_requested = true where job_id = %s", (cancelled_job,))

    install.install(old_catalog)

    assert fetch_all(old_catalog, "select from tensile.checkpoints") == []
    assert fetch_all(old_catalog, "select from tensile.artifacts") == []
    assert fetch_all(old_catalog, "select stopped_at is not null, service_name, took_leave from tensile.workers") == [
        (True, None, True)
    ]
    fresh = register(old_catalog)
    assert sorted(jobs.rescue(old_catalog)) == [running, cancelled_job]
    assert fetch_all(
        old_catalog, "select job_id, state::text, faults, interruptions from tensile.jobs order by 1"
    ) == [
        (running, "queued", 0, 1),
        (cancelled_job, "cancelled", 0, 1),
    ]
    old_catalog.execute("update tensile.jobs set not_before = null where job_id = %s", (running,))
    claimed = claim(old_catalog, fresh)
    assert (claimed.job, claimed.attempt) == (running, 2)
    models.publish_version(old_catalog, claimed, publication())


@pytest.mark.postgres
def test_controller_of_the_old_release_claims_nothing_after_the_upgrade(old_catalog: Connection) -> None:
    released.add_worker(old_catalog)
    with connect_as(old_catalog, "alice") as alice:
        waiting = released.add_job(alice, "flowers")
    install.install(old_catalog)
    # After a lost lease it registers again, without checking the version.
    old_worker = released.add_worker(old_catalog)
    assert fetch_all(old_catalog, "select job_id from tensile.claim_job(%s)", old_worker) == []
    fresh = register(old_catalog)
    assert jobs.beat(old_catalog, fresh).version == VERSION
    assert jobs.claim_job(old_catalog, WorkerId(old_worker)) is None
    assert claim(old_catalog, fresh).job == waiting


@pytest.mark.by_day("script")
@pytest.mark.postgres
@BOTH_WAYS
def test_version_check_refuses_the_old_catalog_with_a_hint_and_accepts_the_upgraded_one(
    old_catalog: Connection, way: str
) -> None:
    with pytest.raises(CatalogVersionError) as caught:
        install.check_version(old_catalog)
    assert caught.value.message == f'the catalog in database "upgraded" has version 0.1.0, this program has {VERSION}'
    assert caught.value.hint.startswith(
        "As a superuser: tensile init --dsn 'dbname=upgraded' brings an older catalog up"
    )
    install.install(old_catalog)
    install.check_version(old_catalog)


# --- data that 0.1.0 accepted ----------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.postgres
def test_invalid_names_and_keys_are_rewritten_and_their_jobs_run(old_catalog: Connection) -> None:
    trained = released.add_job(old_catalog, "a\nb")
    released.publish(old_catalog, trained, [b"one"])
    other = released.add_job(old_catalog, "a?b")
    released.publish(old_catalog, other, [b"two"])
    waiting = [
        released.add_job(old_catalog, "x\u202ey", idempotency_key="k\n"),
        released.add_job(old_catalog, "n" * 300, idempotency_key="k" * 201),
        released.add_job(old_catalog, "", idempotency_key=""),
    ]
    install.install(old_catalog)
    assert fetch_all(old_catalog, "select model_name, idempotency_key from tensile.jobs order by job_id") == [
        ("a?b (2)", None),
        ("a?b", None),
        ("x?y", None),
        ("n" * 190, None),
        ("unnamed", None),
    ]
    assert fetch_all(
        old_catalog, "select name, last_spec ->> 'model' from tensile.models order by model_id limit 2"
    ) == [
        ("a?b (2)", "a?b (2)"),
        ("a?b", "a?b"),
    ]
    worker = register(old_catalog)
    for job in waiting:
        claimed = claim(old_catalog, worker)
        assert claimed.job == job
        models.publish_version(old_catalog, claimed, publication())
    assert fetch_all(old_catalog, "select count(*) from tensile.model_versions") == [(5,)]


@pytest.mark.nightly
@pytest.mark.by_day("script")
@pytest.mark.postgres
@BOTH_WAYS
def test_too_large_specifications_are_kept_and_their_queued_jobs_fail(old_catalog: Connection, way: str) -> None:
    def incompressible_spec(bytes_: int) -> dict[str, Any]:
        row = old_catalog.execute(
            "select string_agg(md5(i::text), '') from generate_series(1, %s) as i", (bytes_ // 32,)
        ).fetchone()
        assert row is not None
        return {"exclude": [row[0]]}

    large, too_large = incompressible_spec(250_000), incompressible_spec(900_000)
    ended = released.add_job(old_catalog, "done", spec=too_large)
    released.publish(old_catalog, ended, [b"weights"])
    refused_job = released.add_job(old_catalog, "refused", spec=too_large)
    repeated_job = released.add_job(old_catalog, "repeated", spec={"exclude": ["x" * 900_000]})  # very compressible
    small_job = released.add_job(old_catalog, "runs", spec=large)
    specs = fetch_all(old_catalog, "select spec from tensile.jobs order by job_id")

    install.install(old_catalog)

    assert fetch_all(old_catalog, "select spec from tensile.jobs order by job_id") == specs
    failures = fetch_all(
        old_catalog,
        "select job_id, state::text, error_sqlstate, error_message from tensile.jobs where state = 'failed'",
    )
    assert [(job, state, code) for job, state, code, _ in failures] == [
        (refused_job, "failed", "54000"),
        (repeated_job, "failed", "54000"),
    ]
    assert all("and 0.2.0 takes at most 262144" in message for *_, message in failures)
    assert fetch_all(old_catalog, "select job_id from tensile.job_events where kind = 'failed' order by 1") == [
        (refused_job,),
        (repeated_job,),
    ]
    assert fetch_all(old_catalog, "select name from tensile.models order by 1") == [("done",), ("runs",)]
    # Like adopt_owners() does.
    old_catalog.execute("update tensile.jobs set owner_name = 'renamed' where state <> 'queued'")
    assert claim(old_catalog, register(old_catalog)).job == small_job


@pytest.mark.postgres
def test_jobs_with_invalid_requests_fail_when_they_are_claimed(old_catalog: Connection) -> None:
    invalid_jobs = [
        released.add_job(old_catalog, "a", spec={"deploy": "sometimes"}),
        released.add_job(old_catalog, "b", spec={"memory_limit_bytes": -1}),
        released.add_job(old_catalog, "c", spec={"max_runtime_s": -5}),
        released.add_job(old_catalog, "d", spec={"features": "all"}),
    ]
    install.install(old_catalog)
    worker = register(old_catalog)
    assert [claim_or_fail(old_catalog, worker) for _ in invalid_jobs] == [None] * 4
    assert fetch_all(old_catalog, "select job_id, state::text from tensile.jobs order by 1") == [
        (job, "failed") for job in invalid_jobs
    ]


@pytest.mark.nightly
@pytest.mark.postgres
def test_jobs_and_models_of_another_installation_keep_their_installation(old_catalog: Connection) -> None:
    other_installation = "00000000-0000-0000-0000-000000000001"
    foreign_job = released.add_job(
        old_catalog, "theirs", installation=other_installation, owner_oid=424242, owner_name="gone"
    )
    ended = released.add_job(
        old_catalog, "published", installation=other_installation, owner_oid=424242, owner_name="alice"
    )
    released.publish(old_catalog, ended, [b"weights"])
    old_catalog.execute(
        "insert into tensile.model_privileges (model_id, grantee_oid, grantee_name, installation)"
        " select model_id, 434343, 'bob', installation from tensile.models where name = 'published'"
    )
    install.install(old_catalog)
    assert fetch_all(
        old_catalog, "select name, owner_oid::int8, installation::text from tensile.models order by 1"
    ) == [
        ("published", 424242, other_installation),
        ("theirs", 424242, other_installation),
    ]
    assert fetch_all(old_catalog, "select owner_oid::int8 from tensile.model_privileges") == [(424242,)]
    # The registration assigns the models to roles of the same names.
    assert jobs.claim_job(old_catalog, register(old_catalog)) is None
    assert jobs.foreign_jobs(old_catalog) == 1
    assert fetch_all(old_catalog, "select state::text from tensile.jobs where job_id = %s", foreign_job) == [
        ("queued",)
    ]
    with connect_as(old_catalog, "alice") as alice, connect_as(old_catalog, "bob") as bob:
        assert fetch_all(alice, "select name from tensile.models") == [("published",)]
        assert fetch_all(bob, "select name from tensile.models") == [("published",)]


@pytest.mark.nightly
@pytest.mark.postgres
def test_first_of_two_owners_gets_the_name_of_a_new_model(old_catalog: Connection) -> None:
    with connect_as(old_catalog, "alice") as alice, connect_as(old_catalog, "bob") as bob, alice.transaction():
        first = released.add_job(alice, "flowers")
        second = released.add_job(bob, "flowers")  # bob does not see alice's uncommitted job
    install.install(old_catalog)
    worker = register(old_catalog)
    claimed = [claim(old_catalog, worker), claim(old_catalog, worker)]
    assert [c.job for c in claimed] == [first, second]
    with pytest.raises(PrivilegeError):
        models.publish_version(old_catalog, claimed[1], publication())
    models.publish_version(old_catalog, claimed[0], publication())


@pytest.mark.by_day("extension")
@pytest.mark.postgres
@BOTH_WAYS
def test_views_of_users_and_grants_to_their_roles_are_kept(old_catalog: Connection, way: str) -> None:
    old_catalog.execute(
        "create view public.report as"
        " select j.*, q.position from tensile.stat_jobs as j join tensile.stat_queue as q using (job_id)"
    )
    old_catalog.execute("create view public.mine as select * from tensile.model_list")
    old_catalog.execute("grant select on tensile.stat_jobs to bob")
    released.publish(old_catalog, released.add_job(old_catalog, "flowers"), [b"weights"])
    released.add_job(old_catalog, "weeds")
    install.install(old_catalog)
    assert fetch_all(old_catalog, "select model from public.report") == [("weeds",)]
    assert fetch_all(old_catalog, "select model from public.mine") == [("flowers",)]
    assert fetch_all(old_catalog, "select has_table_privilege('bob', 'tensile.stat_jobs', 'select')") == [(True,)]


@pytest.mark.postgres
def test_tensile_up_upgrades_an_embedded_database_of_the_old_release(
    upgrade_server: Cluster, old_catalog: Connection
) -> None:
    old_catalog.execute("create role demo login; grant tensile_user to demo; grant create on schema public to demo")
    old_catalog.execute("grant pg_read_all_data to tensile_worker")
    with connect_as(old_catalog, "demo") as demo:
        demo.execute("create table public.iris (a int)")
        waiting = released.add_job(demo, "flowers")
    try:
        upgrade_server.map_roles()  # the same steps as `tensile up`, in the same order
        assert install.install(old_catalog) == Installation(way=SCRIPT, version=VERSION)
        assert install.same_source(old_catalog)
        old_catalog.execute(statement("prepare_embedded_roles"))
        old_catalog.execute(statement("set_socket_directory"), {"directory": "/run/x"})
        with connect_as(old_catalog, "demo") as demo:
            assert fetch_all(demo, "select count(*) from iris") == [(0,)]
            demo.execute("create table weeds (a int)")
            assert fetch_all(demo, "select 'weeds'::regclass::text, 'demo.weeds'::regclass = 'weeds'::regclass") == [
                ("weeds", True)
            ]
        with (
            connect_as(old_catalog, "tensile_worker") as worker,
            connect_as(old_catalog, "tensile_reader") as reader,
        ):
            assert claim(worker, register(worker)).job == waiting
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute("select from public.iris")
            reader.execute("select from public.iris")
    finally:
        old_catalog.execute("drop owned by demo")
        old_catalog.execute("revoke pg_read_all_data from tensile_worker, tensile_reader")
        old_catalog.execute("alter role demo reset all; drop role demo")
