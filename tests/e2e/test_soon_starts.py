"""A waiting training starts up during the last steps of the one before it, with a real controller and trainers."""

from collections.abc import Iterator

import psycopg
import pytest

from indb_tensile.catalog.device_contention import ALONE, MeasuredContention, save_contention
from indb_tensile.device.hardware import emulated_kind
from tests.conftest import Database
from tests.e2e.conftest import MIB, Service, service_on
from tests.e2e.trainings import device_columns, device_is_free, load, train, wait_until_training, weights

pytestmark = pytest.mark.postgres

BUDGET_BYTES = 64 * MIB  # enough for both trainings without plans
EPOCHS = {"digits": 100, "breast_cancer": 250}
STARTUP_NS = 2_000_000_000
WAITING = "select phase = 'waiting for memory' from tensile.jobs where job_id = %s"
# Without a soon start the first training has left the device, and that is noted, before the second one is planned.
ORDERED_FIRST = """
select (select min(p.created_at) from tensile.plans as p where p.job_id = %s)
     < (select max(s.ended_at) from tensile.job_sets as s where s.job_id = %s)"""


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    """A controller that starts up for seconds, and knows that two jobs side by side take longer than in turns.

    A start-up uses one of the two threads of a job, so it costs the other job half of its time.
    """
    with service_on(database) as service:
        service.settings |= {
            "TENSILE_CAPACITY_BYTES": str(BUDGET_BYTES),
            "TENSILE_SPARE_TRAINERS": "2",
            "TENSILE_TORCH_THREADS": "2",
        }
        with database.connect("tensile_worker") as connection:
            pair = MeasuredContention(jobs=2, arithmetic=2.2, memory=2.2, mixed=2.2)
            save_contention(connection, emulated_kind(2), (ALONE, pair))
        yield service


# By day tests/scheduler/admission/test_soon_starts.py tests the decision.
@pytest.mark.nightly
def test_next_training_starts_up_before_the_first_leaves_and_both_publish_the_bits_of_undisturbed_ones(
    service: Service,
) -> None:
    service.start()
    with service.database.connect("demo") as demo:
        load(demo, *EPOCHS)
        alone = {table: train_alone(service, demo, table) for table in EPOCHS}
        assert service.stop() == 0
        service.connection.execute("update tensile.device_overheads set startup_ns = %s", (STARTUP_NS,))
        service.start()
        first = train(demo, "first", "digits", epochs=EPOCHS["digits"])
        wait_until_training(service, first)  # two that start up at once would share the time of that
        second = train(demo, "second", "breast_cancer", epochs=EPOCHS["breast_cancer"])
        service.until(lambda: service.value(WAITING, second), "the second training to wait for the first")
        assert service.until_ended(first, second) == ["succeeded"] * 2
    assert service.value(ORDERED_FIRST, second, first), service.log.read_text(errors="replace")
    for job, table in ((first, "digits"), (second, "breast_cancer")):
        assert weights(service, job) == weights(service, alone[table])
        assert service.value("select attempt from tensile.jobs where job_id = %s", job) == 1
    assert (device_columns(service, "high_water_bytes") or (BUDGET_BYTES + 1,))[0] <= BUDGET_BYTES


def train_alone(service: Service, demo: psycopg.Connection, table: str) -> int:
    job = train(demo, f"{table} alone", table, epochs=EPOCHS[table])
    assert service.until_ended(job) == ["succeeded"]
    service.until(lambda: device_is_free(service), "the device to be free")
    return job
