"""A background process that is found again, and not mistaken for another."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from indb_tensile.cli import daemon
from indb_tensile.cli.daemon import Daemon
from indb_tensile.cli.state_directory import StateDirectory
from indb_tensile.controller.logrotation import rotate
from indb_tensile.errors import UnavailableError


@pytest.fixture
def here(place: Path) -> StateDirectory:
    """A state directory."""
    made = StateDirectory(directory=place / "state")
    made.make()
    return made


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends at SIGTERM."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def record(here: StateDirectory, pid: int, started: str | None = None) -> None:
    here.controller_pid.write_text(f"{pid} {started or daemon._started(pid)} digest\n")


def test_it_is_found_by_its_number_and_its_start(here: StateDirectory, sleeper: subprocess.Popen[bytes]) -> None:
    assert daemon.running(here) is None
    record(here, sleeper.pid)
    assert daemon.running(here) == Daemon(pid=sleeper.pid, made_from="digest")
    record(here, sleeper.pid, started="1")  # the number was another's before
    assert daemon.running(here) is None
    sleeper.kill()
    record(here, sleeper.pid)
    sleeper.wait()
    assert daemon.running(here) is None


@pytest.mark.parametrize("text", ["", "12", "x y z", "12 34", "1 2 3 4", "-5 1 digest", "4194305 None digest"])
def test_a_file_that_is_damaged_names_no_process(here: StateDirectory, text: str) -> None:
    here.controller_pid.write_text(text)
    assert daemon.running(here) is None
    assert daemon.stop(here) is False
    assert not here.controller_pid.exists()


def test_stopping_ends_it_and_forgets_it(here: StateDirectory, sleeper: subprocess.Popen[bytes]) -> None:
    record(here, sleeper.pid)
    assert daemon.stop(here) is True
    assert sleeper.wait() == -signal.SIGTERM
    assert not here.controller_pid.exists()
    assert daemon.stop(here) is False


def test_one_that_does_not_end_is_not_killed_but_named(here: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_STOP_S", 0.1)
    deaf = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        record(here, process.pid)
        with pytest.raises(UnavailableError, match=f"process {process.pid}") as caught:
            daemon.stop(here)
        assert caught.value.hint.endswith(f"kill -9 {process.pid}")
        assert daemon.running(here) is not None
        process.kill()


def test_the_tail_of_a_log_begins_where_this_start_did(here: StateDirectory) -> None:
    log = here.controller_log
    assert (daemon.size(log), daemon.tail(log)) == (0, "")
    log.write_text("an earlier life\n")
    since = daemon.size(log)
    assert daemon.tail(log, since=since) == ""
    with log.open("ab") as file:
        file.write(b"one\ntwo \xff\nthree\n")
    assert daemon.tail(log, since=since, lines=2) == "two \ufffd\nthree"


def test_the_tail_of_a_log_that_was_rotated_meanwhile_begins_in_the_older_file(here: StateDirectory) -> None:
    log = here.controller_log
    log.write_text("an earlier life\n")
    since = daemon.size(log)
    with log.open("ab", buffering=0) as file:
        file.write(b"one\n")
        assert rotate(log, 10, 5)
        file.write(b"two\n")
    assert daemon.tail(log, since=since) == "one\ntwo"
