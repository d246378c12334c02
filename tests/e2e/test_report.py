"""Check the data report of a training and the part of each row, with a real controller and tables that have flaws."""

from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from tests.e2e.conftest import Service

pytestmark = pytest.mark.postgres

SMALL = """architecture => '{"type": "mlp", "hidden": [4]}', hyperparams => '{"epochs": 2}'"""


@pytest.fixture
def alice(running: Service) -> Iterator[psycopg.Connection]:
    """An ordinary user, who has a schema of the same name."""
    with running.database.connect("alice") as connection:
        connection.execute("set search_path = alice, public")
        yield connection


@pytest.fixture(scope="module", autouse=True)
def _schema(running: Service) -> None:
    running.connection.execute(
        "create schema alice authorization alice; grant usage on schema alice to tensile_reader"
    )
    running.connection.execute(
        "alter default privileges for role alice in schema alice grant select on tables to tensile_reader"
    )


def train_job(running: Service, alice: psycopg.Connection, arguments: str) -> int:
    row = alice.execute(f"select tensile_train({arguments}, {SMALL})".encode()).fetchone()
    assert row is not None
    assert running.until_ended(row[0]) == ["succeeded"], running.value("select error_message from tensile.jobs")
    return int(row[0])


def count_parts(alice: psycopg.Connection, arguments: str) -> Counter[str | None]:
    rows = alice.execute(f"select part, count(*) from tensile_split({arguments}) group by 1".encode()).fetchall()
    return Counter(dict(rows))


def read_report(alice: psycopg.Connection, job: int) -> dict[tuple[str, str | None, str], tuple[str, str | None]]:
    rows = alice.execute("select * from tensile_data_report(%s)", (job,)).fetchall()
    return {(section, subject, fact): (value, warning) for section, subject, fact, value, warning in rows}


def rows_of(report: dict[tuple[str, str | None, str], tuple[str, str | None]]) -> dict[str, int]:
    """Return the number of rows of each part in the report."""
    return {part: int(report[("split", part, "rows")][0].split()[0]) for part in ("train", "valid", "test")}


def test_report_agrees_with_the_parts_of_the_rows(running: Service, alice: psycopg.Connection) -> None:
    alice.execute(
        """create table people (id int primary key, number int, age real, city text, one int, left_us text);
           insert into people select i, i * 2, case when i % 10 > 0 then i % 31 end, 'city ' || i % 3, 1,
                                     case when i <= 5 then null when i % 20 = 0 then 'yes' else 'no' end
             from generate_series(1, 200) as i"""
    )
    job = train_job(running, alice, "'people', 'people', 'left_us'")

    report = read_report(alice, job)
    assert report[("rows", None, "read")] == ("200", None)
    assert report[("rows", "left_us", "left out, as the target is NULL")] == ("5", None)
    assert report[("split", None, "method")] == ("a hash of the primary key (id)", None)
    assert "looks like a key" in str(report[("columns", "number", "increases with each row")][1])
    assert "nothing is learned from it" in str(report[("columns", "one", "different values")][1])
    assert "always answering this class gives accuracy 0.949" in str(report[("target", "no", "rows of the class")][1])
    assert "no better than always answering the most frequent class" in str(
        [row[1] for key, row in report.items() if key[0] == "result"]
    )
    assert count_parts(alice, "'people'") == Counter(rows_of(report) | {None: 5})
    keys = alice.execute("select key from tensile_split('people') where part is null order by key").fetchall()
    assert keys == [({"id": number},) for number in range(1, 6)]

    held_out = alice.execute(
        "select * from people as p where exists (select from tensile_split('people') as s"
        " where s.part = 'test' and (s.key ->> 'id')::int = p.id)"
    ).fetchall()
    alice.execute("create table held as select * from people where false")
    alice.cursor().executemany("insert into held values (%s, %s, %s, %s, %s, %s)", held_out)
    (accuracy,) = alice.execute(
        "select value from tensile_evaluate('people', 'held') where metric = 'accuracy'"
    ).fetchall()
    assert (
        accuracy
        == running.connection.execute(
            "select metric from tensile.model_versions where job_id = %s", (job,)
        ).fetchone()
    )


@pytest.mark.nightly
def test_rows_with_keys_and_values_of_every_type_are_split_as_in_the_training(
    running: Service, alice: psycopg.Connection
) -> None:
    alice.execute(
        """create type mood as enum ('sad', 'ok', 'happy');
           create table keyed (a uuid, b timestamptz, c date, d numeric, e bytea, f interval, g boolean, h real,
                               m mood, x int, y real, primary key (a, b, c, d, e, f, g, h, m));
           insert into keyed
           select md5(i::text)::uuid, timestamptz '2001-02-03 04:05:06.789+02' + i * interval '7919.123457 s',
                  case when i = 3 then 'infinity' else date '1969-12-01' + i * 13 end, i / 7.0,
                  decode(md5(i::text), 'hex'), i * interval '1 day 3 h', i % 2 = 0, i / 3.0,
                  (array['sad', 'ok', 'happy'])[1 + i % 3]::mood, i % 7, i % 5
             from generate_series(1, 120) as i;
           create table bare (n numeric, d date, s text, v real[], w smallint[], y double precision, t timestamp);
           insert into bare
           select case when i % 9 > 0 then i % 10 / 3.0 end, date '2024-01-01' + i % 4, 's' || i % 3,
                  array[i % 2 / 3.0, 1], array[i % 3, 7], i % 6,
                  timestamp '2020-01-01 00:00:00.1' + i % 5 * interval '1 s'
             from generate_series(1, 400) as i"""
    )
    keyed = train_job(running, alice, "'keyed', 'keyed', 'y', task => 'regression', features => array['x', 'h']")
    bare = train_job(running, alice, "'bare', 'bare', 'y', task => 'regression'")
    alice.execute("set bytea_output = 'escape'; set intervalstyle = 'iso_8601'; set timezone = 'Asia/Tokyo'")

    assert count_parts(alice, "'keyed'") == Counter(rows_of(read_report(alice, keyed)))
    # The hash of a row without a key includes all columns. If one column's hash differed, the counts would differ.
    report = read_report(alice, bare)
    assert report[("split", None, "method")][0] == "a hash of the row's values, as there is no primary key"
    assert count_parts(alice, "'bare'") == Counter(rows_of(report))
    assert int(report[("rows", None, "equal to another row in features and target")][0]) == 400 - 80
    assert "the metric is too optimistic" in str(
        report[("rows", None, "of the test part equal to a training row")][1]
    )


@pytest.mark.nightly
def test_split_by_time_tests_the_last_rows_and_applies_to_new_rows(
    running: Service, alice: psycopg.Connection
) -> None:
    alice.execute(
        """create table events (id int primary key, at timestamptz, x int, y real);
           insert into events select i, timestamptz '2024-01-01' + (i - i % 3) * interval '1 h', i % 7, i % 5
             from generate_series(1, 200) as i"""
    )
    split = """split => '{"last": 0.2, "by": "at"}'"""
    job = train_job(running, alice, f"'events', 'events', 'y', task => 'regression', {split}")
    report = read_report(alice, job)
    assert report[("split", None, "method")] == ("the last 20 % by at", None)
    assert ("columns", "at", "encoding") not in report
    assert rows_of(report) == {"train": 130, "valid": 30, "test": 40}
    assert count_parts(alice, "'events'") == Counter(rows_of(report))

    alice.execute("insert into events select i, timestamptz '2025-01-01', 1, 1 from generate_series(201, 210) as i")
    assert count_parts(alice, "'events'") == Counter(train=130, valid=30, test=50)
    second_job = train_job(running, alice, f"'events', 'events', 'y', {split}, deploy => 'if_better'")
    assert rows_of(read_report(alice, second_job)) == {"train": 136, "valid": 32, "test": 42}
    (best,) = running.connection.execute(
        "select v.metric from tensile.model_versions as v join tensile.models as m using (model_id)"
        " where m.name = 'events' and v.deployed"
    ).fetchall()
    assert best is not None


@pytest.mark.nightly
def test_report_counts_equal_rows_of_a_table_without_a_key(running: Service, alice: psycopg.Connection) -> None:
    alice.execute("create table twins as select i % 2 as x, i % 2 as y from generate_series(1, 60) as i")
    job = train_job(running, alice, "'twins', 'twins', 'y', task => 'classification'")
    report = read_report(alice, job)
    assert count_parts(alice, "'twins'") == Counter(rows_of(report))
    assert report[("rows", None, "equal to another row in features and target")] == ("58", None)
    assert report[("columns", "x", "equal to the target")][1] is not None


@pytest.mark.nightly
def test_split_by_a_column_works_on_a_view(running: Service, alice: psycopg.Connection) -> None:
    alice.execute(
        """create table marked as select i as id, i % 9 as x, (i % 5)::real as y, i % 4 = 0 as is_test
             from generate_series(1, 100) as i;
           create function doubled(int) returns int language plpgsql as $$ begin return $1 * 2; end $$;
           create view seen as select id, doubled(x) as x, y, is_test from marked"""
    )
    split = """split => '{"column": "is_test"}', exclude => array['id']"""
    job = train_job(running, alice, f"'marked', 'seen', 'y', task => 'regression', {split}")
    assert rows_of(read_report(alice, job))["test"] == 25
    assert (
        count_parts(alice, "'marked'")
        == count_parts(alice, "'marked', 'seen', 1")
        == Counter(rows_of(read_report(alice, job)))
    )
    test_keys = alice.execute("select key from tensile_split('marked') where part = 'test'").fetchall()
    assert all(key["is_test"] for (key,) in test_keys)
    (explanations,) = alice.execute(
        """select count(*) from tensile_explain('marked', 'seen', 'y', split => '{"column": "is_test"}')"""
    ).fetchall()
    assert explanations[0] > 0


def test_only_the_owner_may_read_the_split_and_the_relation_must_fit(
    running: Service, alice: psycopg.Connection
) -> None:
    alice.execute("create table own (id int primary key, x int, y real); create table else_where (x int)")
    alice.execute("insert into own select i, i % 7, i % 5 from generate_series(1, 50) as i")
    train_job(running, alice, "'own', 'own', 'y', task => 'regression'")
    alice.execute(
        "select tensile_grant_model('own', 'bob'); grant usage on schema alice to bob; grant select on own to bob"
    )
    with running.database.connect("bob") as bob:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match='model "own" belongs to another role'):
            bob.execute("select * from tensile_split('own')")
        with pytest.raises(psycopg.errors.UndefinedObject, match='there is no model "none"'):
            bob.execute("select * from tensile_split('none')")
    with pytest.raises(
        psycopg.errors.UndefinedColumn, match='has no column "id", which the split of model "own" uses'
    ):
        alice.execute("select * from tensile_split('own', 'else_where')")
    alice.execute("drop table own")
    with pytest.raises(psycopg.errors.UndefinedTable, match=r'table "alice\.own", which the model was trained on'):
        alice.execute("select * from tensile_split('own')")


@pytest.mark.nightly
def test_a_model_is_tested_on_a_table_of_its_own(running: Service, alice: psycopg.Connection) -> None:
    alice.execute(
        """create table past as select i as id, i % 9 as x, ((i % 9) * 2.0)::real as y
             from generate_series(1, 120) as i;
           alter table past add primary key (id);
           create table later (y real, x int);
           insert into later select (i % 9) * 2, i % 9 from generate_series(1, 40) as i;
           insert into later values (null, 3)"""
    )
    split = """split => '{"test": "later"}'"""
    train_job(running, alice, f"'dated', 'past', 'y', {split}, deploy => 'always'")

    assert count_parts(alice, "'dated', 'later'") == Counter({"test": 40, None: 1})
    own = count_parts(alice, "'dated', 'past'")
    assert set(own) == {"train", "valid"}
    assert count_parts(alice, "'dated'") == own + Counter({"test": 40, None: 1})
    held_out: dict[str, float] = dict(alice.execute("select * from tensile_evaluate('dated')").fetchall())
    on_table: dict[str, float] = dict(alice.execute("select * from tensile_evaluate('dated', 'later')").fetchall())
    assert held_out == pytest.approx(on_table)
    noted = alice.execute("select split, settings -> 'parts' from tensile_training_info('dated')").fetchall()
    assert noted == [({"test": "alice.later"}, {"train": own["train"], "valid": own["valid"], "test": 40})]
    explain = f"select count(*) from tensile_explain('dated', 'past', 'y', {split})"
    explained = alice.execute(explain.encode()).fetchone()
    assert explained is not None
    assert explained[0] > 0
    job = alice.execute("select tensile_retrain('dated')").fetchone()  # the split is inherited by its name
    assert job is not None
    assert running.until_ended(job[0]) == ["succeeded"]
    assert count_parts(alice, "'dated', 'later'") == Counter({"test": 40, None: 1})
    alice.execute("drop table later")
    with pytest.raises(psycopg.errors.UndefinedTable, match=r'table "alice.later", which the split names'):
        alice.execute("select * from tensile_split('dated')")
    assert count_parts(alice, "'dated', 'past'") == own
    message = 'table "alice.later" of the test part does not exist'
    with pytest.raises(psycopg.errors.UndefinedTable, match=message) as caught:
        alice.execute("select tensile_train('dated', 'past')")
    assert caught.value.diag.message_hint is not None
    assert "or give another split" in caught.value.diag.message_hint
