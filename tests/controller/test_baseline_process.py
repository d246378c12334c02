"""Check that baselines are computed when rows wait, one process at a time, and that no failure repeats."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from indb_tensile.catalog.baseline_files import BaselineFiles
from indb_tensile.controller.baseline_process import BaselineProcess
from indb_tensile.job import ModelVersionId, WorkerId
from tests.controller.fakes import DEADLINE_S
from tests.controller.waiting import until
from tests.controller.warm_forks import fork_server

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
VERSION = ModelVersionId(7)


@contextmanager
def process(directory: Path) -> Iterator[tuple[BaselineProcess, BaselineFiles]]:
    files = BaselineFiles(directory)
    with closing(fork_server(ENVIRONMENT | {"FAKE_BASELINE_FILES": str(directory)})) as forks:
        baseline = BaselineProcess(forks=forks, module="tests.controller.fake_baseline", files=files, look_s=10.0)
        try:
            yield baseline, files
        finally:
            baseline.stop()


def _attend_until_ended(baseline: BaselineProcess, now_s: float) -> None:
    def ended() -> bool:
        baseline.attend(now_s)
        return not baseline.asked

    until(ended, DEADLINE_S)


def test_a_process_is_started_for_rows_that_wait_and_never_again_for_the_same(tmp_path: Path) -> None:
    with process(tmp_path) as (baseline, files):
        files.put(VERSION, b"3")
        baseline.attend(0.0)
        assert not baseline.asked, "there is no worker"
        baseline.serve(WorkerId(4))
        baseline.attend(1.0)
        assert baseline.asked
        _attend_until_ended(baseline, 2.0)
        files.put(VERSION, b"0")
        baseline.attend(61.9)
        assert not baseline.asked, "it pauses for a minute after a process that failed"
        baseline.attend(62.0)
        assert baseline.asked
        _attend_until_ended(baseline, 63.0)
        files.put(VERSION, b"0")
        baseline.attend(71.9)
        assert not baseline.asked, "it looks once in ten seconds"
        baseline.attend(72.0)
        assert baseline.asked


def test_a_process_is_killed_with_its_controller_and_its_rows_are_gone(tmp_path: Path) -> None:
    with process(tmp_path) as (baseline, files):
        files.put(VERSION, b"")
        baseline.serve(WorkerId(4))

        def taken() -> bool:
            baseline.attend(1.0)
            return not files.waiting()

        until(taken, DEADLINE_S)
        baseline.serve(None)
        assert not baseline.asked
        baseline.serve(WorkerId(5))
        baseline.attend(100.0)
        assert not baseline.asked
