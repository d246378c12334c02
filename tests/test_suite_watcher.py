"""Check that a killed run of the tests leaves neither servers nor directories."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controller.fakes import alive
from tests.controller.waiting import until
from tests.suite_watcher import SCRIPT

# Stands for pytest: it starts a server in a session of its own, and a directory of the run.
RUN = """
import subprocess, sys
from tests.open_directory import open_directory
from tests.suite_watcher import start_watcher
watcher = start_watcher()
server = subprocess.Popen(["sh", "-c", sys.argv[1]], start_new_session=True)
with open_directory("suite-watched-") as directory:
    print(server.pid, directory, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("killed", "server_program"), [("pytest", "trap '' TERM; sleep 1000"), ("script", "exec sleep 1000")]
)
def test_a_killed_run_leaves_no_server_and_no_directory(killed: str, server_program: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != SCRIPT}
    script = subprocess.Popen(["sleep", "1000"], env=environment)
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, server_program],
        env=environment | {SCRIPT: str(script.pid)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with run, script:
        assert run.stdout is not None
        server, directory = run.stdout.readline().split()
        (run if killed == "pytest" else script).send_signal(signal.SIGKILL)
        until(lambda: not alive(int(server)) and not Path(directory).exists())
        if killed == "script":
            run.wait()
        script.kill()
