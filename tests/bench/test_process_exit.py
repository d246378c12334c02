"""How a benchmark ends where it cannot go on: never with a traceback for what its user did."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from indb_tensile.bench.harness.process_exit import INTERRUPTED, UNREAD, run
from indb_tensile.errors import RequestError

UNHEARD = """
import sys
from indb_tensile.bench.harness.process_exit import run

def main():
    sys.stdin.read()
    while True:
        print("row", flush=True)

run(main)
"""

DUTIFUL = """
import time
from indb_tensile.bench.harness.process_exit import run

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
    """The suite ends by SIGTERM as it did."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_what_a_user_can_mend_is_a_sentence_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise RequestError("there is no network 'x'", hint="Networks are: y.")

    with pytest.raises(SystemExit) as ending:
        run(refuse)
    assert ending.value.code == RequestError.exit_code
    assert capsys.readouterr().err == "tensile: there is no network 'x'\n  hint: Networks are: y.\n"


def test_an_interrupt_ends_it_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ending:
        run(interrupt)
    assert (ending.value.code, capsys.readouterr().err) == (INTERRUPTED, "")


def test_it_ends_without_a_word_when_nobody_reads_its_rows_any_more() -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(
        (sys.executable, "-c", UNHEARD), stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writer)
        os.close(reader)
        _, err = process.communicate()
    assert (process.returncode, err) == (UNREAD, "")


def test_told_to_end_it_takes_down_what_it_has_set_up() -> None:
    with subprocess.Popen((sys.executable, "-c", DUTIFUL), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.terminate()
        assert process.stdout.read() == "down\n"
    assert process.returncode == 128 + signal.SIGTERM


def test_a_pipe_that_broke_elsewhere_is_a_fault() -> None:
    def send() -> None:
        raise BrokenPipeError

    with Path(os.devnull).open("w") as read, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", read)
        with pytest.raises(BrokenPipeError):
            run(send)
