"""Check how the controller ends trainers that die, hang or send nonsense, and what happens to their jobs."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from indb_tensile.controller.oom_kills import OomKills
from indb_tensile.job import Blame, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    RecordAdoption,
)
from indb_tensile.scheduler.admission.events import Finish, Stop
from tests.controller.fake_trainer import absurd
from tests.controller.fakes import (
    MIB,
    FakeRegions,
    alive,
)
from tests.controller.harness import controller_harness
from tests.remains import nothing_remains


def test_job_of_a_killed_trainer_is_requeued_and_its_memory_is_freed() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train", 4 * MIB)
        harness.until_adopted(job)
        assert sum(harness.ledger.grants.values()) == 4 * MIB
        os.kill(harness.pid_of(job), signal.SIGKILL)
        requeue = harness.until_requeued(job)
        assert harness.ledger.grants == {}
        assert requeue.blame is Blame.OTHERS
        assert requeue.reason == "its trainer was killed by signal 9 from outside"


def test_kill_for_lack_of_memory_is_the_reason_of_the_requeue() -> None:
    kills = [0]
    with controller_harness(starvation=OomKills(lambda: kills[0], memory_bytes=lambda: 4 << 30)) as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        kills[0] = 1
        os.kill(harness.pid_of(job), signal.SIGKILL)
        requeue = harness.until_requeued(job)
        assert requeue.blame is Blame.MEMORY
        assert re.fullmatch(r"the kernel ended its trainer for memory: it had [\d.]+ MB of 4\.00 GB", requeue.reason)


def test_killed_trainer_with_most_of_the_memory_counts_as_killed_by_the_kernel() -> None:
    with controller_harness(starvation=OomKills(lambda: None, memory_bytes=lambda: 1)) as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        os.kill(harness.pid_of(job), signal.SIGKILL)
        requeue = harness.until_requeued(job)
        assert requeue.blame is Blame.MEMORY
        assert "most probably the kernel ended it for memory" in requeue.reason


def test_crash_of_a_trainer_is_blamed_on_its_job() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        os.kill(harness.pid_of(job), signal.SIGSEGV)
        requeue = harness.until_requeued(job)
        assert requeue.blame is Blame.JOB
        assert "a memory fault (SIGSEGV" in requeue.reason


def test_trainer_without_progress_is_killed_and_its_job_requeued() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        os.kill(harness.pid_of(job), signal.SIGSTOP)
        harness.controller._signs.floor_s = 0.2
        requeue = harness.until_requeued(job)
        assert (requeue.reason, requeue.blame) == ("its trainer made no progress for 0 s", Blame.UNCLEAR)


def test_trainer_that_reports_progress_is_not_killed() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("alive")
        harness.until_adopted(job)
        harness.controller._signs.floor_s = 0.5
        began_s = time.monotonic()
        harness.until(lambda: time.monotonic() > began_s + 1.5)
        assert harness.records.states[job] == "claimed"


def test_child_process_dies_with_its_trainer() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("children")
        harness.until_adopted(job)
        pid = harness.pid_of(job)
        (child_pid,) = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        os.kill(pid, signal.SIGKILL)
        harness.until_state(job, "requeued")
        harness.until(lambda: not alive(child_pid))


def test_memory_of_a_dead_trainer_stays_granted_while_a_child_process_runs() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("stray", 4 * MIB)
        harness.until_adopted(job)
        pid = harness.pid_of(job)
        (stray_pid,) = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        os.kill(pid, signal.SIGKILL)
        harness.until(lambda: harness.ledger.revoked)
        for _ in range(20):
            harness.controller.turn(harness.heartbeat)
        assert list(harness.ledger.grants.values()) == [4 * MIB]
        assert harness.records.states[job] == "claimed"
        os.kill(stray_pid, signal.SIGKILL)
        harness.until_state(job, "requeued")
        assert harness.ledger.grants == {}


def test_memory_of_a_dead_trainer_stays_granted_while_the_driver_lists_its_process() -> None:
    regions = FakeRegions()
    with controller_harness(regions=regions) as harness:
        job = harness.records.enqueue("train", 4 * MIB)
        harness.until_adopted(job)
        pid = harness.pid_of(job)
        regions.listed.add(pid)
        os.kill(pid, signal.SIGKILL)
        harness.until(lambda: harness.ledger.revoked and not alive(pid))
        for _ in range(20):
            harness.controller.turn(harness.heartbeat)
        assert list(harness.ledger.grants.values()) == [4 * MIB]
        regions.listed.clear()
        harness.until_state(job, "requeued")
        assert harness.ledger.grants == {}
        assert len(regions.taken) == len(set(regions.taken)) >= 2, "each trainer gets the regions once"


def test_work_of_a_trainer_on_the_gpu_is_ended_before_the_trainer_is_killed() -> None:
    regions = FakeRegions()
    with controller_harness(regions=regions) as harness:
        job = harness.records.enqueue("train", 4 * MIB)
        harness.until_adopted(job)
        pid = harness.pid_of(job)
        harness.records.cancels.add(job)
        harness.until_state(job, "cancelled")
        assert pid in regions.let_gone


def test_trainer_that_sends_no_message_is_killed_and_its_job_requeued() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("babble")
        requeue = harness.until_requeued(job)
        assert requeue.blame is Blame.JOB


@pytest.mark.by_day("of an unknown plan", "with too many latencies", "without a graph")
@pytest.mark.parametrize("message", sorted(absurd(JobId(1))))
def test_absurd_message_harms_no_other_trainer(message: str) -> None:
    with controller_harness() as harness:
        harness.records.enqueue(f"absurd {message}")
        for _ in range(20):
            harness.controller.turn(harness.heartbeat)
        harness.until_adopted(harness.records.enqueue("train"))


def test_trainer_that_ignores_sigterm_is_killed_after_the_grace_period() -> None:
    with controller_harness(grace_s=0.2) as harness:
        job = harness.records.enqueue("stubborn")
        harness.until_adopted(job)
        harness.records.cancels.add(job)
        harness.until_state(job, "cancelled")


def test_trainer_that_never_adopts_its_plan_is_killed_and_its_job_requeued() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("deaf")
        harness.until(lambda: any(m.in_flight for m in harness.controller.pool.members))
        harness.controller._answers.limit_s = 0.2
        requeue = harness.until_requeued(job)
        assert (requeue.reason, requeue.blame) == ("its trainer did not take up plan 1", Blame.UNCLEAR)
        assert not harness.ledger.grants


def test_finished_killed_and_requeued_jobs_leave_no_descriptor() -> None:
    with nothing_remains(), controller_harness() as harness:
        harness.records.enqueue("finish")
        harness.until(lambda: any(isinstance(w, RecordAdoption) for w in harness.records.written))
        harness.until(lambda: not harness.controller.pool.members)
        killed = harness.records.enqueue("children")
        harness.until_adopted(killed)
        os.kill(harness.pid_of(killed), signal.SIGKILL)
        harness.until_state(killed, "requeued")
        harness.until_adopted(harness.records.enqueue("train"))
        harness.mailbox.post(Stop())
        harness.controller.run(harness.heartbeat)


def test_trainer_dies_with_its_controller() -> None:
    # SIGKILL leaves the controller no chance to clean up.
    program = (
        "import sys, time\n"
        "from tests.controller.harness import controller_harness\n"
        "with controller_harness() as harness:\n"
        "    job = harness.records.enqueue('train')\n"
        "    harness.until_adopted(job)\n"
        "    print(harness.pid_of(job), flush=True)\n"
        "    harness.until(lambda: False)\n"
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
    wait_until_gone(pid)


def wait_until_gone(pid: int) -> None:
    """Wait until the process, which is not a child of this one, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 10.0)[0], f"process {pid} outlived its controller"
    finally:
        os.close(descriptor)


def test_trainer_that_finished_is_not_requeued_when_it_ends() -> None:
    with controller_harness() as harness:
        job = harness.records.enqueue("train")
        harness.until_adopted(job)
        harness.controller.fold(Finish(trainer=harness.trainer_of(job)))
        os.kill(harness.pid_of(job), signal.SIGTERM)
        harness.until(lambda: not harness.controller.pool.members)
        assert harness.records.states[job] == "claimed"
