"""Check how `tensile up --mps` starts and ends the MPS daemon, with a double of its control program."""

from pathlib import Path

import pytest

from indb_tensile.cli import mps_daemon
from indb_tensile.errors import UnavailableError
from indb_tensile.state_directory import StateDirectory
from tests.cli.mps_program import install_control_program


def commands(directory: Path) -> list[str]:
    return [line for line in (directory / "log").read_text().splitlines() if line != "get_server_list"]


def test_daemon_is_started_once_in_its_own_directories_and_ended(tmp_path: Path) -> None:
    state_directory, variables = StateDirectory(directory=tmp_path / "state"), install_control_program(tmp_path)
    assert not mps_daemon.end(state_directory, variables)
    mps_daemon.start(state_directory, variables)
    mps_daemon.start(state_directory, variables)
    assert (state_directory.directory / "mps" / "control").exists()
    assert commands(tmp_path) == ["-d"]
    assert mps_daemon.end(state_directory, variables)
    assert commands(tmp_path) == ["-d", "quit -t 5"]
    assert not mps_daemon.end(state_directory, variables)


def test_daemon_of_another_user_is_neither_used_nor_ended(tmp_path: Path) -> None:
    other_directory = tmp_path / "others"
    other_directory.mkdir()
    (other_directory / "control").touch()
    state_directory, variables = StateDirectory(directory=tmp_path / "state"), install_control_program(tmp_path)
    variables["CUDA_MPS_PIPE_DIRECTORY"] = str(other_directory)
    mps_daemon.start(state_directory, variables)
    assert mps_daemon.end(state_directory, variables)
    assert (other_directory / "control").exists()


def test_missing_mps_program_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="--mps needs the program nvidia-cuda-mps-control") as raised:
        mps_daemon.start(StateDirectory(directory=tmp_path), {"PATH": str(tmp_path)})
    assert "tensile up --no-mps" in (raised.value.hint or "")


def test_failed_start_of_the_daemon_is_reported_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_daemon, "_TIMEOUT_S", 0.0)
    variables = install_control_program(tmp_path, starts="echo no device >&2")
    with pytest.raises(UnavailableError, match="no daemon answers") as raised:
        mps_daemon.start(StateDirectory(directory=tmp_path / "state"), variables)
    assert raised.value.detail == "no device"
