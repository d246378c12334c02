"""The daemon of `tensile up --mps`, by a double of its control program."""

import os
from pathlib import Path

import pytest

from indb_tensile.cli import mps_daemon
from indb_tensile.cli.state_directory import StateDirectory
from indb_tensile.controller.mps import PROGRAM
from indb_tensile.errors import UnavailableError

# Runs while a file is in its pipe directory, and writes down what it is told.
DAEMON = """#!/bin/sh
running="$CUDA_MPS_PIPE_DIRECTORY/control"
if [ "$1" = -d ]; then
    [ -d "$CUDA_MPS_LOG_DIRECTORY" ] || exit 3
    echo -d >>"{log}"
    {starts}
    exit 0
fi
[ -e "$running" ] || exit 1
read command
echo "$command" >>"{log}"
case "$command" in
    quit*) rm "$running" ;;
esac
"""


def installed(directory: Path, starts: str = ': >"$running"') -> dict[str, str]:
    program = directory / PROGRAM
    program.write_text(DAEMON.format(log=directory / "told", starts=starts))
    program.chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}


def told(directory: Path) -> list[str]:
    return [line for line in (directory / "told").read_text().splitlines() if line != "get_server_list"]


def test_a_daemon_is_started_once_with_directories_of_its_own_and_ended(tmp_path: Path) -> None:
    place, variables = StateDirectory(directory=tmp_path / "state"), installed(tmp_path)
    assert not mps_daemon.end(place, variables)
    mps_daemon.start(place, variables)
    mps_daemon.start(place, variables)
    assert (place.directory / "mps" / "control").exists()
    assert told(tmp_path) == ["-d"]
    assert mps_daemon.end(place, variables)
    assert told(tmp_path) == ["-d", "quit -t 5"]
    assert not mps_daemon.end(place, variables)


def test_nobody_elses_daemon_is_used_or_ended(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "control").touch()
    place, variables = StateDirectory(directory=tmp_path / "state"), installed(tmp_path)
    variables["CUDA_MPS_PIPE_DIRECTORY"] = str(others)
    mps_daemon.start(place, variables)
    assert mps_daemon.end(place, variables)
    assert (others / "control").exists()


def test_a_machine_without_mps_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="--mps needs the program nvidia-cuda-mps-control") as raised:
        mps_daemon.start(StateDirectory(directory=tmp_path), {"PATH": str(tmp_path)})
    assert "tensile up --no-mps" in (raised.value.hint or "")


def test_a_daemon_that_does_not_start_is_told_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_daemon, "_PATIENCE_S", 0.0)
    variables = installed(tmp_path, starts="echo no device >&2")
    with pytest.raises(UnavailableError, match="no daemon answers") as raised:
        mps_daemon.start(StateDirectory(directory=tmp_path / "state"), variables)
    assert raised.value.detail == "no device"
