"""Check depends_on: which jobs wait, when they start or fail, what the queue shows, and what it costs a claim."""

from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import jobs
from indb_tensile.catalog.models import publish_version
from indb_tensile.catalog.notify import Listener, Notification
from indb_tensile.errors import RequestError
from indb_tensile.job import ClaimedJob
from tests.catalog.enqueue import claim, enqueue, publication, register, rows_read, state
from tests.conftest import Database
from tests.nightly import nightly_unless

from .conftest import Connection, refused, value

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

_QUEUE = "select job_id, position, waits_for from tensile.stat_queue"


@pytest.fixture
def worker(database: Database) -> Any:
    with database.connect("tensile_worker") as connection:
        yield connection


def _end(worker: psycopg.Connection[Any], claimed: ClaimedJob, how: str) -> None:
    if how == "succeeded":
        publish_version(worker, claimed, publication())
    elif how == "failed":
        jobs.fail(worker, claimed.job, claimed.claim, RequestError("the column is empty"))
    else:
        jobs.cancelled(worker, claimed.job, claimed.claim)


def test_job_starts_when_all_awaited_jobs_have_succeeded(
    database: Database, alice: Connection, worker: Connection
) -> None:
    me = register(worker)
    first, second = enqueue(alice, "a"), enqueue(alice, "b", priority=-1)
    third = enqueue(alice, "c", priority=9, depends_on=[second, first, second])
    fourth = enqueue(alice, "d", depends_on=[third])
    assert alice.execute(_QUEUE).fetchall()[2:] == [
        (third, None, f"jobs {first}, {second} to succeed"),
        (fourth, None, f"job {third} to succeed"),
    ]
    with Listener(database.dsn("tensile_worker")) as listener:
        claims = [claim(worker, me), claim(worker, me)]
        assert [claimed.job for claimed in claims] == [first, second]
        assert jobs.claim_job(worker, me) is None
        for claimed in claims:
            _end(worker, claimed, "succeeded")
        heard: list[Notification] = []
        while Notification(kind="queued", job=third) not in heard:
            heard += listener.wait(60.0)
    assert claim(worker, me).job == third
    assert jobs.claim_job(worker, me) is None
    kinds = alice.execute("select kind from tensile.job_events where job_id = %s order by event_id", (third,))
    assert kinds.fetchall() == [("awaited_jobs_succeeded",), ("starting",)]
    assert value(alice, "select depends_on from tensile.stat_jobs where job_id = %s", third) == [first, second]
    assert value(worker, "select count(*) from tensile.awaited_jobs") == 1


@pytest.mark.parametrize(("how", "outcome"), [("failed", "failed"), ("cancelled", "was cancelled")])
def test_job_fails_with_a_job_that_it_depends_on_and_so_do_its_own_dependents(
    alice: Connection, worker: Connection, how: str, outcome: str
) -> None:
    first, other = enqueue(alice, "a", priority=1), enqueue(alice, "b")
    second = enqueue(alice, "c", depends_on=[first, other])
    third = enqueue(alice, "d", depends_on=[second])
    paused = enqueue(alice, "e", depends_on=[first], not_before="2099-01-01 00:00+00")
    alice.execute("select tensile_pause(%s)", (paused,))
    _end(worker, claim(worker, register(worker)), how)
    errors = alice.execute(
        """select job_id, state::text, error_sqlstate, error_message, error_detail, error_hint from tensile.stat_jobs
            where job_id > %s order by job_id""",
        (other,),
    ).fetchall()
    because = "the column is empty" if how == "failed" else None

    def hint(cause: int, job: int) -> str:
        return f"Repeat that job and then this one: select tensile_retry({cause}); select tensile_retry({job});"

    message = "job {} depends on job {}, which {}"
    assert errors == [
        (second, "failed", "55000", message.format(second, first, outcome), because, hint(first, second)),
        (third, "failed", "55000", message.format(third, second, "failed"), None, hint(second, third)),
        (paused, "failed", "55000", message.format(paused, first, outcome), because, hint(first, paused)),
    ]
    assert state(alice, other) == "queued"
    assert value(worker, "select count(*) from tensile.awaited_jobs") == 0
    assert value(worker, "select array_agg(name order by name) from tensile.models") == ["b"]


def test_waiting_job_can_be_cancelled_and_takes_its_dependents_along(alice: Connection, worker: Connection) -> None:
    first = enqueue(alice, "a")
    second = enqueue(alice, "b", depends_on=[first])
    third = enqueue(alice, "c", depends_on=[second])
    assert value(alice, "select tensile_cancel(%s)", second) is True
    assert [state(alice, job) for job in (first, second, third)] == ["queued", "cancelled", "failed"]


@pytest.mark.parametrize(
    ("depends_on", "sqlstate", "message"),
    [
        ("array[{bobs}]", "42704", "there is no job {bobs}, on which the new job is to depend"),
        ("array[0]", "22023", "depends_on is [0]"),
        ("array[{ended}, 99]", "42704", "there is no job 99, on which the new job is to depend"),
        ("array[{ended}]", "55000", "job {ended}, on which the new job is to depend, has ended: cancelled"),
        ("array[null, {ended}]", "22023", "depends_on is [null, {ended}]"),
        ("array[array[1, 2]]", "22023", "depends_on is [[1, 2]]"),
        ("array(select generate_series(1, 101))", "22023", "depends_on is "),
    ],
)
def test_wrong_dependencies_are_refused(
    alice: Connection, bob: Connection, depends_on: str, sqlstate: str, message: str
) -> None:
    names = {"bobs": enqueue(bob, "b"), "ended": enqueue(alice, "a")}
    alice.execute("select tensile_cancel(%s)", (names["ended"],))
    refusal = refused(
        alice,
        f"select tensile_train('m', 'iris', target => 'species', depends_on => {depends_on.format(**names)})",
    )
    assert (refusal.sqlstate, refusal.message.startswith(message.format(**names))) == (sqlstate, True)
    assert refusal.detail
    assert refusal.hint


def test_a_direct_insert_is_checked_too(alice: Connection, bob: Connection) -> None:
    bobs = enqueue(bob, "b")
    for depends_on in ([bobs], [None], [[1, 2]], list(range(101))):
        with pytest.raises(psycopg.Error, match=r"there is no job|depends_on is"):
            enqueue(alice, "a", depends_on=depends_on)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        enqueue(alice, "a", awaits_jobs=True)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        alice.execute("update tensile.jobs set awaits_jobs = false")
    assert alice.execute("select * from tensile.awaited_jobs").fetchall() == []


def test_jobs_that_succeeded_and_an_empty_list_are_no_reason_to_wait(alice: Connection, worker: Connection) -> None:
    me = register(worker)
    first = enqueue(alice, "a")
    _end(worker, claim(worker, me), "succeeded")
    second, third = enqueue(alice, "b", depends_on=[first]), enqueue(alice, "c", depends_on=[])
    assert [claim(worker, me).job, claim(worker, me).job] == [second, third]


def test_enqueued_with_tensile_train_it_waits_in_one_transaction_too(alice: Connection, worker: Connection) -> None:
    with alice.transaction():
        first = value(alice, "select tensile_train('a', 'iris', target => 'species')")
        second = value(
            alice, "select tensile_train('b', 'iris', target => 'species', depends_on => array[%s]::bigint[])", first
        )
    assert value(alice, "select waits_for from tensile.stat_queue where job_id = %s", second) == (
        f"job {first} to succeed"
    )
    me = register(worker)
    assert [claim(worker, me).job, jobs.claim_job(worker, me)] == [first, None]


def test_a_lock_or_a_late_commit_only_delays_a_dependent(
    database: Database, alice: Connection, worker: Connection
) -> None:
    me = register(worker)
    first = enqueue(alice, "a")
    locked = enqueue(alice, "b", depends_on=[first])
    claimed = claim(worker, me)
    with database.connect("alice") as late, late.transaction():
        second = enqueue(late, "c", depends_on=[first])
        late.execute("select from tensile.jobs where job_id = %s for update", (locked,))
        _end(worker, claimed, "succeeded")
        assert jobs.claim_job(worker, me) is None
        assert jobs.settle_dependents(worker) == 0
    assert jobs.settle_dependents(worker) == 2
    assert jobs.settle_dependents(worker) == 0
    assert [claim(worker, me).job, claim(worker, me).job] == [locked, second]


def test_a_dependent_of_a_deleted_job_fails(database: Database, alice: Connection, worker: Connection) -> None:
    first = enqueue(alice, "a")
    second = enqueue(alice, "b", depends_on=[first])
    with database.connect() as postgres:
        postgres.execute("delete from tensile.jobs where job_id = %s", (first,))
    assert jobs.settle_dependents(worker) == 1
    message = value(alice, "select error_message from tensile.stat_jobs where job_id = %s", second)
    assert message == f"job {second} depends on job {first}, which no longer exists"


_CHAIN = """
do $$ declare before bigint := 1; begin
  for i in 2..{length} loop
    insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec, depends_on)
    select model_name, relation_oid, relation_schema, relation_name, spec, array[before]
      from tensile.jobs where job_id = before returning job_id into before;
  end loop; end $$"""


@pytest.mark.own_database
@pytest.mark.parametrize("length", nightly_unless(lambda length: length == 250, [250, 1000]))
def test_a_long_chain_of_jobs_costs_a_claim_nothing_and_fails_as_one(
    alice: Connection, bob: Connection, worker: Connection, length: int
) -> None:
    me = register(worker)
    enqueue(alice, "chain")
    alice.execute(_CHAIN.format(length=length).encode())
    _end(worker, claim(worker, me), "succeeded")
    claimed = claim(worker, me)
    assert claimed.job == 2
    bobs = enqueue(bob, "b")
    with worker.transaction():
        before = rows_read(worker)
        assert claim(worker, me).job == bobs
        assert rows_read(worker) - before < 20
    jobs.fail(worker, claimed.job, claimed.claim, RequestError("no"))
    counts = alice.execute("select state::text, count(*) from tensile.jobs group by 1 order by 1").fetchall()
    assert counts == [("failed", length - 1), ("succeeded", 1)]


@pytest.mark.own_database
def test_the_queue_names_few_of_many_awaited_jobs(alice: Connection) -> None:
    awaited = [enqueue(alice, "a") for _ in range(8)]
    last = enqueue(alice, "b", depends_on=awaited)
    assert value(alice, "select waits_for from tensile.stat_queue where job_id = %s", last) == (
        "jobs 1, 2, 3, 4, 5 and 3 more to succeed"
    )


def test_a_dependency_is_no_way_to_another_roles_job(alice: Connection, bob: Connection) -> None:
    job = enqueue(alice, "a")
    assert refused(bob, "select tensile_train('b', 'iris', depends_on => array[%s]::bigint[])", job).sqlstate in (
        "42501",
        "42704",
    )
    assert alice.execute(_QUEUE).fetchall()[0][0] == job


def test_a_lock_of_one_owner_keeps_no_other_job_waiting(
    database: Database, alice: Connection, bob: Connection, worker: Connection
) -> None:
    me = register(worker)
    first, others = enqueue(alice, "a", priority=9), enqueue(bob, "x")
    child, free = enqueue(alice, "b", depends_on=[first]), enqueue(bob, "y", depends_on=[others])
    with database.connect("alice") as idle, idle.transaction(force_rollback=True):
        idle.execute("select tensile_cancel(%s)", (child,))
        for _ in range(2):
            _end(worker, claim(worker, me), "succeeded")
        value(worker, "select tensile.settle_all_dependents()")
        assert claim(worker, me).job == free
    assert value(worker, "select tensile.settle_all_dependents()") == 1
    assert claim(worker, me).job == child


def test_the_end_of_many_predictions_waits_for_one_table_that_is_read(database: Database, worker: Connection) -> None:
    names = [f"predictions_{number}_0123abcd" for number in (901, 902)]
    waited = "select current_setting('tensile.waited_for_predictions', true)"
    with database.connect() as admin, database.connect() as reader, reader.transaction():
        for name in names:
            admin.execute(
                f"create table tensile_data.{name} (a int); alter table tensile_data.{name} owner to tensile_data"
            )
            reader.execute(f"select from tensile_data.{name}".encode())
        with admin.transaction():
            assert value(admin, "select tensile.drop_prediction_table(%s)", names[0]) is False
            assert value(admin, waited) == "on"  # the next lock is not waited for
            assert value(admin, "select tensile.drop_prediction_table(%s)", names[1]) is False
        assert value(admin, waited) != "on"
