"""A short chaos run with the cheap kinds of events. `tensile bench chaos` runs longer, and with all kinds."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from indb_tensile.bench.harness.chaos_events import CHEAP
from indb_tensile.bench.harness.chaos_verdict import is_clean
from tests.remains import processes_with

pytestmark = pytest.mark.postgres

DEADLINE_S = 120.0
COMMAND = (sys.executable, "-m", "indb_tensile.bench", "chaos", "--lease", "6", "--kinds", "cheap", "--json")


@pytest.mark.nightly
def test_no_job_is_lost_or_changed_by_a_short_chaos_run(tmp_path: Path) -> None:
    log = tmp_path / "events"
    command = [*COMMAND, "--events", str(len(CHEAP) + 1), "--jobs", "4", "--seed", "1", "--log", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report, events = json.loads(done.stdout), log.read_text()
    assert is_clean(report), (report, events)
    assert done.returncode == 0
    assert set(report["events_by_kind"]) == {kind.value for kind in CHEAP}
    assert [json.loads(line)["event"] for line in events.splitlines()] == list(range(1, len(CHEAP) + 2))
    assert report["succeeded"] > 0
    assert report["failed_by_own_fault"] + report["cancelled"] > 0
    assert report["predictions"] > 0
    assert min(report["peak_rss_mb"][name] for name in ("controller", "trainer", "service", "backend")) > 0


@pytest.mark.nightly
def test_a_chaos_run_ended_by_sigterm_stops_its_processes_and_deletes_its_files() -> None:
    before = directories()
    with subprocess.Popen([*COMMAND, "--controllers", "1"], stderr=subprocess.PIPE, text=True) as process:
        (directory,) = until(lambda: directories() - before)
        mark = f"TENSILE_BENCH_CHAOS={directory}\0"
        until(lambda: len(processes_with(mark)) > 2)  # the controller, its fork server, and forks of that
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(timeout=DEADLINE_S) == 128 + signal.SIGTERM
    assert not directory.exists()
    assert not processes_with(mark)


def directories() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("chaos-*"))


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (result := condition()):
        assert time.monotonic() < end, f"not within {DEADLINE_S} s"
        time.sleep(0.05)  # only the deadline matters
    return result
