"""Check that tables which the split names are the validation and test parts, and which tables are refused."""

from typing import Any

import msgspec
import pytest

from indb_tensile.errors import MissingError, PrivilegeError
from indb_tensile.job import JobId, JobSpec
from indb_tensile.learning.training.preparation import prepare
from indb_tensile.learning.training.prepared_training import Prepared
from tests.conftest import Database

from .conftest import Connection, refused, value
from .test_snapshots import find_snapshot

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

TABLES = """
create table past (id int primary key, x float8, word text, pair real[], y int);
insert into past select i, (i * 37 % 101) / 7.0, 'w' || i % 4, array[i, i * 2]::real[], i % 3
  from generate_series(1, 200) as i;
create table later (y int, more text, pair real[], word text, x float8);
insert into later select i % 3, 'm', array[i, 1]::real[], 'w' || i % 5, -i from generate_series(1, 40) as i;
insert into later (more) values ('no target');
create table between (like later); insert into between select * from later where x < -30;
create view past_seen as select * from past;
create view later_seen as select * from later;
grant select on past, later, between to tensile_reader"""


@pytest.fixture
def owner(alice: Connection) -> Connection:
    """Alice, who has the tables `past`, `between` and `later`, and views of the first and the last."""
    alice.execute(TABLES.encode())
    return alice


def train(connection: Connection, relation: str, split: str, more: str = "") -> JobId:
    call = f"select tensile_train('m', '{relation}', 'y', split => '{split}'{more})"
    return JobId(value(connection, call))


def read(database: Database, job: JobId) -> Prepared:
    with database.connect() as postgres, database.connect("tensile_reader") as reader:
        owner, spec = postgres.execute(
            "select owner_oid, spec from tensile.jobs where job_id = %s", (job,)
        ).fetchall()[0]
        return prepare(reader, msgspec.convert(spec, JobSpec), owner_oid=owner, snapshot=find_snapshot(database, job))


def rows(prepared: Prepared) -> dict[str, tuple[int, bytes]]:
    parts = {"train": prepared.train, "valid": prepared.valid, "test": prepared.test}
    return {name: (part.rows, part.x.numpy().tobytes() + part.y.numpy().tobytes()) for name, part in parts.items()}


def test_rows_of_the_named_tables_are_the_parts(owner: Connection, database: Database) -> None:
    job = train(owner, "past", '{"test": "later", "valid": "between"}')

    prepared = read(database, job)

    assert find_snapshot(database, job) is None
    assert {name: count for name, (count, _) in rows(prepared).items()} == {"train": 200, "valid": 10, "test": 40}
    assert prepared.held_out["x"].values.tolist() == [-float(i) for i in range(1, 41)]
    facts = {(fact.section, fact.subject, fact.fact): (fact.value, fact.warning) for fact in prepared.report}
    assert facts["split", None, "method"] == (
        'the validation rows are those of public."between"; the test rows are those of public.later',
        None,
    )
    assert facts["rows", "y", "left out, as the target is NULL"][0] == "1"
    tables = value(owner, "select spec -> 'part_tables' from tensile.jobs where job_id = %s", job)
    assert {part: (own["schema"], own["name"]) for part, own in tables.items()} == {
        "valid": ("public", "between"),
        "test": ("public", "later"),
    }


def test_without_a_table_for_the_validation_part_rows_of_the_training_table_validate(
    owner: Connection, database: Database
) -> None:
    split = '{"test": "later", "valid_size": 0.3, "seed": 4}'
    shares = {name: count for name, (count, _) in rows(read(database, train(owner, "past", split))).items()}
    assert shares["test"] == 40
    assert shares["train"] + shares["valid"] == 200
    assert 40 < shares["valid"] < 80


@pytest.mark.parametrize(
    ("relation", "split"),
    [
        ("past", '{"test": "later_seen"}'),
        ("past_seen", '{"test": "later"}'),
        ("past_seen", '{"test": "later_seen"}'),
    ],
)
def test_a_snapshot_of_both_tables_has_the_parts_of_plain_tables(
    owner: Connection, database: Database, relation: str, split: str
) -> None:
    job = train(owner, relation, split)

    snapshot = find_snapshot(database, job)
    assert snapshot is not None
    assert (snapshot.rows, snapshot.valid_rows, snapshot.test_rows) == (241, 0, 41)
    assert rows(read(database, job)) == rows(read(database, train(owner, "past", '{"test": "later"}')))


def test_a_query_is_tested_on_a_table(owner: Connection, database: Database) -> None:
    call = "select tensile_train_query('q', 'select * from past', 'y', split => %s)"
    job = JobId(value(owner, call, '{"test": "later", "key": ["id"]}'))
    assert rows(read(database, job)) == rows(read(database, train(owner, "past", '{"test": "later"}')))


def test_test_rows_that_are_also_training_rows_are_warned_about(owner: Connection, database: Database) -> None:
    owner.execute(
        "create table copied as select * from past where id <= 50; grant select on copied to tensile_reader"
    )
    report = read(database, train(owner, "past", '{"test": "copied", "valid_size": 0}')).report
    warnings = [fact.warning for fact in report if fact.fact == "of the test part equal to a training row"]
    assert warnings == ["100 % of the test rows are also in the training part: the metric is too optimistic"]


def test_all_differences_of_a_table_are_in_one_error(owner: Connection) -> None:
    owner.execute("create table wrong (y bigint, x text, pair real[])")
    error = refused(owner, """select tensile_train('m', 'past', 'y', split => '{"test": "wrong"}')""")
    assert (error.sqlstate, error.message) == (
        "22000",
        'split: table "public.wrong" of the test part differs from the training table: it has no column "word"; '
        '"x" is text and not double precision; "y" is bigint and not integer',
    )
    assert error.hint is not None
    assert "a view that casts them" in error.hint


@pytest.mark.parametrize(
    ("split", "prepared", "sqlstate", "message"),
    [
        ('{"test": "absent"}', "", "42P01", 'split: table "absent" of the test part does not exist'),
        ('{"test": "a.b.c.d"}', "", "22023", 'split: "test" is "a.b.c.d", which is not the name of a table'),
        ('{"test": "past; drop table past"}', "", "22023", "which is not the name of a table"),
        ('{"test": "past"}', "", "22023", "shares its rows with"),
        ('{"test": "child"}', "create table child () inherits (past)", "22023", "shares its rows with"),
        ('{"test": "later", "valid": "public.later"}', "", "22023", "is named for the valid part and for the test"),
        ('{"test": "later"}', "update later set y = null", "22000", 'has no row whose target "y" is known'),
        ('{"test": "later"}', "revoke select on later from tensile_reader", "42501", "may not read"),
        ('{"test": "past_pkey"}', "", "42809", "is an index"),
    ],
)
def test_a_table_that_cannot_be_a_part_is_refused(
    owner: Connection, split: str, prepared: str, sqlstate: str, message: str
) -> None:
    if prepared:
        owner.execute(prepared.encode())
    error = refused(owner, f"select tensile_train('m', 'past', 'y', split => '{split}')")
    assert error.sqlstate == sqlstate
    assert message in error.message
    assert value(owner, "select count(*) from past") == 200


def test_a_table_that_the_caller_may_not_read_is_no_part(
    owner: Connection, bob: Connection, admin: Connection, database: Database
) -> None:
    owner.execute("grant select on past to bob")
    call = """select tensile_train('b', 'past', 'y', split => '{"test": "later"}')"""
    error = refused(bob, call)
    assert (error.sqlstate, error.message) == ("42501", 'permission denied for table "public.later"')
    owner.execute("grant select on later to bob")
    job = JobId(value(bob, call))
    owner.execute("revoke select on later from bob")
    with pytest.raises(PrivilegeError, match=r"role bob may not read table public\.later"):
        read(database, job)
    # The owner of a job may write its specification, and gains no rows by it.
    spec: dict[str, Any] = value(admin, "select spec from tensile.jobs where job_id = %s", job)
    assert spec["part_tables"]["test"]["name"] == "later"


def test_a_column_of_a_part_that_changed_while_the_job_waited_is_refused(
    owner: Connection, database: Database
) -> None:
    job = train(owner, "past", '{"test": "later"}')
    owner.execute("alter table later rename x to z; alter table later add column x float8")
    with pytest.raises(MissingError, match=r"columns of table public\.later changed after"):
        read(database, job)


def test_the_name_is_looked_up_once_with_the_callers_path(
    owner: Connection, admin: Connection, database: Database
) -> None:
    admin.execute("do $$ begin execute format('grant create on database %I to alice', current_database()); end $$")
    owner.execute(
        """create schema "Own"; create table "Own"."Later " (like later);
           insert into "Own"."Later " select * from later;
           grant usage on schema "Own" to tensile_reader; grant select on "Own"."Later " to tensile_reader;
           set search_path = "Own", public"""
    )
    job = train(owner, "past", '{"test": "\\"Later \\""}')
    assert (
        value(owner, "select spec -> 'split' ->> 'test' from tensile.jobs where job_id = %s", job) == '"Own"."Later "'
    )
    assert read(database, job).test.rows == 40


def test_arrays_of_another_shape_are_refused_with_the_table(owner: Connection, database: Database) -> None:
    owner.execute("update later set pair = array[1, 2, 3] where x = -3")
    job = train(owner, "past", '{"test": "later"}')
    with pytest.raises(Exception, match='column "pair", row') as caught:
        read(database, job)
    assert "table public.later, of the test part" in caught.value.detail  # type: ignore[attr-defined]


def test_rows_of_a_view_keep_their_parts_when_other_columns_change(owner: Connection, database: Database) -> None:
    before = read(database, train(owner, "past_seen", "{}"))
    owner.execute("update past set x = x + 1")
    after = read(database, train(owner, "past_seen", "{}"))
    assert before.membership["identity"] == after.membership["identity"] == ["id"]
    shift = [x + 1 for x in before.held_out["x"].values.tolist()]
    assert after.held_out["x"].values.tolist() == pytest.approx(shift)
    plain = read(database, train(owner, "past", "{}"))
    assert rows(plain) == rows(after)


@pytest.mark.parametrize("relation", ["loose", "seen"])
def test_a_named_key_divides_the_rows_and_is_no_feature(owner: Connection, database: Database, relation: str) -> None:
    owner.execute(
        """create table loose as select id as number, id / 2 as pair_number, x, word, pair, y from past;
           create view seen as select * from loose; grant select on loose to tensile_reader"""
    )
    keyed = read(database, train(owner, relation, '{"key": ["number"]}', ", exclude => array['pair_number']"))
    assert keyed.membership["identity"] == ["number"]
    assert rows(keyed) == rows(read(database, train(owner, "past", "{}", ", exclude => '{}'")))
    pairs = read(database, train(owner, relation, '{"key": ["pair_number"]}'))
    owner.execute("update loose set x = 0, number = -number")
    again = read(database, train(owner, relation, '{"key": ["pair_number"]}'))
    assert [pairs.test.rows, pairs.valid.rows] == [again.test.rows, again.valid.rows]
    assert pairs.test.rows % 2 == 0 or pairs.valid.rows % 2 == 0


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ('["absent"]', 'split: the key has column "absent", which relation "public.past" does not have'),
        ('["y"]', 'split: "key" names the target "y"'),
        ('"id"', 'split: "key" is "id"'),
    ],
)
def test_a_key_that_cannot_divide_is_refused(owner: Connection, key: str, message: str) -> None:
    error = refused(owner, f"""select tensile_train('m', 'past', 'y', split => '{{"key": {key}}}')""")
    assert error.message == message
    assert error.hint
