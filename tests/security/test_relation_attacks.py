"""Check that a training on a query or a view gives no role rights, rows or disk space that the role does not have."""

from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from indb_tensile.catalog import snapshots
from indb_tensile.errors import MissingError
from indb_tensile.job import JobId, JobSpec, Relation, Task
from indb_tensile.learning.training.preparation import prepare
from tests.catalog.enqueue import enqueue, specification
from tests.conftest import Database
from tests.security.test_snapshots import job_on, refused, seal

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

Connection = psycopg.Connection[Any]
QUERY = "select i as x, i % 3 as y from generate_series(1, 300) as i"
OF_QUERY = {"relation": {"oid": 0, "schema": "", "name": "query"}}


@pytest.fixture
def alice(database: Database) -> Iterator[Connection]:
    with database.connect("alice") as connection:
        connection.execute("create table t (id bigint primary key, x float8, y float8)")
        connection.execute("insert into t select i, i, i % 3 from generate_series(1, 300) as i")
        yield connection


@pytest.fixture
def bob(database: Database) -> Iterator[Connection]:
    with database.connect("bob") as connection:
        yield connection


def train_query(connection: Connection, query: str, model: str = "m") -> JobId:
    row = connection.execute("select tensile_train_query(%s, %s, target => 'y')", (model, query)).fetchone()
    assert row is not None
    return JobId(row[0])


def job_on_query(connection: Connection) -> int:
    """Insert a job on a query, like tensile_train_query does."""
    return enqueue(
        connection,
        "m",
        relation_oid=0,
        relation_schema="",
        relation_name="query",
        spec=specification("m") | OF_QUERY,
    )


def make_of_query(connection: Connection, job: int, *columns: tuple[Any, Any, Any]) -> list[tuple[Any, ...]]:
    """Call make_snapshot with the name, the type's name and the modifier of each column."""
    names, types, modifiers = ([column[place] for column in columns] for place in range(3))
    return connection.execute(
        "select * from tensile.make_snapshot(%s, %s, %s::text[]::regtype[]::oid[], %s)",
        (job, names, types, modifiers),
    ).fetchall()


def left_over(database: Database) -> tuple[int, int, int]:
    """Return the numbers of jobs, of snapshots and of snapshot tables."""
    with database.connect() as postgres:
        row = postgres.execute(
            """select (select count(*) from tensile.jobs), (select count(*) from tensile.snapshots),
                      (select count(*) from pg_class where relnamespace = 'tensile_data'::regnamespace
                          and relkind = 'r')"""
        ).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def test_snapshot_of_a_query_is_read_and_changed_by_no_user(
    alice: Connection, bob: Connection, database: Database
) -> None:
    job = train_query(alice, QUERY)
    with database.connect("tensile_worker") as worker, database.connect("monitor") as monitor:
        for connection in (alice, bob, worker, monitor):
            for statement in (
                "select * from {table}",
                "insert into {table} (x, y) values (1, 1)",
                "update {table} set x = 1",
                "delete from {table}",
                "truncate {table}",
                "drop table {table}",
                "alter table {table} rename to job_0",
                "copy {table} to stdout",
            ):
                with refused("42501"):
                    connection.execute(statement.format(table=f"tensile_data.job_{job}"))
        assert bob.execute("select spec from tensile.jobs").fetchall() == []
    for statement in (
        "update tensile.jobs set relation_oid = 't'::regclass",
        "update tensile.jobs set spec = '{}'",
        "update tensile.snapshots set table_name = 'job_0'",
    ):
        with refused("42501"):
            alice.execute(statement)


def test_role_without_any_right_to_create_trains_on_a_query_and_on_a_view(
    alice: Connection, bob: Connection, database: Database
) -> None:
    with database.connect() as postgres:
        name = sql.Identifier(database.name)
        postgres.execute(sql.SQL("revoke temporary on database {} from public").format(name))
        postgres.execute("revoke create on schema public from public, bob")
    alice.execute("create view seen as select * from t; grant select on seen, t to bob")
    with refused("42501"):
        bob.execute("create table mine (a int)")
    with refused("42501"):
        bob.execute("create temporary table mine (a int)")

    jobs = [train_query(bob, "select * from seen"), train_query(bob, QUERY)]
    bob.execute("select tensile_train('m', 'seen', target => 'y')")

    assert bob.execute("select count(*) from tensile.snapshots where sealed").fetchone() == (3,)
    assert len(set(jobs)) == 2


def test_functions_in_a_query_and_in_a_policy_run_as_the_caller_only(
    alice: Connection, bob: Connection, database: Database
) -> None:
    alice.execute(
        """create table fired (by_whom name); grant insert on fired to public;
           create function spring(value float8) returns boolean language plpgsql volatile as $$
             begin insert into public.fired values (current_user); return true; end $$;
           alter table t enable row level security;
           create policy p on t using (spring(x)); grant select on t to bob"""
    )
    first = bob.execute("select tensile_train('m', 't', target => 'y')").fetchone()
    train_query(bob, "select x, y, spring(x) as flag from t where spring(y)", "n")

    assert alice.execute("select distinct by_whom from fired").fetchall() == [("bob",)]
    assert first is not None
    assert bob.execute("select rows from tensile.snapshots order by job_id").fetchall() == [(300,), (300,)]


def test_refused_query_undoes_its_side_effects(alice: Connection, database: Database) -> None:
    alice.execute(
        """create table fired (n bigint);
           create function spring(n float8) returns float8 language plpgsql volatile as $$
             begin insert into public.fired values (n); return 1 / (n - 300); end $$"""
    )
    with refused("22012", "division by zero"):
        train_query(alice, "select spring(x) as z, y from t")

    assert alice.execute("select count(*) from fired").fetchone() == (0,)
    assert left_over(database) == (0, 0, 0)
    assert alice.execute("select count(*) from pg_cursors where name <> ''").fetchone() == (0,)


def test_query_that_is_refused_for_its_columns_never_runs(alice: Connection) -> None:
    alice.execute(
        """create sequence calls; create function spring() returns int language plpgsql volatile as
             $$ begin return nextval('public.calls'); end $$"""
    )
    with refused("42703"):
        train_query(alice, "select spring() as x, spring() as z")
    with refused("42701"):
        train_query(alice, "select spring() as x, spring() as x, spring() as y")

    assert alice.execute("select is_called from calls").fetchone() == (False,)


def test_objects_that_users_make_from_a_snapshot_do_not_keep_it(
    alice: Connection, bob: Connection, database: Database
) -> None:
    jobs = [train_query(alice, QUERY, f"m{number}") for number in range(2)]
    with database.connect() as postgres:  # an extension of bob's, to which bob's view belongs
        extensions = "select count(*) from pg_available_extensions where name = 'tablefunc'"
        has_extension = postgres.execute(extensions).fetchone() == (1,)
        if has_extension:
            name = sql.Identifier(database.name)
            postgres.execute(sql.SQL("grant create on database {} to bob").format(name))
    bob.execute(
        f"""create view v as select * from tensile_data.job_{jobs[0]};
            create table of_its_type (a tensile_data.job_{jobs[0]}, b int);
            create function f(tensile_data.job_{jobs[0]}) returns int language sql return 1"""
    )
    if has_extension:
        bob.execute(
            f"""create schema own; create extension tablefunc schema own;
                create view kept as select * from tensile_data.job_{jobs[1]};
                alter extension tablefunc add view kept"""
        )
    alice.execute("select tensile_cancel(job_id) from tensile.jobs")
    with database.connect("tensile_worker") as worker:
        assert worker.execute("select tensile.drop_snapshots(10)").fetchone() == (2,)

    assert left_over(database) == (2, 0, 0)
    assert bob.execute("select count(*) from pg_class where relname in ('v', 'of_its_type')").fetchone() == (1,)


def test_rolled_back_query_leaves_nothing(alice: Connection, database: Database) -> None:
    with alice.transaction(force_rollback=True):
        train_query(alice, QUERY)
        assert alice.execute("select count(*) from tensile.snapshots").fetchone() == (1,)
    assert left_over(database) == (0, 0, 0)


def test_query_that_times_out_leaves_nothing(alice: Connection, database: Database) -> None:
    alice.execute("set statement_timeout = '300ms'")
    with refused("57014", "statement timeout"):
        train_query(alice, "select x, y from t, generate_series(1, 1000000000) as g where g < 0 or x < 0")
    assert left_over(database) == (0, 0, 0)


def test_view_whose_owner_lost_a_right_is_refused_and_a_snapshot_taken_before_is_kept(
    alice: Connection, bob: Connection, database: Database
) -> None:
    alice.execute("grant select on t to bob")
    bob.execute("create view through as select x, y from t; grant select on through to alice")
    before = train_query(alice, "select * from through")
    alice.execute("revoke select on t from bob")

    with refused("42501", "permission denied for table t"):
        alice.execute("select tensile_train('n', 'through', target => 'y')")
    with refused("42501", "permission denied for table t"):
        train_query(alice, "select * from through", "o")

    with database.connect("tensile_worker") as worker:
        snapshot = snapshots.find_snapshot(worker, before)
    assert snapshot is not None
    assert snapshot.rows == 300


@pytest.mark.own_database
def test_temporary_table_of_a_session_that_has_ended_is_trained_on(database: Database) -> None:
    with database.connect("alice") as session:
        session.execute(
            "create temporary table mine as select i as x, (i % 3)::float8 as y from generate_series(1, 90) as i"
        )
        row = session.execute("select tensile_train('m', 'mine', target => 'y')").fetchone()
        assert row is not None
        spec_row = session.execute("select spec from tensile.jobs where job_id = %s", (row[0],)).fetchone()
        assert spec_row is not None
    with database.connect("tensile_worker") as worker, database.connect("tensile_reader") as reader:
        snapshot = snapshots.find_snapshot(worker, JobId(row[0]))
        assert snapshot is not None
        assert prepare(reader, msgspec.convert(spec_row[0], JobSpec), snapshot=snapshot).train.rows > 0


def test_forged_job_on_a_query_without_a_snapshot_reads_nothing(alice: Connection, database: Database) -> None:
    job = job_on_query(alice)
    spec = JobSpec(
        model="m",
        relation=Relation(oid=0, schema="", name="query"),
        target="y",
        task=Task.REGRESSION,
        architecture={"type": "mlp"},
        query="select 1",
    )
    with database.connect("tensile_worker") as worker, database.connect("tensile_reader") as reader:
        assert snapshots.find_snapshot(worker, JobId(job)) is None
        with pytest.raises(MissingError, match=r"query no longer exists"):
            prepare(reader, spec, owner_oid=10)


@pytest.mark.parametrize(
    ("columns", "stored"),
    [
        ([("a", "public.amount", -1), ("b", "public.mood", -1)], [("a", "double precision"), ("b", "text")]),
        ([("a", "numeric", (6 << 16 | 2) + 4), ("b", "int4[]", -1)], [("a", "numeric(6,2)"), ("b", "integer[]")]),
        ([('x" int) ; drop table t --', "int4", -1)], [('x" int) ; drop table t --', "integer")]),
        ([("a", "varchar", 2**31 - 1), ("b", "float4", 77)], None),
        ([("a", "int4", -1), ("a", "int4", -1)], None),
        ([("a", "public.pair", -1)], None),
        ([("a", None, -1)], None),
        ([], None),
    ],
)
def test_types_that_a_caller_gives_become_base_types_or_are_refused(
    alice: Connection, database: Database, columns: list[tuple[Any, Any, Any]], stored: list[tuple[str, str]] | None
) -> None:
    alice.execute(
        """create table trapped (by_whom name); grant insert on trapped to public;
           create function trap() returns boolean language plpgsql immutable as
             $$ begin insert into public.trapped values (current_user); return true; end $$;
           create type mood as enum ('fine'); create type pair as (a int, b int);
           create domain amount as float8 default 1 check (public.trap())"""
    )
    if stored is None:
        with pytest.raises(psycopg.Error), alice.transaction():
            make_of_query(alice, job_on_query(alice), *columns)
        assert left_over(database) == (0, 0, 0)
    else:
        with alice.transaction():
            job = job_on_query(alice)
            make_of_query(alice, job, *columns)
            seal(alice, job)
        types = alice.execute(
            """select attname::text, format_type(atttypid, atttypmod) from pg_attribute
                where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum""",
            (f"tensile_data.job_{job}",),
        ).fetchall()
        assert types == stored
    assert alice.execute("select count(*) from trapped").fetchone() == (0,)
    assert alice.execute("select count(*) from t").fetchone() == (300,)


def test_columns_with_types_are_computed_ones_and_the_key_stays_that_of_the_relation(alice: Connection) -> None:
    with alice.transaction():
        job = job_on(alice, "t")
        made = make_of_query(alice, job, ("x", "text", -1), ("computed", "text", -1))
        seal(alice, job)
    assert [name for _, name, _ in made] == ["id", "x", "computed"]


@pytest.mark.parametrize("by", ["tensile_train_query", "make_snapshot"])
def test_rows_beyond_the_limit_are_refused_while_they_are_written(
    alice: Connection, database: Database, by: str
) -> None:
    endless = "select i as x, i % 3 as y from (select generate_series(1, 1000000000000) as i) as g"
    with database.connect("admin") as admin:
        admin.execute("select tensile_set_setting('snapshot_max_bytes', '100000')")
    with refused("54000", r"the snapshot of the query has [0-9]+ bytes, the most for one are 100000"):
        if by == "tensile_train_query":
            train_query(alice, endless)
        else:
            with alice.transaction():
                job = job_on_query(alice)
                make_of_query(alice, job, ("x", "int8", -1), ("y", "int8", -1))
                alice.execute(f"insert into tensile_data.job_{job} (x, y) {endless}")
    assert left_over(database) == (0, 0, 0)


def test_owner_does_not_choose_the_numbers_of_the_rows(alice: Connection) -> None:
    with alice.transaction():
        job = job_on_query(alice)
        make_of_query(alice, job, ("x", "int8", -1))
        with refused("42501"), alice.transaction():
            alice.execute(f"insert into tensile_data.job_{job} (x, place) overriding system value values (1, 1)")
        seal(alice, job)
