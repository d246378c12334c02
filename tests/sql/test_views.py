"""Check the rows that the catalog's views show."""

from decimal import Decimal

import pytest

from tests.conftest import Database

from .conftest import Connection, value

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


@pytest.fixture
def running(alice: Connection, admin: Connection) -> int:
    """A running job of alice, on a device with other jobs."""
    job = int(value(alice, "select tensile_train('flowers', 'iris', target => 'species')"))
    admin.execute(
        """insert into tensile.workers (host, pid, device, version, lease_s) values ('h', 1, 'emulated', '0', 3600);
           insert into tensile.devices (worker_id, kind, capacity_bytes, budget_bytes, granted_bytes, used_bytes)
           select worker_id, 'emulated', 200, 100, 80, 50 from tensile.workers;
           update tensile.jobs set state = 'running', phase = 'training', claim = 1, started_at = now(),
                  worker_id = (select worker_id from tensile.workers);
           insert into tensile.job_progress (job_id, epoch, epochs, step, steps, loss)
           select job_id, 3, 4, 5, 10, 0.5 from tensile.jobs;
           insert into tensile.device_jobs (worker_id, job_id, granted_bytes, used_bytes, high_water_bytes)
           select worker_id, job_id, 30, 20, 25 from tensile.jobs;
           insert into tensile.plans (job_id, attempt, generation, reason, policy, predicted_iteration_ns, swaps)
           select job_id, 1, 1, 'start', 'tensile', 1500000, 2 from tensile.jobs;
           insert into tensile.op_latency (signature, device_kind, name, latency_ns, predicted_ns)
           values ('s', 'emulated', 'aten::mm', 2000, 3000)"""
    )
    return job


def test_progress_view_counts_epochs_and_steps(alice: Connection, running: int) -> None:
    row = alice.execute(
        """select job_id, model, owner, state::text, phase::text, epoch, epochs, percent, loss, used_bytes,
                  granted_bytes, device_budget_bytes from tensile.stat_progress_train"""
    ).fetchall()

    assert row == [(running, "flowers", "alice", "running", "training", 3, 4, Decimal("62.5"), 0.5, 20, 30, 100)]


def test_device_views_show_the_device_and_own_jobs(
    alice: Connection, bob: Connection, admin: Connection, running: int
) -> None:
    whole = "select alive, jobs, budget_bytes, granted_bytes, used_bytes, percent_used from tensile.stat_device"
    by_job = "select job_id, granted_bytes, used_bytes, high_water_bytes from tensile.stat_device_jobs"

    assert (
        alice.execute(whole).fetchall() == bob.execute(whole).fetchall() == [(True, 1, 100, 80, 50, Decimal("50.0"))]
    )
    assert alice.execute(by_job).fetchall() == [(running, 30, 20, 25)]
    assert bob.execute(by_job).fetchall() == []
    admin.execute("update tensile.jobs set state = 'succeeded', phase = null, worker_id = null, finished_at = now()")
    assert alice.execute(by_job).fetchall() == []


def test_plan_and_latency_views_use_milliseconds_and_microseconds(alice: Connection, running: int) -> None:
    plan = alice.execute("select job_id, reason, predicted_iteration_ms, swaps from tensile.stat_plan").fetchall()
    latency = alice.execute("select operator, measured_us, predicted_us, error from tensile.stat_latency").fetchall()

    assert plan == [(running, "start", Decimal("1.5"), 2)]
    assert latency == [("aten::mm", Decimal(2), Decimal(3), 0.5)]


@pytest.mark.usefixtures("running")
def test_queue_contains_a_job_that_waits_for_memory(alice: Connection, admin: Connection) -> None:
    admin.execute("update tensile.jobs set state = 'starting', phase = 'waiting for memory', waits_for = '3 MB'")
    second = value(alice, "select tensile_train('flowers', 'iris', target => 'species')")
    third = value(
        alice, "select tensile_train('flowers', 'iris', target => 'species', not_before => '2090-01-01 00:00')"
    )

    rows = alice.execute("select position, job_id, waits_for from tensile.stat_queue").fetchall()

    assert [waits_for for _, _, waits_for in rows[:2]] == ["3 MB", "its turn: 1 before it"]
    assert [(position, job) for position, job, _ in rows[1:]] == [(1, second), (2, third)]
    assert rows[2][2].startswith("not before 2090-01-01")


def _register_worker(admin: Connection, *, slots: int = 8, entering: int = 2, holdup: str | None = None) -> int:
    row = admin.execute(
        """insert into tensile.workers (host, pid, device, version, lease_s, slots, entering, holdup)
           values ('h', 1, 'emulated', '0', 3600, %s, %s, %s) returning worker_id""",
        (slots, entering, holdup),
    ).fetchone()
    assert row is not None
    return int(row[0])


def _assign_job(admin: Connection, job: int, worker: int, state: str = "running") -> None:
    admin.execute(
        "update tensile.jobs set state = %s, claim = job_id, started_at = now(), worker_id = %s where job_id = %s",
        (state, worker, job),
    )


TRAIN = "select tensile_train('flowers', 'iris', target => 'species')"
WAITS = "select waits_for from tensile.stat_queue where state = 'queued' order by position"


def test_queue_names_the_reason_why_a_job_waits(alice: Connection, bob: Connection, admin: Connection) -> None:
    first = value(alice, TRAIN)
    assert value(alice, WAITS) == "a controller: none is alive"
    worker = _register_worker(admin, holdup="a trainer to start")
    assert value(alice, WAITS) == "a trainer to start"
    admin.execute("update tensile.workers set holdup = null")
    assert value(alice, WAITS) == "a controller to look at the queue: each does so at least every poll_s seconds"
    other = _register_worker(admin, holdup="a device that works")
    assert value(alice, WAITS) == "a controller to look at the queue: each does so at least every poll_s seconds", (
        "the first worker can take the job"
    )
    admin.execute("update tensile.workers set stopped_at = now() where worker_id = %s", (other,))

    _assign_job(admin, first, worker, "starting")
    second, third = value(alice, TRAIN), value(alice, TRAIN)
    assert alice.execute(WAITS).fetchall()[0] == (
        "a controller to look at the queue: each does so at least every poll_s seconds",
    )
    _assign_job(admin, second, worker, "starting")
    assert value(alice, WAITS) == (
        "one of the 2 jobs of its owner that are prepared, or wait for the device, to begin training: a controller "
        "prepares at most 2 jobs of one owner at once"
    )
    admin.execute("update tensile.jobs set phase = 'waiting for memory' where job_id = %s", (second,))
    assert value(alice, WAITS) == "its turn: 1 before it"
    admin.execute("update tensile.workers set slots = 4 where worker_id = %s", (worker,))
    assert value(alice, WAITS).startswith("one of the 2 jobs"), "half of the places are for jobs that wait"
    admin.execute("update tensile.jobs set phase = 'training' where job_id = %s", (second,))
    _assign_job(admin, second, worker)
    admin.execute("update tensile.workers set slots = 2")
    admin.execute("select tensile_set_quota('alice', jobs_running => 10)")
    fourth = value(alice, TRAIN)
    assert alice.execute(WAITS).fetchall() == [
        ("a place: all 2 are taken by jobs",),
        ("its turn: 1 before it; a place: all 2 are taken by jobs",),
    ]
    admin.execute("select tensile_set_quota('alice', jobs_running => 2)")
    assert value(alice, WAITS) == "one of its owner's jobs to end: at most 2 run at once"
    assert third < fourth


def test_queue_shows_a_job_that_waits_for_its_next_attempt(alice: Connection, admin: Connection) -> None:
    job = value(alice, TRAIN)
    admin.execute(
        "update tensile.jobs set attempt = 1, started_at = now(), not_before = 'infinity',"
        " waits_for = 'a device that works: the device is gone' where job_id = %s",
        (job,),
    )
    rows = alice.execute("select job_id, state::text, waits_for from tensile.stat_queue").fetchall()
    assert rows == [(job, "queued", "a device that works: the device is gone; not before infinity")]


def test_queue_of_a_copied_database_says_that_no_job_is_claimed(alice: Connection, admin: Connection) -> None:
    value(alice, TRAIN)
    _register_worker(admin)
    # The pause and the time would otherwise be given as the reasons, and the job would seem to start after them.
    admin.execute(
        "update tensile.jobs set installation = gen_random_uuid(), pause_requested = true, not_before = '2090-01-01'"
    )
    waits_for = admin.execute("select waits_for from tensile.stat_queue").fetchall()
    assert waits_for == [
        ("nothing: it came with a copy of another database, and no controller of this database claims it",)
    ]


@pytest.mark.usefixtures("published")
def test_model_list_contains_the_deployed_version(alice: Connection) -> None:
    alice.execute("select tensile_create_model('empty')")

    rows = alice.execute(
        "select model, owner, versions, deployed, task::text, metric_name, metric from tensile.model_list order by 1"
    ).fetchall()

    assert rows == [
        ("empty", "alice", 0, None, None, None, None),
        ("flowers", "alice", 1, 1, "classification", "accuracy", 0.97),
    ]


def test_worker_without_recent_heartbeats_is_not_alive(alice: Connection, admin: Connection, running: int) -> None:
    admin.execute("update tensile.workers set heartbeat_at = now() - interval '2 hours'")

    assert alice.execute("select alive, jobs from tensile.stat_workers").fetchall() == [(False, 1)]
    assert running in {job for (job,) in alice.execute("select job_id from tensile.stat_jobs").fetchall()}


def test_every_view_and_function_has_a_comment_and_every_view_is_security_invoker(admin: Connection) -> None:
    columns = admin.execute(
        """select c.relname, a.attname
             from pg_class as c join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0
            where c.relnamespace = 'tensile'::regnamespace and c.relkind = 'v'
              and (col_description(c.oid, a.attnum) is null or obj_description(c.oid, 'pg_class') is null
                   or not coalesce('security_invoker=true' = any (c.reloptions)
                                   or 'security_invoker=on' = any (c.reloptions), false))"""
    ).fetchall()
    functions = admin.execute(
        """select oid::regprocedure::text from pg_proc
            where (pronamespace = 'tensile'::regnamespace or proname like 'tensile\\_%')
              and obj_description(oid, 'pg_proc') is null"""
    ).fetchall()

    assert (columns, functions) == ([], [])


@pytest.mark.parametrize("role", ["tensile_user", "tensile_monitor", "tensile_admin", "tensile_worker"])
@pytest.mark.shares_database
def test_a_role_may_read_all_that_a_view_granted_to_it_reads(database: Database, role: str) -> None:
    with database.connect() as connection:
        granted = [
            name
            for (name,) in connection.execute(
                """select c.oid::regclass::text from pg_catalog.pg_class as c
                    where c.relnamespace = 'tensile'::regnamespace and c.relkind = 'v'
                      and has_table_privilege(%s, c.oid, 'select')""",
                (role,),
            )
        ]
        assert "tensile.model_list" in granted
        connection.execute(f"set role {role}".encode())
        for name in granted:
            connection.execute(f"select from {name} limit 0".encode())  # checks privileges before it reads
