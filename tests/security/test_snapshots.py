"""Check that no user reads, fills or keeps another user's snapshot, and that no user's function runs as the role that
makes snapshots.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from indb_tensile.catalog import snapshots
from indb_tensile.errors import PrivilegeError
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.training.preparation import prepare
from tests.catalog.enqueue import enqueue, specification
from tests.conftest import Database

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

Connection = psycopg.Connection[Any]

# A relation whose names all need quotes, with types of its owner, and functions of its owner wherever possible.
TRAPPED_TABLE = """
create table trapped (fired_by name);
grant insert on trapped to public;
create function spring() returns void language sql as $$ insert into public.trapped values (current_user) $$;
create function trap(value int) returns int language plpgsql immutable as $$
begin
  perform public.spring(); return value;
end $$;
create function trap_text(value text) returns boolean language plpgsql immutable as $$
begin
  perform public.spring(); return true;
end $$;
create type mood as enum ('fine', 'bad');
create domain amount as float8 default public.trap(3) check (public.trap(1) = 1);
create type pair as (a int, b int);
create table "odd "" name" (
  "id "" 1" pair primary key, "a; drop table trapped" amount, mood mood default 'fine'::mood,
  n int default trap(1), g int generated always as (trap(1)) stored, point point, check (trap_text(mood::text)));
create index on "odd "" name" (trap(n));
insert into "odd "" name" values ((1, 2), 1, 'fine', 1), ((3, 4), 2, 'bad', 2);
delete from trapped;
"""
ODD = '"odd "" name"'


@pytest.fixture
def alice(database: Database) -> Iterator[Connection]:
    with database.connect("alice") as connection:
        connection.execute("create table t (id bigint primary key, x float8, y float8)")
        connection.execute("insert into t select i, i, i % 3 from generate_series(1, 20) as i")
        yield connection


@pytest.fixture
def bob(database: Database) -> Iterator[Connection]:
    with database.connect("bob") as connection:
        yield connection


def job_on(connection: Connection, relation: str, model: str = "m") -> int:
    """Insert a job on the relation, like tensile_train does."""
    row = connection.execute("select %s::regclass::oid::int8", (relation,)).fetchone()
    assert row is not None
    named = {"relation": {"oid": row[0], "schema": "public", "name": relation}}
    return enqueue(
        connection,
        model,
        relation_oid=row[0],
        relation_name=relation,
        spec=specification(model) | named,
    )


def make(connection: Connection, job: int, columns: list[str]) -> list[tuple[Any, ...]]:
    return connection.execute("select * from tensile.make_snapshot(%s, %s)", (job, columns)).fetchall()


def seal(connection: Connection, job: int) -> tuple[Any, ...]:
    row = connection.execute("select * from tensile.seal_snapshot(%s)", (job,)).fetchone()
    assert row is not None
    return tuple(row)


def sealed_snapshot(connection: Connection, model: str = "m") -> int:
    """Enqueue a job of the connection's role with a sealed snapshot of table t; return its id."""
    with connection.transaction():
        job = job_on(connection, "t", model)
        ((table, _, _), *_) = make(connection, job, ["x", "y"])
        connection.execute(f"insert into {table} (id, x, y) select id, x, y from t")
        seal(connection, job)
    return job


@contextmanager
def refused(sqlstate: str, message: str | None = None) -> Iterator[None]:
    with pytest.raises(psycopg.Error, match=message) as caught:
        yield
    assert caught.value.sqlstate == sqlstate, caught.value


def test_snapshot_is_made_only_in_the_transaction_that_enqueued_the_job(alice: Connection) -> None:
    job = job_on(alice, "t")

    with refused("55000", f"this transaction has enqueued no job {job}"):
        make(alice, job, ["x", "y"])
    with refused("55000", "this transaction has enqueued no job 999"):
        make(alice, 999, ["x"])
    with refused("55000", "this transaction has made no snapshot"):
        seal(alice, job)


def test_job_of_another_user_gets_no_snapshot(alice: Connection, bob: Connection) -> None:
    with alice.transaction():
        job = job_on(alice, "t")
        with refused("55000"):
            make(bob, job, ["x"])
        ((table, _, _), *_) = make(alice, job, ["x"])
        bob.execute("set lock_timeout = '60s'")
        with refused("42P01"):  # not committed, so bob does not see the table
            bob.execute(f"insert into {table} (x) values (1)")
        with refused("55000"):
            seal(bob, job)
        seal(alice, job)


def test_snapshot_is_made_once_and_sealed_once(alice: Connection) -> None:
    with alice.transaction():
        job = job_on(alice, "t")
        make(alice, job, ["x"])
        with refused("42P07", f"job {job} has a snapshot already"), alice.transaction():
            make(alice, job, ["x"])
        assert seal(alice, job)[0] == 0
        with refused("55000"), alice.transaction():
            seal(alice, job)
        with refused("42P07"), alice.transaction():
            make(alice, job, ["x"])


def test_transaction_with_an_unsealed_snapshot_does_not_commit(alice: Connection) -> None:
    for constraints in ("select 1", "set constraints all immediate", "set constraints all deferred"):
        with refused("55000", "is not sealed"), alice.transaction():
            alice.execute(constraints)
            make(alice, job_on(alice, "t"), ["x"])
            alice.execute(constraints)
    assert alice.execute("select count(*) from tensile.snapshots").fetchone() == (0,)
    assert alice.execute("select count(*) from tensile.jobs").fetchone() == (0,)


def test_immediate_constraints_do_not_prevent_a_snapshot(alice: Connection) -> None:
    with alice.transaction():
        alice.execute("set constraints all immediate")
        job = job_on(alice, "t")
        make(alice, job, ["x"])
        seal(alice, job)
    assert alice.execute("select sealed from tensile.snapshots").fetchall() == [(True,)]


def test_owner_may_only_insert_until_the_snapshot_is_sealed(alice: Connection) -> None:
    with alice.transaction():
        job = job_on(alice, "t")
        ((table, _, _), *_) = make(alice, job, ["x", "y"])
        for statement in DENIED_STATEMENTS:
            with refused("42501"), alice.transaction():
                alice.execute(statement.format(table=table))
        alice.execute(f"insert into {table} (x) values (1)")
        with refused("42501"), alice.transaction():
            alice.execute(f"grant select, insert on {table} to bob")
        bob_has_rights = "select has_table_privilege('bob', %s, 'select') or has_table_privilege('bob', %s, 'insert')"
        assert alice.execute(bob_has_rights, (table, table)).fetchone() == (False,)
        seal(alice, job)
        with refused("42501"), alice.transaction():
            alice.execute(f"insert into {table} (x) values (2)")
    for statement in (
        *DENIED_STATEMENTS,
        "insert into {table} (x) values (3)",
        "lock table {table} in access share mode",
    ):
        with refused("42501"), alice.transaction():
            alice.execute(statement.format(table=table))


DENIED_STATEMENTS = (
    "select * from {table}",
    "insert into {table} (x) values (1) returning x",
    "update {table} set x = 1",
    "delete from {table}",
    "truncate {table}",
    "drop table {table}",
    "alter table {table} add column z int",
    "alter table {table} disable row level security",
    "create index on {table} (x)",
    "create rule r as on insert to {table} do also select 1",
    "create trigger r before insert on {table} for each row execute function suppress_redundant_updates_trigger()",
    "create statistics s on x, y from {table}",
    "comment on table {table} is 'mine'",
    "lock table {table} in access exclusive mode",
    "create table tensile_data.mine (a int)",
    "create function tensile_data.f() returns int language sql return 1",
    "alter default privileges in schema tensile_data for role tensile_data grant all on tables to alice",
    "set role tensile_data",
    "update tensile.snapshots set sealed = false",
    "insert into tensile.snapshots (job_id, table_name, key) values (1, 'x', '{{}}')",
    "delete from tensile.snapshots",
    "select tensile.drop_snapshots(1)",
    "select tensile.snapshot_columns('t'::regclass, null, null, null)",
    "select tensile.require_sealed()",
)


def test_only_trainers_read_a_snapshot(alice: Connection, bob: Connection, database: Database) -> None:
    job = sealed_snapshot(alice)
    with database.connect("tensile_worker") as worker, database.connect("monitor") as monitor:
        for connection in (alice, bob, worker, monitor):
            with refused("42501"):
                connection.execute(f"select * from tensile_data.job_{job}")
        for connection in (alice, bob):
            with refused("42501"):
                connection.execute("select tensile_train('stolen', %s, target => 'y')", (f"tensile_data.job_{job}",))
        columns_of_snapshots = "select job_id, table_name, key, rows, sealed from tensile.snapshots"
        row = (job, f"job_{job}", ["id"], 20, True)
        assert bob.execute(columns_of_snapshots).fetchall() == []
        assert [c.execute(columns_of_snapshots).fetchall() for c in (alice, worker, monitor)] == [[row]] * 3
    with database.connect() as postgres:
        postgres.execute("set role tensile_reader")
        assert postgres.execute(f"select count(*) from tensile_data.job_{job}").fetchone() == (20,)
        with refused("42501"):
            postgres.execute(f"insert into tensile_data.job_{job} (x) values (1)")
        with refused("42501"):
            postgres.execute("select * from tensile.snapshots")


def test_job_with_another_users_snapshot_as_its_relation_reads_nothing(
    alice: Connection, bob: Connection, database: Database
) -> None:
    victim = sealed_snapshot(alice)
    row = alice.execute(f"select 'tensile_data.job_{victim}'::regclass::oid::int8").fetchone()
    assert row is not None
    relation = Relation(oid=row[0], schema="tensile_data", name=f"job_{victim}")
    spec = JobSpec(model="m", relation=relation, target="y", task=Task.REGRESSION, architecture={"type": "mlp"})
    with database.connect("tensile_reader") as reader, database.connect("tensile_worker") as worker:
        for other_user in (alice, bob):
            job = enqueue(
                other_user,
                f"of_{other_user.info.user}",
                relation_oid=relation.oid,
                relation_schema=relation.schema,
                relation_name=relation.name,
                spec={"relation": {"oid": relation.oid, "schema": relation.schema, "name": relation.name}},
            )
            assert snapshots.find_snapshot(worker, job) is None
            owner = other_user.execute("select current_user::regrole::oid::int8").fetchone()
            assert owner is not None
            with pytest.raises(PrivilegeError, match=f"role {other_user.info.user} may not read table"):
                prepare(reader, spec, owner_oid=owner[0])


def test_functions_of_the_relations_owner_do_not_run_as_another_role(alice: Connection) -> None:
    alice.execute(TRAPPED_TABLE)
    with alice.transaction():
        job = _odd_job(alice)
        snapshot_columns = make(
            alice, job, ["a; drop table trapped", "mood", "n", "g", "point", "no such", "x) as select 1; --"]
        )
        table = f"tensile_data.job_{job}"
        assert snapshot_columns == [
            (table, 'id " 1', True),
            (table, "a; drop table trapped", False),
            (table, "mood", True),
            (table, "n", False),
            (table, "g", False),
        ]
        alice.execute(f'insert into {table} select ("id "" 1")::text, "a; drop table trapped", mood, n, g from {ODD}')
        calls = alice.execute("select fired_by, count(*) from trapped group by 1").fetchall()
        assert seal(alice, job)[0] == 2
    assert [name for name, _ in calls] in (["alice"], [])
    assert alice.execute("select distinct fired_by from trapped where fired_by <> 'alice'").fetchall() == []
    # The owner can drop all objects of the relation.
    alice.execute(
        f"drop table {ODD}; drop type mood; drop type pair; drop domain amount; drop function trap, trap_text, spring"
    )
    types = alice.execute(
        "select attname::text, format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
        (table,),
    ).fetchall()
    assert types == [
        ('id " 1', "text"),
        ("a; drop table trapped", "double precision"),
        ("mood", "text"),
        ("n", "integer"),
        ("g", "integer"),
    ]
    assert alice.execute("select key from tensile.snapshots").fetchone() == (['id " 1'],)


def _odd_job(connection: Connection) -> int:
    row = connection.execute("select %s::regclass::oid::int8", (ODD,)).fetchone()
    assert row is not None
    name = 'odd " name'
    spec = specification("m") | {"relation": {"oid": row[0], "schema": "public", "name": name}}
    return enqueue(connection, "m", relation_oid=row[0], relation_name=name, spec=spec)


def test_search_path_of_the_caller_does_not_affect_security_definer_functions(
    alice: Connection, database: Database
) -> None:
    with database.connect() as postgres:
        name = sql.Identifier(database.name)
        postgres.execute(sql.SQL("grant create on database {} to alice").format(name))
    alice.execute(
        """create schema own;
           create table own.fired (by_whom name);
           grant all on own.fired to public; grant usage on schema own to public;
           create function own.spy() returns boolean language plpgsql as
             $$ begin insert into own.fired values (current_user); return true; end $$;
           create function own.format(text, text) returns text language sql as
             $$ select case when own.spy() then 'x' end $$;
           create function own.same(bigint, bigint) returns boolean language sql as $$ select own.spy() $$;
           create function own.pg_current_xact_id() returns xid8 language sql as
             $$ select case when own.spy() then '1'::xid8 end $$;
           create operator own.= (leftarg = bigint, rightarg = bigint, function = own.same);
           create table own.pg_class (oid oid); create type own.text as enum ('a')"""
    )
    with alice.transaction():
        job = job_on(alice, "t")
        alice.execute("set local search_path = own, pg_catalog, public")
        ((table, _, _), *_) = make(alice, job, ["x", "y"])
        alice.execute(f"insert into {table} (x) values (1.0)")
        seal(alice, job)
    assert alice.execute("select by_whom from own.fired").fetchall() == []


def test_rolled_back_job_leaves_no_snapshot(alice: Connection, database: Database) -> None:
    with alice.transaction(force_rollback=True):
        job = job_on(alice, "t")
        make(alice, job, ["x"])
        seal(alice, job)
    with database.connect() as postgres:
        assert postgres.execute("select count(*) from tensile.snapshots").fetchone() == (0,)
        assert _tables(postgres) == []


def test_forged_specification_gives_no_right_to_the_relation(alice: Connection, bob: Connection) -> None:
    with bob.transaction():
        job = job_on(bob, "t", "forged")  # bob may not read t
        ((table, _, _), *_) = make(bob, job, ["x", "y"])
        with refused("42501"), bob.transaction():
            bob.execute(f"insert into {table} (id, x, y) select id, x, y from t")
        assert seal(bob, job)[0] == 0


@pytest.mark.parametrize("role", ["tensile_worker", "admin"])
def test_only_snapshots_of_ended_jobs_are_dropped(alice: Connection, database: Database, role: str) -> None:
    first, second, third = (sealed_snapshot(alice, model) for model in ("a", "b", "c"))
    with database.connect() as postgres, database.connect(role) as session:
        drop = "select tensile.drop_snapshots(%s)"
        assert session.execute(drop, (10,)).fetchone() == (0,)
        alice.execute("select tensile_cancel(%s), tensile_cancel(%s)", (first, second))
        assert session.execute(drop, (1,)).fetchone() == (1,)
        assert session.execute(drop, (10,)).fetchone() == (1,)
        assert _tables(postgres) == [f"job_{third}"]
        assert postgres.execute("select job_id from tensile.snapshots").fetchall() == [(third,)]
        postgres.execute("delete from tensile.jobs where job_id = %s", (third,))
        assert session.execute(drop, (10,)).fetchone() == (1,)
        assert _tables(postgres) == []


def test_locked_snapshot_is_skipped_and_the_others_are_dropped(alice: Connection, database: Database) -> None:
    jobs = [sealed_snapshot(alice, model) for model in ("a", "b")]
    alice.execute("select tensile_cancel(%s), tensile_cancel(%s)", jobs)
    with database.connect() as postgres, database.connect("tensile_worker") as worker:
        with postgres.transaction():
            postgres.execute(f"lock table tensile_data.job_{jobs[0]} in access share mode")
            assert worker.execute("select tensile.drop_snapshots(10)").fetchone() == (1,)
        assert _tables(postgres) == [f"job_{jobs[0]}"]
        assert worker.execute("select tensile.drop_snapshots(10)").fetchone() == (1,)


def test_leftover_snapshots_of_a_restored_copy_are_dropped_and_other_tables_kept(database: Database) -> None:
    with database.connect() as postgres, database.connect("tensile_worker") as worker:
        for table in ("job_77", "predictions_1"):
            postgres.execute(
                f"create table tensile_data.{table} (a int); alter table tensile_data.{table} owner to tensile_data"
            )
        assert worker.execute("select tensile.drop_snapshots(10)").fetchone() == (1,)
        assert _tables(postgres) == ["predictions_1"]


def test_leftover_table_does_not_prevent_a_new_snapshot(alice: Connection, database: Database) -> None:
    with database.connect() as postgres:
        row = postgres.execute("select last_value + 1 from tensile.jobs_job_id_seq").fetchone()
        assert row is not None
        for number in range(3):
            name = sql.Identifier("tensile_data", f"job_{row[0] + number - 1}")
            postgres.execute(
                sql.SQL("create table {n} (a int); alter table {n} owner to tensile_data").format(n=name)
            )
    job = sealed_snapshot(alice)
    assert alice.execute("select rows from tensile.snapshots where job_id = %s", (job,)).fetchone() == (20,)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("snapshot_max_bytes", "the snapshot of .public.t. has [0-9]+ bytes, the most for one are 10000"),
        ("role_snapshots_max_bytes", "your snapshots have [0-9]+ bytes, the most for one role are 10000"),
        ("all_snapshots_max_bytes", "all snapshots have [0-9]+ bytes, the most for all together are 10000"),
    ],
)
def test_snapshot_beyond_a_limit_is_refused_and_leaves_nothing(
    alice: Connection, bob: Connection, database: Database, setting: str, message: str
) -> None:
    with database.connect("admin") as admin:
        admin.execute("select tensile_set_setting(%s, %s)", (setting, Jsonb(10_000)))
        first = sealed_snapshot(alice, "first")  # 8192 bytes
        if setting == "snapshot_max_bytes":
            alice.execute("insert into t select i, i, i from generate_series(21, 2000) as i")
        with refused("54000", message):
            sealed_snapshot(alice, "second")
        alice.execute("grant select on t to bob")
        if setting == "role_snapshots_max_bytes":
            sealed_snapshot(bob, "bobs")
        elif setting == "all_snapshots_max_bytes":
            with refused("54000", message):
                sealed_snapshot(bob, "bobs")
        assert admin.execute("select job_id from tensile.snapshots where table_name = %s", (f"job_{first}",)).rowcount
        admin.execute("select tensile_set_setting(%s, %s)", (setting, Jsonb(10_000_000)))
        sealed_snapshot(alice, "second")


def _tables(connection: Connection) -> list[str]:
    return [
        row[0]
        for row in connection.execute(
            "select relname::text from pg_class where relnamespace = 'tensile_data'::regnamespace and relkind = 'r'"
            " order by 1"
        )
    ]
