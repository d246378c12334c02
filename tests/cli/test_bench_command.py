"""A benchmark that `tensile bench` runs beside its server is told to end when the command is."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

COMMAND = """
import sys
from indb_tensile.bench.harness.processes.process_exit import exit_on_sigterm
from indb_tensile.cli.bench import finish

exit_on_sigterm()
sys.exit(finish([sys.executable, "-c", sys.argv[1]]))
"""
BENCHMARK = """
import time
from indb_tensile.bench.harness.processes.process_exit import run

def main():
    try:
        print("controllers run", flush=True)
        time.sleep(1000)
    finally:
        time.sleep(0.01)
        print("controllers ended", flush=True)

run(main)
"""


def _terminate(process: "subprocess.Popen[str]") -> None:
    process.terminate()


def _interrupt(process: "subprocess.Popen[str]") -> None:
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does


@pytest.mark.parametrize("stop", [_terminate, _interrupt])
def test_benchmark_ends_its_controllers_before_its_command_ends(
    stop: Callable[["subprocess.Popen[str]"], None],
) -> None:
    command = (sys.executable, "-c", COMMAND, BENCHMARK)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "controllers run\n"
        stop(process)
        process.wait()
        assert process.stdout.read() == "controllers ended\n"
    assert process.returncode != 0


def test_benchmarks_exit_code_is_that_of_the_command() -> None:
    process = subprocess.run((sys.executable, "-c", COMMAND, "raise SystemExit(7)"), check=False)
    assert process.returncode == 7
