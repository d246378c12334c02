"""Check tensile_retry, tensile_retrain, tensile_set_priority and tensile_vacuum: what they do, and for whom."""

from typing import Any

import pytest

from indb_tensile.catalog import jobs
from indb_tensile.catalog.models import publish_version
from indb_tensile.catalog.notify import Listener, Notification
from indb_tensile.errors import RequestError
from indb_tensile.job import JobId
from tests.catalog.enqueue import claim, enqueue, publication, register, state
from tests.conftest import Database

from .conftest import Connection, refused, value

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

FULL = """
select tensile_train('m', 'iris', target => 'species', task => 'classification',
  architecture => '{"type": "mlp", "hidden": [4]}', hyperparams => '{"epochs": 3}', exclude => array['label_known'],
  preprocess => '{"standardize": {"petal": false}}', split => '{"seed": 4}', metric => 'roc_auc',
  early_stop => '{"patience": 2}', priority => 5, memory_limit => '5 MB', max_runtime => '2 hours',
  deploy => 'never')"""
SPEC = "select spec from tensile.jobs where job_id = %s"


@pytest.fixture
def worker(database: Database) -> Any:
    with database.connect("tensile_worker") as connection:
        yield connection


def fail(worker: Connection, job: int) -> None:
    claimed = claim(worker, register(worker))
    assert claimed.job == job
    jobs.fail(worker, claimed.job, claimed.claim, RequestError("no"))


def test_a_failed_job_is_repeated_with_its_own_request(alice: Connection, worker: Connection) -> None:
    alice.execute("select tensile_train('m', 'iris', target => 'petal', metric => 'mae', early_stop => '{}')")
    publish_version(worker, claim(worker, register(worker)), publication())  # its arguments are not taken over
    first, second = value(alice, FULL), value(alice, "select tensile_train('m', 'iris', target => 'species')")
    fail(worker, first)
    fail(worker, second)

    again = [value(alice, "select tensile_retry(%s)", job) for job in (first, second)]

    assert [value(alice, SPEC, job) for job in again] == [value(alice, SPEC, job) for job in (first, second)]
    rows = alice.execute("select priority, retry_of from tensile.stat_jobs where state = 'queued' order by job_id")
    assert rows.fetchall() == [(5, first), (0, second)]
    assert refused(alice, "select tensile_retry(%s)", first).message == (
        f"job {first} is repeated by job {again[0]} already"
    )
    fail(worker, again[0])
    assert value(alice, "select tensile_retry(%s)", first) > again[1]


def test_a_repeated_job_depends_on_the_newest_repetitions(alice: Connection, worker: Connection) -> None:
    train = "select tensile_train(%s, 'iris', target => 'species', depends_on => %s)"
    done, first = (value(alice, train, name, None) for name in ("done", "a"))
    second = value(alice, train, "b", [done, first])
    publish_version(worker, claim(worker, register(worker)), publication())
    fail(worker, first)
    assert state(alice, second) == "failed"
    assert refused(alice, "select tensile_retry(%s)", second).message == (
        f"job {first}, on which the new job is to depend, has ended: failed"
    )
    repeated = value(alice, "select tensile_retry(%s)", first)
    again = value(alice, "select tensile_retry(%s)", second)
    assert value(alice, "select depends_on from tensile.stat_queue where job_id = %s", again) == [done, repeated]
    assert value(alice, "select waits_for from tensile.stat_queue where job_id = %s", again) == (
        f"job {repeated} to succeed"
    )


def test_a_query_and_a_snapshot_are_copied_again(alice: Connection) -> None:
    calls = (
        "select tensile_train_query('q', 'select petal, species from iris where petal < 4', target => 'species')",
        "select tensile_train('s', 'iris', target => 'species', snapshot => true)",
    )
    first = [value(alice, call) for call in calls]
    alice.execute("insert into iris (petal, species, kind) values (1, 'setosa', 1)")
    for job in first:
        alice.execute("select tensile_cancel(%s)", (job,))
        again = value(alice, "select tensile_retry(%s)", job)
        rows = "select rows from tensile.snapshots where job_id = %s"
        assert value(alice, rows, again) == value(alice, rows, job) + 1
        assert value(alice, SPEC, again) == value(alice, SPEC, job)


@pytest.mark.parametrize(
    ("case", "sqlstate", "message", "detail"),
    [
        ("queued", "55000", "job {} has not ended: it is queued", "Only a job that failed or was cancelled"),
        ("succeeded", "55000", "job {} has succeeded", "Only a job that failed or was cancelled"),
        ("missing", "42704", "there is no job {}", None),
        ("null", "22023", "job is null", None),
        ("bobs", "42704", "there is no job {}", None),
    ],
)
def test_what_cannot_be_repeated_is_refused(
    alice: Connection, bob: Connection, worker: Connection, case: str, sqlstate: str, message: str, detail: str | None
) -> None:
    job: JobId | None = enqueue(bob if case == "bobs" else alice, "m")
    if case == "succeeded":
        publish_version(worker, claim(worker, register(worker)), publication())
    job = {"missing": JobId(99), "null": None}.get(case, job)
    refusal = refused(alice, "select tensile_retry(%s)", job)
    assert (refusal.sqlstate, refusal.message) == (sqlstate, message.format(job))
    assert (refusal.detail or "").startswith(detail or "")
    assert refusal.hint


def test_an_administrator_repeats_no_job_of_another_role(database: Database, alice: Connection) -> None:
    job = enqueue(alice, "m")
    alice.execute("select tensile_cancel(%s)", (job,))
    with database.connect("admin") as administrator:
        refusal = refused(administrator, "select tensile_retry(%s)", job)
    assert (refusal.sqlstate, refusal.message) == ("42501", f"job {job} belongs to another role")


def test_a_model_is_trained_anew_with_its_last_arguments(
    alice: Connection, bob: Connection, worker: Connection
) -> None:
    retrain = "select tensile_retrain('m')"
    assert refused(alice, retrain).sqlstate == "42704"
    first = value(alice, FULL)
    assert refused(alice, retrain).message == 'no training of model "m" has succeeded yet'
    publish_version(worker, claim(worker, register(worker)), publication())
    alice.execute("create table kept as table iris; drop table iris; alter table kept rename to iris")
    alice.execute("alter table iris add primary key (id); grant select on iris to tensile_reader")
    again = value(alice, retrain)

    specs = [value(alice, SPEC, job) for job in (first, again)]
    for spec in specs:
        spec["relation"].pop("oid")
    assert specs[0] == specs[1]
    assert value(alice, "select priority from tensile.jobs where job_id = %s", again) == 0
    assert refused(bob, retrain).message == 'there is no model "m"'
    alice.execute("select tensile_grant_model('m', 'bob')")
    assert refused(bob, retrain).message == 'model "m" belongs to another role'
    alice.execute("select tensile_cancel(%s)", (again,))
    alice.execute("drop table iris")
    refusal = refused(alice, retrain)
    assert (refusal.sqlstate, refusal.message) == (
        "42P01",
        'table "public.iris", the table of the last training of model "m", no longer exists',
    )


def test_a_specification_that_its_owner_has_damaged_is_refused(alice: Connection, worker: Connection) -> None:
    alice.execute("select tensile_create_model('m')")
    for damaged in ("[]", "{}", '{"relation": 1}', '{"relation": {"oid": "x"}}', '"x"'):
        alice.execute("update tensile.models set last_spec = %s", (damaged,))
        refusal = refused(alice, "select tensile_retrain('m')")
        assert (refusal.sqlstate, refusal.message) == (
            "22023",
            'the stored specification of the last training of model "m" is not complete',
        )


def test_a_priority_orders_the_queue_and_reaches_the_controller(
    database: Database, alice: Connection, worker: Connection
) -> None:
    me = register(worker)
    first, second = enqueue(alice, "a"), enqueue(alice, "b")
    alice.execute("select tensile_set_priority(%s, 3)", (second,))
    claimed = claim(worker, me)
    assert (claimed.job, claimed.priority) == (second, 3)
    with Listener(database.dsn("tensile_worker")) as listener:
        alice.execute("select tensile_set_priority(%s, -7)", (second,))
        assert listener.wait(60.0) == (Notification(kind="priority", job=second),)
    assert jobs.beat(worker, me, {second: claimed.claim}).priorities == {second: -7}
    events = alice.execute("select detail from tensile.job_events where kind = 'priority' order by event_id")
    assert [row[0] for row in events.fetchall()] == [{"from": 0, "to": 3}, {"from": 3, "to": -7}]
    assert state(alice, first) == "queued"


def test_a_priority_is_bounded_by_range_quota_state_and_owner(
    database: Database, alice: Connection, bob: Connection
) -> None:
    job, ended = enqueue(alice, "a"), enqueue(alice, "b")
    alice.execute("select tensile_cancel(%s)", (ended,))
    with database.connect("admin") as administrator:
        administrator.execute("select tensile_set_quota('alice', highest_priority => 5)")
        change = "select tensile_set_priority(%s, %s::int)"
        cases: list[tuple[Connection, tuple[int, int | None], str, str]] = [
            (alice, (job, 1001), "22023", "priority is 1001"),
            (alice, (job, -1001), "22023", "priority is -1001"),
            (alice, (job, None), "22004", "priority is null"),
            (alice, (job, 6), "42501", 'role "alice" may not give a job priority 6: its highest is 5'),
            (alice, (ended, 1), "55000", f"job {ended} has ended: cancelled"),
            (alice, (99, 1), "42704", "there is no job 99"),
            (bob, (job, 1), "42704", f"there is no job {job}"),
        ]
        for connection, arguments, sqlstate, message in cases:
            refusal = refused(connection, change, *arguments)
            assert (refusal.sqlstate, refusal.message) == (sqlstate, message)
            assert refusal.hint
        administrator.execute(change.encode(), (job, 900))
        with database.connect("monitor") as monitor:
            assert refused(monitor, change, job, 1).sqlstate == "42501"
    alice.execute(change.encode(), (job, -1000))
    assert value(alice, "select priority from tensile.jobs where job_id = %s", job) == -1000


def test_an_administrator_deletes_old_rows(database: Database, alice: Connection, worker: Connection) -> None:
    job = enqueue(alice, "m")
    alice.execute("select tensile_cancel(%s)", (job,))
    assert refused(alice, "select * from tensile_vacuum()").sqlstate == "42501"
    with database.connect() as postgres, database.connect("admin") as administrator:
        assert administrator.execute("select * from tensile_vacuum()").fetchall() == []
        postgres.execute("update tensile.jobs set finished_at = now() - interval '1 year'")
        assert administrator.execute("select * from tensile_vacuum()").fetchall() == [("events", 1), ("jobs", 1)]
