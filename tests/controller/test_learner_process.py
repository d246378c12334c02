"""The learner runs while there is a worker, again after a pause, and leaves nothing behind."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.controller.learner_process import LearnerProcess
from indb_tensile.job import WorkerId
from tests.controller.fakes import DEADLINE_S, alive

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def learner(module: str = "tests.controller.fake_learner", **environment: str) -> Iterator[LearnerProcess]:
    with closing(ForkServer(ENVIRONMENT | environment)) as forks:
        made = LearnerProcess(forks=forks, module=module, again_s=100.0)
        try:
            yield made
        finally:
            made.stop()


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end
        os.sched_yield()


def ends(one: LearnerProcess, now_s: float) -> None:
    """Wait until it has been seen to end; the clock stands still."""

    def over() -> bool:
        one.attend(now_s)
        return not one.asked

    until(over)


def test_it_runs_when_there_is_a_worker_and_again_after_a_pause_however_it_ended() -> None:
    for code in ("0", "3"):
        with learner(FAKE_LEARNER_CODE=code) as one:
            one.attend(0.0)
            assert not one.asked
            one.serve(WorkerId(4))
            one.attend(1.0)
            assert one.asked
            ends(one, 5.0)
            one.attend(104.9)
            assert not one.asked
            one.attend(105.0)
            assert one.asked


def test_without_a_worker_it_is_ended_with_whatever_it_started(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with learner(FAKE_LEARNER_OUT=str(path)) as one:
        one.serve(WorkerId(4))

        def lasts() -> bool:
            one.attend(0.0)
            return path.exists() and bool(path.read_text())

        until(lasts)
        pid = one.pid
        one.serve(None)
        one.attend(1000.0)
        assert not one.asked
        assert pid is not None
        assert not alive(pid)
        until(lambda: not alive(int(path.read_text())))


def test_one_that_cannot_be_started_is_tried_again_after_a_pause() -> None:
    with learner("tests.controller.absent") as one:
        one.serve(WorkerId(4))
        one.attend(0.0)
        ends(one, 0.0)
        one.attend(99.0)
        assert not one.asked
        one.attend(100.0)
        assert one.asked
