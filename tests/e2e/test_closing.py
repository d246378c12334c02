"""Check trainings between their last step and their publication: they hold no device memory, and lose nothing.

A lock on the table of versions holds each publication back, so the tests meet trainers in this short time.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.e2e.conftest import BUDGET_BYTES, UNDISTURBED_EPOCHS, Service
from tests.e2e.trainings import (
    check_killed_without_fault,
    child_pids,
    device_columns,
    device_is_free,
    train,
    wait_until_training,
    weights,
)

# By day tests/scheduler/admission/test_closing.py has the decisions, and other modules publish versions.
pytestmark = [pytest.mark.postgres, pytest.mark.nightly]


@pytest.fixture
def service(running: Service) -> Service:
    return running


@pytest.fixture
def demo(service: Service) -> Iterator[psycopg.Connection]:
    with service.database.connect("demo") as connection:
        yield connection
    service.until(lambda: device_is_free(service), "the device to be free")


@contextmanager
def publications_held(service: Service) -> Iterator[None]:
    """Let no trainer store a version. Each repeats its attempts until it can."""
    with service.database.connect("postgres") as connection, connection.transaction():
        connection.execute("lock table tensile.model_versions in exclusive mode")
        yield


def wait_until_closing(service: Service, job: int) -> None:
    """Wait until the job publishes, and the ledger has no bytes of it."""
    phase = "select phase::text from tensile.jobs where job_id = %s"
    used = "select granted_bytes + used_bytes from tensile.device_jobs where job_id = %s"
    service.until(lambda: service.value(phase, job) == "publishing", f"job {job} to publish")
    service.until(lambda: service.value(used, job) == 0, f"job {job} to give its memory back")
    assert service.state(job) == "running"


def check_published(service: Service, job: int, undisturbed: int) -> None:
    assert service.until_ended(job) == ["succeeded"], service.log.read_text()
    assert weights(service, job) == weights(service, undisturbed)
    assert (device_columns(service, "high_water_bytes") or (BUDGET_BYTES + 1,))[0] <= BUDGET_BYTES


def test_another_training_uses_the_memory_of_one_that_is_published(
    service: Service, demo: psycopg.Connection, undisturbed: int
) -> None:
    with publications_held(service):
        first = train(demo, "published_slowly", "digits", epochs=UNDISTURBED_EPOCHS)
        wait_until_closing(service, first)
        second = train(demo, "starts_meanwhile", "digits", epochs=UNDISTURBED_EPOCHS)
        wait_until_closing(service, second)
    for job in (first, second):
        check_published(service, job, undisturbed)
        assert service.value("select attempt from tensile.jobs where job_id = %s", job) == 1


def test_training_whose_trainer_is_killed_before_it_has_published_publishes_once_and_the_same_bits(
    service: Service, demo: psycopg.Connection, undisturbed: int
) -> None:
    job = train(demo, "killed_while_closing", "digits", epochs=UNDISTURBED_EPOCHS)
    with publications_held(service):
        wait_until_closing(service, job)
        other = train(demo, "beside_the_killed", "breast_cancer", epochs=100_000)
        wait_until_training(service, other)
        for trainer in child_pids(service, "tensile trainer"):
            os.kill(trainer, signal.SIGKILL)
        attempt = "select attempt from tensile.jobs where job_id = %s"
        service.until(lambda: service.value(attempt, job) == 2, "the next attempt of the job")
    check_published(service, job, undisturbed)
    check_killed_without_fault(service, job)
    demo.execute("select tensile_cancel(%s)", (other,))
    assert service.until_ended(other) == ["cancelled"]


def test_training_that_is_cancelled_before_it_has_published_leaves_no_version(
    service: Service, demo: psycopg.Connection
) -> None:
    with publications_held(service):
        job = train(demo, "cancelled_while_closing", "digits", epochs=2)
        wait_until_closing(service, job)
        demo.execute("select tensile_cancel(%s)", (job,))
        assert service.until_ended(job) == ["cancelled"]
    assert service.value("select count(*) from tensile.model_versions where job_id = %s", job) == 0
