"""Check that no function of a table's owner runs while a trainer reads the table.

In each case an ordinary user hides a function somewhere in a table. The control runs the query with which version
0.1.0 read tables, as `tensile_worker`, and shows that the function runs then. Then `learning.relation_reader.read`
reads the table as `tensile_reader`: the function must not run, or the relation must be refused.
"""

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog.reader_connection import open_reader
from indb_tensile.job import Relation
from indb_tensile.learning.relation.locked_relation import UnreadableError
from indb_tensile.learning.relation.relation_reader import read
from indb_tensile.learning.storage.columns import TableData
from indb_tensile.request import copyable_relation
from tests.conftest import Database

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]

# The hidden function records the role that runs it and what the role can read, and sets the session's search_path to
# functions of its owner.
_SETUP = """
create schema role_a authorization alice;
grant usage on schema role_a to tensile_worker, tensile_reader;
create table public.loot (who text, secret text);
grant insert on public.loot to public;
create table public.secrets as select 'of bob' as secret;
grant select on public.secrets to bob, tensile_worker, tensile_reader;
set role alice;
create function role_a.steal() returns void language plpgsql volatile as $$
declare
  found text := 'nothing';
begin
  begin
    select s.secret into found from public.secrets as s;
  exception when insufficient_privilege then null;
  end;
  insert into public.loot values (current_user, found);
  perform pg_catalog.set_config('search_path', 'role_a, pg_catalog', false);
end $$;
create function role_a.f(x int) returns int language plpgsql immutable as
  $$ begin perform role_a.steal(); return x; end $$;
create type role_a.mood as enum ('sad', 'glad');
create function role_a.mood_text(x role_a.mood) returns text language plpgsql immutable as
  $$ begin perform role_a.f(1); return 'glad'; end $$;
create cast (role_a.mood as text) with function role_a.mood_text(role_a.mood);
create type role_a.pair as (a int, b int);
create function role_a.pair_text(x role_a.pair) returns text language plpgsql immutable as
  $$ begin perform role_a.f(1); return x.a; end $$;
create cast (role_a.pair as text) with function role_a.pair_text(role_a.pair);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How alice creates `role_a.t`, the columns to read, and the reason with which reading is refused, if it is.

    `control` is the query of version 0.1.0. It is empty if the function does not run with that query either.
    """

    create_statement: str
    control: str = "select a from role_a.t"
    columns: tuple[str, ...] = ("a",)
    refused: str = ""


_CASES = {
    # When PostgreSQL plans a query on the table, it simplifies these expressions and calls functions of constants.
    "index expression": Case(
        create_statement="create table role_a.t (a int); create index on role_a.t ((a + role_a.f(1)))"
    ),
    "index predicate": Case(
        create_statement="create table role_a.t (a int); create index on role_a.t (a) where role_a.f(1) = 1"
    ),
    "statistics": Case(
        create_statement="""create table role_a.t (a int);
                            create statistics role_a.s on (a + role_a.f(1)) from role_a.t"""
    ),
    "partition key": Case(
        create_statement="""create table role_a.t (a int) partition by range ((a + role_a.f(1)));
                   create table role_a.t1 partition of role_a.t default"""
    ),
    "index of a partition": Case(
        create_statement="""create table role_a.t (a int) partition by range (a);
                   create table role_a.t1 partition of role_a.t default;
                   create index on role_a.t1 ((a + role_a.f(1)))"""
    ),
    "cast of an enum": Case(
        create_statement="create table role_a.t (a int, m role_a.mood default 'sad')",
        control="select m::text from role_a.t",
        columns=("a", "m"),
    ),
    "cast of an enum that is the key": Case(
        create_statement="create table role_a.t (a int, m role_a.mood default 'sad' primary key)",
        control="select a, m::text from role_a.t",
    ),
    "cast of a composite key": Case(
        create_statement="create table role_a.t (a int, k role_a.pair default row(1, 1) primary key)",
        control="select a, k::text from role_a.t",
        refused=copyable_relation.KEY_TYPE,
    ),
    "policy": Case(
        create_statement="""create table role_a.t (a int); alter table role_a.t enable row level security;
                   create policy p on role_a.t using (role_a.f(a) = a)""",
        refused=copyable_relation.ROW_SECURITY,
    ),
    "view": Case(
        create_statement="create table role_a.u (a int); insert into role_a.u values (7);"
        "create view role_a.t as select role_a.f(a) as a from role_a.u",
        refused=copyable_relation.VIEW,
    ),
    "materialized view": Case(
        create_statement="""create materialized view role_a.t as select 7 as a;
                   create index on role_a.t ((a + role_a.f(1)))""",
        refused=copyable_relation.MATERIALIZED_VIEW,
    ),
    "generated column": Case(
        create_statement="create table role_a.t (a int, g int generated always as (role_a.f(a)) stored)",
        control="",
        columns=("a", "g"),
        refused=copyable_relation.GENERATED,
    ),
    "generated column that is not used": Case(
        create_statement="create table role_a.t (a int, g int generated always as (role_a.f(a)) stored)", control=""
    ),
    "default": Case(
        create_statement="create table role_a.t (a int, d int default role_a.f(1))", control="", columns=("a", "d")
    ),
    "constraint": Case(
        create_statement="create table role_a.t (a int check (role_a.f(1) = 1) check (role_a.f(a) = a))", control=""
    ),
}


@pytest.fixture
def case(request: pytest.FixtureRequest, database: Database) -> Case:
    """A table of alice with one row, which both roles may read. Calls recorded during the set-up are deleted."""
    definition = _CASES[request.param]
    with database.connect() as admin:
        admin.execute(_SETUP)
        admin.execute(definition.create_statement.encode())
        if definition.refused not in {copyable_relation.VIEW, copyable_relation.MATERIALIZED_VIEW}:
            admin.execute("insert into role_a.t (a) values (7)")
        admin.execute("grant select on all tables in schema role_a to tensile_worker, tensile_reader")
        admin.execute("reset role; reset search_path; truncate loot")
    return definition


def recorded_calls(database: Database) -> list[Any]:
    """Return the roles that ran the function, and what the function could read."""
    with database.connect() as admin:
        return admin.execute("select distinct who, secret from loot").fetchall()


def read_as_reader(database: Database, columns: tuple[str, ...]) -> tuple[TableData, str]:
    """Read the table like a trainer; return the data, and the session's search_path afterwards."""
    with database.connect() as admin:
        row = admin.execute("select 'role_a.t'::regclass::oid").fetchone()
        assert row is not None
    relation = Relation(oid=row[0], schema="role_a", name="t")
    with open_reader(database.dsn("tensile_reader"), application_name="test") as connection:
        table = read(connection, relation, lambda _: columns)
        shown = connection.execute("show search_path").fetchone()
    assert shown is not None
    return table, shown[0]


@pytest.mark.parametrize("case", [name for name, each in _CASES.items() if each.control], indirect=True)
def test_function_runs_with_the_query_of_version_0_1_0(case: Case, database: Database) -> None:
    with database.connect("tensile_worker") as worker:
        with worker.cursor().copy(f"copy ({case.control}) to stdout (format binary)".encode()) as copy:
            for _ in copy:
                pass
        assert worker.execute("show search_path").fetchone() == ("role_a, pg_catalog",)
    assert recorded_calls(database) == [("tensile_worker", "of bob")]


@pytest.mark.parametrize("case", _CASES, indirect=True)
def test_function_does_not_run_when_a_trainer_reads(case: Case, database: Database) -> None:
    if case.refused:
        with pytest.raises(UnreadableError) as caught:
            read_as_reader(database, case.columns)
        assert case.refused in {reason.code for reason in caught.value.reasons}
    else:
        table, search_path = read_as_reader(database, case.columns)
        assert table.columns["a"].values.tolist() == [7]
        assert search_path == "pg_catalog, pg_temp"
    assert recorded_calls(database) == []


def test_role_of_the_reader_has_no_right_in_the_catalog_and_no_membership(database: Database) -> None:
    """Like every role, it may execute the functions that begin with an error about the missing membership."""
    with database.connect() as admin:
        row = admin.execute(
            """select pg_catalog.has_schema_privilege('tensile_reader', 'tensile', 'usage'),
                      exists (select from pg_auth_members where member = 'tensile_reader'::regrole),
                      (select array_agg(c.relname::text) from pg_class as c
                        where c.relnamespace = 'tensile'::regnamespace and c.relkind in ('r', 'v')
                          and has_any_column_privilege('tensile_reader', c.oid, 'select, insert, update')),
                      (select array_agg(p.proname::text order by p.proname) from pg_proc as p
                        where p.pronamespace = 'public'::regnamespace and p.proname like 'tensile%'
                          and not has_function_privilege('tensile_reader', p.oid, 'execute')),
                      (select rolsuper or rolcreaterole or rolcreatedb or rolbypassrls or rolreplication
                         from pg_roles where rolname = 'tensile_reader'),
                      (select rolpassword from pg_authid where rolname = 'tensile_reader')"""
        ).fetchone()
    batches = ["tensile_predict_batch", "tensile_predict_batch_label", "tensile_predict_batch_proba"]
    batches += ["tensile_predict_batch_values"]
    assert row == (False, False, None, batches, False, None)
