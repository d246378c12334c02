"""The learner and the measurement of contention, which disturb each other's measurements, run one after the other."""

import os
import sys
from contextlib import closing
from itertools import count
from types import SimpleNamespace
from typing import cast

import pytest

from indb_tensile.config import Settings
from indb_tensile.controller.companion_process import CompanionProcess
from indb_tensile.controller.records import CatalogRecords
from indb_tensile.job import WorkerId
from tests.controller.fakes import DEADLINE_S
from tests.controller.waiting import until
from tests.controller.warm_forks import fork_server
from worker import companions

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "FAKE_LEARNER_CODE": "0"}
NO_RECORDS = cast(CatalogRecords, SimpleNamespace())


def test_the_learner_waits_for_the_measurement_of_contention_and_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("LEARNER", "CONTENTION", "STEWARD"):
        monkeypatch.setattr(companions, module, "tests.controller.fake_learner")
    settings = Settings(dsn="", device="emulated", baseline=False)
    with closing(fork_server(ENVIRONMENT)) as forks:
        together = companions.Companions(settings, forks, NO_RECORDS, lambda: True)
        learner, contention = together._learner, together._contention
        assert learner is not None
        assert contention is not None

        def attend_until_started(part: CompanionProcess, from_s: float) -> None:
            seconds = count(from_s)  # of the parts' clock

            def started() -> bool:
                together.attend(next(seconds))
                assert not (learner.asked and contention.asked)
                return part.asked

            until(started, DEADLINE_S)

        try:
            together.serve(WorkerId(1))
            together.see_jobs(1)
            attend_until_started(learner, 0.0)  # beside jobs it has not to wait
            together.see_jobs(0)
            attend_until_started(contention, 1e3)
            attend_until_started(learner, 1e6)
        finally:
            together.stop()
        assert not learner.asked
        assert not contention.asked
