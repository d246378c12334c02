"""The service process comes, goes and comes again; what is forked is a small one."""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.controller.service_process import ServiceProcess
from indb_tensile.job import WorkerId
from tests.controller.fakes import DEADLINE_S, alive, children

MODULE = "tests.controller.fake_service"
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def service(path: Path | None, module: str = MODULE) -> Iterator[ServiceProcess]:
    """One that lasts and writes here; without a path, one that ends at once."""
    environment = ENVIRONMENT if path is None else ENVIRONMENT | {"FAKE_SERVICE_OUT": str(path)}
    with closing(ForkServer(environment)) as forks:
        made = ServiceProcess(forks=forks, module=module, grace_s=5.0)
        try:
            yield made
        finally:
            made.stop()


def begun(s: ServiceProcess, now_s: float) -> int:
    """Its process id, once it has begun; the clock stands still."""
    end = time.monotonic() + DEADLINE_S
    while s.pid is None:
        assert time.monotonic() < end
        s.attend(now_s)
    return s.pid


def buried(s: ServiceProcess, now_s: float) -> None:
    """Wait until it has ended; the clock stands still."""
    end = time.monotonic() + DEADLINE_S
    while s.asked:
        assert time.monotonic() < end
        s.attend(now_s)


def wait_for_end(pid: int) -> None:
    """Wait until our child has ended, without reaping it."""
    descriptor = os.pidfd_open(pid)
    assert select.select([descriptor], [], [], DEADLINE_S)[0]
    os.close(descriptor)


def wait_for_text(path: Path, text: str) -> None:
    end = time.monotonic() + 10.0
    while not path.exists() or path.read_text() != text:
        assert time.monotonic() < end, path.read_text() if path.exists() else "no file"
        os.sched_yield()


def test_it_runs_for_the_worker_it_is_told_and_again_for_the_next(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with service(path) as s:
        s.attend(0.0)
        assert s.pid is None
        s.serve(WorkerId(4))
        begun(s, 0.0)
        wait_for_text(path, "4\n")
        s.serve(WorkerId(5))
        begun(s, 0.0)
        wait_for_text(path, "4\n5\n")


def test_one_that_dies_is_started_again_after_a_pause(tmp_path: Path) -> None:
    with service(tmp_path / "out") as s:
        s.serve(WorkerId(4))
        first = begun(s, 100.0)
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        s.attend(101.0)
        assert s.pid is None
        s.attend(101.4)
        assert not s.asked
        s.attend(101.5)
        assert begun(s, 101.5) != first


def test_pauses_grow_while_it_keeps_dying() -> None:
    with service(None) as s:
        s.serve(WorkerId(4))
        now_s, pauses = 0.0, []
        s.attend(now_s)
        for _ in range(3):
            buried(s, now_s)
            died_s = now_s
            while not s.asked:
                now_s += 0.25
                s.attend(now_s)
            pauses.append(now_s - died_s)
        assert pauses == [0.5, 1.0, 2.0]


def pauses_of_killed_services(s: ServiceProcess, path: Path, kills: int) -> list[float]:
    """How long each takes to be started again, killed 1 s after it wrote its line."""
    s.serve(WorkerId(4))
    now_s, pauses = 0.0, []
    for number in range(kills):
        pid = begun(s, now_s)
        wait_for_text(path, "4\n" * (number + 1))
        now_s += 1.0
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        s.attend(now_s)
        died_s = now_s
        while not s.asked:
            now_s += 0.25
            s.attend(now_s)
        pauses.append(now_s - died_s)
    return pauses


def test_one_that_has_answered_is_back_at_once_however_often_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with service(path) as s:
        assert pauses_of_killed_services(s, path, 5) == [0.5] * 5


def test_one_that_runs_but_never_answers_comes_back_ever_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    monkeypatch.setitem(ENVIRONMENT, "FAKE_SERVICE_MUTE", "1")
    with service(path) as s:
        assert pauses_of_killed_services(s, path, 3) == [0.5, 1.0, 2.0]


def test_pauses_have_a_bound() -> None:
    with service(None) as s:
        s.serve(WorkerId(4))
        now_s, pauses = 0.0, []
        s.attend(now_s)
        for _ in range(8):
            buried(s, now_s)
            died_s = now_s
            while not s.asked:
                now_s += 0.5
                s.attend(now_s)
            pauses.append(now_s - died_s)
        assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with service(path) as s:
        s.serve(WorkerId(4))
        pid = begun(s, 0.0)
        wait_for_text(path, "4\n")
        s.stop()
        assert not alive(pid)


def test_one_that_is_stopped_before_it_has_begun_does_not_stay(tmp_path: Path) -> None:
    before = children()
    with service(tmp_path / "out") as s:
        s.serve(WorkerId(4))
        s.attend(0.0)
        s.serve(WorkerId(5))
        wanted = {begun(s, 0.0), s.forks.pid}
        deadline = time.monotonic() + DEADLINE_S
        while children() - before != wanted:  # the one that was stopped takes a moment to end
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_it_outlives_what_it_was_forked_from(tmp_path: Path) -> None:
    with service(tmp_path / "out") as s:
        s.serve(WorkerId(4))
        first, forks = begun(s, 0.0), s.forks.pid
        assert forks is not None
        os.kill(forks, signal.SIGKILL)
        wait_for_end(forks)
        s.attend(100.0)
        assert s.pid == first
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        s.attend(200.0)
        begun(s, 300.0)
        assert s.forks.pid not in (None, forks)


def test_one_that_cannot_be_started_is_tried_again() -> None:
    with service(None, "tests.controller.absent") as s:
        s.serve(WorkerId(4))
        s.attend(0.0)
        buried(s, 0.0)
        s.attend(10.0)
        assert s.asked
        assert s.pid is None
