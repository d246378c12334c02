"""MPS by a double of its control program, which writes down what it is told."""

from pathlib import Path

import pytest

from indb_tensile.controller.mps import PROGRAM, Mps

# Two servers, of which the second has two clients.
DAEMON = """#!/bin/sh
read command
echo "$command" >>"{log}"
case "$command" in
    get_server_list) echo 100; echo 200 ;;
    "get_client_list 200") echo 7; echo 8 ;;
    "terminate_client 200 8") exit 1 ;;
esac
"""


def daemon(directory: Path, text: str = DAEMON) -> dict[str, str]:
    """The environment of a machine on which MPS is controlled by this."""
    program = directory / PROGRAM
    program.write_text(text.format(log=directory / "log"))
    program.chmod(0o755)
    return {"PATH": f"{directory}:/bin:/usr/bin"}


def told(directory: Path) -> list[str]:
    return (directory / "log").read_text().splitlines()


def test_where_no_daemon_answers_there_is_no_mps(tmp_path: Path) -> None:
    assert Mps.serving({"PATH": str(tmp_path)}) is None
    assert Mps.serving(daemon(tmp_path, "#!/bin/sh\nexit 1\n")) is None


def test_a_clients_work_is_ended_by_its_own_server_and_nobody_elses_is(tmp_path: Path) -> None:
    mps = Mps.serving(daemon(tmp_path))
    assert mps is not None
    mps.let_go(7)
    asked = ["get_server_list", "get_client_list 100", "get_client_list 200"]
    assert told(tmp_path) == ["get_server_list", *asked, "terminate_client 200 7"]
    mps.let_go(9)
    assert told(tmp_path)[5:] == asked


def test_work_that_could_not_be_ended_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mps = Mps.serving(daemon(tmp_path))
    assert mps is not None
    mps.let_go(8)
    refusal = "MPS did not end the work of process 8: killing the process may end the work of others too"
    assert caplog.messages == [refusal]


def test_a_daemon_that_hangs_is_waited_for_no_longer_than_that(tmp_path: Path) -> None:
    environment = daemon(tmp_path, "#!/bin/sh\nexec sleep 1000\n")
    Mps(program=str(tmp_path / PROGRAM), environment=environment, answer_timeout_s=0.05).let_go(7)
