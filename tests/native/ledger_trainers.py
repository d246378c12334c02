"""Processes that use a claim of the ledger as trainers do, and a wait for their effect on the ledger."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from indb_tensile.device.ledger import Ledger
from indb_tensile.job import Slot

DEADLINE_S = 60


@contextmanager
def trainer(ledger: Ledger, slot: Slot, epoch: int, action: str, size_bytes: int) -> Iterator[subprocess.Popen[str]]:
    """Run a trainer process. Yield the process once it has written its first word, or has ended."""
    command = [sys.executable, "-m", "tests.native.trainer_process", str(ledger.fd), str(slot), str(epoch), action]
    with subprocess.Popen(
        [*command, str(size_bytes)],
        pass_fds=[ledger.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def wait_until(condition: Callable[[], bool], *, goal: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{goal}: not within {DEADLINE_S} s"
