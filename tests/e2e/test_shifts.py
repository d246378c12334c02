"""A long training makes way for a short one with real processes, and both publish the bits of undisturbed ones."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from indb_tensile.cluster import Cluster
from indb_tensile.device.processor_times import process_s
from tests.conftest import fresh_database
from tests.e2e.conftest import MIB, Service, service_on
from tests.e2e.trainings import child_pids, device_columns, device_is_free, load, train, wait_until_training, weights

pytestmark = pytest.mark.postgres

BUDGET_BYTES = 16 * MIB  # enough for one of the trainings without plans, and not for two
LONG_EPOCHS = 60
SHORT_EPOCHS = 2


@pytest.fixture(scope="module")
def service(cluster: Cluster, template: str) -> Iterator[Service]:
    """One controller, under which jobs run side by side only if that slows down none of them."""
    with fresh_database(cluster, template) as database, service_on(database) as service:
        service.settings |= {
            "TENSILE_CAPACITY_BYTES": str(BUDGET_BYTES),
            "TENSILE_SPARE_TRAINERS": "2",
            "TENSILE_MAX_SLOWDOWN": "1",
        }
        service.start()
        with database.connect("demo") as connection:
            load(connection, "digits")
        yield service


WAITING = "select phase = 'waiting for memory' from tensile.jobs where job_id = %s"


@contextmanager
def _stopped_trainer(service: Service) -> Iterator[None]:
    """Stop the only training, whose trainer has used a processor longer than the spare trainers."""
    trainer = max(child_pids(service, "tensile trainer"), key=lambda pid: process_s(pid) or 0.0)
    os.kill(trainer, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(trainer, signal.SIGCONT)


@pytest.fixture
def demo(service: Service) -> Iterator[psycopg.Connection]:
    with service.database.connect("demo") as connection:
        yield connection
    service.until(lambda: device_is_free(service), "the device to be free")


# By day tests/scheduler/admission/test_shifts.py tests the decision, and test_parking.py a paused training's bits.
@pytest.mark.nightly
def test_long_training_makes_way_for_a_short_one_and_both_publish_the_bits_of_undisturbed_ones(
    service: Service, demo: psycopg.Connection
) -> None:
    undisturbed = {}
    for name, epochs in (("long alone", LONG_EPOCHS), ("short alone", SHORT_EPOCHS)):
        undisturbed[name] = train(demo, name, "digits", epochs=epochs)
        assert service.until_ended(undisturbed[name]) == ["succeeded"]
    long = train(demo, "long", "digits", epochs=LONG_EPOCHS)
    wait_until_training(service, long)
    with _stopped_trainer(service):  # so that it has not ended when the short training asks for the memory
        short = train(demo, "short", "digits", epochs=SHORT_EPOCHS)
        service.until(lambda: service.value(WAITING, short), "the short training to wait for memory")
    assert service.until_ended(short) == ["succeeded"]
    assert service.state(long) == "running"
    assert service.until_ended(long) == ["succeeded"]
    for job, alone in ((long, "long alone"), (short, "short alone")):
        assert weights(service, job) == weights(service, undisturbed[alone])
        assert service.value("select attempt from tensile.jobs where job_id = %s", job) == 1
    assert f"job {long}: parked " in service.log.read_text(errors="replace")
    assert (device_columns(service, "high_water_bytes") or (BUDGET_BYTES + 1,))[0] <= BUDGET_BYTES
