"""Check how the service's reading of a table ends: with its cursor, its transaction, the service, or a fault."""

import os
import signal
import threading
from contextlib import suppress

import psycopg
import pytest

from tests.conftest import Database
from tests.service.conftest import Service
from tests.service.fakes import wait_until

from .sessions import ALL, Connection, alone, begun, is_begun, no_reader, readers, rows

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize(
    "ending",
    [
        "close",
        "failure",
        pytest.param("rollback", marks=pytest.mark.nightly),
        pytest.param("terminated", marks=pytest.mark.nightly),
    ],
)
def test_reader_ends_with_its_cursor_and_its_transaction(database: Database, demo: Connection, ending: str) -> None:
    with database.connect(user="demo") as session:
        session.execute("begin")
        session.execute(f"declare c cursor for {ALL.format('wide')}".encode())
        assert rows(session, "fetch 1 from c")[0][0] == {"id": 1}
        assert is_begun(database)
        match ending:
            case "close":
                session.execute("close c")
            case "rollback":
                session.execute("rollback")
            case "failure":  # the session keeps its connection to the service, and no transaction
                with pytest.raises(psycopg.errors.DivisionByZero):
                    rows(session, f"select 1 / (length(label) - 1) from ({ALL.format('wide')}) as p")
                session.execute("rollback")
            case _:
                pid = session.info.backend_pid
                with database.connect() as admin:
                    admin.execute("select pg_terminate_backend(%s)", [pid])
        wait_until(lambda: no_reader(database))
        with suppress(psycopg.Error):
            session.close()
    assert len(rows(demo, ALL.format("parted"))) == 2200


def test_session_that_truncates_below_its_open_cursor_does_not_wait_for_ever(
    database: Database, demo: Connection
) -> None:
    with demo.transaction(force_rollback=True):
        demo.execute(f"declare c cursor for {ALL.format('wide')}".encode())
        assert rows(demo, "fetch 1 from c")[0][0] == {"id": 1}
        assert is_begun(database)
        with pytest.raises(psycopg.errors.ObjectInUse, match="being used by active queries"):
            demo.execute("truncate wide")
    wait_until(lambda: no_reader(database))


def test_another_service_continues_with_the_next_row(service: Service, demo: Connection) -> None:
    with demo.transaction(), demo.cursor("answers") as cursor:
        cursor.execute(ALL.format("wide").encode())
        first = cursor.fetchmany(100)
        service.stop()
        service.start()
        answers = first + cursor.fetchall()
        assert begun(demo) == 1
    assert answers == alone(demo, ALL.format("wide"))


def test_killed_service_is_a_clear_error_and_leaves_no_reader(
    database: Database, service: Service, demo: Connection
) -> None:
    """The snapshot lives in the session's transaction, so its end is the snapshot's end too."""
    demo.execute("begin")
    demo.execute(f"declare c cursor for {ALL.format('wide')}".encode())
    assert rows(demo, "fetch 1 from c")[0][0] == {"id": 1}
    service.stop(signal.SIGKILL)
    try:
        with pytest.raises(psycopg.Error) as caught:
            rows(demo, "fetch all from c")
        demo.execute("rollback")
        wait_until(lambda: no_reader(database))
    finally:
        service.start()
    error = caught.value.diag
    assert (error.sqlstate, error.message_primary) == ("57P03", "no service answers")
    assert error.message_hint == (
        "Start one with: tensile up, or tensile controller; tensile doctor says what is missing."
    )
    assert len(rows(demo, ALL.format("wide"))) == 12000
    assert begun(demo) == 1


def test_cancelled_session_ends_its_reading_and_predicts_again(
    database: Database, service: Service, demo: Connection
) -> None:
    """While the session waits for a page of a service that does not answer."""
    assert service.process is not None
    assert service.process.pid is not None
    ended: list[str | None] = []

    def predict() -> None:
        with pytest.raises(psycopg.Error) as caught:
            rows(demo, "fetch all from c")
        ended.append(caught.value.sqlstate)

    demo.execute("begin")
    demo.execute(f"declare c cursor for {ALL.format('wide')}".encode())
    rows(demo, "fetch 1 from c")
    os.kill(service.process.pid, signal.SIGSTOP)
    try:
        thread = threading.Thread(target=predict)
        thread.start()
        with database.connect() as admin:
            pid = demo.info.backend_pid
            active = f"select state from pg_stat_activity where pid = {pid} and query ~ 'fetch all'"
            wait_until(lambda: rows(admin, active) == [("active",)])
            admin.execute("select pg_cancel_backend(%s)", [pid])
        thread.join()
    finally:
        os.kill(service.process.pid, signal.SIGCONT)
    assert ended == ["57014"]
    demo.execute("rollback")
    wait_until(lambda: no_reader(database))
    assert len(rows(demo, ALL.format("wide"))) == 12000


@pytest.mark.nightly
def test_rows_after_a_failure_of_the_reader_are_an_error_and_never_missing(
    database: Database, demo: Connection
) -> None:
    with demo.transaction(force_rollback=True):
        demo.execute(f"declare c cursor for {ALL.format('wide')}".encode())
        rows(demo, "fetch 1 from c")
        with database.connect() as admin:
            ((pid,),) = readers(database)
            admin.execute("select pg_terminate_backend(%s)", [pid])
        wait_until(lambda: no_reader(database))
        with pytest.raises(psycopg.Error, match=r"reading table public\.wide failed") as caught:
            rows(demo, "fetch all from c")
        assert caught.value.sqlstate == "58000"
    assert len(rows(demo, ALL.format("wide"))) == len(rows(demo, "select id from wide"))


@pytest.mark.nightly
def test_sessions_beyond_the_services_readings_read_themselves(database: Database, demo: Connection) -> None:
    before = begun(demo)
    with demo.transaction(force_rollback=True):
        for number in range(3):
            demo.execute(f"declare c{number} cursor for {ALL.format('wide')}".encode())
            assert rows(demo, f"fetch 1 from c{number}")[0][0] == {"id": 1}
        assert begun(demo) == before + 2
        assert len(readers(database)) == 2
        assert [len(rows(demo, f"fetch all from c{number}")) for number in range(3)] == [11999] * 3


@pytest.mark.nightly
def test_cursor_that_outlives_its_transaction_has_all_rows(database: Database, demo: Connection) -> None:
    with demo.transaction():
        demo.execute(f"declare held cursor with hold for {ALL.format('wide')}".encode())
        first = rows(demo, "fetch 5 from held")
    wait_until(lambda: no_reader(database))
    assert first + rows(demo, "fetch all from held") == rows(demo, ALL.format("wide"))
    demo.execute("close held")
