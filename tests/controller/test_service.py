import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from indb_tensile.controller.service import ServiceProcess
from indb_tensile.job import WorkerId
from tests.controller.fakes import alive

PROGRAM = (
    "import os, sys, time; open(sys.argv[1], 'a').write(os.environ['TENSILE_WORKER_ID'] + '\\n'); time.sleep(60)"
)
FAILING = "import sys; open(sys.argv[1], 'a').write('x'); sys.exit(3)"


@contextmanager
def service(program: str, path: Path, grace_s: float = 5.0) -> Iterator[ServiceProcess]:
    made = ServiceProcess(
        command=(sys.executable, "-c", program, str(path)), environment=dict(os.environ), grace_s=grace_s
    )
    try:
        yield made
    finally:
        made.stop()


def wait_for_end(pid: int) -> None:
    """Wait until our child has ended, without reaping it."""
    descriptor = os.pidfd_open(pid)
    assert select.select([descriptor], [], [], 10.0)[0]
    os.close(descriptor)


def wait_for_text(path: Path, text: str) -> None:
    end = time.monotonic() + 10.0
    while not path.exists() or path.read_text() != text:
        assert time.monotonic() < end, path.read_text() if path.exists() else "no file"
        os.sched_yield()


def test_it_runs_for_the_worker_it_is_told_and_again_for_the_next(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with service(PROGRAM, path) as s:
        s.attend(0.0)
        assert s.pid is None
        s.serve(WorkerId(4))
        s.attend(0.0)
        wait_for_text(path, "4\n")
        s.serve(WorkerId(5))
        s.attend(0.0)
        wait_for_text(path, "4\n5\n")


def test_one_that_dies_is_started_again_after_a_pause(tmp_path: Path) -> None:
    with service(PROGRAM, tmp_path / "out") as s:
        s.serve(WorkerId(4))
        s.attend(100.0)
        first = s.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        s.attend(101.0)
        assert s.pid is None
        s.attend(101.4)
        assert s.pid is None
        s.attend(101.5)
        assert s.pid not in (None, first)


def test_pauses_grow_while_it_keeps_dying(tmp_path: Path) -> None:
    with service(FAILING, tmp_path / "out") as s:
        s.serve(WorkerId(4))
        s.attend(0.0)
        now_s, pauses = 0.0, []
        for _ in range(3):
            assert s.pid is not None
            wait_for_end(s.pid)
            s.attend(now_s)
            died_s = now_s
            while s.pid is None:
                now_s += 0.25
                s.attend(now_s)
            pauses.append(now_s - died_s)
        assert pauses == [0.5, 1.0, 2.0]


def test_a_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with service(PROGRAM, path) as s:
        s.serve(WorkerId(4))
        s.attend(0.0)
        wait_for_text(path, "4\n")
        pid = s.pid
        s.stop()
        assert pid is not None
        assert not alive(pid)


def test_one_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    s = ServiceProcess(command=(str(tmp_path / "missing"),), environment={}, grace_s=1.0)
    s.serve(WorkerId(4))
    s.attend(0.0)
    assert s.pid is None
    s.attend(10.0)
    assert s.pid is None
    s.stop()
