"""Check that threads wait alike in trainers and in what measures for them."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from indb_tensile.config import Settings
from indb_tensile.device.waiting_threads import with_short_waits
from tests.controller.test_fork_client import fork_copy, fork_server
from tests.controller.waiting import until
from worker import controller_device


def test_value_that_is_given_counts() -> None:
    assert with_short_waits({"HOME": "/"}) == {"HOME": "/", "GOMP_SPINCOUNT": "1000"}
    assert with_short_waits({"GOMP_SPINCOUNT": "7"}) == {"GOMP_SPINCOUNT": "7"}


def test_trainers_and_measuring_processes_have_the_same_short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    measuring = controller_device.child_environment(Settings())
    with fork_server() as forks, ExitStack() as stack:
        fork_copy(forks, stack)
        # The file is empty for a moment after the process has started.
        text = until(Path(f"/proc/{forks.pid}/environ").read_text)
        trainers = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    assert measuring["GOMP_SPINCOUNT"] == trainers["GOMP_SPINCOUNT"] == "1000"
    assert "GOMP_SPINCOUNT" not in os.environ
