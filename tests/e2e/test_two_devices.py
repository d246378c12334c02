"""Check jobs on two devices: one too small for a job, and one that comes while jobs wait on the other."""

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import MIB, Service
from tests.e2e.trainings import load, train, wait_until_training, weights

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]


@contextlib.contextmanager
def second_controller(service: Service, capacity_bytes: int) -> Iterator[int]:
    """Run another controller, with an emulated device of this size, and yield its process id."""
    directory = service.directory / "second"
    directory.mkdir()
    settings = {"TENSILE_STATE_DIR": str(directory), "TENSILE_CAPACITY_BYTES": str(capacity_bytes)}
    process = service.spawn(settings)
    try:
        budget = (
            "select budget_bytes from tensile.stat_device join tensile.stat_workers using (worker_id) where pid = %s"
        )
        service.until(lambda: service.value(budget, process.pid), "the second controller to report its device")
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def pid_of(service: Service, job: int) -> int | None:
    """Return the process id of the controller that claimed the job last; None while no controller has it."""
    pid: int | None = service.value(
        "select w.pid from tensile.jobs as j join tensile.workers as w using (worker_id) where j.job_id = %s", job
    )
    return pid


def test_job_that_is_too_large_for_one_device_trains_on_the_larger(service: Service) -> None:
    large = '{"type": "mlp", "hidden": [2048, 2048]}'
    service.settings["TENSILE_CAPACITY_BYTES"] = str(24 * MIB)
    service.start()
    with service.database.connect("demo") as demo:
        load(demo, "digits")
        alone = train(demo, "alone", "digits", architecture=large, epochs=1)
        assert service.until_ended(alone) == ["failed"]
        message = service.value("select error_message from tensile.jobs where job_id = %s", alone)
        assert message == "the network needs at least 32.0 MB of device memory, more than the budget of 24.0 MB"
        with second_controller(service, 160 * MIB) as pid:
            os.kill(pid, signal.SIGSTOP)  # so that the smaller device claims the job
            try:
                job = train(demo, "large", "digits", architecture=large, epochs=1)
                left = "select detail ->> 'reason' from tensile.job_events where job_id = %s and kind = 'requeued'"
                assert service.until(lambda: service.value(left, job), "the job to be left to the larger") == message
                waits = "select waits_for from tensile.stat_queue where job_id = %s"
                assert service.value(waits, job) == f"a larger device: {message}"
            finally:
                os.kill(pid, signal.SIGCONT)
            assert service.until_ended(job) == ["succeeded"]
        outcome = service.connection.execute("select faults, attempt from tensile.jobs where job_id = %s", (job,))
        assert outcome.fetchone() == (0, 2)


def test_waiting_jobs_go_to_a_device_that_has_none(service: Service) -> None:
    service.settings["TENSILE_CAPACITY_BYTES"] = str(12 * MIB)
    service.start()
    with service.database.connect("demo") as demo:
        load(demo, "digits")
        # A training on all of the device, and two that wait for it.
        first = train(demo, "first", "digits", epochs=400)
        service.until(lambda: service.state(first) == "running", "the first job to train")
        waiting = [train(demo, f"waits {number}", "digits", epochs=400) for number in (1, 2)]
        waits = (
            "select bool_and(waits_for is not null and worker_id is not null) from tensile.jobs"
            " where job_id = any (%s)"
        )
        service.until(lambda: service.value(waits, waiting), "the other jobs to wait for the device")
        with second_controller(service, 12 * MIB) as pid:
            service.until(lambda: pid in [pid_of(service, job) for job in waiting], "the second device to claim one")
            moved = next(job for job in waiting if pid_of(service, job) == pid)
            reason = (
                "select detail ->> 'reason' from tensile.job_events where job_id = %s and kind = 'requeued'"
                " order by event_id limit 1"
            )
            assert service.value(reason, moved) == "it waited here, and the device of another controller is idle"
            assert moved == waiting[-1], "it would have started last"
            for job in (first, *waiting):
                service.value(
                    "update tensile.jobs set cancel_requested = true where job_id = %s returning job_id", job
                )
            service.until_ended(first, *waiting)


def test_trained_job_moves_to_a_device_that_has_none_and_publishes_the_bits_of_the_one_that_stays(
    service: Service,
) -> None:
    service.settings["TENSILE_CAPACITY_BYTES"] = str(24 * MIB)
    service.start()
    with service.database.connect("demo") as demo:
        load(demo, "digits")
        jobs = [train(demo, f"shares {number}", "digits", epochs=900) for number in (1, 2)]
        for job in jobs:
            wait_until_training(service, job, 2)
        # Its files are elsewhere, so it goes on from the checkpoint in the catalog.
        with second_controller(service, 24 * MIB) as pid:
            service.until(lambda: pid in [pid_of(service, job) for job in jobs], "the second device to claim one")
            moved = next(job for job in jobs if pid_of(service, job) == pid)
            assert service.until_ended(*jobs) == ["succeeded"] * 2
        assert weights(service, jobs[0]) == weights(service, jobs[1])
        events = service.connection.execute(
            "select kind, coalesce(detail ->> 'reason', detail ->> 'store') from tensile.job_events"
            " where job_id = %s and kind in ('requeued', 'resumed') order by event_id",
            (moved,),
        ).fetchall()
        reason = f"job {moved} left its device for one that has nothing to do"
        assert events == [("requeued", reason), ("resumed", "catalog")]
        assert service.value("select max(faults) from tensile.jobs") == 0
