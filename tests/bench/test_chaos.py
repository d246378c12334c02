"""A short chaos run with the cheap kinds of events. `tensile bench chaos` runs longer, and with all kinds."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from indb_tensile.bench.harness.chaos.chaos_events import CHEAP
from indb_tensile.bench.harness.chaos.chaos_verdict import is_clean
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
@pytest.mark.parametrize(
    ("number", "cause", "events"),
    [(signal.SIGTERM, "SIGTERM", 0), (signal.SIGTERM, "SIGTERM", 2), (signal.SIGINT, "an interrupt", 2)],
)
def test_a_chaos_run_ended_by_a_signal_says_what_was_not_checked_and_leaves_nothing(
    tmp_path: Path, temporary: Path, number: signal.Signals, cause: str, events: int
) -> None:
    log = tmp_path / "events"
    command = [*COMMAND, "--controllers", "1", "--jobs", "4", "--log", str(log)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, env=environment, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            (directory,) = until(lambda: list(temporary.glob("chaos-*")))
            mark = f"TENSILE_BENCH_CHAOS={directory}\0"
            until(lambda: len(processes_with(mark)) > 2)  # the controller, its fork server, and forks of that
            until(lambda: log.read_text().count("\n") >= events)
        finally:
            process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
    report = json.loads(out)
    assert report["events"] >= events
    assert ("predictions" in report) == (events > 0)
    assert err == (
        f"tensile: {cause} ended the chaos test after {report['events']} of 100 events; "
        "the bits and endings of its jobs and what it left behind were not checked\n"
    )
    assert process.returncode == 128 + number
    assert [path for path in temporary.iterdir() if "torch" not in path.name] == []  # torch has its cache there
    assert not processes_with(mark)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Yield a folder for temporary files, whose path is short enough for those of sockets in it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # the server's system user must be able to enter
        yield Path(name)


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (result := condition()):
        assert time.monotonic() < end, f"not within {DEADLINE_S} s"
        time.sleep(0.05)  # only the deadline matters
    return result
