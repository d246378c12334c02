"""Check when the controller starts, restarts and stops the service process, with a small fake service."""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from indb_tensile.controller.service_process import ServiceProcess
from indb_tensile.job import WorkerId
from tests.controller.fakes import DEADLINE_S, alive, children
from tests.controller.warm_forks import fork_server

MODULE = "tests.controller.fake_service"
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def running_service(path: Path | None, module: str = MODULE) -> Iterator[ServiceProcess]:
    """Control a fake service that runs and writes to the path; without a path, one that ends at once."""
    environment = ENVIRONMENT if path is None else ENVIRONMENT | {"FAKE_SERVICE_OUT": str(path)}
    with closing(fork_server(environment)) as forks:
        service_process = ServiceProcess(forks=forks, module=module, grace_s=5.0)
        try:
            yield service_process
        finally:
            service_process.stop()


def wait_until_started(service_process: ServiceProcess, now_s: float) -> int:
    """Attend to the service until it has started, without advancing its clock, and return its process id."""
    end_s = time.monotonic() + DEADLINE_S
    while service_process.pid is None:
        assert time.monotonic() < end_s
        service_process.attend(now_s)
    return service_process.pid


def wait_until_ended(service_process: ServiceProcess, now_s: float) -> None:
    """Attend to the service until its end was noticed, without advancing its clock."""
    end_s = time.monotonic() + DEADLINE_S
    while service_process.asked:
        assert time.monotonic() < end_s
        service_process.attend(now_s)


def wait_for_end(pid: int) -> None:
    """Wait until this child process has ended, without reaping it."""
    descriptor = os.pidfd_open(pid)
    assert select.select([descriptor], [], [], DEADLINE_S)[0]
    os.close(descriptor)


def wait_for_text(path: Path, text: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not path.exists() or path.read_text() != text:
        assert time.monotonic() < end_s, path.read_text() if path.exists() else "no file"
        os.sched_yield()


def test_service_runs_for_the_current_worker_and_again_for_the_next_worker(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with running_service(path) as service_process:
        service_process.attend(0.0)
        assert service_process.pid is None
        service_process.serve(WorkerId(4))
        wait_until_started(service_process, 0.0)
        wait_for_text(path, "4\n")
        service_process.serve(WorkerId(5))
        wait_until_started(service_process, 0.0)
        wait_for_text(path, "4\n5\n")


def test_dead_service_is_started_again_after_a_pause(tmp_path: Path) -> None:
    with running_service(tmp_path / "out") as service_process:
        service_process.serve(WorkerId(4))
        first = wait_until_started(service_process, 100.0)
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        service_process.attend(101.0)
        assert service_process.pid is None
        service_process.attend(101.4)
        assert not service_process.asked
        service_process.attend(101.5)
        assert wait_until_started(service_process, 101.5) != first


def pauses_of_ending_services(service_process: ServiceProcess, ends: int) -> list[float]:
    """Let services end that end at once; return the pauses before the restarts."""
    service_process.serve(WorkerId(4))
    now_s, pauses = 0.0, []
    service_process.attend(now_s)
    for _ in range(ends):
        wait_until_ended(service_process, now_s)
        died_s = now_s
        while not service_process.asked:
            now_s += 0.25
            service_process.attend(now_s)
        pauses.append(now_s - died_s)
    return pauses


def test_pauses_between_starts_grow() -> None:
    with running_service(None) as service_process:
        assert pauses_of_ending_services(service_process, 3) == [0.5, 1.0, 2.0]


def pauses_of_killed_services(service_process: ServiceProcess, path: Path, kills: int) -> list[float]:
    """Kill each service 1 s after it wrote its line; return the pauses before the restarts."""
    service_process.serve(WorkerId(4))
    now_s, pauses = 0.0, []
    for number in range(kills):
        pid = wait_until_started(service_process, now_s)
        wait_for_text(path, "4\n" * (number + 1))
        now_s += 1.0
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        service_process.attend(now_s)
        died_s = now_s
        while not service_process.asked:
            now_s += 0.25
            service_process.attend(now_s)
        pauses.append(now_s - died_s)
    return pauses


def test_service_that_has_answered_is_restarted_without_growing_pauses(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with running_service(path) as service_process:
        assert pauses_of_killed_services(service_process, path, 5) == [0.5] * 5


def test_service_that_never_answers_is_restarted_after_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    monkeypatch.setitem(ENVIRONMENT, "FAKE_SERVICE_MUTE", "1")
    with running_service(path) as service_process:
        assert pauses_of_killed_services(service_process, path, 3) == [0.5, 1.0, 2.0]


def test_pauses_between_starts_are_bounded() -> None:
    with running_service(None) as service_process:
        pauses = pauses_of_ending_services(service_process, 8)
        assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_stop_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with running_service(path) as service_process:
        service_process.serve(WorkerId(4))
        pid = wait_until_started(service_process, 0.0)
        wait_for_text(path, "4\n")
        service_process.stop()
        assert not alive(pid)


def test_service_that_is_stopped_before_its_start_ends(tmp_path: Path) -> None:
    before = children()
    with running_service(tmp_path / "out") as service_process:
        service_process.serve(WorkerId(4))
        service_process.attend(0.0)
        service_process.serve(WorkerId(5))
        remaining = {wait_until_started(service_process, 0.0), service_process.forks.pid}
        deadline = time.monotonic() + DEADLINE_S
        while {pid for pid in children() - before if _is_forked(pid)} != remaining:
            assert time.monotonic() < deadline
            service_process.attend(0.0)  # the first may report its start, and so be ended, after the second
            time.sleep(0.01)


def _is_forked(pid: int) -> bool:
    """Return whether the process is a fork server or a copy of one. Other tests' orphans can become children too."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("tensile ")
    except FileNotFoundError:
        return False


def test_service_outlives_its_fork_server(tmp_path: Path) -> None:
    with running_service(tmp_path / "out") as service_process:
        service_process.serve(WorkerId(4))
        first, forks = wait_until_started(service_process, 0.0), service_process.forks.pid
        assert forks is not None
        os.kill(forks, signal.SIGKILL)
        wait_for_end(forks)
        service_process.attend(100.0)
        assert service_process.pid == first
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        service_process.attend(200.0)
        wait_until_started(service_process, 300.0)
        assert service_process.forks.pid not in (None, forks)


def test_service_that_cannot_start_is_tried_again() -> None:
    with running_service(None, "tests.controller.absent") as service_process:
        service_process.serve(WorkerId(4))
        service_process.attend(0.0)
        wait_until_ended(service_process, 0.0)
        service_process.attend(10.0)
        assert service_process.asked
        assert service_process.pid is None
