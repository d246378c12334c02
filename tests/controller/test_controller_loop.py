"""Check the controller's loop with fakes: jobs from the queue to their end, cancels, outages, budgets and a stop."""

import math
import os
import signal
from dataclasses import replace

import pytest

from indb_tensile.catalog.notify import Notification
from indb_tensile.errors import CatalogVersionError
from indb_tensile.job import Blame, ClaimToken
from indb_tensile.messages import LeftDevice
from indb_tensile.scheduler.admission.admission_orders import (
    FailJob,
    RecordAdoption,
    RecordMeasurement,
    RecordPlan,
    RecordSet,
    RequeueJob,
)
from indb_tensile.scheduler.admission.events import BudgetChange, Stop
from tests.controller.fakes import (
    MIB,
    alive,
)
from tests.controller.harness import controller_harness


def test_jobs_that_wait_for_their_table_delay_neither_start_nor_cancel_of_another_users_job() -> None:
    with controller_harness() as harness:
        blocked_jobs = [harness.records.enqueue("read", owner=10) for _ in range(4)]
        other_job = harness.records.enqueue("train", owner=20)
        harness.until_adopted(other_job)
        assert [harness.records.states[job] for job in blocked_jobs].count("claimed") == 2
        harness.records.cancels.add(other_job)
        harness.until_state(other_job, "cancelled")


def test_each_turn_fails_one_unreadable_job_while_another_owners_job_starts_and_is_cancelled() -> None:
    with controller_harness() as harness:
        for _ in range(200):
            harness.records.enqueue("unreadable", owner=10)
        harness.until(lambda: sum(state == "failed" for state in harness.records.states.values()) > 5)
        before = sum(state == "failed" for state in harness.records.states.values())
        harness.controller.turn(harness.heartbeat)
        assert sum(state == "failed" for state in harness.records.states.values()) <= before + 1
        claimed = harness.records._next_claim
        other_job = harness.records.enqueue("train", owner=20)
        harness.until_adopted(other_job)
        assert harness.records.claims[other_job] <= claimed + 2, "at most one unreadable job was claimed before"
        harness.records.cancels.add(other_job)
        harness.until_state(other_job, "cancelled")
        harness.until(lambda: "queued" not in harness.records.states.values())


def test_finished_job_leaves_the_ledger_empty() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("finish", 4 * MIB)
        harness.until(lambda: job in harness.records.claims)
        harness.until(lambda: not harness.controller.pool.members)
        assert harness.ledger.grants == {}
        kinds = [type(w) for w in harness.records.written]
        assert kinds == [RecordPlan, RecordAdoption, RecordSet, RecordMeasurement]
        assert harness.records.states[job] == "claimed", "only the trainer records the success"


def test_job_with_unknown_operators_is_calibrated_first() -> None:
    with controller_harness() as harness:
        harness.records.enqueue("calibrate", 4 * MIB)
        harness.until(lambda: any(isinstance(w, RecordAdoption) for w in harness.records.written))
        harness.until(lambda: not harness.controller.pool.members)


def test_failed_job_is_recorded_with_its_fault() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("fail")
        harness.until_state(job, "failed")
        (order,) = [w for w in harness.records.written if isinstance(w, FailJob)]
        assert (order.fault.sqlstate, order.fault.hint) == ("22000", "Choose another target.")


def test_catalog_upgrade_ends_the_controller_and_requeues_its_jobs() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        pid = harness.pid_of(job)
        harness.records.version = "9.9.9"
        with pytest.raises(CatalogVersionError, match=r"the catalog has version 9\.9\.9"):
            harness.controller.run(harness.heartbeat)
        assert harness.records.states[job] == "requeued"
        (requeue,) = [w for w in harness.records.written if isinstance(w, RequeueJob)]
        assert requeue.blame is Blame.NOBODY
        assert not alive(pid)
        assert (harness.records.alive, harness.records.fallen) == (set(), [])


def test_catalog_upgrade_during_an_outage_ends_the_controller() -> None:
    with controller_harness(lease_s=2.0) as harness:
        harness.records.away = True
        harness.until(lambda: harness.controller._membership.worker is None)
        harness.records.version, harness.records.away = "9.9.9", False
        with pytest.raises(CatalogVersionError):
            harness.controller.run(harness.heartbeat)


@pytest.mark.nightly
def test_recovery_longer_than_the_lease_counts_as_no_failed_attempt() -> None:
    with controller_harness(lease_s=2.0) as harness:
        harness.records.rescues = True
        job = harness.records.enqueue("train")
        claims: set[ClaimToken] = set()
        for _ in range(4):
            harness.until(lambda: job in harness.records.claims and harness.records.claims[job] not in claims)
            harness.until_adopted(job)
            claims.add(harness.records.claims[job])
            harness.records.away = True
            harness.until(
                lambda: harness.controller._membership.worker is None and not harness.controller.pool.members
            )
            harness.records.away = False
        assert [w for w in harness.records.written if isinstance(w, RequeueJob | FailJob)] == []
        harness.until(lambda: len(harness.records.workers) == 5)
        assert harness.records.fallen == []


def test_cancel_in_a_heartbeat_reply_stops_the_job() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        harness.records.cancels.add(job)
        harness.until_state(job, "cancelled")
        assert harness.ledger.grants == {}


def test_notification_of_a_cancel_sends_a_heartbeat_at_once() -> None:
    with controller_harness(beat_s=1000.0, lease_s=10_000.0) as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        harness.records.cancels.add(job)
        harness.mailbox.post(Notification(kind="cancel", job=job))
        harness.until_state(job, "cancelled")


def test_a_trial_has_what_its_earlier_stretches_left_of_its_maximum_runtime() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train")
        harness.records.specs[job] = replace(harness.records.specs[job], max_runtime_s=1000)
        harness.records.worked_s[job] = 999.0
        harness.until_state(job, "failed")
        assert "max_runtime of 1000 s" in str(harness.records.written[-1])


def test_job_that_exceeds_its_maximum_runtime_fails() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train")
        harness.records.specs[job] = replace(harness.records.specs[job], max_runtime_s=1)
        harness.until_state(job, "failed")
        assert "max_runtime of 1 s" in str(harness.records.written[-1])


def test_job_that_exceeds_a_lowered_budget_is_requeued() -> None:
    with controller_harness(budget=16) as harness:
        job = harness.records.enqueue("train", 10 * MIB)
        harness.until_adopted(job)
        harness.mailbox.post(BudgetChange(budget_bytes=8 * MIB))
        harness.until_state(job, "requeued")


def test_job_that_another_worker_took_over_is_stopped_without_a_write() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        pid, before = harness.pid_of(job), len(harness.records.written)
        harness.records.take_over(job)
        harness.until(lambda: not harness.controller.pool.members)
        assert not alive(pid)
        assert [w for w in harness.records.written[before:] if not isinstance(w, RecordMeasurement)] == []


def test_worker_without_heartbeats_stops_its_trainers_and_registers_anew() -> None:
    with controller_harness(lease_s=2.0) as harness:  # on a busy machine a heartbeat may be late by a second
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        pid = harness.pid_of(job)
        harness.records.away = True
        harness.until(lambda: not alive(pid))
        harness.until(lambda: not harness.controller.pool.members)
        assert harness.records.workers == [1]
        harness.records.away = False
        harness.until(lambda: len(harness.records.workers) == 2)
        assert harness.records.alive == {2}
        assert harness.records.states[job] == "claimed", "a lost job was written"


def test_writes_during_a_short_outage_are_made_after_it() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        harness.records.away = True
        os.kill(harness.pid_of(job), signal.SIGKILL)
        harness.until(lambda: not harness.controller.pool.members)
        assert harness.records.states[job] == "claimed"
        harness.records.away = False
        harness.until_state(job, "requeued")


def test_job_whose_claim_was_never_answered_is_requeued() -> None:
    with controller_harness(max_jobs=1) as harness:
        running = harness.records.enqueue("train")
        harness.until_adopted(running)
        stray_job = harness.records.enqueue("train")
        # The controller never gets the answer.
        assert harness.records.claim(harness.records.workers[0], frozenset()) is not None
        requeue = harness.until_requeued(stray_job)
        assert requeue.blame is Blame.NOBODY


def test_two_jobs_share_the_device_within_its_budget() -> None:
    with controller_harness(budget=8) as harness:
        first, second = harness.records.enqueue("train", 5 * MIB), harness.records.enqueue("train", 3 * MIB)
        harness.until_adopted(first)
        harness.until_adopted(second)
        assert sorted(harness.ledger.grants.values()) == [3 * MIB, 5 * MIB]


def test_job_that_does_not_fit_waits_and_names_the_memory_it_waits_for() -> None:
    with controller_harness(budget=8, policy="liveness") as harness:
        first, second = harness.records.enqueue("train", 5 * MIB), harness.records.enqueue("train", 5 * MIB)
        harness.until_adopted(first)
        harness.until(lambda: (m := harness.controller.pool.of_job(second)) and m.waits_for)
        assert "held by job 1 (5.0 MB)" in str(harness.controller.pool.of_job(second))
        os.kill(harness.pid_of(first), signal.SIGKILL)
        harness.until_adopted(second)


def test_grant_that_the_ledger_refuses_ends_the_attempt_and_not_the_controller() -> None:
    with controller_harness() as harness:
        harness.ledger.refuse = True
        job = harness.records.enqueue("train")
        requeue = harness.until_requeued(job)
        assert requeue.blame is Blame.OTHERS
        assert harness.ledger.grants == {}


def test_device_use_is_recorded() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train", 4 * MIB)
        harness.until_adopted(job)
        harness.until(lambda: harness.records.use and harness.records.use[1])
        assert harness.records.use is not None
        use, (share,) = harness.records.use
        assert (use.budget_bytes, use.granted_bytes) == (16 * MIB, 4 * MIB)
        assert (share.job, share.granted_bytes) == (job, 4 * MIB)


def test_device_use_is_recorded_at_once_when_a_job_leaves_the_device() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train", 4 * MIB)
        harness.until_adopted(job)
        harness.until(lambda: harness.records.use and harness.records.use[1])
        harness.records.use, harness.controller._device_at_s = None, math.inf
        (member,) = harness.controller.pool.members
        assert member.trainer is not None
        harness.controller._handle_message(member.trainer, LeftDevice(job=job))
        harness.controller.turn(harness.heartbeat)
        assert harness.records.use is not None


def test_stop_requeues_every_job_and_leaves_no_process() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        harness.until(lambda: harness.controller.pool.spares)
        pids = [
            harness.pid_of(job),
            *(harness.trainers.pid(spare.trainer) for spare in harness.controller.pool.spares),
        ]
        harness.mailbox.post(Stop())
        harness.controller.run(harness.heartbeat)
        assert harness.records.states[job] == "requeued"
        assert not any(map(alive, pids))
        assert harness.records.alive == set(), "the worker did not leave the catalog"
