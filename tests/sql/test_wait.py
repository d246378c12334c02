"""Check how sessions wait for a job and cancel it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import Database

from .conftest import Connection, Refused, refused, value

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

TRAIN = "select tensile_train('flowers', 'iris', target => 'species')"
DEADLINE_S = 180.0


@contextmanager
def run_in_background(database: Database, *statements: str, condition: str) -> Iterator[None]:
    """Execute the statements in another session, like a worker, as soon as the query `condition` returns true."""

    def work() -> None:
        with database.connect("postgres") as connection:
            deadline = time.monotonic() + DEADLINE_S
            while not value(connection, condition) and time.monotonic() < deadline:
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


def test_wait_ends_with_the_job(alice: Connection, database: Database) -> None:
    job = value(alice, TRAIN)
    polled = (
        "select exists (select from pg_stat_activity where query like 'select tensile_wait%' and state = 'active')"
    )

    with run_in_background(database, FAIL, condition=polled):
        assert value(alice, f"select tensile_wait({job}, '50 s')::text") == "failed"


def test_wait_ends_after_its_timeout(alice: Connection) -> None:
    job = value(alice, TRAIN)

    assert value(alice, "select tensile_wait(%s, '50 ms')::text", job) == "queued"
    assert value(alice, "select tensile_wait(%s, '-1000000 years')::text", job) == "queued"
    alice.execute("update tensile.jobs set cancel_requested = true")
    assert value(alice, "select tensile_wait(%s, '1000000 years')::text", job) == "cancelled"


def test_wait_in_the_transaction_that_enqueued_the_job_is_refused(alice: Connection) -> None:
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


def test_wait_in_repeatable_read_is_refused(alice: Connection) -> None:
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


def test_wait_without_a_timeout_sleeps_between_its_polls(alice: Connection, database: Database) -> None:
    job = value(alice, TRAIN)
    index_scans = "select pg_stat_get_xact_numscans('tensile.jobs_pkey'::regclass)"
    before = value(alice, index_scans)
    started_s = time.monotonic()
    sleeping = (
        "select exists (select from pg_stat_activity where wait_event = 'PgSleep' and query like '%tensile_wait%')"
    )
    with run_in_background(database, FAIL, condition=sleeping):
        assert value(alice, "select tensile_wait(%s, null)::text", job) == "failed"
    # The pauses between polls grow from 10 to 200 ms.
    assert value(alice, index_scans) - before <= 10 + 100 * (time.monotonic() - started_s)


def test_wait_for_an_unknown_job_is_refused(alice: Connection) -> None:
    assert refused(alice, "select tensile_wait(77)") == Refused(
        "42704", "there is no job 77", None, "See your jobs: select * from tensile.stat_jobs;"
    )


def test_train_and_wait_raises_the_jobs_error(alice: Connection, database: Database) -> None:
    with run_in_background(database, FAIL, condition=ENDED):
        error = refused(alice, "call tensile_train_and_wait('flowers', 'iris', target => 'species')")

    assert error == Refused("53200", "the budget is below the floor", "5 < 6", "give more")


@pytest.mark.parametrize(
    "call",
    [
        "call tensile_train_and_wait('flowers', 'iris', target => 'species')",
        "call tensile_train_query_and_wait('flowers', 'select * from iris', target => 'species')",
    ],
)
def test_train_and_wait_returns_the_job(alice: Connection, database: Database, call: str) -> None:
    succeed = "update tensile.jobs set state = 'succeeded', finished_at = now()"
    with run_in_background(database, succeed, condition=ENDED):
        row = alice.execute(call.encode()).fetchone()

    assert row == (value(alice, "select job_id from tensile.jobs"),)


def test_train_and_wait_says_why_a_version_is_not_deployed(alice: Connection, database: Database) -> None:
    publish = """insert into tensile.model_versions (model_id, number, task, target, architecture, parameters,
                     weights_bytes, not_deployed, job_id)
                 select model_id, 2, 'classification', 'species', '{"type": "mlp"}', 1, 4, 'deploy is never',
                        (select job_id from tensile.jobs)
                   from tensile.models where name = 'flowers'"""
    succeed = """update tensile.jobs set state = 'succeeded', finished_at = now(),
                     version_id = (select max(version_id) from tensile.model_versions)"""
    notices: list[tuple[str | None, str | None]] = []
    alice.add_notice_handler(lambda notice: notices.append((notice.message_primary, notice.message_hint)))

    with run_in_background(database, publish, succeed, condition=ENDED):
        alice.execute("call tensile_train_and_wait('flowers', 'iris', target => 'species')")

    assert notices[-1] == (
        f"job {value(alice, 'select job_id from tensile.jobs')}: version 2 is not deployed: deploy is never",
        "With deploy => 'always' a training deploys its version without a comparison.",
    )


def test_train_and_wait_raises_an_error_after_a_cancel(alice: Connection, database: Database) -> None:
    with run_in_background(database, "update tensile.jobs set cancel_requested = true", condition=ENDED):
        error = refused(alice, "call tensile_train_and_wait('flowers', 'iris', target => 'species')")

    assert (error.sqlstate, error.message.split()[2:]) == ("57014", ["was", "cancelled"])


@pytest.mark.own_database
def test_train_and_wait_begins_a_transaction_for_each_poll(alice: Connection, database: Database) -> None:
    transaction_start = (
        "select xact_start from pg_stat_activity where datname = current_database() and query like 'call%'"
    )
    record_start = f"create table seen as {transaction_start}"
    next_transaction = f"""do $$ begin
                  while exists (select from seen where xact_start in ({transaction_start})) loop
                    perform pg_sleep(0.02), pg_stat_clear_snapshot();
                  end loop;
                end $$"""
    succeed = "update tensile.jobs set state = 'succeeded', finished_at = now()"

    with run_in_background(database, record_start, next_transaction, succeed, condition=ENDED):
        alice.execute("call tensile_train_and_wait('flowers', 'iris', target => 'species')")

    assert value(alice, "select state::text from tensile.jobs") == "succeeded"


def test_queued_job_is_cancelled_at_once(alice: Connection) -> None:
    job = value(alice, TRAIN)

    assert value(alice, "select tensile_cancel(%s)", job) is True
    assert value(alice, "select tensile_wait(%s)::text", job) == "cancelled"
    assert value(alice, "select tensile_cancel(%s)", job) is False


def test_cancel_of_a_running_job_is_requested(alice: Connection, admin: Connection) -> None:
    job = value(alice, TRAIN)
    admin.execute(
        """with w as (insert into tensile.workers (host, pid, device, version, lease_s) values ('h', 1, 'd', '0', 9)
                      returning worker_id)
           update tensile.jobs set state = 'running', claim = 1, worker_id = w.worker_id from w"""
    )

    assert value(alice, "select tensile_cancel(%s)", job) is True
    assert value(alice, "select (state, cancel_requested)::text from tensile.jobs") == "(running,t)"


def test_model_in_training_is_not_dropped(alice: Connection) -> None:
    alice.execute("select tensile_create_model('flowers')")
    job = value(alice, TRAIN)
    busy = refused(alice, "select tensile_drop_model('flowers')")
    alice.execute("select tensile_cancel(%s)", (job,))

    alice.execute("select tensile_drop_model('flowers')")

    assert busy == Refused(
        "55006",
        f'model "flowers" is being trained by job {job}',
        "The training publishes its version to the model of this name.",
        f"Wait until it has ended: select tensile_wait({job}); or cancel it: select tensile_cancel({job});",
    )
    assert refused(alice, "select tensile_drop_model('flowers')").sqlstate == "42704"


@pytest.mark.parametrize(
    "statement",
    [
        "begin; call tensile_train_and_wait('flowers', 'iris', target => 'species')",
        "begin; call tensile_train_query_and_wait('flowers', 'select * from iris', target => 'species')",
        "do $$ begin perform own_call(); end $$",
        "select own_call()",
    ],
)
def test_train_and_wait_is_refused_where_it_cannot_commit(alice: Connection, statement: str) -> None:
    alice.execute(
        """create function own_call() returns void language plpgsql as $$
           declare j bigint;
           begin call tensile_train_and_wait('flowers', 'iris', target => 'species', job => j); end $$"""
    )

    error = refused(alice, statement)
    alice.rollback()

    function = "tensile_train_query" if "query" in statement else "tensile_train"
    assert error == Refused(
        "2D000",
        f"{function}_and_wait commits, which is not possible in a transaction block or in a function",
        None,
        f"Call it outside of both; or use {function}(...), commit, and then tensile_wait(job).",
    )
    assert value(alice, "select count(*) from tensile.jobs") == 0


@pytest.mark.parametrize(
    "call",
    [
        "tensile_wait(null)",
        "tensile_cancel(null)",
        "tensile_pause(null)",
        "tensile_resume(null)",
        "tensile_retry(null)",
        "tensile_set_priority(null, 1)",
        "tensile_trace(null)",
    ],
)
def test_a_null_in_place_of_a_job_is_refused(alice: Connection, call: str) -> None:
    refusal = refused(alice, f"select {call}")
    assert (refusal.sqlstate, refusal.message) == ("22023", "job is null")
    assert refusal.hint == "Give the number of a job. See your jobs: select * from tensile.stat_jobs;"
