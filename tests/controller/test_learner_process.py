"""Check that the learner process runs while a worker is registered, restarts after a pause, and leaves no process."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from indb_tensile.controller.learner_process import LearnerProcess
from indb_tensile.job import WorkerId
from tests.controller.fakes import DEADLINE_S, alive
from tests.controller.waiting import until
from tests.controller.warm_forks import fork_server

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def learner(module: str = "tests.controller.fake_learner", **environment: str) -> Iterator[LearnerProcess]:
    with closing(fork_server(ENVIRONMENT | environment)) as forks:
        learner_process = LearnerProcess(forks=forks, module=module, again_s=100.0)
        try:
            yield learner_process
        finally:
            learner_process.stop()


def wait_until_ended(learner_process: LearnerProcess, now_s: float) -> None:
    """Attend to the learner until its end was noticed, without advancing its clock."""

    def ended() -> bool:
        learner_process.attend(now_s)
        return not learner_process.asked

    until(ended, DEADLINE_S)


def test_learner_runs_while_a_worker_is_registered_and_again_after_a_pause() -> None:
    for exit_code in ("0", "3"):
        with learner(FAKE_LEARNER_CODE=exit_code) as learner_process:
            learner_process.attend(0.0)
            assert not learner_process.asked
            learner_process.serve(WorkerId(4))
            learner_process.attend(1.0)
            assert learner_process.asked
            wait_until_ended(learner_process, 5.0)
            learner_process.attend(104.9)
            assert not learner_process.asked
            learner_process.attend(105.0)
            assert learner_process.asked


def test_learner_and_its_child_process_are_ended_without_a_worker(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with learner(FAKE_LEARNER_OUT=str(path)) as learner_process:
        learner_process.serve(WorkerId(4))

        def has_child() -> bool:
            learner_process.attend(0.0)
            return path.exists() and bool(path.read_text())

        until(has_child, DEADLINE_S)
        pid = learner_process.pid
        learner_process.serve(None)
        learner_process.attend(1000.0)
        assert not learner_process.asked
        assert pid is not None
        assert not alive(pid)
        until(lambda: not alive(int(path.read_text())), DEADLINE_S)


def test_learner_that_cannot_start_is_tried_again_after_a_pause() -> None:
    with learner("tests.controller.absent") as learner_process:
        learner_process.serve(WorkerId(4))
        learner_process.attend(0.0)
        wait_until_ended(learner_process, 0.0)
        learner_process.attend(99.0)
        assert not learner_process.asked
        learner_process.attend(100.0)
        assert learner_process.asked
