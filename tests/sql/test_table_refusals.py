"""Check for which tables `tensile_train` refuses a training: their rows, their columns, and who may read them."""

import pytest

from indb_tensile.learning.training.learnable_rows import FEWEST_TRAIN_ROWS
from indb_tensile.sql_api import first_rows

from .conftest import Connection, Refused, refused, value

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("table", "error"),
    [
        (
            "create table t (a real, y int)",
            Refused(
                "22000", 'table "public.t" has no rows', None, "Insert rows, commit, and call tensile_train again."
            ),
        ),
        (
            "create table t as select 1.0::real as a, null::int as y from generate_series(1, 5)",
            Refused(
                "22000",
                'target "y" of table "public.t" is NULL in all 5 rows',
                None,
                "Fill it, or name another column with target => '...'.",
            ),
        ),
        (
            "create table t as select i::real as a, nullif(i, 3) as y from generate_series(1, 3) as i",
            Refused(
                "22000",
                'table "public.t" has 2 rows whose target is known, and 3 are the fewest to train and test on',
                None,
                "Insert rows, commit, and call tensile_train again.",
            ),
        ),
        (
            "create table t as select i::real as a, 'only' as y from generate_series(1, 5) as i",
            Refused(
                "22000",
                'target "y" of table "public.t" has one class only: only',
                None,
                "Classification needs two classes or more: add rows of another one, or name another target.",
            ),
        ),
        (
            "create table t as select i::real as a, 'NaN'::float8 as y from generate_series(1, 5) as i",
            Refused(
                "22000",
                'target "y" of table "public.t" is not finite in 5 of its first rows',
                None,
                "Delete these rows, or set their target to NULL to leave them out.",
            ),
        ),
        (
            "create table t as select i::real as a, 2.5::float8 as y from generate_series(1, 5) as i",
            Refused(
                "22000",
                'target "y" of table "public.t" is 2.5 in every row',
                None,
                "Regression needs values that differ: add rows, or name another target.",
            ),
        ),
        (
            "create table t as select array_fill(1.0::real, array[i]) as a, i as y from generate_series(1, 3) as i",
            Refused(
                "22000",
                'feature "a" of table "public.t" holds arrays of different shapes',
                "Among the first rows are [1:1] and [1:3].",
                "Leave it out with exclude => array['a'], or make the arrays alike.",
            ),
        ),
        (
            "create table t as select '[0:1]={1,2}'::real[] as a, i as y from generate_series(1, 3) as i",
            Refused(
                "22000",
                'feature "a" of table "public.t" holds arrays whose lower bound is not 1: [0:1]',
                None,
                "Leave it out with exclude => array['a'], or make the arrays alike.",
            ),
        ),
        (
            "create table t as select null::real[] as a, i as y from generate_series(1, 3) as i",
            Refused(
                "22000",
                'feature "a" of table "public.t" has no array with an element in all 3 rows: its shape is unknown',
                None,
                "Fill it, or leave it out with exclude => array['a'].",
            ),
        ),
        (
            "create table t as select i as a, null::bytea as u, i as y from generate_series(1, 3) as i",
            Refused(
                "22000",
                'feature "u" of table "public.t" is NULL in all rows: the size of its images is unknown',
                None,
                "Fill it, or leave it out with exclude => array['u'].",
            ),
        ),
        (
            "create table t as select 'x' as a, null::text as b, null::interval as c, i as y "
            "from generate_series(1, 3) as i",
            Refused(
                "22000",
                'every feature of table "public.t" has one value in all rows: there is nothing to learn from',
                "The features are: a, b, c.",
                "Add rows that differ, or name other columns with features => array[...].",
            ),
        ),
        (
            "create table t as select null::int as a, null::text as b, i as y from generate_series(1, 20000) as i",
            Refused(
                "22000",
                'every feature of table "public.t" is NULL in all rows: there is nothing to learn from',
                "The features are: a, b.",
                "Add rows that differ, or name other columns with features => array[...].",
            ),
        ),
        (
            "create table t as select i as a, '\\x00'::bytea as u, i as y from generate_series(1, 3) as i",
            Refused(
                "22000",
                'none of the first 3 values of "u" of table "public.t" is an image',
                "A value starts with 00. Images of bytea are in one of these formats: "
                "PNG, JPEG, WebP, BMP, GIF, TIFF.",
                "Leave it out with exclude => array['u']: a network reads no other bytes.",
            ),
        ),
        (
            "create table t as select i as a, current_date as y from generate_series(1, 3) as i",
            Refused(
                "22023",
                'target "y" of table "public.t" has type date, which classification cannot predict',
                None,
                "Name a text, boolean or numeric column with target => '...'.",
            ),
        ),
    ],
)
def test_table_that_cannot_be_learned_from_is_refused(alice: Connection, table: str, error: Refused) -> None:
    with alice.transaction(force_rollback=True):
        alice.execute(f"{table}; grant select on t to tensile_reader".encode())
        assert refused(alice, "select tensile_train('m', 't')") == error


@pytest.mark.shares_database
def test_table_whose_rows_are_hidden_from_its_owner_is_refused_with_the_reason(alice: Connection) -> None:
    with alice.transaction(force_rollback=True):
        alice.execute(
            """create table t as select 1 as a, 2 as y;
               alter table t enable row level security, force row level security"""
        )
        assert refused(alice, "select tensile_train('m', 't')") == Refused(
            "22000",
            'table "public.t" has no rows',
            "Row-level security applies to you, and no policy shows you a row.",
            "Insert rows, commit, and call tensile_train again.",
        )


@pytest.mark.shares_database
def test_missing_table_is_refused(alice: Connection) -> None:
    error = refused(alice, "select tensile_train('m', 'nowhere')")

    assert (error.sqlstate, error.message) == ("42P01", 'relation "nowhere" does not exist')


def let_alice_create_schemas(admin: Connection) -> None:
    admin.execute("do $$ begin execute format('grant create on database %I to alice', current_database()); end $$")


def test_error_names_each_grant_that_the_caller_lacks(alice: Connection, bob: Connection, admin: Connection) -> None:
    let_alice_create_schemas(admin)
    alice.execute('create schema "my plot"; create table "my plot".t as select 1 as a, 1 as y')
    oid = value(alice, """select '"my plot".t'::regclass::oid""")

    assert refused(bob, "select tensile_train('m', %s::oid::regclass)", oid) == Refused(
        "42501",
        'permission denied for table "my plot.t"',
        None,
        'Ask its owner for: grant usage on schema "my plot" to bob; grant select on "my plot".t to bob;',
    )


def test_error_names_each_grant_that_the_trainers_role_lacks(alice: Connection, admin: Connection) -> None:
    let_alice_create_schemas(admin)
    alice.execute('create schema "my plot"; create table "my plot".t as select 1 as a, 1 as y')

    assert refused(alice, """select tensile_train('m', '"my plot".t')""") == Refused(
        "42501",
        'the role tensile_reader may not read table "my plot.t"',
        "Trainers read tables as this role: it needs SELECT on every partition and child that holds rows, and USAGE "
        "on their schemas. With snapshot => true they read a copy that the caller's session writes.",
        'Run: grant usage on schema "my plot" to tensile_reader; grant select on "my plot".t to tensile_reader;',
    )


def test_error_names_every_partition_that_the_trainers_role_may_not_read(alice: Connection) -> None:
    alice.execute(
        """create table t (a real, y int) partition by list (y);
           create table t0 partition of t for values in (0);
           create table t1 partition of t for values in (1) partition by list (a);
           create table t10 partition of t1 for values in (0);
           create table t2 partition of t for values in (2);
           insert into t values (1, 0), (0, 1), (0, 2); grant select on t, t0 to tensile_reader;
           grant select (a, y) on t2 to tensile_reader"""
    )

    error = refused(alice, "select tensile_train('m', 't')")

    assert error.hint == "Run: grant select on public.t10 to tensile_reader;"
    alice.execute((error.hint or "").removeprefix("Run: ").encode())
    assert value(alice, "select tensile_train('m', 't')") > 0


@pytest.mark.shares_database
@pytest.mark.parametrize(
    "relation", ["create index t on iris (petal)", "create sequence t", "create type t as (a real, y int)"]
)
def test_relation_without_rows_of_its_own_is_refused(alice: Connection, relation: str) -> None:
    with alice.transaction(force_rollback=True):
        alice.execute(relation.encode())
        error = refused(alice, "select tensile_train('m', 't')")

    assert (error.sqlstate, error.hint) == ("42809", "Name the table that holds the rows to train on.")


def test_uuid_that_differs_in_each_row_is_left_out_and_refused_by_name(alice: Connection) -> None:
    alice.execute(
        """create table sessions (visit uuid, visitor uuid, x real, y int);
           insert into sessions select gen_random_uuid(), md5((i % 4)::text)::uuid, i, i % 2
             from generate_series(1, 20) as i;
           grant select on sessions to tensile_reader"""
    )
    notices: list[str] = []
    alice.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    job = value(alice, "select tensile_train('m', 'sessions', 'y')")
    assert "left out of the features, as each of the first rows has a different uuid: visit" in notices
    assert value(alice, "select spec -> 'exclude' from tensile.jobs where job_id = %s", job) == ["visit"]

    named = "select tensile_train('m', 'sessions', 'y', features => array['visit', 'visitor', 'x'])"
    error = refused(alice, named)
    assert (error.sqlstate, error.message, error.detail) == (
        "22023",
        'column of table "public.sessions" cannot be learned from: "visit"',
        '"visit" (uuid): each of the first rows has a different value; there is nothing to learn from it.',
    )
    assert (error.hint or "").startswith("Leave it out")


def test_error_names_all_columns_that_cannot_be_learned_from(alice: Connection) -> None:
    alice.execute(
        """create table odd (a json, b real, c point, d int4range, e iris, f money, g uuid, y int);
           insert into odd select '{}', i, '(1,2)', '[1,2)', null, '1', gen_random_uuid(), i % 2
             from generate_series(1, 9) as i;
           grant select on odd to tensile_reader"""
    )

    error = refused(alice, "select tensile_train('m', 'odd')")

    assert error.message == ('5 columns of table "public.odd" cannot be learned from: "a", "c", "d", "e", "f"')
    assert error.hint is not None
    assert error.hint.startswith("Leave them out with exclude => array['a', 'c', 'd', 'e', 'f'], or cast them ")
    assert error.detail == (
        '"a" (json): no paths of it are chosen; choose them, as in preprocess => '
        """'{"paths": {"a": {"a.b": "number"}}}'. """
        '"c" (point): a geometric type; select coordinates as numbers. '
        '"d" (int4range): a range; select lower() and upper(). '
        '"e" (public.iris): a composite type; select its fields. '
        '"f" (money): the server\'s locale decides its value; cast it to numeric.'
    )
    some = refused(alice, "select tensile_train('m', 'odd', exclude => array['b', 'a', 'c', 'e'])")
    assert some.message == '2 columns of table "public.odd" cannot be learned from: "d", "f"'
    assert (some.hint or "").startswith("Leave them out with exclude => array['b', 'a', 'c', 'e', 'd', 'f'], ")


def test_fewest_rows_are_those_of_the_worker() -> None:
    assert first_rows.FEWEST_ROWS == FEWEST_TRAIN_ROWS + 1
