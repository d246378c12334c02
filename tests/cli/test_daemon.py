"""Check how the background controller is identified, stopped, and its log read."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from indb_tensile.cli import daemon
from indb_tensile.cli.daemon import Daemon
from indb_tensile.controller.logrotation import rotate
from indb_tensile.errors import UnavailableError
from indb_tensile.state_directory import ControllerFiles, StateDirectory


@pytest.fixture
def files(open_directory: Path) -> ControllerFiles:
    """The files of a controller in a state directory."""
    directory = StateDirectory(directory=open_directory / "state")
    directory.make()
    return directory.controller()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends at SIGTERM."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def write_record(files: ControllerFiles, pid: int, started: str | None = None) -> None:
    files.pid.write_text(f"{pid} {started or daemon._started(pid)} digest\n")


def test_controller_is_identified_by_its_process_id_and_start_time(
    files: ControllerFiles, sleeper: subprocess.Popen[bytes]
) -> None:
    assert daemon.running(files) is None
    write_record(files, sleeper.pid)
    assert daemon.running(files) == Daemon(pid=sleeper.pid, made_from="digest")
    write_record(files, sleeper.pid, started="1")  # another process had the id before
    assert daemon.running(files) is None
    sleeper.kill()
    write_record(files, sleeper.pid)
    sleeper.wait()
    assert daemon.running(files) is None


@pytest.mark.parametrize("text", ["", "12", "x y z", "12 34", "1 2 3 4", "-5 1 digest", "4194305 None digest"])
def test_damaged_file_names_no_process(files: ControllerFiles, text: str) -> None:
    files.pid.write_text(text)
    assert daemon.running(files) is None
    assert daemon.stop(files) is False
    assert not files.pid.exists()


def test_stop_ends_the_process_and_removes_the_file(files: ControllerFiles, sleeper: subprocess.Popen[bytes]) -> None:
    write_record(files, sleeper.pid)
    assert daemon.stop(files) is True
    assert sleeper.wait() == -signal.SIGTERM
    assert not files.pid.exists()
    assert daemon.stop(files) is False


def test_process_that_does_not_end_is_named_and_not_killed(
    files: ControllerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_STOP_S", 0.1)
    ignore_sigterm = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", ignore_sigterm], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        write_record(files, process.pid)
        with pytest.raises(UnavailableError, match=f"process {process.pid}") as caught:
            daemon.stop(files)
        assert caught.value.hint.endswith(f"kill -9 {process.pid}")
        assert daemon.running(files) is not None
        process.kill()


def test_tail_of_a_log_begins_at_the_given_size(files: ControllerFiles) -> None:
    log = files.log
    assert (daemon.size(log), daemon.tail(log)) == (0, "")
    log.write_text("an earlier life\n")
    since = daemon.size(log)
    assert daemon.tail(log, since=since) == ""
    with log.open("ab") as file:
        file.write(b"one\ntwo \xff\nthree\n")
    assert daemon.tail(log, since=since, lines=2) == "two \ufffd\nthree"


def test_tail_of_a_rotated_log_begins_in_the_older_file(files: ControllerFiles) -> None:
    log = files.log
    log.write_text("an earlier life\n")
    since = daemon.size(log)
    with log.open("ab", buffering=0) as file:
        file.write(b"one\n")
        assert rotate(log, 10, 5)
        file.write(b"two\n")
    assert daemon.tail(log, since=since) == "one\ntwo"
