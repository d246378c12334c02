"""Check each kind of relation that a model can be trained on: whether trainers read it directly or a snapshot of it,
and with which rows in each part.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from indb_tensile.errors import MissingError
from indb_tensile.job import JobId
from tests.conftest import Database

from .conftest import Connection, refused, value
from .test_snapshots import ROWS, find_snapshot, prepared, train

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


@pytest.fixture
def owner(database: Database) -> Iterator[Connection]:
    """Alice, who has table `t` with the key `id`, which trainers may read."""
    with database.connect("alice") as connection:
        connection.execute(
            f"""create table t as {ROWS}; alter table t add primary key (id);
                grant select on t to tensile_reader""".encode()
        )
        yield connection


RELATIONS = {
    "table": ("create table s (like t including all); insert into s select * from t", False),
    "unlogged table": ("create unlogged table s (like t including all); insert into s select * from t", False),
    "partitioned table": (
        """create table s (like t including all) partition by range (id);
           create table s1 partition of s for values from (0) to (50);
           create table s2 partition of s for values from (50) to (900) partition by hash (id);
           create table s20 partition of s2 for values with (modulus 2, remainder 0);
           create table s21 partition of s2 for values with (modulus 2, remainder 1);
           insert into s select * from t; grant select on s1, s20, s21 to tensile_reader""",
        False,
    ),
    "partitions with other column orders and dropped columns": (
        """create table s (gone int, like t including all) partition by range (id); alter table s drop column gone;
           create table s1 (y int, dropped text, word text, pair real[], day date, flag boolean, exact numeric(6, 2),
             x float8, id int not null);
           alter table s1 drop column dropped; alter table s attach partition s1 for values from (0) to (50);
           create table s2 partition of s for values from (50) to (900);
           insert into s select * from t; grant select on s1, s2 to tensile_reader""",
        False,
    ),
    "view": ("create view s as select * from t", True),
    "materialized view": ("create materialized view s as select * from t", True),
    "temporary table": ("create temporary table s (like t including all); insert into s select * from t", True),
    "temporary view": ("create temporary view s as select * from t", True),
    "table with children": (
        """create table s (like t including all); create table s1 (more int) inherits (s);
           insert into s select * from t where id <= 50; insert into s1 select * from t where id > 50;
           grant select on s1 to tensile_reader""",
        False,
    ),
}
NAMES_TO_QUOTE = """create schema "a "" b"; grant usage on schema "a "" b" to tensile_reader;
           create view "a "" b"."select ""; --" as select id as "i "" d", x as "select", word as "w;", y from t"""


@pytest.mark.by_day("partitions with other column orders", "temporary view", "table with children")
@pytest.mark.parametrize("kind", RELATIONS)
def test_each_kind_of_relation_is_read_as_the_manual_says(owner: Connection, database: Database, kind: str) -> None:
    statements, through_a_snapshot = RELATIONS[kind]
    owner.execute(statements.encode())
    if not through_a_snapshot:
        owner.execute("grant select on s to tensile_reader")

    job = train(owner, "s")

    assert (find_snapshot(database, job) is not None) is through_a_snapshot
    assert prepared(database, job)["train"][0]


def test_partitions_give_each_row_the_part_that_it_has_in_a_plain_table(
    owner: Connection, database: Database
) -> None:
    owner.execute(RELATIONS["partitions with other column orders and dropped columns"][0].encode())
    owner.execute("grant select on s to tensile_reader")

    job = train(owner, "s")
    before = prepared(database, job)

    # Partitions by range of the key keep the order of the rows. The digest is that of the copied bytes, in which each
    # partition has a header.
    plain = prepared(database, train(owner, "t"))
    assert before | {"digest": ""} == plain | {"digest": ""}
    # A job that starts again reads the same batches, also after the partitions were detached and attached again.
    owner.execute(
        """alter table s detach partition s1; alter table s detach partition s2;
           alter table s attach partition s2 for values from (50) to (900);
           alter table s attach partition s1 for values from (0) to (50)"""
    )
    assert prepared(database, job) == before


def test_names_that_need_quotes_are_quoted_in_a_snapshot(
    owner: Connection, admin: Connection, database: Database
) -> None:
    admin.execute("do $$ begin execute format('grant create on database %I to alice', current_database()); end $$")
    owner.execute(NAMES_TO_QUOTE)
    job = JobId(value(owner, "select tensile_train('m', %s::regclass, target => 'y')", '"a "" b"."select ""; --"'))

    snapshot = find_snapshot(database, job)
    assert snapshot is not None
    assert set(snapshot.columns) == {'i " d', "select", "w;", "y"}
    assert prepared(database, job)["train"][0]


@pytest.mark.parametrize(
    ("change", "columns"),
    [
        ("alter table t rename x to z; alter table t rename exact to x", '"exact", "x"'),
        ("alter table t drop column x; alter table t add column x float8", '"x"'),
        ("alter table t drop column flag", '"flag"'),
        ("alter table t rename y to label", '"y"'),
    ],
)
def test_column_that_changed_while_the_job_waited_is_refused(
    owner: Connection, database: Database, change: str, columns: str
) -> None:
    job = train(owner, "t")
    owner.execute(change.encode())

    message = f"columns of table public.t changed after the job was enqueued: {columns}$"
    with pytest.raises(MissingError, match=message):
        prepared(database, job)


def test_column_that_is_added_or_not_used_changes_nothing(owner: Connection, database: Database) -> None:
    job = train(owner, "t", ", exclude => array['pair']")
    before = prepared(database, job)
    owner.execute("alter table t add column leak int default 1; alter table t rename column pair to number")

    assert prepared(database, job) == before


WIDE = "y int2, " + ", ".join(f"c{number} bool" for number in range(1599))


def test_table_of_1600_columns_is_read_directly(owner: Connection, database: Database) -> None:
    owner.execute(
        f"""create table wide ({WIDE}); grant select on wide to tensile_reader;
            insert into wide (y, c0, c1598) select i % 3, i % 2 = 0, i % 5 = 0
              from generate_series(1, 60) as i""".encode()
    )
    job = train(owner, "wide", ", features => array['c0', 'c1598']")
    assert find_snapshot(database, job) is None
    assert prepared(database, job)["train"][0]
    assert train(owner, "wide") > job


@pytest.mark.nightly
def test_snapshot_of_1600_columns_is_refused_and_one_of_fewer_is_made(owner: Connection, database: Database) -> None:
    owner.execute(
        f"""create table wide ({WIDE});
            insert into wide (y, c0, c1598) select i % 3, i % 2 = 0, i % 5 = 0
              from generate_series(1, 60) as i""".encode()
    )
    error = refused(owner, "select tensile_train('m', 'wide', target => 'y', snapshot => true)")
    assert (error.sqlstate, error.message, error.hint) == (
        "54011",
        'a snapshot of table "public.wide" would have 1600 columns, the most are 1599',
        "Name fewer columns in features => array[...], or store numbers of one kind in one array column.",
    )
    error = refused(owner, "select tensile_train_query('m', 'select * from wide', target => 'y')")
    assert error.message == "a snapshot of the query would have 1600 columns, the most are 1599"

    job = train(owner, "wide", ", snapshot => true, features => array['c0', 'c1598']")
    assert prepared(database, job)["train"][0]


def test_row_that_does_not_fit_into_a_page_of_a_snapshot_is_refused_with_the_way_out(owner: Connection) -> None:
    columns = ", ".join(f"i + {number}::float8 as c{number}" for number in range(1200))
    error = refused(
        owner,
        "select tensile_train_query('m', %s, target => 'y')",
        f"select i % 3 as y, {columns} from generate_series(1, 30) as i",
    )

    assert (error.sqlstate, error.message) == ("54000", "a row of the query is too large for a snapshot")
    assert error.detail is not None
    assert error.detail.startswith("PostgreSQL says: row is too big: size ")
    assert (
        error.hint
        == "Name fewer columns in features => array[...], or store numbers of one kind in one array column."
    )


def test_the_manual_lists_each_kind_of_relation() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "user", "training.md").read_text(encoding="utf-8")
    section = page.partition("## What can be trained on")[2].partition("\n## ")[0]
    for kind in (
        "table",
        "partitioned table",
        "view",
        "materialized view",
        "foreign table",
        "temporary table",
        "query",
    ):
        assert kind in section
