"""Waiting for a job and stopping it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import Database

from .conftest import Connection, Refused, refused, value

pytestmark = pytest.mark.postgres

TRAIN = "select tensile_train('flowers', 'iris', target => 'species')"
DEADLINE_S = 180.0


@contextmanager
def in_the_background(database: Database, *statements: str, once: str) -> Iterator[None]:
    """As a worker would, run the statements as soon as the query `once` gives true."""

    def work() -> None:
        with database.connect("postgres") as connection:
            deadline = time.monotonic() + DEADLINE_S
            while not value(connection, once) and time.monotonic() < deadline:
                connection.execute("select pg_sleep(0.02)")
            for statement in statements:
                connection.execute(statement.encode())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


FAIL = """update tensile.jobs set state = 'failed', finished_at = now(), error_sqlstate = '53200',
            error_message = 'the budget is below the floor', error_detail = '5 < 6', error_hint = 'give more'"""
ENDED = "select exists (select from tensile.jobs where state = 'queued')"


def test_waiting_ends_with_the_job(alice: Connection, database: Database) -> None:
    job = value(alice, TRAIN)
    polled = (
        "select exists (select from pg_stat_activity where query like 'select tensile_wait%' and state = 'active')"
    )

    with in_the_background(database, FAIL, once=polled):
        assert value(alice, f"select tensile_wait({job}, '50 s')::text") == "failed"


def test_waiting_ends_when_the_time_is_over(alice: Connection) -> None:
    job = value(alice, TRAIN)

    assert value(alice, "select tensile_wait(%s, '50 ms')::text", job) == "queued"


def test_waiting_in_the_transaction_that_enqueued_is_refused(alice: Connection) -> None:
    alice.autocommit = False
    alice.execute("savepoint before")  # a subtransaction has an id of its own
    job = value(alice, TRAIN)

    error = refused(alice, "select tensile_wait(%s)", job)
    alice.rollback()

    assert error == Refused(
        "55000",
        f"job {job} cannot start before this transaction commits: waiting for it here would never end",
        None,
        "Commit first, then wait; or use: call tensile_train_and_wait(...).",
    )


def test_waiting_within_one_snapshot_is_refused(alice: Connection) -> None:
    job = value(alice, TRAIN)
    alice.autocommit = False
    alice.execute("set transaction isolation level repeatable read")

    error = refused(alice, "select tensile_wait(%s)", job)
    alice.rollback()

    assert error == Refused(
        "55000",
        f"a transaction of isolation level repeatable read never sees job {job} end",
        None,
        "Wait in a transaction of isolation level read committed.",
    )


def test_statement_timeout_ends_a_wait(alice: Connection) -> None:
    job = value(alice, TRAIN)
    alice.execute("set statement_timeout = '100 ms'")

    assert refused(alice, "select tensile_wait(%s)", job).sqlstate == "57014"


def test_waiting_without_a_limit_naps_between_its_looks(alice: Connection, database: Database) -> None:
    job = value(alice, TRAIN)
    looks = "select pg_stat_get_xact_numscans('tensile.jobs_pkey'::regclass)"
    before = value(alice, looks)
    started_s = time.monotonic()
    naps = "select exists (select from pg_stat_activity where wait_event = 'PgSleep' and query like '%tensile_wait%')"
    with in_the_background(database, FAIL, once=naps):
        assert value(alice, "select tensile_wait(%s, null)::text", job) == "failed"
    # Naps grow from 10 to 200 ms.
    assert value(alice, looks) - before <= 10 + 100 * (time.monotonic() - started_s)


def test_waiting_for_no_job_is_refused(alice: Connection) -> None:
    assert refused(alice, "select tensile_wait(77)") == Refused(
        "42704", "there is no job 77", None, "See your jobs: select * from tensile.stat_jobs;"
    )


def test_training_and_waiting_raises_the_jobs_own_error(alice: Connection, database: Database) -> None:
    with in_the_background(database, FAIL, once=ENDED):
        error = refused(alice, "call tensile_train_and_wait('flowers', 'iris', target => 'species')")

    assert error == Refused("53200", "the budget is below the floor", "5 < 6", "give more")


def test_training_and_waiting_returns_the_job(alice: Connection, database: Database) -> None:
    succeed = "update tensile.jobs set state = 'succeeded', finished_at = now()"
    with in_the_background(database, succeed, once=ENDED):
        row = alice.execute("call tensile_train_and_wait('flowers', 'iris', target => 'species')").fetchone()

    assert row == (value(alice, "select job_id from tensile.jobs"),)


def test_training_and_waiting_tells_why_a_version_is_not_deployed(alice: Connection, database: Database) -> None:
    publish = """insert into tensile.model_versions (model_id, number, task, target, architecture, parameters,
                     weights_bytes, not_deployed)
                 select model_id, 2, 'classification', 'species', '{"type": "mlp"}', 1, 4, 'deploy is never'
                   from tensile.models where name = 'flowers'"""
    succeed = """update tensile.jobs set state = 'succeeded', finished_at = now(),
                     version_id = (select max(version_id) from tensile.model_versions)"""
    told: list[tuple[str | None, str | None]] = []
    alice.add_notice_handler(lambda notice: told.append((notice.message_primary, notice.message_hint)))

    with in_the_background(database, publish, succeed, once=ENDED):
        alice.execute("call tensile_train_and_wait('flowers', 'iris', target => 'species')")

    assert told[-1] == (
        f"job {value(alice, 'select job_id from tensile.jobs')}: version 2 is not deployed: deploy is never",
        "With deploy => 'always' a training deploys its version without a comparison.",
    )


def test_training_and_waiting_tells_of_a_cancellation(alice: Connection, database: Database) -> None:
    with in_the_background(database, "update tensile.jobs set cancel_requested = true", once=ENDED):
        error = refused(alice, "call tensile_train_and_wait('flowers', 'iris', target => 'species')")

    assert (error.sqlstate, error.message.split()[2:]) == ("57014", ["was", "cancelled"])


def test_the_procedure_begins_a_transaction_for_each_poll(alice: Connection, database: Database) -> None:
    begun = "select xact_start from pg_stat_activity where datname = current_database() and query like 'call%'"
    remember = f"create table seen as {begun}"
    moved = f"""do $$ begin
                  while exists (select from seen where xact_start in ({begun})) loop
                    perform pg_sleep(0.02), pg_stat_clear_snapshot();
                  end loop;
                end $$"""
    succeed = "update tensile.jobs set state = 'succeeded', finished_at = now()"

    with in_the_background(database, remember, moved, succeed, once=ENDED):
        alice.execute("set statement_timeout = '60 s'")
        alice.execute("call tensile_train_and_wait('flowers', 'iris', target => 'species')")

    assert value(alice, "select state::text from tensile.jobs") == "succeeded"


def test_a_queued_job_is_cancelled_at_once(alice: Connection) -> None:
    job = value(alice, TRAIN)

    assert value(alice, "select tensile_cancel(%s)", job) is True
    assert value(alice, "select tensile_wait(%s)::text", job) == "cancelled"
    assert value(alice, "select tensile_cancel(%s)", job) is False


def test_a_running_job_is_asked_to_stop(alice: Connection, admin: Connection) -> None:
    job = value(alice, TRAIN)
    admin.execute(
        """with w as (insert into tensile.workers (host, pid, device, version, lease_s) values ('h', 1, 'd', '0', 9)
                      returning worker_id)
           update tensile.jobs set state = 'running', claim = 1, worker_id = w.worker_id from w"""
    )

    assert value(alice, "select tensile_cancel(%s)", job) is True
    assert value(alice, "select (state, cancel_requested)::text from tensile.jobs") == "(running,t)"


def test_a_model_in_training_is_not_dropped(alice: Connection) -> None:
    alice.execute("select tensile_create_model('flowers')")
    job = value(alice, TRAIN)
    busy = refused(alice, "select tensile_drop_model('flowers')")
    alice.execute("select tensile_cancel(%s)", (job,))

    alice.execute("select tensile_drop_model('flowers')")

    assert busy == Refused(
        "55006",
        f'model "flowers" is being trained by job {job}',
        None,
        f"Cancel it first: select tensile_cancel({job});",
    )
    assert refused(alice, "select tensile_drop_model('flowers')").sqlstate == "42704"


@pytest.mark.parametrize(
    "statement",
    [
        "begin; call tensile_train_and_wait('flowers', 'iris', target => 'species')",
        "do $$ begin perform own_call(); end $$",
        "select own_call()",
    ],
)
def test_waiting_where_nothing_can_be_committed_says_so(alice: Connection, statement: str) -> None:
    alice.execute(
        """create function own_call() returns void language plpgsql as $$
           declare j bigint;
           begin call tensile_train_and_wait('flowers', 'iris', target => 'species', job => j); end $$"""
    )

    error = refused(alice, statement)
    alice.rollback()

    assert error == Refused(
        "2D000",
        "tensile_train_and_wait commits, which is not possible in a transaction block or in a function",
        None,
        "Call it outside of both; or use tensile_train(...), commit, and then tensile_wait(job).",
    )
    assert value(alice, "select count(*) from tensile.jobs") == 0
