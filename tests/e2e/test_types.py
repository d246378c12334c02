"""A whole job on columns of many types: with plans it has the bits that it has without them, and it predicts."""

import pytest

from tests.e2e.conftest import MIB, Service
from tests.e2e.trainings import weights

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

TABLE = """
create table visits (
  id bigint primary key, patient int, span interval, at time, plan text, tags text[], doc jsonb, pixels real[],
  weight real, ill boolean);
insert into visits
select i, i / 3, i % 50 * interval '1 hour', time '08:00' + i % 600 * interval '1 minute', 'p' || i % 40,
       array['t' || i % 5], jsonb_build_object('a', i % 9),
       array(select sin(i * k)::real from generate_series(1, 600) as k), 1 + i % 2, (i % 50 > 30) <> (i % 7 = 0)
  from generate_series(1, 900) as i;
grant select on visits to tensile_reader;
"""
TRAIN = """
select tensile_train('visits', 'visits', 'ill', split => '{"group": "patient"}', deploy => 'always',
  architecture => '{"type": "mlp", "hidden": [400, 400, 400, 400, 400, 400]}',
  features => array['span', 'at', 'plan', 'tags', 'doc', 'pixels'],
  hyperparams => '{"epochs": 2, "batch_size": 600, "class_weight": "balanced", "weight": "weight"}',
  preprocess => '{"encode": "target", "paths": {"doc": {"a": "number"}}, "scale": {"span": "power"}}')
"""
PEAK = "select max(predicted_peak_bytes) from tensile.plans where job_id = %s"
PLANNED = "select max(swaps + recomputed) from tensile.plans where job_id = %s"


def _trained(service: Service, capacity_bytes: int) -> int:
    service.settings |= {
        "TENSILE_DEVICE": "emulated",
        "TENSILE_CAPACITY_BYTES": str(capacity_bytes),
        "TENSILE_BUDGET_BYTES": str(capacity_bytes),
    }
    service.start()
    with service.database.connect("demo") as demo:
        row = demo.execute(TRAIN.encode()).fetchone()
    assert row is not None
    assert service.until_ended(row[0]) == ["succeeded"]
    return int(row[0])


def test_a_planned_training_on_many_types_has_the_bits_of_an_unplanned_one_and_predicts(service: Service) -> None:
    with service.database.connect("demo") as demo:
        demo.execute(TABLE)
    unplanned = _trained(service, 256 * MIB)
    expected = weights(service, unplanned)
    service.stop()
    planned = _trained(service, service.value(PEAK, unplanned) * 4 // 5 // MIB * MIB)
    assert service.value(PLANNED, planned) > 0
    assert weights(service, planned) == expected
    with service.database.connect("demo") as demo:
        groups = demo.execute(
            """select count(distinct (v.patient, s.part)) = count(distinct v.patient)
                 from tensile_split('visits') as s join visits as v on v.id = (s.key::jsonb ->> 'id')::bigint"""
        ).fetchone()
        same = demo.execute(
            """select bool_and(tensile_predict('visits', v) = tensile_predict('visits', to_jsonb(v)))
                 from visits as v where id <= 20"""
        ).fetchone()
    assert (groups, same) == ((True,), (True,))
