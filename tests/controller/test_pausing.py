"""Check with fake trainers how the controller's loop pauses and resumes jobs, and learns of their priorities."""

import time
from dataclasses import replace

from indb_tensile.catalog.notify import Notification
from indb_tensile.job import Blame, JobId, Phase
from indb_tensile.scheduler.admission.admission_orders import RecordPhase
from indb_tensile.scheduler.admission.pool import JobStage
from tests.controller.harness import ControllerHarness, controller_harness

FAR_S = 1e6


def _pause(harness: ControllerHarness, job: JobId) -> None:
    harness.records.pauses.add(job)
    _until_stage(harness, job, JobStage.PARKED)


def _until_stage(harness: ControllerHarness, job: JobId, stage: JobStage) -> None:
    harness.until(lambda: any(m.job.job == job and m.stage is stage for m in harness.controller.pool.members))


def _phases(harness: ControllerHarness) -> list[Phase]:
    return [writing.phase for writing in harness.records.written if isinstance(writing, RecordPhase)]


def test_paused_job_has_no_grant_until_it_is_resumed() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        pid = harness.pid_of(job)
        assert sum(harness.ledger.grants.values()) > 0
        _pause(harness, job)
        assert sum(harness.ledger.grants.values()) == 0
        harness.records.pauses.clear()
        harness.until(lambda: sum(harness.ledger.grants.values()) > 0)
        _until_stage(harness, job, JobStage.RUNNING)
        assert harness.pid_of(job) == pid
        assert _phases(harness) == [Phase.PAUSED, Phase.WAITING]


def test_notification_of_a_pause_sends_a_heartbeat_at_once() -> None:
    with controller_harness(beat_s=1000.0, lease_s=10_000.0) as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        harness.records.pauses.add(job)
        harness.mailbox.post(Notification(kind="pause", job=job))
        _until_stage(harness, job, JobStage.PARKED)


def test_notification_of_a_priority_sends_a_heartbeat_that_brings_it() -> None:
    with controller_harness(beat_s=1000.0, lease_s=10_000.0) as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        harness.records.priorities[job] = -5
        harness.mailbox.post(Notification(kind="priority", job=job))
        harness.until(lambda: [m.job.priority for m in harness.controller.pool.members] == [-5])


def test_paused_job_that_may_not_wait_in_host_memory_returns_to_the_queue_without_a_fault() -> None:
    with controller_harness(parked_jobs=0) as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        harness.records.pauses.add(job)
        assert harness.until_requeued(job).blame is Blame.NOBODY


def test_maximum_runtime_does_not_run_while_a_job_is_paused() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train")
        harness.records.specs[job] = replace(harness.records.specs[job], max_runtime_s=1000)
        harness.until_adopted(job)
        _pause(harness, job)
        harness.controller._clock_s = lambda: time.monotonic() + FAR_S
        harness.records.pauses.clear()
        _until_stage(harness, job, JobStage.RUNNING)
        harness.until(lambda: all(not m.parked for m in harness.controller.pool.members))
        assert harness.records.states[job] != "failed"
        harness.controller._clock_s = lambda: time.monotonic() + 2 * FAR_S
        harness.until_state(job, "failed")
