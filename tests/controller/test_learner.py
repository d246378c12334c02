"""The learner runs while there is a worker, again after a pause, and leaves nothing behind."""

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from indb_tensile.controller.learner import LearnerProcess
from indb_tensile.job import WorkerId
from tests.controller.fakes import alive

ENDING = "import sys; sys.exit(int(sys.argv[1]))"
LASTING = """
import pathlib, subprocess, sys, time
started = subprocess.Popen(["sleep", "60"])
pathlib.Path(sys.argv[1]).write_text(str(started.pid))
time.sleep(60)
"""


@contextmanager
def learner(program: str, argument: str) -> Iterator[LearnerProcess]:
    made = LearnerProcess(
        command=(sys.executable, "-c", program, argument), environment=dict(os.environ), again_s=100.0
    )
    try:
        yield made
    finally:
        made.stop()


def _wait_for_end(pid: int | None) -> None:
    assert pid is not None
    descriptor = os.pidfd_open(pid)
    assert select.select([descriptor], [], [], 10.0)[0]
    os.close(descriptor)


def test_it_runs_when_there_is_a_worker_and_again_after_a_pause_however_it_ended() -> None:
    for code in ("0", "3"):
        with learner(ENDING, code) as one:
            one.attend(0.0)
            assert one.pid is None
            one.serve(WorkerId(4))
            one.attend(1.0)
            first = one.pid
            _wait_for_end(first)
            one.attend(5.0)
            one.attend(104.9)
            assert one.pid is None
            one.attend(105.0)
            assert one.pid not in (None, first)


def test_without_a_worker_it_is_ended_with_whatever_it_started(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with learner(LASTING, str(path)) as one:
        one.serve(WorkerId(4))
        one.attend(0.0)
        pid, end = one.pid, time.monotonic() + 10.0
        while not path.exists() or not path.read_text().strip():
            assert time.monotonic() < end
            os.sched_yield()
        one.serve(None)
        one.attend(1000.0)
        assert one.pid is None
        assert pid is not None
        assert not alive(pid)
        while alive(int(path.read_text())):
            assert time.monotonic() < end
            os.sched_yield()


def test_one_that_cannot_be_started_is_tried_again_after_a_pause(tmp_path: Path) -> None:
    one = LearnerProcess(command=(str(tmp_path / "missing"),), environment={}, again_s=100.0)
    one.serve(WorkerId(4))
    one.attend(0.0)
    assert one.pid is None
    (tmp_path / "missing").symlink_to("/bin/true")
    one.attend(99.0)
    assert one.pid is None
    one.attend(100.0)
    assert one.pid is not None
    one.stop()
