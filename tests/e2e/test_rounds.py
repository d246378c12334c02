"""Check rounds with real processes: jobs share the device in phases, and publish the bits that they publish alone."""

import os
import signal
from collections.abc import Iterator

import psycopg
import pytest

from indb_tensile.cluster import Cluster
from tests.conftest import fresh_database
from tests.e2e.conftest import Service, service_on
from tests.e2e.round_trainings import (
    BUDGET_BYTES,
    SETTINGS,
    begun_rounds,
    epoch_of,
    highest_bytes,
    train_convolutional,
)
from tests.e2e.trainings import child_pids, device_is_free, load, wait_until_training, weights

pytestmark = pytest.mark.postgres

EPOCHS = 20


@pytest.fixture(scope="module")
def service(cluster: Cluster, template: str) -> Iterator[Service]:
    """One controller for the tests of this module. Jobs with two threads each take turns on the processor."""
    with fresh_database(cluster, template) as database, service_on(database) as service:
        service.settings |= {
            **SETTINGS,
            "TENSILE_BUDGET_BYTES": str(BUDGET_BYTES),
            "TENSILE_TORCH_THREADS": "2",
            "TENSILE_LINK_OUT_BYTES_PER_S": "30000000",
            "TENSILE_LINK_IN_BYTES_PER_S": "30000000",
        }
        service.start()
        with database.connect("demo") as connection:
            load(connection, "digits")
        yield service


@pytest.fixture
def demo(service: Service) -> Iterator[psycopg.Connection]:
    with service.database.connect("demo") as connection:
        yield connection
    service.until(lambda: device_is_free(service), "the device to be free")


@pytest.fixture(scope="module")
def alone(service: Service) -> int:
    """A training that runs alone."""
    with service.database.connect("demo") as demo:
        job = train_convolutional(demo, "alone", EPOCHS)
        assert service.until_ended(job) == ["succeeded"]
    return job


@pytest.mark.nightly
def test_jobs_in_a_round_publish_the_bits_of_the_job_alone_within_the_budget(
    service: Service, demo: psycopg.Connection, alone: int
) -> None:
    rounds = begun_rounds(service)
    jobs = [train_convolutional(demo, f"round {number}", EPOCHS) for number in (1, 2)]
    service.until(lambda: begun_rounds(service) > rounds, "a round to begin", 100)
    assert service.until_ended(*jobs) == ["succeeded"] * 2
    assert [weights(service, job) for job in jobs] == [weights(service, alone)] * 2
    assert highest_bytes(service) <= BUDGET_BYTES
    assert service.value("select max(faults) from tensile.jobs") == 0


@pytest.mark.nightly
def test_job_goes_on_when_another_is_killed_or_cancelled_in_the_round(
    service: Service, demo: psycopg.Connection, alone: int
) -> None:
    rounds = begun_rounds(service)
    jobs = [train_convolutional(demo, f"hurt {number}", EPOCHS) for number in (1, 2)]
    service.until(lambda: begun_rounds(service) > rounds, "a round to begin", 100)
    wait_until_training(service, jobs[0], epoch_of(service, jobs[0]) + 1)
    os.kill(child_pids(service, "tensile trainer")[-1], signal.SIGKILL)
    epoch = epoch_of(service, jobs[0])
    service.until(lambda: epoch_of(service, jobs[0]) > epoch, "the first job to go on, or to start again")
    demo.execute("select tensile_cancel(%s)", (jobs[1],))
    assert service.until_ended(*jobs) == ["succeeded", "cancelled"]
    assert weights(service, jobs[0]) == weights(service, alone)
    assert highest_bytes(service) <= BUDGET_BYTES
