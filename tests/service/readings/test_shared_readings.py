"""Check predictions of tables that the service reads under the session's snapshot: for whom, and with which rows."""

import json
import threading
from typing import Any

import psycopg
import pytest

from tests.conftest import Database
from tests.nightly import nightly_unless
from tests.pgbouncer import pooled
from tests.service.conftest import Published, Service, publish
from tests.service.fakes import wait_until

from .sessions import ALL, Connection, alone, begun, check_equal, no_reader, rows

pytestmark = pytest.mark.postgres

SHAPES = """
create table shapes (id int primary key, pixels float4[], y float8, pad text);
alter table shapes alter column pad set storage plain;
insert into shapes
select n, case n when 1500 then '{1}'::float4[] else array[n, -n]::float4[] end, n, repeat('x', 2000)
  from generate_series(1, 2200) as n;
create table few_shapes as select id, pixels, y as target from shapes limit 60;
grant select on shapes, few_shapes to tensile_reader
"""


@pytest.mark.parametrize("relation", nightly_unless(lambda name: name == "parted", ["large", "parted", "coloured"]))
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
