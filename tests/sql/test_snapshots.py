"""Check that a training of a relation which trainers cannot read uses a snapshot, with the same rows in each part."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog import snapshots
from indb_tensile.job import JobId, JobSpec, SnapshotTable
from indb_tensile.learning.training.preparation import prepare
from tests.conftest import Database

from .conftest import Connection, Refused, Serve, refused, value
from .fakes import result

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

# Enough rows for every part of the split, and one column of each kind.
ROWS = """
select i as id, (i * 37 % 101)::float8 / 7 as x, (i % 9)::numeric(6, 2) as exact, 'w' || i % 4 as word,
       i % 5 = 0 as flag, date '2024-01-01' + i as day, array[i, i * 2]::real[] as pair, i % 3 as y
  from generate_series(1, 200) as i"""


@pytest.fixture
def owner(database: Database) -> Iterator[Connection]:
    """Alice, who has table `t` with a primary key and its copy `loose` without one. Trainers may read both."""
    with database.connect("alice") as connection:
        connection.execute(
            f"""create table t as {ROWS}; alter table t add primary key (id);
                create table loose as {ROWS};
                grant select on t, loose to tensile_reader""".encode()
        )
        yield connection


def train(connection: Connection, relation: str, arguments: str = "") -> JobId:
    call = f"select tensile_train('m_{connection.info.user}', '{relation}', target => 'y'{arguments})"
    return JobId(value(connection, call))


def find_snapshot(database: Database, job: JobId) -> SnapshotTable | None:
    with database.connect("tensile_worker") as worker:
        return snapshots.find_snapshot(worker, job)


def prepared(database: Database, job: JobId) -> dict[str, Any]:
    """Return everything that a trainer of this job starts with, as comparable values."""
    with database.connect() as postgres, database.connect("tensile_reader") as reader:
        spec = msgspec.convert(value(postgres, "select spec from tensile.jobs where job_id = %s", job), JobSpec)
        data = prepare(reader, spec, snapshot=find_snapshot(database, job))
    parts = {"train": data.train, "valid": data.valid, "test": data.test}
    assert all(part.rows for part in parts.values())
    return {
        **{name: (part.x.numpy().tobytes(), part.y.numpy().tobytes(), part.x.shape) for name, part in parts.items()},
        "preprocessor": data.preprocessor.to_json(),
        "weights": {name: tensor.numpy().tobytes() for name, tensor in data.module.state_dict().items()},
        "digest": data.data_digest,
    }


SAME_AS_LOOSE = {
    "a view": "create view s as select * from loose",
    "a materialized view": "create materialized view s as select * from loose",
    "a view of two tables": "create view s as select t.* from t join loose using (id)",
    "a view that renames the key": """create view v as select id as number, x, exact, word, flag, day, pair, y from t;
        create view s as select number as id, x, exact, word, flag, day, pair, y from v""",
    "a view that converts the key": """create view s as
        select id::text::int8 as id, x, exact, word, flag, day, pair, y from t;
        drop table loose; create table loose as select * from s; grant select on loose to tensile_reader""",
    "a temporary table": f"create temporary table s as {ROWS}",
}
SAME_AS_T = {
    "a view": "create view s as select * from t",
    "a view of a view": """create view v as select * from t where id > 0;
        create materialized view s as select * from v""",
    "a temporary table with a key": "create temporary table s (like t including all); insert into s select * from t",
    "rows behind a policy": """create table s (like t including all);
        insert into s select * from t; insert into s (id, y) values (201, 1);
        alter table s enable row level security; alter table s force row level security;
        create policy p on s using (id <= 200)""",
    "a table with a generated column": """create table s (id int primary key, x float8,
            exact numeric(6, 2) generated always as ((id % 9)::numeric(6, 2)) stored,
            word text, flag boolean, day date, pair real[], y int);
        insert into s (id, x, word, flag, day, pair, y) select id, x, word, flag, day, pair, y from t""",
    "a partition of a protected table": """create table p (like t) partition by range (id);
        create table s partition of p for values from (0) to (1000); alter table s add primary key (id);
        insert into p select * from t; alter table p enable row level security""",
    "a key of a domain": """create domain key as int check (value > 0);
        create table s (like t); alter table s alter id type key; alter table s add primary key (id);
        insert into s select * from t""",
}


@pytest.mark.by_day("a view that converts the key", "a temporary table")
@pytest.mark.parametrize("name", SAME_AS_LOOSE)
def test_relation_without_a_key_trains_like_a_table_without_a_key(
    owner: Connection, database: Database, name: str
) -> None:
    owner.execute(SAME_AS_LOOSE[name].encode())
    job_with_snapshot, job_without_snapshot = train(owner, "s"), train(owner, "loose")

    snapshot = find_snapshot(database, job_with_snapshot)
    assert snapshot is not None
    assert (snapshot.key, snapshot.rows, set(snapshot.columns)) == (
        (),
        200,
        {"id", "x", "exact", "word", "flag", "day", "pair", "y"},
    )
    assert find_snapshot(database, job_without_snapshot) is None
    assert prepared(database, job_with_snapshot) == prepared(database, job_without_snapshot)


@pytest.mark.by_day("a view of a view", "rows behind a policy", "a key of a domain")
@pytest.mark.parametrize("name", SAME_AS_T)
def test_relation_with_a_key_keeps_each_row_in_its_part(owner: Connection, database: Database, name: str) -> None:
    owner.execute(SAME_AS_T[name].encode())
    job_with_snapshot, job_without_snapshot = train(owner, "s", ", snapshot => true"), train(owner, "t")

    snapshot = find_snapshot(database, job_with_snapshot)
    assert snapshot is not None
    assert snapshot.key == ("id",)
    assert prepared(database, job_with_snapshot) == prepared(database, job_without_snapshot)


def test_partitioned_table_with_a_policy_is_read_with_the_callers_rights(
    owner: Connection, database: Database
) -> None:
    owner.execute(
        """create table s (like t, primary key (id, y)) partition by list (y);
           create table s0 partition of s for values in (0); create table s1 partition of s for values in (1, 2);
           insert into s select * from t; alter table s1 enable row level security;
           create table plain as select * from s; alter table plain add primary key (id, y);
           grant select on plain to tensile_reader"""
    )

    job_with_snapshot, job_without_snapshot = (
        train(owner, "s", ", features => array['x']"),
        train(owner, "plain", ", features => array['x']"),
    )

    snapshot = find_snapshot(database, job_with_snapshot)
    assert snapshot is not None
    assert (snapshot.key, set(snapshot.columns)) == (("id", "y"), {"id", "x", "y"})
    assert prepared(database, job_with_snapshot) == prepared(database, job_without_snapshot)


@pytest.mark.own_database
def test_foreign_table_is_read_by_the_callers_session(
    owner: Connection, admin: Connection, database: Database
) -> None:
    if not value(admin, "select count(*) from pg_available_extensions where name = 'file_fdw'"):
        pytest.skip("the server has no extension file_fdw")
    path = Path("/tmp") / f"tensile-{database.name}-{value(admin, 'select pg_backend_pid()')}.csv"
    try:
        admin.execute(
            f"""copy loose to '{path}' (format csv);
                create extension file_fdw; create server files foreign data wrapper file_fdw;
                create foreign table s (id int, x float8, exact numeric(6, 2), word text, flag boolean, day date,
                    pair real[], y int) server files options (filename '{path}', format 'csv');
                grant select on s to alice""".encode()
        )
        job_with_snapshot, job_without_snapshot = train(owner, "s"), train(owner, "loose")
        assert prepared(database, job_with_snapshot) == prepared(database, job_without_snapshot)
    finally:
        path.unlink(missing_ok=True)


def test_key_of_a_type_that_trainers_cannot_read_is_stored_as_text(owner: Connection, database: Database) -> None:
    owner.execute(
        """create type pair_of as (a int, b text);
           create table s as select row(id, 'k')::pair_of as k, x, y from t;
           alter table s add primary key (k);
           create table plain as select k::text as k, x, y from s; alter table plain add primary key (k);
           grant select on s, plain to tensile_reader"""
    )

    job_with_snapshot, job_without_snapshot = train(owner, "s"), train(owner, "plain")

    snapshot = find_snapshot(database, job_with_snapshot)
    assert snapshot is not None
    assert snapshot.key == ("k",)
    assert prepared(database, job_with_snapshot) == prepared(database, job_without_snapshot)


def test_ordinary_table_gets_a_snapshot_on_request_and_can_be_dropped(owner: Connection, database: Database) -> None:
    direct = prepared(database, train(owner, "t"))
    owner.execute("revoke select on t from tensile_reader")  # only the caller can read the table
    notices: list[str] = []
    owner.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))

    job = train(owner, "t", ", snapshot => true")
    owner.execute("drop table t")

    assert prepared(database, job) == direct
    assert re.fullmatch(
        r'table "public\.t" is trained on as it is now: '
        "a snapshot of 200 rows, [0-9]+ bytes, was written in [0-9.]+ s",
        notices[-1],
    )


def test_enums_and_domains_can_be_dropped_while_a_job_waits(owner: Connection, database: Database) -> None:
    owner.execute(
        """create type mood as enum ('w0', 'w1', 'w2', 'w3'); create domain amount as numeric(6, 2);
           create view s as select id, x, exact::amount, word::mood, flag, day, pair, y from loose"""
    )
    job = train(owner, "s")
    owner.execute("drop view s; drop type mood; drop domain amount")

    with_types, job_without_snapshot = prepared(database, job), prepared(database, train(owner, "loose"))

    assert with_types == job_without_snapshot


def test_open_transaction_with_a_snapshot_delays_no_other_snapshot(owner: Connection, bob: Connection) -> None:
    owner.execute(
        """create table long as
             select i as id, repeat(md5(i::text), 1 + (i * 7919) % 60) as word, i % 3 as y
               from generate_series(1, 2000) as i;
           create view s as select * from long order by id desc; grant select on s to bob"""
    )
    bob.execute("set lock_timeout = '60s'")
    with owner.transaction():
        train(owner, "s")
        assert train(bob, "s") > 0


@pytest.mark.by_day("300")
@pytest.mark.parametrize("rows", [300, 5000])
def test_rows_of_any_length_keep_the_order_of_the_query(owner: Connection, database: Database, rows: int) -> None:
    owner.execute(
        f"""create table long as
              select i as id, repeat(md5(i::text), 1 + (i * 7919) % 60) as place, i % 3 as y
                from generate_series(1, {rows}) as i;
            create view s as select * from long; create view reversed as select * from long order by id desc;
            grant select on long to tensile_reader""".encode()
    )

    jobs = [train(owner, relation) for relation in ("s", "reversed")]

    with database.connect() as postgres:
        for job, expected in zip(jobs, ("id", "id desc"), strict=True):
            stored = postgres.execute(f"select id from tensile_data.job_{job}".encode()).fetchall()
            assert stored == owner.execute(f"select id from long order by {expected}".encode()).fetchall()
    assert prepared(database, jobs[0]) == prepared(database, train(owner, "long"))


def test_snapshot_contains_only_used_columns(owner: Connection, database: Database) -> None:
    owner.execute("create view s as select t.*, point(1, 2) as place, repeat('x', 10000) as large from t")

    job = train(owner, "s", ", exclude => array['place', 'large', 'id']")

    snapshot = find_snapshot(database, job)
    assert snapshot is not None
    assert set(snapshot.columns) == {"id", "x", "exact", "word", "flag", "day", "pair", "y"}  # id is the key
    assert prepared(database, job)["train"][2][0] > 0


def test_one_idempotency_key_makes_one_snapshot(owner: Connection) -> None:
    owner.execute("create view s as select * from t")

    first_job = train(owner, "s", ", idempotency_key => 'k'")
    second_job = train(owner, "s", ", idempotency_key => 'k'")

    assert first_job == second_job
    assert value(owner, "select array_agg(job_id) from tensile.snapshots") == [first_job]


def test_snapshot_contains_only_rows_that_the_caller_sees(
    owner: Connection, bob: Connection, database: Database
) -> None:
    owner.execute(
        """alter table t enable row level security; create policy half on t to bob using (id <= 100);
           grant select on t to bob"""
    )

    job = train(bob, "t")

    snapshot = find_snapshot(database, job)
    assert snapshot is not None
    assert snapshot.rows == 100


def test_functions_of_a_view_run_under_the_callers_search_path_and_ours_do_not(
    owner: Connection, bob: Connection, admin: Connection, database: Database, serve: Serve
) -> None:
    serve(lambda _: result({"rows": []}))
    admin.execute("do $$ begin execute format('grant create on database %I to alice', current_database()); end $$")
    owner.execute(
        """create schema own; grant usage on schema own to public;
           create table own.factors (factor float8); insert into own.factors values (1);
           grant select on own.factors to public;
           create function own.scaled(value float8) returns float8 language plpgsql stable as
             $$ begin return value * (select factor from factors); end $$;
           create view own.s as select id, own.scaled(x) as x, exact, word, flag, day, pair, y from public.loose;
           grant select on own.s, loose to public;
           -- Each of these functions would run as bob if a name in our statements were resolved on bob's path.
           create table own.fired (what text, by_whom name); grant insert on own.fired to public;
           create function own.fire(what text) returns void language sql volatile as
             $$ insert into own.fired values (what, current_user) $$;
           create function own.same(float8, float8) returns boolean language plpgsql as
             $$ begin perform own.fire('='); return true; end $$;
           create operator own.= (leftarg = float8, rightarg = float8, function = own.same);
           create function own.state(bigint, anyelement) returns bigint language plpgsql as
             $$ begin perform own.fire('count'); return 0; end $$;
           create aggregate own.count(anyelement) (sfunc = own.state, stype = bigint, initcond = 0);
           create function own.set_config(text, text, boolean) returns text language plpgsql as
             $$ begin perform own.fire('set_config'); return ''; end $$;
           create function own.current_setting(text) returns text language plpgsql as
             $$ begin perform own.fire('current_setting'); return 'own'; end $$;
           create function own.training_request() returns int language sql return 1"""
    )
    with pytest.raises(Exception, match='relation "factors" does not exist'):
        train(bob, "own.s")
    assert value(bob, "show search_path") == '"$user", public'

    bob.execute("set search_path = own, pg_catalog, public")
    job = train(bob, "own.s")
    for target in ("x", "y"):
        bob.execute("select * from tensile_explain('other', 's', target => %s)", (target,))

    assert value(bob, "show search_path") == "own, pg_catalog, public"
    assert value(owner, "select count(*) from own.fired") == 0
    assert prepared(database, job) == prepared(database, train(owner, "loose"))


def test_explain_of_a_view_makes_no_snapshot(owner: Connection, serve: Serve) -> None:
    service = serve(lambda _: result({"rows": []}))
    owner.execute("create view s as select * from t")

    assert owner.execute("select * from tensile_explain('m', 's', target => 'y')").fetchall() == []
    assert [request["rows"] for request in service.requests] == [200]
    assert value(owner, "select count(*) from tensile.snapshots") == 0


def test_read_only_transaction_is_refused(owner: Connection) -> None:
    owner.execute("create view s as select * from t")
    for relation in ("s", "t"):
        with owner.transaction():
            owner.execute("set transaction read only")
            assert refused(owner, f"select tensile_train('m', '{relation}', target => 'y')") == Refused(
                "25006",
                "a job cannot be enqueued in a read-only transaction",
                None,
                "Run: begin read write; or, for the whole session: set default_transaction_read_only = off;",
            )
            owner.execute("rollback")
            owner.execute("begin")


def test_too_large_snapshot_is_refused_with_its_size_and_leaves_nothing(
    owner: Connection, database: Database
) -> None:
    owner.execute(
        """create view s as select * from t;
           create temporary table kept as select t.* from t, generate_series(1, 10); analyze kept"""
    )
    with database.connect("admin") as admin:
        admin.execute("select tensile_set_setting('snapshot_max_bytes', '9000')")

    measured = refused(owner, "select tensile_train('m', 's', target => 'y')")
    assert (measured.sqlstate, measured.hint) == (
        "54000",
        "Use fewer rows or columns, or ask an administrator: select tensile_set_setting('snapshot_max_bytes', ...);",
    )
    assert re.fullmatch('the snapshot of "public.s" has [0-9]+ bytes, the most for one are 9000', measured.message), (
        measured.message
    )
    assert measured.detail is not None
    assert measured.detail.startswith("The snapshot of 200 rows has ")

    estimated = refused(owner, "select tensile_train('m', 'kept', target => 'y')")
    assert estimated.sqlstate == "54000"
    assert re.search(r'kept" would have about [0-9]+ bytes, the most for one are 9000', estimated.message)
    assert value(owner, "select count(*) from tensile.jobs") == 0
    assert value(owner, "select count(*) from tensile.snapshots") == 0


@pytest.mark.parametrize("setting", ["snapshot_max_bytes", "role_snapshots_max_bytes", "all_snapshots_max_bytes"])
@pytest.mark.shares_database
@pytest.mark.parametrize("invalid", ["many", -1, 1.5, None, True])
def test_snapshot_limit_must_be_a_number_of_bytes(database: Database, setting: str, invalid: Any) -> None:
    with database.connect("admin") as admin:
        error = refused(admin, "select tensile_set_setting(%s, %s)", setting, Jsonb(invalid))
    assert (error.sqlstate, error.hint) == (
        "22023",
        f"Give a number of bytes from 1: select tensile_set_setting('{setting}', '8589934592');",
    )


def test_snapshot_that_lost_its_rows_in_a_restore_is_not_trained_on(
    owner: Connection, admin: Connection, database: Database
) -> None:
    owner.execute("create view s as select * from t")
    job = train(owner, "s")

    admin.execute(f"truncate tensile_data.job_{job}".encode())
    with pytest.raises(Exception, match="the job's snapshot table has 0 rows, and had 200 when the job was enqueued"):
        prepared(database, job)
    admin.execute(f"drop table tensile_data.job_{job}".encode())
    with pytest.raises(Exception, match=f"the snapshot of job {job} is gone"):
        prepared(database, job)


def test_snapshot_keeps_the_types_that_models_learn_from(admin: Connection) -> None:
    from indb_tensile.request.column_types import KIND_OF_TYPE

    body = value(admin, "select prosrc from pg_proc where proname = 'snapshot_columns'")
    listed = body.partition("t.typname in (")[2].partition(")")[0]

    assert set(re.findall(r"'(\w+)'", listed)) | {"_enum", "vector", "halfvec"} == set(KIND_OF_TYPE)
