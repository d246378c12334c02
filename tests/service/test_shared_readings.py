"""Check predictions of tables that the service reads under the session's snapshot: for whom, and for how long."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import psycopg
import pytest

from tests.conftest import Database
from tests.nightly import nightly_unless
from tests.pgbouncer import pooled

from .conftest import Published, Service, publish
from .fakes import wait_until

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]
# Tables of more than 4 MB. Of `wide` more is read than the service keeps in memory.
TABLES = """
create type tint as enum ('red', 'blue');
create domain measure as double precision;
create table flowers (id bigint primary key, a measure, b text, target text);
insert into flowers
select n, sin(n), (array['red', 'blue'])[n % 2 + 1], (array['p', 'q'])[n % 2 + 1] from generate_series(1, 60) as n;
grant select on flowers to tensile_reader;
create table large (id bigint primary key, a measure, b text, pad text);
alter table large alter column pad set storage plain;
insert into large select n, nullif(sin(n), sin(7)), (array['red', 'blue', null])[n % 3 + 1], repeat('x', 500)
  from generate_series(1, 9000) as n;
delete from large where id % 1000 = 0;
create table parted (id int, part int, a float4, b text, pad text, primary key (id, part)) partition by list (part);
create table parted_one partition of parted for values in (1);
create table parted_two (pad text, part int not null, b text, a float4, id int not null);
alter table parted_one alter column pad set storage plain;
alter table parted_two alter column pad set storage plain;
alter table parted attach partition parted_two for values in (2);
insert into parted select n, n % 2 + 1, cos(n), 'red', repeat('x', 2000) from generate_series(1, 2200) as n;
create table coloured (id int primary key, a float8, b tint, pad text);
alter table coloured alter column pad set storage plain;
insert into coloured select n, n, 'red', repeat('x', 2000) from generate_series(1, 2100) as n;
create table wide (id int primary key, a float8, b text);
alter table wide alter column b set storage plain;
insert into wide select n, n, repeat(chr(97 + n % 3), 2000) from generate_series(1, 12000) as n;
create table secured (like large including all);
insert into secured select * from large;
alter table secured enable row level security;
create table ungranted (like large including all);
insert into ungranted select * from large;
grant select on large, wide, parted, parted_one, parted_two, coloured, secured to tensile_reader;
create view seen as select * from large;
create table other (id int);
"""
SHAPES = """
create table shapes (id int primary key, pixels float4[], y float8, pad text);
alter table shapes alter column pad set storage plain;
insert into shapes
select n, case n when 1500 then '{1}'::float4[] else array[n, -n]::float4[] end, n, repeat('x', 2000)
  from generate_series(1, 2200) as n;
create table few_shapes as select id, pixels, y as target from shapes limit 60;
grant select on shapes, few_shapes to tensile_reader
"""
ALL = "select * from tensile_predict_table('flowers', '{}')"


@pytest.fixture(scope="module")
def model(database: Database) -> Published:
    with database.connect(user="demo") as demo:
        demo.execute(TABLES.encode())
    return publish(database, "flowers", "flowers", ", target => 'target'")


@pytest.fixture
def demo(database: Database, service: Service, model: Published) -> Iterator[Connection]:
    with database.connect(user="demo") as connection:
        yield connection


def rows(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    return connection.execute(statement.encode()).fetchall()


def begun(connection: Connection) -> int:
    """Return how many tables the service has begun to read."""
    ((count,),) = rows(connection, "select (tensile.bridge('ping', '{}') #>> '{result,readings}')::int")
    return int(count)


def alone(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement whose session reads its tables itself."""
    with connection.transaction():
        connection.execute("set transaction isolation level serializable")
        before = begun(connection)
        answers = rows(connection, statement)
        assert begun(connection) == before
    return answers


def check_equal(answers: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    """Check that numbers are equal up to single precision, and all else exactly.

    The last digits depend on the number of rows in a pass, for which some processors run other kernels.
    """
    numbers: list[float] = []

    def without_numbers(value: Any) -> Any:
        if isinstance(value, float):
            numbers.append(value)
            return "a number"
        if isinstance(value, dict):
            return {key: without_numbers(inner) for key, inner in value.items()}
        return [without_numbers(inner) for inner in value] if isinstance(value, list | tuple) else value

    assert without_numbers(answers) == without_numbers(expected)
    half = len(numbers) // 2
    np.testing.assert_allclose(numbers[:half], numbers[half:], rtol=0, atol=1e-6)


def readers(database: Database) -> list[tuple[Any, ...]]:
    with database.connect() as admin:
        return rows(admin, "select pid from pg_stat_activity where application_name = 'tensile service (reading)'")


def is_begun(database: Database) -> bool:
    return bool(readers(database))


def no_reader(database: Database) -> bool:
    return not readers(database)


@pytest.mark.parametrize("relation", nightly_unless(lambda name: name != "large", ["large", "parted", "coloured"]))
def test_answers_are_those_of_a_session_that_reads_the_table_itself(
    database: Database, demo: Connection, relation: str
) -> None:
    before = begun(demo)
    shared = rows(demo, ALL.format(relation))
    assert begun(demo) == before + 1
    assert shared == alone(demo, ALL.format(relation))
    wait_until(lambda: no_reader(database))
    chances = ALL.format(relation)[:-1] + ", with_probabilities => true, keys => '{id}')"
    embedded = ALL.format(relation).replace("predict_table", "embed_table")
    for statement in (chances, embedded):
        before = begun(demo)
        check_equal(rows(demo, statement), alone(demo, statement))
        assert begun(demo) == before + 1


@pytest.mark.by_day(
    "savepoint", "update large", "delete from", "alter type", "revoke", "select-secured", "select-flowers"
)
@pytest.mark.parametrize(
    ("setting", "relation"),
    [
        ("set transaction isolation level serializable", "large"),
        ("savepoint a", "large"),
        ("insert into large values (100000, 0, 'red')", "large"),
        ("update large set a = 1 where id = 1", "large"),
        ("delete from parted_two where id = 1", "parted"),
        ("alter type tint rename value 'red' to 'blood'", "coloured"),
        ("revoke select on large from tensile_reader", "large"),
        ("alter table large add column c int", "large"),
        ("create temporary table copied as select * from large; alter table copied add primary key (id)", "copied"),
        ("select", "secured"),
        ("select", "ungranted"),
        ("select", "seen"),
        ("select", "flowers"),
        ("select", "pg_catalog.pg_proc"),
    ],
)  # fmt: skip
def test_session_reads_its_table_itself_where_no_snapshot_or_no_reader_would_give_its_rows(
    demo: Connection, setting: str, relation: str
) -> None:
    with demo.transaction(force_rollback=True):
        demo.execute(setting.encode())
        before = begun(demo)
        source = relation
        if relation.startswith("pg_"):
            demo.execute("create temporary view procs as select oid::int8 as id, 0.5 as a, 'red' as b from pg_proc")
            source = "procs"
        answers = rows(demo, f"select key -> 'id' from tensile_predict_table('flowers', '{source}', '{{id}}')")
        assert begun(demo) == before
        assert sorted(answers) == sorted(rows(demo, f"select id from {source}"))


def test_writing_other_tables_and_locking_rows_leaves_the_reading_to_the_service(demo: Connection) -> None:
    with demo.transaction(force_rollback=True):
        demo.execute("insert into other values (1); create table more (id int)")
        demo.execute("select from large where id = 1 for update; savepoint a; release savepoint a")
        before = begun(demo)
        demo.execute(b"create table stored as " + ALL.format("large").encode())
        assert begun(demo) == before + 1
        assert rows(demo, "select count(*) from stored") == [(8991,)]


def test_rows_are_those_of_the_statements_snapshot(database: Database, demo: Connection) -> None:
    """Also in a transaction that keeps an older one, and while another session changes the table."""
    with demo.transaction(), demo.cursor("answers") as cursor:
        demo.execute("set transaction isolation level repeatable read")
        demo.execute("select from other")
        with database.connect(user="demo") as writer:
            writer.execute("insert into large values (200000, 0, 'red'); update large set a = 0 where id < 50")
        before = begun(demo)
        cursor.execute(ALL.format("large").encode())
        assert cursor.fetchmany(1)[0][0] == {"id": 1}
        assert begun(demo) == before + 1
        with database.connect(user="demo") as writer:
            writer.execute("delete from large where id = 200000")
        assert len(cursor.fetchall()) == 8990


def test_only_a_role_that_may_read_the_columns_gets_their_predictions(database: Database, demo: Connection) -> None:
    demo.execute("select tensile_grant_model('flowers', 'bob')")
    with database.connect(user="bob") as bob:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table large"):
            rows(bob, ALL.format("large"))
        demo.execute("grant select (id, a, b) on large to bob")
        before = begun(demo)
        assert rows(bob, ALL.format("large")) == rows(demo, ALL.format("large"))
        assert begun(demo) == before + 2
        demo.execute("revoke select (b) on large from bob")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table large"):
            rows(bob, ALL.format("large"))
        demo.execute("revoke all on large from bob; revoke all (id, a, b) on large from bob")


def read_request(connection: Connection, model: Published, **changes: Any) -> dict[str, Any]:
    """Return the fields of a request to read the table `large`, in the connection's transaction."""
    ((snapshot, transaction, pid, role, oid, version),) = rows(
        connection,
        """select pg_export_snapshot(), l.virtualxid, l.pid, current_user::regrole::oid::int8,
                  'large'::regclass::oid::int8, current_setting('server_version_num')::int
             from pg_locks as l where l.pid = pg_backend_pid() and l.locktype = 'virtualxid'""",
    )
    request = {"version": model.version, "kind": "table", "oid": oid, "schema": "public", "relation": "large"}
    request |= {"columns": [["a", "float8"], ["b", "text"]], "keys": [["id", "int8"]], "server_version": version}
    return request | {"role": role, "snapshot": snapshot, "transaction": transaction, "pid": pid} | changes


def test_service_itself_refuses_what_the_role_may_not_read(
    database: Database, open_service: Service, model: Published
) -> None:
    """Also from a session whose checks were overcome: the service believes no more than who asks."""

    def answer(**changes: Any) -> dict[str, Any]:
        with database.connect(user="demo") as connection, connection.transaction():
            client = open_service.client()
            client.greet()
            answered = client.ask("read", **read_request(connection, model, **changes))
            client.close()
            return answered

    with database.connect() as admin:
        ((bob, secured, seen, copied, authid, flowers),) = rows(
            admin,
            """select 'bob'::regrole::oid::int8, 'secured'::regclass::int8, 'seen'::regclass::int8,
                      'ungranted'::regclass::int8, 'pg_authid'::regclass::int8, 'flowers'::regclass::int8""",
        )
    assert answer()["result"]["rows"] == 4096
    refusals = {
        "role bob may not read table public.large": {"role": bob},
        "the owner of the job (role 1) no longer exists": {"role": 1},
        "table public.secured is protected by row-level security": {"oid": secured, "relation": "secured"},
        "public.seen is a view; a worker reads ordinary and partitioned tables": {"oid": seen, "relation": "seen"},
        "role tensile_reader may not read table public.ungranted": {"oid": copied, "relation": "ungranted"},
        "role demo may not read table pg_catalog.pg_authid": {
            "oid": authid, "schema": "pg_catalog", "relation": "pg_authid", "columns": [["rolname", "text"]],
            "keys": [],
        },
        "table public.large was dropped and created again": {"oid": flowers},
        "table public.large was changed while it was read": {"columns": [["a", "float8"], ["b", "int4"]]},
        'the snapshot to read under no longer exists: invalid snapshot identifier: "1-2-3\'; drop table large"': {
            "snapshot": "1-2-3'; drop table large"
        },
    }  # fmt: skip
    assert {message: answer(**changes)["result"]["refused"] for message, changes in refusals.items()} == {
        message: message for message in refusals
    }
    changed = answer(after=1, role=bob)
    assert changed["error"]["message"] == "role bob may not read table public.large"


def test_snapshot_of_another_transaction_is_not_used(database: Database, demo: Connection) -> None:
    """A session that names one reads the table itself."""
    prepare = """select tensile.call('predict_table', jsonb_build_object('model', 'flowers',
                   'relation', 'large'::regclass::oid::bigint)) ->> 'reading'"""
    with database.connect(user="demo") as other, other.transaction(), demo.transaction():
        ((snapshot,),) = rows(other, "select pg_export_snapshot()")
        for named in (snapshot, "none", "1-2", "../../base/1-1-1"):
            ((number,),) = rows(demo, prepare)
            before = begun(demo)
            first = f"select (tensile.prediction_pages({number}, '{named}')).keys limit 1"
            ((keys,),) = rows(demo, first)
            assert len(json.loads(keys)) == 10, "the session's first fetch"
            assert begun(demo) == before


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


def test_session_reads_itself_while_another_one_waits_to_lock_the_table(database: Database, demo: Connection) -> None:
    """Otherwise the reader would wait for that one, which waits for this session, which waits for the reader."""
    with demo.transaction(), database.connect(user="demo") as waiting:
        demo.execute("select from large limit 1")

        def lock() -> None:
            with waiting.transaction():
                waiting.execute("lock table large")

        thread = threading.Thread(target=lock)
        thread.start()
        blocked = f"select cardinality(pg_blocking_pids({waiting.info.backend_pid})) > 0"
        wait_until(lambda: rows(demo, blocked) == [(True,)])
        answers = rows(demo, ALL.format("large"))
        demo.execute("commit")
        thread.join()
        demo.execute("begin")
    assert answers == rows(demo, ALL.format("large"))


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
def test_defaults_of_a_sessions_transactions_change_no_answer(demo: Connection) -> None:
    expected = rows(demo, ALL.format("large"))
    for setting, shared in (
        ("isolation = serializable", 0),
        ("isolation = 'repeatable read'", 1),
        ("read_only = on", 1),
        ("deferrable = on", 1),
    ):
        before = begun(demo)
        demo.execute(f"set default_transaction_{setting}".encode())
        assert rows(demo, ALL.format("large")) == expected, setting
        assert begun(demo) == before + shared, setting
        demo.execute("reset all")


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


def test_row_that_does_not_fit_is_named_as_in_a_session_that_reads_itself(
    database: Database, demo: Connection
) -> None:
    demo.execute(SHAPES.encode())
    publish(database, "shapes", "few_shapes")
    failing = "select * from tensile_predict_table('shapes', 'shapes')"
    errors = []
    for read in (rows, alone):
        with pytest.raises(psycopg.Error) as caught:
            read(demo, failing)
        error = caught.value.diag
        errors.append((error.sqlstate, error.message_primary, error.message_detail))
    assert errors[0] == errors[1]
    assert str(errors[0][1]).startswith('row 1500: column "pixels"')
    assert errors[0][2] == 'The row\'s key is {"id": 1500}.'


@pytest.mark.nightly  # PgBouncer is another process
def test_a_pooled_session_predicts_by_the_services_reading(database: Database, demo: Connection) -> None:
    with pooled(database, "transaction") as pool, pool.connect("demo") as session:
        before = begun(demo)
        assert rows(session, ALL.format("large")) == rows(demo, ALL.format("large"))
        assert begun(demo) == before + 2
