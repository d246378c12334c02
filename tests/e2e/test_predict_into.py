"""Check with a real controller that tensile_predict_into fills one complete table, or none, and obeys rights."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.e2e.conftest import Service
from tests.e2e.trainings import child_pids
from tests.nightly import nightly_unless
from tests.service.test_types import PATHS, TYPES, typed_table

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]
TABLES = """
create type tint as enum ('red', 'blue');
create table into_rows (id bigint, part text, a double precision, b tint, u numeric(6, 2), y real, label text,
                        primary key (id, part));
insert into into_rows
select n, case when n % 3 = 0 then 'p' else 'part' end, sin(n), (array['red', 'blue'])[n % 2 + 1]::tint,
       case when n % 5 = 0 then null else n % 7 end, n % 11, (array['rö"d,', 'b\\l%s'])[n % 2 + 1]
  from generate_series(1, 300) as n;
create table into_times as
select timestamptz '2024-01-01 00:00+00' + n * interval '1 hour' as at, n * interval '90 s' as lasted, a, b, u
  from into_rows, lateral (select id::int as n) as numbered where part = 'part';
create view into_keyed as select part, id, b, u, a from into_rows;
create view into_seen as select id, a, b, u, label from into_rows;
create table into_many (id bigint primary key, a double precision, b tint, u numeric(6, 2));
insert into into_many select n, sin(n), 'red', 1 from generate_series(1, 300000) as n;
grant select on into_rows, into_many, into_times to tensile_reader"""
TABLES_LEFT = "select count(*) from pg_class where relname ~ '^predictions_' and relkind = 'r'"


@pytest.fixture(scope="module")
def service(running: Service) -> Service:
    """The session's controller with a regression and a classification."""
    running.value("select count(*) from tensile_vacuum()")  # tables that other modules have left
    with running.database.connect("demo") as demo:
        demo.execute(TABLES.encode())
        arguments = """hyperparams => '{"epochs": 1}', exclude => '{id,part,%s}', deploy => 'always'"""
        jobs = [
            demo.execute(
                f"select tensile_train('into_{target}', 'into_rows', '{target}', {arguments % other})".encode()
            ).fetchone()
            for target, other in (("y", "label"), ("label", "y"))
        ]
        assert running.until_ended(*(job[0] for job in jobs if job)) == ["succeeded"] * 2, running.log.read_text()
    return running


@pytest.fixture
def demo(service: Service) -> Iterator[Connection]:
    with service.database.connect("demo") as connection:
        yield connection


def rows(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    return connection.execute(statement.encode()).fetchall()


def predict(connection: Connection, arguments: str) -> int:
    return int(rows(connection, f"select tensile_predict_into({arguments})")[0][0])


@pytest.mark.parametrize(
    ("model", "relation", "options"),
    nightly_unless(
        lambda case: "'{}'" in case[2],
        [
            ("into_y", "into_rows", ""),
            ("into_label", "into_rows", ", with_probabilities => true"),
            ("into_label", "into_seen", ", keys => '{id,label}'"),
            ("into_label", "into_keyed", ""),
            ("into_y", "into_rows", ", keys => '{}', snapshot => true"),
            ("into_y", "into_rows", ", keys => '{b,u}'"),
        ],
    ),
)
def test_answers_are_those_of_predict_table(
    service: Service, demo: Connection, model: str, relation: str, options: str
) -> None:
    job = predict(demo, f"'{model}', '{relation}', 'answers'{options}")
    assert service.until_ended(job) == ["succeeded"], service.log.read_text()

    order = "order by key::text, value, label"
    answers = "select key, value, label, probabilities"
    stored = rows(demo, f"{answers} from answers {order}")
    options = options.replace(", snapshot => true", "")
    called = rows(demo, f"{answers} from tensile_predict_table('{model}', '{relation}'{options}) {order}")

    assert [(key, label) for key, _, label, _ in stored] == [(key, label) for key, _, label, _ in called]
    assert [row[1] for row in stored] == [row[1] and pytest.approx(row[1], rel=1e-5, abs=1e-5) for row in called]
    assert [row[3] for row in stored] == [row[3] and pytest.approx(row[3], rel=1e-5) for row in called]
    assert len(stored) == 300
    demo.execute("drop view answers")
    assert service.value("select removed from tensile_vacuum() where kind = 'prediction tables'") == 1
    assert service.value(TABLES_LEFT) == 0


def test_keys_can_be_joined_and_the_job_is_a_job(service: Service, demo: Connection) -> None:
    total = "select coalesce(sum(value), 0) from tensile.totals where name = 'predicted_rows'"
    before = service.value(total)
    demo.execute("select tensile_measure_drift('into_y')")
    job = predict(demo, "'into_y', 'into_rows', '\"An swer\"', priority => 3, idempotency_key => 'into'")
    again = predict(demo, "'into_y', 'into_rows', '\"An swer\"', idempotency_key => 'into'")
    assert again == job
    assert service.until_ended(job) == ["succeeded"]
    assert rows(demo, 'select count(*), count(value) from into_rows join "An swer" using (id, part)') == [(300, 300)]
    state = rows(demo, f"select state::text, model, version, priority from tensile.stat_jobs where job_id = {job}")
    assert state == [("succeeded", "into_y", 1, 3)]
    assert service.value(total) >= before + 300, "they are counted with those that the service predicts meanwhile"
    drift = "select feature, reading, bins from tensile.stat_drift where model = 'into_y' order by feature"
    columns = {feature: (reading, bins) for feature, reading, bins in rows(demo, drift)}
    assert list(columns) == ["a", "b", "u"]
    assert {reading for reading, _ in columns.values()} == {"stable"}, "the rows are those of the training and others"
    counted = [(own["bin"], own["predicted"]) for own in columns["b"][1]]
    assert counted == [('"blue"', 150), ('"red"', 150), ("other", 0), ("missing", 0)]
    assert columns["u"][1][-1]["predicted"] == 60
    demo.execute("select tensile_measure_drift('into_y', false)")
    kinds = [kind for (kind,) in rows(demo, f"select kind from tensile.job_events where job_id = {job}")]
    assert "predicted" in kinds
    with pytest.raises(psycopg.errors.DuplicateTable, match=r'relation "public\.An swer" already exists'):
        predict(demo, "'into_label', 'into_rows', '\"An swer\"'")
    demo.execute('drop view "An swer"')


def test_keys_are_shown_alike_in_any_session_and_to_a_reader_of_the_view(service: Service, demo: Connection) -> None:
    job = predict(demo, "'into_y', 'into_times', 'timed', keys => '{at,lasted,a}'")
    assert service.until_ended(job) == ["succeeded"], service.log.read_text()
    shown = "select key, value from timed order by key::text"
    expected = rows(demo, shown)
    assert expected[0][0]["at"].endswith("+00:00")
    with service.database.connect() as admin:
        admin.execute("create role into_reader; grant select on timed to into_reader")  # a member of nothing
        for settings in ("set time zone 'Asia/Kathmandu'", "set role into_reader; set intervalstyle = iso_8601"):
            with service.database.connect() as session:
                session.execute(settings.encode())
                assert rows(session, shown) == expected
        admin.execute("drop view timed; drop role into_reader")


@pytest.mark.nightly
def test_a_model_may_be_renamed_before_its_prediction_starts(service: Service, demo: Connection) -> None:
    with demo.transaction():
        job = predict(demo, "'into_y', 'into_rows', 'renamed'")
        demo.execute("select tensile_rename_model('into_y', 'into_z')")
    assert service.until_ended(job) == ["succeeded"], service.log.read_text()
    demo.execute("select tensile_rename_model('into_z', 'into_y'); drop view renamed")


@pytest.mark.nightly
def test_a_view_has_the_key_of_its_table_whatever_its_type(service: Service, demo: Connection) -> None:
    demo.execute(
        """create table into_hosts (host inet primary key, a double precision, b tint, u numeric);
           insert into into_hosts select '10.0.0.1'::inet + n, sin(n), 'red', n from generate_series(1, 20) as n;
           create view into_addresses as select a, b, u, host from into_hosts"""
    )
    job = predict(demo, "'into_y', 'into_addresses', 'addressed'")
    assert service.until_ended(job) == ["succeeded"], service.log.read_text()
    assert rows(demo, "select host from addressed order by host limit 1") == [("10.0.0.10/32",)]
    demo.execute("drop view addressed, into_addresses; drop table into_hosts")


def test_killed_trainer_leaves_one_complete_table(service: Service, demo: Connection) -> None:
    job = predict(demo, "'into_y', 'into_many', 'after_kill'")
    service.until(lambda: service.value(PHASE, job) == "predicting", "the job to predict")
    for trainer in child_pids(service, "tensile trainer"):  # the job's trainer and the spare ones
        os.kill(trainer, signal.SIGKILL)
    assert service.until_ended(job) == ["succeeded"], service.log.read_text()
    assert service.value("select attempt from tensile.jobs where job_id = %s", job) == 2
    assert rows(demo, "select count(*), count(distinct id) from after_kill") == [(300000, 300000)]
    demo.execute("drop view after_kill")


def test_progress_of_a_running_job_is_shown(service: Service, demo: Connection) -> None:
    demo.execute("analyze into_many")  # the expected rows are those of the statistics
    job = predict(demo, "'into_y', 'into_many', 'in_progress'")
    progress = f"""
        select model, owner, state::text, phase, relation, output, rows_predicted, rows_expected, percent,
               rows_per_s > 0, eta between updated_at and updated_at + interval '1 hour'
          from tensile.stat_progress_predict where job_id = {job} and rows_predicted > 0"""
    ((*names, rows_predicted, rows_expected, percent, is_fast, ends),) = service.until(
        lambda: rows(demo, progress), "the job to report its progress"
    )
    assert names == ["into_y", "demo", "running", "predicting", "public.into_many", "public.in_progress"]
    assert (0 < rows_predicted <= 300000, rows_expected, is_fast, ends) == (True, 300000, True, True)
    assert float(percent) == pytest.approx(100 * rows_predicted / 300000, abs=0.051)
    demo.execute("select tensile_cancel(%s)", (job,))
    service.until_ended(job)
    assert rows(demo, f"select * from tensile.stat_progress_predict where job_id = {job}") == []
    demo.execute("drop view if exists in_progress")


@pytest.mark.nightly
def test_a_job_predicts_a_column_of_every_type_as_predict_table_does(service: Service, demo: Connection) -> None:
    demo.execute((TYPES + typed_table()).encode())
    trained = rows(
        demo,
        f"""select tensile_train('into_typed', 'typed', 'y', exclude => array['team', 'z'], {PATHS},
                   architecture => '{{"type": "mlp", "hidden": [8]}}', hyperparams => '{{"epochs": 1}}')""",
    )
    assert service.until_ended(trained[0][0]) == ["succeeded"], service.log.read_text()
    job = predict(demo, "'into_typed', 'typed', 'typed_answers'")
    assert service.until_ended(job) == ["succeeded"], service.log.read_text()
    stored = rows(demo, "select id, key, value, label from typed_answers order by id")
    called = rows(
        demo,
        "select (key -> 'id')::int, key, value, label from tensile_predict_table('into_typed', 'typed') order by 1",
    )
    assert stored == called
    assert len({value for *_, value, _ in stored}) > 1
    demo.execute("drop view typed_answers")


def test_a_training_is_described_by_one_row(service: Service, demo: Connection) -> None:
    ((described, is_recent),) = rows(
        demo,
        """select to_jsonb(i) - 'trained_at', trained_at between now() - interval '1 hour' and now()
             from tensile_training_info('into_label') as i""",
    )
    metric = described.pop("metric")
    assert (is_recent, 0 <= metric <= 1) == (True, True)
    assert described == {
        "version": 1,
        "deployed": True,
        "task": "classification",
        "target": "label",
        "architecture": {"type": "mlp", "hidden": [32], "dropout": 0.2},
        "metric_name": "accuracy",
        "parameters": 290,
        "weights_bytes": 1432,
        "relation": "public.into_rows",
        "job": service.value("select min(job_id) from tensile.jobs where model_name = 'into_label'"),
        "hyperparams": {
            "baseline": True,
            "batch_size": 16,
            "betas": [0.9, 0.999],
            "epochs": 1,
            "eps": 1e-08,
            "ensemble": 1,
            "learning_rate": 0.002,
            "optimizer": "adamw",
            "precision": "torch",
            "reduce": "exact",
            "schedule": "cosine",
            "seed": 0,
            "warmup": 0.0,
            "weight_decay": 0.01,
            "weight_decay_of": "all",
        },
        "features": ["a", "b", "u"],
        "rows": 300,
        "split": {},
        "settings": {
            "best_epoch": 1,
            "chosen": ["batch_size", "early_stop"],
            "deploy": "always",
            "early_stop": {"on": False},
            "epochs_trained": 1,
            "parts": {"test": 39, "train": 214, "valid": 47},
            "preprocess": {},
            "rows_without_target": 0,
        },
        "baseline": None,
        "baseline_metrics": None,
    }


@pytest.mark.nightly
def test_cancelled_and_failed_jobs_leave_nothing(service: Service, demo: Connection) -> None:
    with demo.transaction():
        queued = predict(demo, "'into_y', 'into_rows', 'gone', not_before => now() + interval '1 hour'")
    assert rows(demo, "select count(*) from gone") == [(0,)]
    demo.execute("select tensile_cancel(%s)", (queued,))
    assert rows(demo, "select to_regclass('gone')") == [(None,)]

    running = predict(demo, "'into_y', 'into_many', 'gone'")
    service.until(lambda: service.value(PHASE, running) == "predicting", "the job to predict")
    demo.execute("select tensile_cancel(%s)", (running,))
    assert service.until_ended(running) == ["cancelled"]

    demo.execute(
        "create table into_bad as select id, a, b, u from into_rows; grant select on into_bad to tensile_reader"
    )
    with demo.transaction():
        failing = predict(demo, "'into_y', 'into_bad', 'broken', keys => '{id}'")
        demo.execute("alter table into_bad alter id type text")
    assert service.until_ended(failing) == ["failed"]
    message = service.value("select error_message from tensile.jobs where job_id = %s", failing)
    assert message == 'columns of table public.into_bad changed after the job was enqueued: "id"'
    with service.database.connect("tensile_worker") as worker:  # what a lock kept from being dropped at once
        service.until(
            lambda: (rows(worker, "select tensile.drop_prediction_tables(10)"), service.value(TABLES_LEFT))[1] == 0,
            "the tables to go",
        )
    assert rows(demo, "select to_regclass('gone'), to_regclass('broken')") == [(None, None)]
    repeated = int(rows(demo, f"select tensile_retry({running})")[0][0])
    assert service.until_ended(repeated) == ["succeeded"]
    assert rows(demo, "select count(*) from gone") == [(300000,)]
    demo.execute("drop view gone")


def test_rights_of_another_role_give_nothing(service: Service, demo: Connection) -> None:
    version = service.value(
        "select version_id from tensile.model_versions join tensile.models using (model_id) where name = 'into_y'"
    )
    forged = {
        "model": "into_y",
        "relation": {"oid": 1259, "schema": "pg_catalog", "name": "pg_class"},
        "target": "y",
        "task": "regression",
        "architecture": {"type": "mlp"},
        "predict": {"version_id": version, "output": "stolen"},
    }
    insert = b"""insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)
                 values ('into_y', 1259, 'pg_catalog', 'pg_class', %s)"""
    with demo.transaction():
        job = predict(demo, "'into_y', 'into_rows', 'private', not_before => now() + interval '1 hour'")
    table = "tensile_data." + service.value(
        "select tensile.prediction_table(j) from tensile.jobs as j where job_id = %s", job
    )
    with service.database.connect("alice") as alice:
        with pytest.raises(psycopg.Error, match='there is no model "into_y"'):
            predict(alice, "'into_y', 'pg_class', 'stolen'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match='role "alice" may not predict with'):
            alice.execute(insert, (Jsonb(forged),))
        for statement in (
            f"select * from {table}",
            f"insert into {table} (value) values (1)",
            f"drop table {table}",
            f"create trigger t before insert on {table} execute function suppress_redundant_updates_trigger()",
            f"select tensile.make_prediction_table({job})",
            "select tensile.drop_prediction_tables(10, true)",
            "select tensile.drop_prediction_table('x')",
        ):
            with pytest.raises(psycopg.Error) as caught:
                alice.execute(statement.encode())
            assert caught.value.sqlstate in ("42501", "55000"), statement
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        demo.execute(f"insert into {table} (value) values (1)".encode())
    demo.execute("select tensile_cancel(%s)", (job,))


def test_rows_come_beside_their_answers(demo: Connection) -> None:
    typed = rows(
        demo,
        "select (r.row).*, r.label from tensile_predict_rows('into_label', null::into_rows) as r order by id",
    )
    table = "tensile_predict_table('into_label', 'into_rows') as p on (p.key ->> 'id')::bigint = t.id"
    assert typed == rows(demo, f"select t.*, p.label from into_rows as t join {table} order by id")


PHASE = "select phase::text from tensile.jobs where job_id = %s"
