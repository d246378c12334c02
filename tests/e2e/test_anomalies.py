"""Check with a real controller that anomalies are found without labels, scored in every way, and judged by labels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from indb_tensile.client import Model, Tensile
from indb_tensile.errors import UnsupportedError
from tests.e2e.conftest import Service
from tests.e2e.trainings import check_same_bits_after_a_kill

pytestmark = pytest.mark.postgres

# A reading is twice the other one and its unit follows from its sign, except in every fiftieth row.
TABLE = """
create table readings as
select n as id, place as inside, place * case when n % 50 = 0 then -2 else 2 end as outside,
       case when place > 0 then 'warm' else 'cold' end as feeling, n % 50 = 0 as odd
  from generate_series(1, 1000) as n, lateral (select (n * 37 % 997) / 500.0 - 1) as p (place);
alter table readings add primary key (id);
grant select on readings to tensile_reader"""
TRAIN = """select tensile_train('odd', 'readings', task => 'anomaly', exclude => array['odd'],
  hyperparams => '{"epochs": 60, "batch_size": 32, "contamination": 0.03}')"""
JUDGED = """select tensile_train('judged', 'readings', 'odd', task => 'anomaly',
  hyperparams => '{"epochs": 60, "batch_size": 32}', metric => 'roc_auc')"""


@pytest.fixture(scope="module")
def demo(running: Service) -> Iterator[psycopg.Connection]:
    with running.database.connect("demo") as connection:
        connection.execute(TABLE.encode())
        yield connection


@pytest.mark.nightly
def test_anomalies_are_found_scored_and_explained(running: Service, demo: psycopg.Connection, tmp_path: Path) -> None:
    def rows(statement: str) -> list[tuple[Any, ...]]:
        return demo.execute(statement.encode()).fetchall()

    assert rows(TRAIN.replace("tensile_train", "count(*) from tensile_explain"))[0][0]
    job = rows(TRAIN)[0][0]
    assert running.until_ended(job) == ["succeeded"], running.log.read_text()
    named = rows(f"select metric_name from tensile.model_versions where job_id = {job}")
    assert named == [("reconstruction_error",)]
    whole = rows("select (key ->> 'id')::int, value, label from tensile_predict_table('odd', 'readings') order by 1")
    odd = [row for row, _, label in whole if label == "true"]
    assert len([row for row in odd if row % 50 == 0]) >= 12
    assert len(odd) <= 60
    assert all(0 <= value <= 1 for _, value, _ in whole)
    single = "select tensile_predict('odd', r), tensile_predict_label('odd', r) from readings as r where id = 100"
    assert rows(single) == [(pytest.approx(whole[99][1], abs=0.01), "true")]
    batch = rows("select tensile_predict_batch('odd', array_agg(r order by id)) from readings as r where id < 4")
    assert batch[0][0] == pytest.approx([value for _, value, _ in whole[:3]], abs=0.01)
    added = rows("select feature, attribution, baseline, prediction from readings as r, "
                 "tensile_explain_prediction('odd', r) where id = 100")  # fmt: skip
    assert {feature for feature, *_ in added} == {"inside", "outside", "feeling"}
    assert sum(share for _, share, _, _ in added) == pytest.approx(added[0][3])
    assert set(dict(rows("select * from tensile_evaluate('odd', 'readings')"))) == {"reconstruction_error"}
    parts = rows("select part, count(*) from tensile_split('odd') group by part")
    assert sum(own for _, own in parts) == 1000
    with Tensile(running.database.dsn("demo")) as client, pytest.raises(UnsupportedError, match="has no file"):
        Model.export("odd", tmp_path / "odd.safetensors", database=client)


@pytest.mark.nightly
def test_anomalies_are_judged_by_labels_written_to_a_table_and_found_again(
    running: Service, demo: psycopg.Connection
) -> None:
    def rows(statement: str) -> list[tuple[Any, ...]]:
        return demo.execute(statement.encode()).fetchall()

    jobs = [rows(statement)[0][0] for statement in (TRAIN.replace("'odd',", "'table',"), JUDGED)]
    assert running.until_ended(*jobs) == ["succeeded"] * 2, running.log.read_text()
    whole = rows(
        "select (key ->> 'id')::int, value, label from tensile_predict_table('table', 'readings') order by 1"
    )
    into = rows("select tensile_predict_into('table', 'readings', 'scored')")[0][0]
    assert running.until_ended(into) == ["succeeded"], running.log.read_text()
    stored = rows("select id, value, label from scored order by id")
    assert [row[::2] for row in stored] == [row[::2] for row in whole]
    assert [value for _, value, _ in stored] == pytest.approx([value for _, value, _ in whole], abs=0.01)
    metrics = dict(rows("select * from tensile_evaluate('judged', 'readings')"))
    assert metrics["roc_auc"] > 0.9
    assert metrics["average_precision"] > 0.3
    again = rows("select tensile_retrain('table')")[0][0]
    assert running.until_ended(again) == ["succeeded"], running.log.read_text()
    demo.execute("drop view scored")


@pytest.mark.nightly
def test_a_killed_training_finds_the_same_anomalies_bit_for_bit(running: Service, demo: psycopg.Connection) -> None:
    def enqueued(name: str) -> int:
        long = TRAIN.replace("'odd',", f"'{name}',", 1).replace('"epochs": 60', '"epochs": 150')
        return int(demo.execute(long.encode()).fetchall()[0][0])

    calm, killed = enqueued("calm_odd"), enqueued("killed_odd")
    check_same_bits_after_a_kill(running, calm, killed)
    scores = "select key, value, label from tensile_predict_table(%s, 'readings') order by key::text"
    assert demo.execute(scores, ("calm_odd",)).fetchall() == demo.execute(scores, ("killed_odd",)).fetchall()


@pytest.mark.nightly
def test_a_search_chooses_among_autoencoders(running: Service, demo: psycopg.Connection) -> None:
    number = demo.execute(
        """select tensile_search('searched_odd', 'readings', task => 'anomaly', exclude => array['odd'],
                  architecture => '{"type": "autoencoder", "code": {"choices": [1, 2]}}',
                  hyperparams => '{"epochs": 9, "batch_size": 64, "learning_rate": {"choices": [0.001, 0.01]}}',
                  sampler => 'grid', parallel => 2)"""
    ).fetchall()[0][0]
    assert running.until_ended(number) == ["succeeded"], running.log.read_text()
    trials = "select count(*), min(metric) >= 0 from tensile_trial_info(%s) where metric is not null"
    assert demo.execute(trials, (number,)).fetchall() == [(4, True)]
    best = "select metric_name from tensile_training_info('searched_odd')"
    assert demo.execute(best.encode()).fetchall() == [("reconstruction_error",)]
    score = "select tensile_predict('searched_odd', r) between 0 and 1 from readings as r where id = 100"
    assert demo.execute(score.encode()).fetchall() == [(True,)]
