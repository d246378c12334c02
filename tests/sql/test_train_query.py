"""Check that a training on a query trains on the query's rows, and that a text which is not one query is refused."""

import re

import pytest

from indb_tensile.job import JobId
from tests.conftest import Database

from .conftest import Connect, Connection, Refused, refused, value
from .test_snapshots import ROWS, find_snapshot, prepared

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


@pytest.fixture
def owner(connect: Connect) -> Connection:
    """Alice, who has table `t`, and its copy `loose` without a key, which trainers may read."""
    connection = connect("alice")
    if value(connection, "select to_regclass('t') is null"):  # else the database is shared by tests of the module
        connection.execute(
            f"""create table t as {ROWS}; alter table t add primary key (id);
                create table loose as {ROWS};
                grant select on loose to tensile_reader""".encode()
        )
    return connection


def train_query(connection: Connection, query: str, arguments: str = ", target => 'y'") -> JobId:
    call = f"select public.tensile_train_query('q_{connection.info.user}', %s{arguments})"
    return JobId(value(connection, call, query))


def query_refused(connection: Connection, query: str, arguments: str = ", target => 'y'") -> Refused:
    return refused(connection, f"select public.tensile_train_query('m', %s{arguments})", query)


ONE_QUERY = (
    "Give one SELECT, VALUES, TABLE or WITH that changes no data. Run statements that change data before, in the "
    "same transaction."
)


NO_QUERY = "Give one: select tensile_train_query('model', 'select ...')."


@pytest.mark.by_day("with a as", "for update", "all rows")
@pytest.mark.parametrize(
    "query",
    [
        "select * from t",
        "table t",
        "  select * from t ;\n; ",
        "select * from t -- all rows",
        "with a as (select * from t) select * from a order by id",
        "(select * from t where id <= 100) union all (select * from t where id > 100)",
        "select * from t for update",
        "select * from (values (1)) as query(a), t as select_t where a = 1".replace("*", "select_t.*"),
    ],
)
def test_query_trains_like_a_table_of_its_rows(owner: Connection, database: Database, query: str) -> None:
    job = train_query(owner, query)
    job_on_table = JobId(value(owner, "select tensile_train('m', 'loose', target => 'y')"))

    snapshot = find_snapshot(database, job)
    assert snapshot is not None
    assert (snapshot.key, snapshot.rows) == ((), 200)
    assert prepared(database, job) == prepared(database, job_on_table)


def test_job_on_a_query_keeps_the_querys_text_and_is_listed_as_a_query(owner: Connection) -> None:
    notices: list[str] = []
    owner.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))

    job = train_query(owner, "select * from t;", ", target => 'y', features => array['x', 'word']")

    assert value(owner, "select spec ->> 'query' from tensile.jobs where job_id = %s", job) == "select * from t"
    assert value(owner, "select relation from tensile.stat_jobs where job_id = %s", job) == "query"
    assert notices[:1] == ['task is classification, as target "y" is an integer of 3 values']
    assert re.fullmatch(
        r"the query is trained on as it is now: a snapshot of 200 rows, [0-9]+ bytes, was written in [0-9.]+ s",
        notices[-1],
    )


def test_query_sees_the_callers_path_rows_and_temporary_tables(
    owner: Connection, bob: Connection, database: Database
) -> None:
    owner.execute(
        """alter table t enable row level security; create policy half on t to bob using (id <= 100);
           grant select on t to bob"""
    )
    bob.execute("set search_path = pg_temp; create temporary table here as select 7 as seven")
    error = query_refused(bob, "select * from t")
    assert (error.sqlstate, error.message) == ("42P01", 'relation "t" does not exist')

    bob.execute("set search_path = public")
    job = train_query(bob, "select t.*, seven from t, here")

    snapshot = find_snapshot(database, job)
    assert snapshot is not None
    assert snapshot.rows == 100
    assert value(bob, "show search_path") == "public"


def test_enums_and_domains_of_a_query_become_base_types(owner: Connection, database: Database) -> None:
    owner.execute(
        """create type mood as enum ('w0', 'w1', 'w2', 'w3');
           create domain amount as numeric(6, 2) check (value >= 0);
           create domain fee as amount"""
    )
    job = train_query(owner, "select id, x, exact::fee, word::mood, flag, day, pair, y from t")
    owner.execute("drop type mood; drop domain fee; drop domain amount")

    job_on_table = JobId(value(owner, "select tensile_train('m', 'loose', target => 'y')"))
    assert prepared(database, job) == prepared(database, job_on_table)


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("query", "error"),
    [
        (
            None,
            Refused(
                "22023", "no query is given", None, "Give one: select tensile_train_query('model', 'select ...')."
            ),
        ),
        (
            " ; ",
            Refused(
                "22023", "no query is given", None, "Give one: select tensile_train_query('model', 'select ...')."
            ),
        ),
        (
            "select * from t; drop table t",
            Refused(
                "42601",
                "the query is not one statement that returns rows",
                "PostgreSQL says: cannot open multi-query plan as cursor.",
                ONE_QUERY,
            ),
        ),
        (
            "delete from t",
            Refused(
                "42601",
                "the query is not one statement that returns rows",
                "PostgreSQL says: cannot open DELETE query as cursor.",
                ONE_QUERY,
            ),
        ),
        (
            "delete from t returning *",
            Refused(
                "42601",
                "the query cannot stand in parentheses",
                'PostgreSQL says: syntax error at or near "from".',
                ONE_QUERY,
            ),
        ),
        (
            "with gone as (delete from t returning *) select * from gone",
            Refused(
                "42601",
                "the query cannot stand in parentheses",
                "PostgreSQL says: WITH clause containing a data-modifying statement must be at the top level.",
                ONE_QUERY,
            ),
        ),
        (
            "explain analyze delete from t",
            Refused(
                "42601",
                "the query cannot stand in parentheses",
                'PostgreSQL says: syntax error at or near "analyze".',
                ONE_QUERY,
            ),
        ),
        ("select * from t) as a, (select 1", Refused("42601", 'syntax error at or near ")"')),
        ("select * from t where id = $1", Refused("42P02", "there is no parameter $1")),
        ("selekt 1", Refused("42601", 'syntax error at or near "selekt"')),
        ("select * from nosuch", Refused("42P01", 'relation "nosuch" does not exist')),
        (
            "select t.*, 1 as y, 2 as x from t",
            Refused(
                "42701",
                'the query has several columns named "x", "y"',
                None,
                "Give each column a name of its own, such as: select a.x, b.x as other_x.",
            ),
        ),
        (
            "select * from t where false",
            Refused(
                "22000",
                "the query has no rows",
                None,
                "Change the query's conditions, or insert rows into the tables that it reads.",
            ),
        ),
        (
            "select x from t",
            Refused("42703", 'column "y" of the query does not exist', None, "The columns are x."),
        ),
        (
            "select y from t",
            Refused("22023", "no features are left in the query", None, None),
        ),
        ("select 1 / (y - y) as x, y from t", Refused("22012", "division by zero")),
        (
            "select point(1, 2) as place, row(1) as pair, y from t",
            Refused(
                "22023",
                '2 columns of the query cannot be learned from: "place", "pair"',
            ),
        ),
    ],
)
def test_text_that_is_no_trainable_query_is_refused(owner: Connection, query: str, error: Refused) -> None:
    refusal = query_refused(owner, query)

    assert (refusal.sqlstate, refusal.message) == (error.sqlstate, error.message)
    if error.detail is not None or error.sqlstate == "42601":
        assert refusal.detail == error.detail
    if error.hint is not None:
        assert refusal.hint == error.hint
    assert value(owner, "select count(*) from t") == 200
    assert value(owner, "select count(*) from tensile.jobs") == 0
    assert value(owner, "select count(*) from tensile.snapshots") == 0


def test_version_of_a_query_is_listed_as_a_query_and_its_split_needs_a_relation(
    alice: Connection, admin: Connection, published: int
) -> None:
    admin.execute(
        """update tensile.model_versions set relation_oid = 0, relation_schema = '', relation_name = 'query';
           insert into tensile.version_bundles (version_id, bundle)
           values (%s, '{"split": {"kind": "hash", "keyed": false, "seed": 0, "identity": []}}')""".replace(
            "%s", str(published)
        ).encode()
    )

    assert value(alice, "select relation from tensile_training_info('flowers')") == "query"
    error = refused(alice, "select * from tensile_split('flowers')")
    assert (error.sqlstate, error.message, error.hint) == (
        "55000",
        "the model was trained on the rows of a query, which are not kept",
        "Name a relation with the same rows, such as a view of the query: tensile_split('model', 'view').",
    )
