"""A benchmark that cannot continue ends with an exit code, and without a traceback for an error of its user."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from indb_tensile.bench.harness.processes.process_exit import UNREAD, run
from indb_tensile.error_report import INTERRUPTED
from indb_tensile.errors import RequestError

ENDLESS_ROWS = """
import sys
from indb_tensile.bench.harness.processes.process_exit import run

def main():
    sys.stdin.read()
    while True:
        print("row", flush=True)

run(main)
"""

WITH_CLEANUP = """
import time
from indb_tensile.bench.harness.processes.process_exit import run

def main():
    try:
        print("up", flush=True)
        time.sleep(1000)
    finally:
        print("down", flush=True)

run(main)
"""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore the suite's handling of SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_an_error_of_the_user_is_a_sentence_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise RequestError("there is no network 'x'", detail="It was removed.", hint="Networks are: y.")

    with pytest.raises(SystemExit) as ending:
        run(refuse)
    assert ending.value.code == RequestError.exit_code
    assert capsys.readouterr().err == (
        "tensile: there is no network 'x'\n  detail: It was removed.\n  hint: Networks are: y.\n"
    )


def test_an_interrupted_benchmark_ends_without_output(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ending:
        run(interrupt)
    assert (ending.value.code, capsys.readouterr().err) == (INTERRUPTED, "")


def test_a_benchmark_ends_without_output_when_its_pipe_is_closed() -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(
        (sys.executable, "-c", ENDLESS_ROWS), stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writer)
        os.close(reader)
        _, err = process.communicate()
    assert (process.returncode, err) == (UNREAD, "")


def test_a_benchmark_ended_by_sigterm_runs_its_cleanup() -> None:
    with subprocess.Popen((sys.executable, "-c", WITH_CLEANUP), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.terminate()
        assert process.stdout.read() == "down\n"
    assert process.returncode == 128 + signal.SIGTERM


def test_another_broken_pipe_is_a_fault() -> None:
    def send() -> None:
        raise BrokenPipeError

    with Path(os.devnull).open("w") as read, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", read)
        with pytest.raises(BrokenPipeError):
            run(send)
