"""Check how the controller uses MPS, with a double of its control program that logs the commands it gets."""

from pathlib import Path

import pytest

from indb_tensile.controller.mps import PROGRAM, Mps

# Two servers. The second server has two clients.
DAEMON = """#!/bin/sh
read command
echo "$command" >>"{log}"
case "$command" in
    get_server_list) echo 100; echo 200 ;;
    "get_client_list 200") echo 7; echo 8 ;;
    "terminate_client 200 8") exit 1 ;;
esac
"""


def install_control_program(directory: Path, text: str = DAEMON) -> dict[str, str]:
    """Install this control program, and return an environment in which it is found."""
    program = directory / PROGRAM
    program.write_text(text.format(log=directory / "log"))
    program.chmod(0o755)
    return {"PATH": f"{directory}:/bin:/usr/bin"}


def commands(directory: Path) -> list[str]:
    return (directory / "log").read_text().splitlines()


def test_mps_is_absent_if_no_daemon_answers(tmp_path: Path) -> None:
    assert Mps.serving({"PATH": str(tmp_path)}) is None
    assert Mps.serving(install_control_program(tmp_path, "#!/bin/sh\nexit 1\n")) is None


def test_only_the_server_of_the_client_ends_its_work(tmp_path: Path) -> None:
    mps = Mps.serving(install_control_program(tmp_path))
    assert mps is not None
    mps.let_go(7)
    client_lists = ["get_server_list", "get_client_list 100", "get_client_list 200"]
    assert commands(tmp_path) == ["get_server_list", *client_lists, "terminate_client 200 7"]
    mps.let_go(9)
    assert commands(tmp_path)[5:] == client_lists


def test_work_that_cannot_be_ended_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mps = Mps.serving(install_control_program(tmp_path))
    assert mps is not None
    mps.let_go(8)
    refusal = "MPS did not end the work of process 8: killing the process may end the work of others too"
    assert caplog.messages == [refusal]


def test_wait_for_a_hanging_daemon_is_limited(tmp_path: Path) -> None:
    environment = install_control_program(tmp_path, "#!/bin/sh\nexec sleep 1000\n")
    Mps(program=str(tmp_path / PROGRAM), environment=environment, answer_timeout_s=0.05).let_go(7)
