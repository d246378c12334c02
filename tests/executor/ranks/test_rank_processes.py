"""Check ranks in processes of their own: equal bits with dropout, and a rank that is killed or stopped."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.ranks.rank_process import digest, training

pytestmark = pytest.mark.nightly

RANKS = 3
ENDLESS = 1_000_000  # epochs
DEADLINE_S = 400.0  # enough on a busy machine


@contextmanager
def processes(
    directory: Path, epochs: int, timeout_s: float, kind: str = "transformer"
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start all ranks, and end those that still run."""
    started = [
        subprocess.Popen(
            (
                sys.executable,
                *("-m", "tests.executor.ranks.rank_process", str(directory)),
                *(str(rank), str(RANKS), str(epochs), str(timeout_s), kind),
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def output(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code and the line of a process that ends by itself."""
    text, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, text.strip()


def wait_until_training(directory: Path, started: list[subprocess.Popen[str]]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not all((directory / f"{rank}.trains").exists() for rank in range(RANKS)):
        assert time.monotonic() < deadline, "a rank does not train"
        assert all(process.poll() is None for process in started), "a rank has ended"
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["transformer", "cnn"])
def test_processes_with_dropout_end_with_the_bits_of_one_device(tmp_path: Path, kind: str) -> None:
    job = training(kind)
    eager = Eager(job)
    seen = bits(drive(eager, job))
    expected = digest(seen, state_bits(eager.export()))
    with processes(tmp_path, 2, 300.0, kind) as started:
        assert [output(process) for process in started] == [(0, expected)] * RANKS


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_other_ranks_end_when_one_is_gone(tmp_path: Path, blow: signal.Signals) -> None:
    with processes(tmp_path, ENDLESS, 3.0 if blow is signal.SIGSTOP else 300.0) as started:
        wait_until_training(tmp_path, started)
        started[1].send_signal(blow)
        assert [output(started[rank]) for rank in (0, 2)] == [
            (71, "rank 0 of 3 has lost another rank"),
            (71, "rank 2 of 3 has lost another rank"),
        ]
