"""Check with a real controller that a model of computed features predicts what it has learned."""

from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Service
from tests.e2e.trainings import device_is_free

pytestmark = pytest.mark.postgres

TABLE = """
create table clocked as
  select i as id, timestamptz '2024-01-01 00:00+00' + i * interval '1 hour' as at, i % 5 as other,
         i % 24 >= 12 as afternoon
    from generate_series(1, 480) as i;
alter table clocked add primary key (id);
grant select on clocked to tensile_reader"""
TRAIN = """
select tensile_train('clock', 'clocked', target => 'afternoon', features => array['hour', 'other'],
  architecture => '{"type": "mlp", "hidden": [16]}',
  hyperparams => '{"epochs": 30, "learning_rate": 0.02, "seed": 1}',
  transform => '{"hour": "extract(hour from at at time zone ''UTC'')"}')"""


@pytest.mark.nightly
def test_model_of_a_computed_feature_predicts_alike_in_each_form_and_session(running: Service) -> None:
    running.until(lambda: device_is_free(running), "the device to be free")
    with running.database.connect("demo") as demo:
        demo.execute(TABLE)
        job = _one(demo, TRAIN)
        assert running.until_ended(job) == ["succeeded"], running.log.read_text()
        accuracy = "select value from tensile_evaluate('clock'{}) where metric = 'accuracy'"
        assert _one(demo, accuracy.format("")) > 0.9
        single = _one(demo, "select array_agg(tensile_predict('clock', t) order by id) from clocked as t")
        demo.execute("set timezone = 'Asia/Kolkata'; set datestyle = 'German'")
        again = _one(demo, "select array_agg(tensile_predict('clock', t) order by id) from clocked as t")
        batch = _one(demo, "select tensile_predict_batch('clock', array_agg(t order by id)) from clocked as t")
        table = _one(
            demo,
            "select array_agg(value order by (key ->> 'id')::int) from tensile_predict_table('clock', 'clocked')",
        )
        assert single == again == batch == table
        into = _one(demo, "select tensile_predict_into('clock', 'clocked', 'clock_answers')")
        assert running.until_ended(into) == ["succeeded"], running.log.read_text()
        assert _one(demo, "select array_agg(value order by id) from clock_answers") == single
        demo.execute("drop view clock_answers")
        assert _one(demo, accuracy.format(", 'clocked'")) > 0.9
        parts = demo.execute("select part, count(*) from tensile_split('clock') group by part").fetchall()
        assert sum(count for _, count in parts) == 480
        assert _one(demo, "select count(*) > 0 from tensile_explain('clock', 'clocked')") is True


def _one(connection: psycopg.Connection[Any], statement: str) -> Any:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]
