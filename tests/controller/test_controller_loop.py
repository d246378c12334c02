import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import pytest

from indb_tensile.catalog.notify import Notification
from indb_tensile.controller.background_planner import NICENESS, ImprovementCancellation
from indb_tensile.controller.oom_kills import OomKills
from indb_tensile.controller.policy_planner import PolicyPlanner
from indb_tensile.errors import CatalogVersionError, InvariantError
from indb_tensile.job import Blame, ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    FailJob,
    RecordAdoption,
    RecordMeasurement,
    RecordPlan,
    RequeueJob,
)
from indb_tensile.scheduler.admission.events import BudgetChange, Finish, Measurement, Stop
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload
from tests.controller.fake_trainer import absurd
from tests.controller.fakes import LINK, MIB, FakeRegions, alive, stage
from tests.remains import nothing_remains


def test_jobs_that_cannot_read_their_table_hold_up_neither_anothers_job_nor_its_cancel() -> None:
    with stage() as s:
        blocked = [s.records.enqueue("read", owner=10) for _ in range(4)]
        other = s.records.enqueue("train", owner=20)
        s.until_adopted(other)
        assert [s.records.states[job] for job in blocked].count("claimed") == 2
        s.records.cancels.add(other)
        s.until_state(other, "cancelled")


def test_unreadable_jobs_are_failed_one_a_turn_while_another_owners_job_starts_and_is_cancelled() -> None:
    with stage() as s:
        for _ in range(200):
            s.records.enqueue("unreadable", owner=10)
        s.until(lambda: sum(state == "failed" for state in s.records.states.values()) > 5)
        before = sum(state == "failed" for state in s.records.states.values())
        s.controller.turn(s.heartbeat)
        assert sum(state == "failed" for state in s.records.states.values()) <= before + 1
        claimed = s.records._next_claim
        other = s.records.enqueue("train", owner=20)
        s.until_adopted(other)
        assert s.records.claims[other] <= claimed + 2, "the owner of the unreadable jobs came first"
        s.records.cancels.add(other)
        s.until_state(other, "cancelled")
        s.until(lambda: "queued" not in s.records.states.values())


def test_a_job_runs_from_the_queue_to_its_end_and_leaves_the_ledger_empty() -> None:
    with stage() as s:
        job = s.records.enqueue("finish", 4 * MIB)
        s.until(lambda: job in s.records.claims)
        s.until(lambda: not s.controller.pool.members)
        assert s.account.grants == {}
        kinds = [type(w) for w in s.records.written]
        assert kinds == [RecordPlan, RecordAdoption, RecordMeasurement]
        assert s.records.states[job] == "claimed", "the trainer itself writes that it succeeded"


def test_a_job_with_unknown_operators_is_calibrated_first() -> None:
    with stage() as s:
        s.records.enqueue("calibrate", 4 * MIB)
        s.until(lambda: any(isinstance(w, RecordAdoption) for w in s.records.written))
        s.until(lambda: not s.controller.pool.members)


def test_a_failed_job_is_written_down_with_its_fault() -> None:
    with stage() as s:
        job = s.records.enqueue("fail")
        s.until_state(job, "failed")
        (written,) = [w for w in s.records.written if isinstance(w, FailJob)]
        assert (written.fault.sqlstate, written.fault.hint) == ("22000", "Choose another target.")


def test_a_killed_trainer_gives_back_its_memory_and_its_job() -> None:
    with stage() as s:
        job = s.records.enqueue("train", 4 * MIB)
        s.until_adopted(job)
        assert sum(s.account.grants.values()) == 4 * MIB
        os.kill(s.pid_of(job), signal.SIGKILL)
        s.until_state(job, "requeued")
        assert s.account.grants == {}
        (written,) = [w for w in s.records.written if isinstance(w, RequeueJob)]
        assert written.blame is Blame.OTHERS
        assert written.reason == "its trainer was killed by signal 9 from outside"


def test_a_trainer_that_the_system_killed_for_lack_of_memory_says_so() -> None:
    kills = [0]
    with stage(starvation=OomKills(lambda: kills[0], memory_bytes=lambda: 4 << 30)) as s:
        job = s.records.enqueue("train")
        s.until_adopted(job)
        kills[0] = 1
        os.kill(s.pid_of(job), signal.SIGKILL)
        s.until_state(job, "requeued")
        (written,) = [w for w in s.records.written if isinstance(w, RequeueJob)]
        assert written.blame is Blame.MEMORY
        assert re.fullmatch(r"the kernel ended its trainer for memory: it had [\d.]+ MB of 4\.00 GB", written.reason)


def test_a_trainer_that_had_most_of_the_memory_was_most_probably_killed_by_the_kernel() -> None:
    with stage(starvation=OomKills(lambda: None, memory_bytes=lambda: 1)) as s:
        job = s.records.enqueue("train")
        s.until_adopted(job)
        os.kill(s.pid_of(job), signal.SIGKILL)
        s.until_state(job, "requeued")
        (written,) = [w for w in s.records.written if isinstance(w, RequeueJob)]
        assert written.blame is Blame.MEMORY
        assert "most probably the kernel ended it for memory" in written.reason


def test_a_trainer_that_crashes_has_ended_by_itself() -> None:
    with stage() as s:
        job = s.records.enqueue("train")
        s.until_adopted(job)
        os.kill(s.pid_of(job), signal.SIGSEGV)
        s.until_state(job, "requeued")
        (written,) = [w for w in s.records.written if isinstance(w, RequeueJob)]
        assert written.blame is Blame.JOB
        assert "a memory fault (SIGSEGV" in written.reason


def test_a_trainer_that_hangs_in_mid_training_is_killed_and_its_job_goes_back() -> None:
    with stage() as s:
        job = s.records.enqueue("train")
        s.until_adopted(job)
        os.kill(s.pid_of(job), signal.SIGSTOP)
        s.controller._signs.floor_s = 0.2
        s.until_state(job, "requeued")
        (written,) = [w for w in s.records.written if isinstance(w, RequeueJob)]
        assert (written.reason, written.blame) == ("its trainer made no progress for 0 s", Blame.UNCLEAR)


def test_a_trainer_that_reports_in_mid_training_does_not_hang() -> None:
    with stage() as s:
        job = s.records.enqueue("alive")
        s.until_adopted(job)
        s.controller._signs.floor_s = 0.5
        began_s = time.monotonic()
        s.until(lambda: time.monotonic() > began_s + 1.5)
        assert s.records.states[job] == "claimed"


def test_a_catalog_that_is_upgraded_ends_the_controller_and_hands_its_jobs_back() -> None:
    with stage() as s:
        job = s.records.enqueue("train")
        s.until_adopted(job)
        pid = s.pid_of(job)
        s.records.version = "9.9.9"
        with pytest.raises(CatalogVersionError, match=r"the catalog has version 9\.9\.9"):
            s.controller.run(s.heartbeat)
        assert s.records.states[job] == "requeued"
        (written,) = [w for w in s.records.written if isinstance(w, RequeueJob)]
        assert written.blame is Blame.NOBODY
        assert not alive(pid)
        assert (s.records.alive, s.records.fallen) == (set(), [])


def test_a_catalog_that_was_upgraded_while_the_database_was_away_ends_the_controller() -> None:
    with stage(lease_s=2.0) as s:
        s.records.away = True
        s.until(lambda: s.controller._membership.worker is None)
        s.records.version, s.records.away = "9.9.9", False
        with pytest.raises(CatalogVersionError):
            s.controller.run(s.heartbeat)


def test_a_controller_that_ends_by_a_fault_does_not_leave_in_order() -> None:
    class Broken(PolicyPlanner):
        def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> NoReturn:
            raise InvariantError("no plan")

    with stage(planner=Broken(link=LINK, policy="tensile+")) as s:
        s.records.enqueue("train")
        with pytest.raises(InvariantError, match="no plan"):
            s.controller.run(s.heartbeat)
        assert s.records.fallen == [1]


def test_jobs_go_on_after_a_recovery_that_took_longer_than_the_lease_and_nothing_counts() -> None:
    with stage(lease_s=2.0) as s:
        s.records.rescues = True
        job = s.records.enqueue("train")
        claims: set[ClaimToken] = set()
        for _ in range(4):
            s.until(lambda: job in s.records.claims and s.records.claims[job] not in claims)
            s.until_adopted(job)
            claims.add(s.records.claims[job])
            s.records.away = True
            s.until(lambda: s.controller._membership.worker is None and not s.controller.pool.members)
            s.records.away = False
        assert [w for w in s.records.written if isinstance(w, RequeueJob | FailJob)] == []
        s.until(lambda: len(s.records.workers) == 5)
        assert s.records.fallen == []


def test_what_a_trainer_started_dies_with_it() -> None:
    with stage() as s:
        job = s.records.enqueue("children")
        s.until_adopted(job)
        pid = s.pid_of(job)
        (child,) = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        os.kill(pid, signal.SIGKILL)
        s.until_state(job, "requeued")
        s.until(lambda: not alive(child))


def test_what_a_dead_trainer_had_is_nobodys_while_a_process_of_it_is_left() -> None:
    with stage() as s:
        job = s.records.enqueue("stray", 4 * MIB)
        s.until_adopted(job)
        pid = s.pid_of(job)
        (stray,) = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        os.kill(pid, signal.SIGKILL)
        s.until(lambda: s.account.revoked)
        for _ in range(20):
            s.controller.turn(s.heartbeat)
        assert list(s.account.grants.values()) == [4 * MIB]
        assert s.records.states[job] == "claimed"
        os.kill(stray, signal.SIGKILL)
        s.until_state(job, "requeued")
        assert s.account.grants == {}


def test_what_a_dead_trainer_had_is_nobodys_while_the_gpus_driver_still_lists_it() -> None:
    regions = FakeRegions()
    with stage(regions=regions) as s:
        job = s.records.enqueue("train", 4 * MIB)
        s.until_adopted(job)
        pid = s.pid_of(job)
        regions.listed.add(pid)
        os.kill(pid, signal.SIGKILL)
        s.until(lambda: s.account.revoked and not alive(pid))
        for _ in range(20):
            s.controller.turn(s.heartbeat)
        assert list(s.account.grants.values()) == [4 * MIB]
        regions.listed.clear()
        s.until_state(job, "requeued")
        assert s.account.grants == {}
        assert len(regions.taken) == len(set(regions.taken)) >= 2, "each trainer is handed the regions once"


def test_what_a_trainer_on_a_gpu_computes_is_ended_before_it_is_killed() -> None:
    regions = FakeRegions()
    with stage(regions=regions) as s:
        job = s.records.enqueue("train", 4 * MIB)
        s.until_adopted(job)
        pid = s.pid_of(job)
        s.records.cancels.add(job)
        s.until_state(job, "cancelled")
        assert pid in regions.let_gone


def test_a_trainer_that_sends_nonsense_is_killed_and_its_job_tried_again() -> None:
    with stage() as s:
        job = s.records.enqueue("babble")
        s.until_state(job, "requeued")
        (written,) = [w for w in s.records.written if isinstance(w, RequeueJob)]
        assert written.blame is Blame.JOB


@pytest.mark.parametrize("what", sorted(absurd(JobId(1))))
def test_a_message_that_makes_no_sense_harms_nobody_but_its_sender(what: str) -> None:
    with stage() as s:
        s.records.enqueue(f"absurd {what}")
        for _ in range(20):
            s.controller.turn(s.heartbeat)
        s.until_adopted(s.records.enqueue("train"))


def test_a_cancel_heard_by_the_heartbeat_stops_the_job() -> None:
    with stage() as s:
        job = s.records.enqueue("train")
        s.until_adopted(job)
        s.records.cancels.add(job)
        s.until_state(job, "cancelled")
        assert s.account.grants == {}


def test_a_notification_of_a_cancel_makes_the_heart_beat_at_once() -> None:
    with stage(beat_s=1000.0, lease_s=10_000.0) as s:
        job = s.records.enqueue("train")
        s.until_adopted(job)
        s.records.cancels.add(job)
        s.mailbox.post(Notification(kind="cancel", job=job))
        s.until_state(job, "cancelled")


def test_a_trainer_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    with stage(grace_s=0.2) as s:
        job = s.records.enqueue("stubborn")
        s.until_adopted(job)
        s.records.cancels.add(job)
        s.until_state(job, "cancelled")


def test_a_job_that_runs_for_longer_than_it_may_is_stopped() -> None:
    with stage() as s:
        job = s.records.enqueue("train")
        s.records.specs[job] = replace(s.records.specs[job], max_runtime_s=1)
        s.until_state(job, "failed")
        assert "max_runtime of 1 s" in str(s.records.written[-1])


def test_a_changed_budget_reaches_the_jobs() -> None:
    with stage(budget=16) as s:
        job = s.records.enqueue("train", 10 * MIB)
        s.until_adopted(job)
        s.mailbox.post(BudgetChange(budget_bytes=8 * MIB))
        s.until_state(job, "requeued")


def test_a_job_that_another_worker_has_taken_is_stopped_and_not_written_about() -> None:
    with stage() as s:
        job = s.records.enqueue("train")
        s.until_adopted(job)
        pid, before = s.pid_of(job), len(s.records.written)
        s.records.take_over(job)
        s.until(lambda: not s.controller.pool.members)
        assert not alive(pid)
        assert [w for w in s.records.written[before:] if not isinstance(w, RecordMeasurement)] == []


def test_a_worker_that_cannot_beat_stops_its_trainers_and_comes_back_as_another() -> None:
    with stage(lease_s=2.0) as s:  # on a busy machine a beat may be late by a second
        job = s.records.enqueue("train")
        s.until_adopted(job)
        pid = s.pid_of(job)
        s.records.away = True
        s.until(lambda: not alive(pid))
        s.until(lambda: not s.controller.pool.members)
        assert s.records.workers == [1]
        s.records.away = False
        s.until(lambda: len(s.records.workers) == 2)
        assert s.records.alive == {2}
        assert s.records.states[job] == "claimed", "something was written for a job that was lost"


def test_a_trainer_that_never_takes_up_its_plan_is_killed_and_its_job_goes_back() -> None:
    with stage() as s:
        job = s.records.enqueue("deaf")
        s.until(lambda: any(m.in_flight for m in s.controller.pool.members))
        s.controller._answer_s = 0.2
        s.until_state(job, "requeued")
        (written,) = [w for w in s.records.written if isinstance(w, RequeueJob)]
        assert (written.reason, written.blame) == ("its trainer did not take up plan 1", Blame.UNCLEAR)
        assert not s.account.grants


def test_a_short_outage_stops_nothing_and_what_was_to_be_written_is_written_later() -> None:
    with stage() as s:
        job = s.records.enqueue("train")
        s.until_adopted(job)
        s.records.away = True
        os.kill(s.pid_of(job), signal.SIGKILL)
        s.until(lambda: not s.controller.pool.members)
        assert s.records.states[job] == "claimed"
        s.records.away = False
        s.until_state(job, "requeued")


def test_a_job_claimed_without_our_knowing_goes_back() -> None:
    with stage(max_jobs=1) as s:
        running = s.records.enqueue("train")
        s.until_adopted(running)
        stray = s.records.enqueue("train")
        assert s.records.claim(s.records.workers[0], frozenset()) is not None  # its answer was lost
        s.until_state(stray, "requeued")
        (written,) = [w for w in s.records.written if isinstance(w, RequeueJob)]
        assert written.blame is Blame.NOBODY


def test_two_jobs_share_the_device_within_its_budget() -> None:
    with stage(budget=8) as s:
        first, second = s.records.enqueue("train", 5 * MIB), s.records.enqueue("train", 3 * MIB)
        s.until_adopted(first)
        s.until_adopted(second)
        assert sorted(s.account.grants.values()) == [3 * MIB, 5 * MIB]


def test_a_job_that_does_not_fit_yet_waits_and_says_so() -> None:
    with stage(budget=8, policy="liveness") as s:
        first, second = s.records.enqueue("train", 5 * MIB), s.records.enqueue("train", 5 * MIB)
        s.until_adopted(first)
        s.until(lambda: (m := s.controller.pool.of_job(second)) and m.waits_for)
        assert "held by job 1 (5.0 MB)" in str(s.controller.pool.of_job(second))
        os.kill(s.pid_of(first), signal.SIGKILL)
        s.until_adopted(second)


def test_a_grant_that_the_ledger_refuses_ends_the_attempt_not_the_controller() -> None:
    with stage() as s:
        s.account.refuse = True
        job = s.records.enqueue("train")
        s.until_state(job, "requeued")
        (written,) = [w for w in s.records.written if isinstance(w, RequeueJob)]
        assert written.blame is Blame.OTHERS
        assert s.account.grants == {}


def test_the_devices_use_is_written_down() -> None:
    with stage() as s:
        job = s.records.enqueue("train", 4 * MIB)
        s.until_adopted(job)
        s.until(lambda: s.records.use and s.records.use[1])
        assert s.records.use is not None
        use, (share,) = s.records.use
        assert (use.budget_bytes, use.granted_bytes) == (16 * MIB, 4 * MIB)
        assert (share.job, share.granted_bytes) == (job, 4 * MIB)


def test_a_stop_hands_every_job_back_and_leaves_no_process() -> None:
    with stage() as s:
        job = s.records.enqueue("train")
        s.until_adopted(job)
        s.until(lambda: s.controller.pool.spares)
        pids = [s.pid_of(job), *(s.trainers.pid(spare.trainer) for spare in s.controller.pool.spares)]
        s.mailbox.post(Stop())
        s.controller.run(s.heartbeat)
        assert s.records.states[job] == "requeued"
        assert not any(map(alive, pids))
        assert s.records.alive == set(), "the worker did not say that it leaves"


def test_jobs_that_end_are_killed_or_are_handed_back_leave_no_descriptor() -> None:
    with nothing_remains(), stage() as s:
        s.records.enqueue("finish")
        s.until(lambda: any(isinstance(w, RecordAdoption) for w in s.records.written))
        s.until(lambda: not s.controller.pool.members)
        killed = s.records.enqueue("children")
        s.until_adopted(killed)
        os.kill(s.pid_of(killed), signal.SIGKILL)
        s.until_state(killed, "requeued")
        s.until_adopted(s.records.enqueue("train"))
        s.mailbox.post(Stop())
        s.controller.run(s.heartbeat)


def test_a_trainer_dies_with_its_controller() -> None:
    """The controller is killed without a chance to clean up."""
    program = (
        "import sys, time\n"
        "from tests.controller.fakes import stage\n"
        "with stage() as s:\n"
        "    job = s.records.enqueue('train')\n"
        "    s.until_adopted(job)\n"
        "    print(s.pid_of(job), flush=True)\n"
        "    s.until(lambda: False)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, cwd=Path(__file__).parents[2]
    ) as controller:
        assert controller.stdout is not None
        pid = int(controller.stdout.readline())
        assert alive(pid)
        controller.kill()
        controller.wait()
    pidfd_gone(pid)


def pidfd_gone(pid: int) -> None:
    """Wait until a process, which is not ours to reap, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 10.0)[0], f"process {pid} outlived its controller"
    finally:
        os.close(descriptor)


def test_finish_is_a_fact_of_the_trainer_that_said_it() -> None:
    with stage() as s:
        job = s.records.enqueue("train")
        s.until_adopted(job)
        member = s.controller.pool.of_job(job)
        assert member is not None
        assert member.trainer is not None
        s.controller.fold(Finish(trainer=member.trainer))
        os.kill(s.pid_of(job), signal.SIGTERM)
        s.until(lambda: not s.controller.pool.members)
        assert s.records.states[job] == "claimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedPlanner(PolicyPlanner):
    """Says that it plans for more than one job, and does so when it is let."""

    underway: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        if len(workloads) > 1:
            self.underway.set()
            self.go_on.wait()
        return PolicyPlanner.plan(self, workloads, budget_bytes=budget_bytes)


def test_while_a_plan_is_made_jobs_report_and_are_cancelled_and_the_heart_beats() -> None:
    planner = GatedPlanner(link=LINK, policy="tensile+")
    with stage(planner=planner) as s:
        try:
            first = s.records.enqueue("report", 4 * MIB)
            s.until_adopted(first)
            second = s.records.enqueue("train", 5 * MIB)
            s.until(planner.underway.is_set)
            before, beats = len(s.records.written), s.records.beats
            os.kill(s.pid_of(first), signal.SIGUSR1)
            s.until(lambda: any(isinstance(w, RecordMeasurement) for w in s.records.written[before:]))
            s.until(lambda: s.records.beats > beats)
            s.records.cancels.add(first)
            s.until_state(first, "cancelled")
            assert list(s.account.grants.values()) == [0]
        finally:
            planner.go_on.set()
        s.until_adopted(second)  # alone: the plan for two is dropped
        assert list(s.account.grants.values()) == [5 * MIB]


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerImprover(PolicyPlanner):
    """Improves plans until it is told to stop; says at which niceness it does what."""

    niceness: dict[str, int] = field(default_factory=dict)
    improving: threading.Event = field(default_factory=threading.Event)

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        self.niceness["plan"] = os.getpriority(os.PRIO_PROCESS, 0)
        return PolicyPlanner.plan(self, workloads, budget_bytes=budget_bytes)

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int
    ) -> tuple[JobPlan, ...] | None:
        self.niceness["renew"] = os.getpriority(os.PRIO_PROCESS, 0)
        self.improving.set()
        while True:
            self.cancellation_check()


def test_improving_plans_is_given_up_for_a_job_that_arrives_and_keeps_nobody_from_the_processor() -> None:
    cancellation = ImprovementCancellation()
    planner = EagerImprover(link=LINK, policy="tensile+", cancellation_check=cancellation.check)
    with stage(planner=planner, cancellation=cancellation) as s:
        first = s.records.enqueue("train", 4 * MIB)
        s.until_adopted(first)
        member = s.controller.pool.of_job(first)
        assert member is not None
        assert member.trainer is not None
        s.until(lambda: any(isinstance(w, RecordMeasurement) for w in s.records.written))
        drifted = Measurement(
            trainer=member.trainer,
            generation=member.adopted,
            latency_ns=(10_000,),
            iteration_ns=10_000,
            stall_ns=0,
            peak_bytes=4 * MIB,
        )
        s.controller.fold(drifted)
        s.until(planner.improving.is_set)
        second = s.records.enqueue("train", 5 * MIB)
        s.until_adopted(second)
        assert s.controller.pool.due is None
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert planner.niceness == {"plan": own, "renew": min(19, own + NICENESS)}


def test_what_a_planner_raises_is_raised_to_whoever_asks() -> None:
    class Broken(PolicyPlanner):
        def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> NoReturn:
            raise InvariantError("no plan")

    with stage(planner=Broken(link=LINK, policy="tensile+")) as s:
        s.records.enqueue("train")
        with pytest.raises(InvariantError, match="no plan"):
            s.until(lambda: False)
