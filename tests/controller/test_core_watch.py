"""Check what other programs than the jobs are found to use of the cores, with written counters and real processes."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from indb_tensile.controller.core_watch import CoreWatch
from indb_tensile.scheduler.completion.contention import of_cores
from indb_tensile.scheduler.completion.other_load import CoreUse, OtherLoad
from tests.controller.fakes import MIB
from tests.controller.harness import controller_harness
from tests.controller.waiting import until

_TICKS = os.sysconf("SC_CLK_TCK")
_MACHINE = Path("/proc")


class Machine:
    """The counters of a machine with four cores, of which the device has the first two, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = 100.0
        self.watch = CoreWatch((0, 1), proc=folder, clock_s=lambda: self.now_s)

    @property
    def used_cores(self) -> float | None:
        return None if self.watch.use is None else self.watch.use.used_cores

    def look(self, *pids: int, busy_s: float, processes: Mapping[int, tuple[int, float]] | None = None) -> None:
        """Look after another second, when each of the cores was busy for `busy_s` until now.

        `processes` are the group and the processor time of each process.
        """
        self.now_s += 1.0
        ticks = round(busy_s * _TICKS)
        core = f"{ticks // 2} 0 {ticks - ticks // 2} 77777 888 0 0 0 55 0"
        names = [f"cpu{number}" for number in range(4)]
        lines = [f"cpu  {core}", *(f"{name} {core}" for name in names), "intr 1 2 3"]
        (self.folder / "stat").write_text("\n".join(lines) + "\n")
        for pid, (group, computed_s) in (processes or {}).items():
            (self.folder / str(pid)).mkdir(exist_ok=True)
            computed = round(computed_s * _TICKS)
            times = f"{computed // 2} 0 {computed - computed // 2} 0"
            (self.folder / str(pid) / "stat").write_text(
                f"{pid} (a (strange) name) S 1 {group} 1 0 -1 4194304 9 9 9 9 {times} 20 0 1 0 555\n"
            )
        self.watch.look_beside(pids)


def test_other_programs_use_what_is_left_of_the_cores_time_without_the_jobs(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.look(7, busy_s=50.0, processes={7: (7, 3.0), 8: (7, 1.0), 9: (9, 40.0)})
    assert machine.used_cores is None, "not measured yet"
    machine.look(7, busy_s=50.75, processes={7: (7, 3.5), 8: (7, 1.5), 9: (9, 41.0)})
    assert machine.used_cores == pytest.approx(0.5), "1.5 s of two cores, without a job of two processes"
    assert machine.watch.use is not None
    assert machine.watch.use.beside_jobs == 1.0


def test_what_is_measured_is_a_mean_of_the_last_seconds(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    seen: list[float] = []
    for second in range(40):
        machine.look(7, busy_s=second * 1.0 if second < 20 else 20.0, processes={7: (7, 0.0)})
        seen.append(machine.used_cores or 0.0)
    assert seen[1:20] == [pytest.approx(2.0)] * 19
    assert all(0 < later < earlier for earlier, later in pairwise(seen[20:]))
    assert seen[-1] < 0.01


def test_time_in_which_no_job_computes_does_not_count(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.look(7, busy_s=1.0, processes={7: (7, 0.0)})
    machine.look(7, busy_s=1.1)
    kept = machine.used_cores
    assert kept == pytest.approx(0.2)
    machine.look(busy_s=2.1)
    machine.look(busy_s=3.1)
    machine.look(7, busy_s=4.1)
    assert machine.used_cores == kept
    machine.look(7, busy_s=4.2)
    assert machine.used_cores == pytest.approx(0.2)


def test_a_trainer_that_has_ended_is_no_other_program(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.look(7, 8, busy_s=10.0, processes={7: (7, 5.0), 8: (8, 2.0)})
    (tmp_path / "7" / "stat").unlink()
    (tmp_path / "7").rmdir()
    machine.watch.end(7, 5.75)
    machine.look(8, busy_s=10.5, processes={8: (8, 2.25)})
    assert machine.used_cores == pytest.approx(0.0)


def test_a_trainer_without_a_job_is_an_other_program_until_it_has_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.look(7, busy_s=10.0, processes={7: (7, 0.0), 8: (8, 0.0)})
    machine.look(7, busy_s=10.5, processes={8: (8, 1.0)})
    assert machine.used_cores == pytest.approx(1.0), "it starts"
    machine = Machine(tmp_path)
    machine.look(7, busy_s=10.5)
    machine.look(7, 8, busy_s=11.0, processes={8: (8, 2.0)})
    assert machine.used_cores == pytest.approx(0.0), "it has got a job"


def test_counters_that_cannot_be_read_measure_nothing(tmp_path: Path) -> None:
    for text in (None, "", "cpu0 1 1 1 1\n", "cpu0 a b\ncpu1 c d\n"):
        if text is not None:
            (tmp_path / "stat").write_text(text)
        watch = CoreWatch((0, 1), proc=tmp_path)
        watch.look_beside((1,))
        watch.look_beside((1,))
        assert watch.use is None
    assert CoreWatch().cores == 0, "the watch of a GPU"


# Computes for 0.3 s of processor time in all, with a child that it waits for and one that goes on, then says so.
_COMPUTE = """
import os, time
def compute(until_s):
    while time.process_time() < until_s:
        sum(range(10000))
if os.fork() == 0:
    compute(0.1)
    os._exit(0)
os.wait()
done, told = os.pipe()
if os.fork() == 0:
    compute(0.1)
    os.write(told, b"x")
    time.sleep(600)
os.read(done, 1)
compute(0.1)
print(flush=True)
input()
"""


@contextmanager
def _computing() -> Iterator["subprocess.Popen[str]"]:
    """Yield a process that has computed, and leads a group like a trainer."""
    command = [sys.executable, "-c", _COMPUTE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, 9)


def _watch_of_machine() -> CoreWatch:
    return CoreWatch(os.sched_getaffinity(0))


def test_processes_of_a_job_and_what_they_started_are_no_other_programs() -> None:
    with _computing() as process:
        of_job, of_other = _watch_of_machine(), _watch_of_machine()
        of_job.look_beside((process.pid,))
        of_other.look_beside((os.getpid(),))
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        of_job.look_beside((process.pid,))
        of_other.look_beside((os.getpid(),))
    assert of_job.use is not None
    assert of_other.use is not None
    assert 0 <= of_job.use.used_cores < of_other.use.used_cores <= of_other.cores


def test_all_processes_of_a_group_are_counted_with_those_that_they_waited_for_until_these_are_reaped() -> None:
    with _computing() as process:
        assert process.stdout is not None
        process.stdout.readline()
        computed_s = _watch_of_machine()._groups_s()[process.pid]
        assert computed_s >= 0.25, "0.3 s, in ticks of 0.01 s"
        os.kill(process.pid, 9)
        until(lambda: " Z " in (_MACHINE / str(process.pid) / "stat").read_text())
        assert _watch_of_machine()._groups_s()[process.pid] >= computed_s


def test_cores_of_this_process_are_watched_unless_its_group_has_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = len(os.sched_getaffinity(0))
    for quota, cores in ((None, bound), (float(bound), bound), (bound - 0.5, 0)):
        monkeypatch.setattr("indb_tensile.device.cgroup.processors", lambda quota=quota: quota)
        assert CoreWatch.of_this_process().cores == cores


class SlowedWatch(CoreWatch):
    """A watch that finds other programs on one of two cores, and keeps what it was told."""

    def __init__(self) -> None:
        super().__init__((0, 1))
        self.looked: set[frozenset[int]] = set()
        self.ended: dict[int, float] = {}

    def look_beside(self, pids: Iterable[int]) -> None:
        self.looked.add(frozenset(pids))
        self.use = CoreUse(used_cores=1.0, beside_jobs=2.0)

    def end(self, pid: int, processor_s: float) -> None:
        self.ended[pid] = processor_s


def test_controller_watches_its_trainers_until_they_end_and_tells_its_forecasts() -> None:
    watch, contention = SlowedWatch(), replace(of_cores(2, 1), load=OtherLoad(cores=2))
    with controller_harness(cores=watch, contention=contention) as harness:
        job = harness.records.enqueue("train", 4 * MIB)
        harness.until_adopted(job)
        pid = harness.pid_of(job)
        harness.until(lambda: frozenset({pid}) in watch.looked)
        harness.until(lambda: harness.controller.pool.contention.load.used_cores == 1.0)
        assert harness.controller.pool.contention.slowdown(2) == 2.0
        harness.records.cancels.add(job)
        harness.until_state(job, "cancelled")
        assert watch.ended[pid] > 0
        harness.until(lambda: frozenset() in watch.looked)
