"""Check rounds on the GPU back end with real processes, on a double of the GPU's driver (test_gpu_double.py).

Regions of the controller are mapped at the places of each member as the round lends them. The double refuses every
access that a driver would refuse, and counts its physical memory over all processes.
"""

import os
import signal
import sys
from collections.abc import Iterator

import psycopg
import pytest

from indb_tensile.cluster import Cluster
from tests.conftest import fresh_database
from tests.e2e.conftest import MIB, Service, service_on
from tests.e2e.round_trainings import (
    BUDGET_BYTES,
    SETTINGS,
    begun_rounds,
    epoch_of,
    highest_bytes,
    train_convolutional,
)
from tests.e2e.test_gpu_double import CONTROLLER
from tests.e2e.trainings import child_pids, device_is_free, load, wait_until_training, weights
from tests.native.cuda_double import ROOT, build, physical_bytes

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

EPOCHS = 40


@pytest.fixture(scope="module")
def service(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One controller for the tests of this module, and the table digits."""
    driver = build(tmp_path_factory.mktemp("driver"))
    with fresh_database(cluster, template) as database, service_on(database) as service:
        service.settings |= {
            **SETTINGS,
            "TENSILE_DEVICE": "auto",
            "LD_LIBRARY_PATH": f"{driver.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "FAKE_CUDA_HOST_COMPUTES": "1",
            "FAKE_CUDA_GRANULARITY_KB": "512",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "TENSILE_REGION_BYTES": str(MIB // 2),
        }
        service.command = ["-c", CONTROLLER]
        service.start()
        with database.connect("demo") as connection:
            load(connection, "digits")
        yield service


@pytest.fixture
def demo(service: Service) -> Iterator[psycopg.Connection]:
    with service.database.connect("demo") as connection:
        yield connection
    service.until(lambda: device_is_free(service), "the device to be free")
    assert "fake CUDA" not in service.log.read_text(errors="replace"), "the double reported a violated rule"


@pytest.fixture(scope="module")
def alone(service: Service) -> int:
    """A training that runs alone."""
    with service.database.connect("demo") as demo:
        job = train_convolutional(demo, "alone", EPOCHS)
        assert service.until_ended(job) == ["succeeded"]
    return job


def test_jobs_in_a_round_on_a_gpu_publish_the_bits_of_the_job_alone_within_the_budget(
    service: Service, demo: psycopg.Connection, alone: int
) -> None:
    rounds = begun_rounds(service)
    jobs = [train_convolutional(demo, f"round {number}", EPOCHS) for number in (1, 2)]
    service.until(lambda: begun_rounds(service) > rounds, "a round to begin", 100)
    assert service.process is not None
    physical = physical_bytes(service.process.pid)
    assert service.until_ended(*jobs) == ["succeeded"] * 2
    assert [weights(service, job) for job in jobs] == [weights(service, alone)] * 2
    assert highest_bytes(service) <= BUDGET_BYTES == physical
    assert service.value("select max(faults) from tensile.jobs") == 0


def test_job_in_a_round_goes_on_when_another_is_paused_and_cancelled(
    service: Service, demo: psycopg.Connection, alone: int
) -> None:
    jobs = _in_a_round(service, demo, "paused")
    demo.execute("select tensile_pause(%s)", (jobs[1],))
    phase = "select phase = 'paused' from tensile.jobs where job_id = %s"
    service.until(lambda: service.value(phase, jobs[1]), "the job to leave the device")
    _goes_on(service, jobs[0])
    demo.execute("select tensile_resume(%s)", (jobs[1],))
    wait_until_training(service, jobs[1], epoch_of(service, jobs[1]) + 1)
    _ends_alone(service, demo, jobs, alone)


def test_job_in_a_round_goes_on_when_another_is_killed_and_cancelled(
    service: Service, demo: psycopg.Connection, alone: int
) -> None:
    jobs = _in_a_round(service, demo, "killed")
    os.kill(child_pids(service, "tensile gpu_dou")[-1], signal.SIGKILL)
    _goes_on(service, jobs[0])
    _ends_alone(service, demo, jobs, alone)


def test_controller_whose_trainers_cannot_share_memory_says_that_it_makes_no_rounds(service: Service) -> None:
    assert service.stop() == 0
    service.settings |= {"TENSILE_SHARE_MEMORY": "false"}
    service.start()
    assert "phases is on, and jobs do not share memory in phases: each trainer allocates its own regions" in (
        service.log.read_text(errors="replace")
    )


def _in_a_round(service: Service, demo: psycopg.Connection, model: str) -> list[int]:
    """Start two trainings, and return them once both have trained an epoch in a round.

    Whether there is a second round after one is over depends on what was measured, so no test waits for that.
    """
    rounds = begun_rounds(service)
    jobs = [train_convolutional(demo, f"{model} {number}", EPOCHS) for number in (1, 2)]
    service.until(lambda: begun_rounds(service) > rounds, "a round to begin", 100)
    wait_until_training(service, jobs[1], epoch_of(service, jobs[1]) + 1)
    return jobs


def _ends_alone(service: Service, demo: psycopg.Connection, jobs: list[int], alone: int) -> None:
    """Cancel the second job. The first one publishes the bits of the training that ran alone."""
    demo.execute("select tensile_cancel(%s)", (jobs[1],))
    assert service.until_ended(*jobs) == ["succeeded", "cancelled"]
    assert weights(service, jobs[0]) == weights(service, alone)
    assert highest_bytes(service) <= BUDGET_BYTES


def _goes_on(service: Service, job: int) -> None:
    epoch = epoch_of(service, job)
    service.until(lambda: epoch_of(service, job) > epoch or service.state(job) == "succeeded", "the job to go on")
