"""Check paused trainings with real processes: they give up the device, come back, and publish the same bits."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.e2e.conftest import BUDGET_BYTES, MIB, UNDISTURBED_EPOCHS, Service
from tests.e2e.trainings import (
    child_pids,
    device_columns,
    device_is_free,
    train,
    wait_until_training,
    weights,
)

pytestmark = pytest.mark.postgres

SMALLER_BYTES = 12 * MIB  # below the peak of an unplanned iteration
FIGURES = "select epoch, name, value from tensile.metrics where job_id = %s order by epoch, name"


@pytest.fixture
def service(running: Service) -> Iterator[Service]:
    """The session's controller. A test that has changed its settings leaves them as they were."""
    settings = dict(running.settings)
    yield running
    if running.settings != settings:
        running.stop()
        running.settings = settings
        _write_budget(running, BUDGET_BYTES)
        running.start()


@pytest.fixture
def demo(service: Service) -> Iterator[psycopg.Connection]:
    with service.database.connect("demo") as connection:
        yield connection
    service.until(lambda: device_is_free(service), "the device to be free")


def pause(service: Service, demo: psycopg.Connection, job: int) -> int:
    """Pause a training, wait until it has left the device, and return its epoch."""
    demo.execute("select tensile_pause(%s)", (job,))
    service.until(lambda: phase(service, job) == "paused", "the job to leave the device")
    service.until(lambda: ledger(service, job) == (0, 0), "the ledger to show no bytes of the job")
    assert service.state(job) == "running"
    return int(service.value("select epoch from tensile.job_progress where job_id = %s", job))


def resume(demo: psycopg.Connection, job: int) -> None:
    demo.execute("select tensile_resume(%s)", (job,))


def set_budget(service: Service, budget_bytes: int) -> None:
    """Change the budget of the running controller."""
    assert service.process is not None
    _write_budget(service, budget_bytes)
    service.process.send_signal(signal.SIGHUP)
    service.until(lambda: device_columns(service, "budget_bytes") == (budget_bytes,), "the new budget")


def _write_budget(service: Service, budget_bytes: int) -> None:
    Path(service.settings["TENSILE_CONFIG"]).write_text(f"budget_bytes = {budget_bytes}\n")


def phase(service: Service, job: int) -> str | None:
    phase = service.value("select phase::text from tensile.jobs where job_id = %s", job)
    return None if phase is None else str(phase)


def ledger(service: Service, job: int) -> tuple[int, ...] | None:
    """The job's granted and used bytes on the device."""
    return service.connection.execute(
        "select granted_bytes, used_bytes from tensile.device_jobs where job_id = %s", (job,)
    ).fetchone()


def figures(service: Service, job: int) -> list[tuple[int, str, float]]:
    return service.connection.execute(FIGURES, (job,)).fetchall()


def check_equal(service: Service, job: int, undisturbed: int) -> None:
    """Check that the job has published the bits of the undisturbed one, without a fault and within the budget."""
    assert service.until_ended(job) == ["succeeded"]
    assert weights(service, job) == weights(service, undisturbed)
    assert figures(service, job) == figures(service, undisturbed)
    assert service.value("select faults from tensile.jobs where job_id = %s", job) == 0
    assert (device_columns(service, "high_water_bytes") or (BUDGET_BYTES + 1,))[0] <= BUDGET_BYTES


def test_paused_training_gives_its_memory_to_another_and_publishes_the_bits_of_an_undisturbed_one(
    service: Service, demo: psycopg.Connection, undisturbed: int
) -> None:
    job = train(demo, "paused", "digits", epochs=UNDISTURBED_EPOCHS)
    wait_until_training(service, job)
    epoch = pause(service, demo, job)
    assert epoch < UNDISTURBED_EPOCHS
    row = demo.execute("select phase::text, paused, waits_for from tensile.stat_queue where job_id = %s", (job,))
    assert row.fetchone() == ("paused", True, f"its resumption: select tensile_resume({job});")
    other = train(demo, "other", "breast_cancer", epochs=4)
    assert service.until_ended(other) == ["succeeded"]
    alone = "select granted_bytes from tensile.stat_device order by worker_id desc limit 1"
    service.until(lambda: service.value(alone) == 0, "the other job to leave the device")
    assert service.value("select epoch from tensile.job_progress where job_id = %s", job) == epoch
    resume(demo, job)
    service.until(lambda: phase(service, job) != "paused", "the job to come back")
    pause(service, demo, job)
    set_budget(service, SMALLER_BYTES)
    resume(demo, job)
    # The job may end between two records of the device's use, so what it held is read from its last plan.
    check_equal(service, job, undisturbed)
    last_plan = (
        "select coalesce(measured_peak_bytes, predicted_peak_bytes) from tensile.plans where job_id = %s"
        " order by plan_id desc limit 1"
    )
    assert 0 < service.value(last_plan, job) <= SMALLER_BYTES
    set_budget(service, BUDGET_BYTES)
    assert service.value("select attempt from tensile.jobs where job_id = %s", job) == 1
    kinds = (
        "select array_agg(kind order by event_id) from tensile.job_events where job_id = %s and kind ~ 'requested'"
    )
    assert service.value(kinds, job) == ["pause_requested", "resume_requested"] * 2


@pytest.mark.nightly  # by day test_training.py kills a trainer, and the test above pauses a training
def test_paused_training_whose_trainer_is_killed_continues_from_its_checkpoint_when_it_is_resumed(
    service: Service, demo: psycopg.Connection, undisturbed: int
) -> None:
    job = train(demo, "killed_while_parked", "digits", epochs=UNDISTURBED_EPOCHS)
    wait_until_training(service, job)
    pause(service, demo, job)
    for trainer in child_pids(service, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    service.until(lambda: service.state(job) == "queued", "the job to return to the queue")
    other = train(demo, "later", "breast_cancer", epochs=2)
    assert service.until_ended(other) == ["succeeded"], "a paused job blocks nobody"
    assert service.state(job) == "queued"
    resume(demo, job)
    check_equal(service, job, undisturbed)
    assert service.value("select attempt from tensile.jobs where job_id = %s", job) == 2


@pytest.mark.nightly
def test_cancelled_paused_training_leaves_no_memory_and_no_version(
    service: Service, demo: psycopg.Connection
) -> None:
    job = train(demo, "cancelled", "digits", epochs=100_000)
    wait_until_training(service, job)
    pause(service, demo, job)
    demo.execute("select tensile_cancel(%s)", (job,))
    assert service.until_ended(job) == ["cancelled"]
    assert service.value("select count(*) from tensile.model_versions where job_id = %s", job) == 0


@pytest.mark.nightly
def test_training_without_room_in_host_memory_continues_from_its_checkpoint_under_a_smaller_budget(
    service: Service, demo: psycopg.Connection, undisturbed: int
) -> None:
    assert service.stop() == 0
    service.settings |= {"TENSILE_PARKED_JOBS": "0", "TENSILE_CHECKPOINT_S": "3600"}
    service.start()
    job = train(demo, "saved", "digits", epochs=UNDISTURBED_EPOCHS)
    wait_until_training(service, job)
    demo.execute("select tensile_pause(%s)", (job,))
    service.until(lambda: service.state(job) == "queued", "the job to return to the queue")
    reason = "select detail ->> 'reason' from tensile.job_events where job_id = %s and kind = 'requeued'"
    assert "from the checkpoint that it has just saved" in service.value(reason, job)
    service.until(lambda: device_is_free(service), "the device to be free")
    assert service.stop() == 0
    _write_budget(service, SMALLER_BYTES)
    service.start()
    other = train(demo, "meanwhile", "breast_cancer", epochs=2)
    assert service.until_ended(other) == ["succeeded"]
    assert service.state(job) == "queued", "it stays paused after a restart of the controller"
    resume(demo, job)
    check_equal(service, job, undisturbed)
    resumed = "select count(*) from tensile.job_events where job_id = %s and kind = 'resumed'"
    assert service.value(resumed, job) == 1
