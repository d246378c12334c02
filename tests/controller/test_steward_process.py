"""Check when the steward of searches is started: when it is called, one at a time, and again after a failure."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from indb_tensile.controller.steward_process import StewardProcess
from indb_tensile.job import WorkerId
from tests.controller.fakes import DEADLINE_S, alive
from tests.controller.waiting import until
from tests.controller.warm_forks import fork_server

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def steward(**environment: str) -> Iterator[StewardProcess]:
    with closing(fork_server(ENVIRONMENT | environment)) as forks:
        process = StewardProcess(forks=forks, module="tests.controller.fake_learner")
        try:
            yield process
        finally:
            process.stop()


def wait_until_ended(process: StewardProcess, now_s: float) -> None:
    """Attend to the steward until its end was noticed, without advancing its clock."""

    def ended() -> bool:
        process.attend(now_s)
        return not process.asked

    until(ended, DEADLINE_S)


def test_a_steward_starts_when_it_is_called_and_there_is_a_worker() -> None:
    with steward(FAKE_LEARNER_CODE="0") as process:
        process.serve(WorkerId(4))
        process.attend(0.0)
        assert not process.asked
        process.call()
        process.call()
        process.attend(0.0)
        assert process.asked
        wait_until_ended(process, 0.0)
        process.attend(100.0)
        assert not process.asked
        process.serve(None)
        process.call()
        process.attend(200.0)
        assert not process.asked


def test_a_steward_that_fails_is_started_again_after_growing_pauses() -> None:
    with steward(FAKE_LEARNER_CODE="1") as process:
        process.serve(WorkerId(4))
        process.call()
        process.attend(0.0)
        for began_s, pause_s in ((0.0, 0.5), (10.0, 1.0), (20.0, 2.0)):
            wait_until_ended(process, began_s)
            process.attend(began_s + 0.9 * pause_s)
            assert not process.asked
            process.attend(began_s + 10.0)
            assert process.asked


def test_a_call_that_comes_while_a_steward_ends_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with steward(FAKE_LEARNER_OUT=str(path)) as process:
        process.serve(WorkerId(4))
        process.call()

        def runs() -> bool:
            process.attend(0.0)
            return path.exists() and bool(path.read_text())

        until(runs, DEADLINE_S)
        process.call()
        pid = process.pid
        process.serve(None)
        assert pid is not None
        assert not alive(pid)
        process.serve(WorkerId(5))
        process.attend(1.0)
        assert process.asked
