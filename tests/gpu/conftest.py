"""The suite for a machine with a GPU; anywhere else it skips and says why.

What of it needs no torch runs on the driver's double as well (tests/native/test_cuda.py). It needs torch, pytest and
this package built there, and none of psycopg, SQLAlchemy and msgspec. What it measures it prints as one JSON object
per line (`-s` shows them), appends to the file that TENSILE_GPU_RESULTS names, and asserts nothing of it but its
sense. `run.sh` beside this file builds the package and does all of it:

    sh tests/gpu/run.sh gpu-results.jsonl
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from indb_tensile.device.cuda import CudaBroker, Gpu, NoGpu, probe
from indb_tensile.device.ledger import Ledger

REGION_BYTES = 64 << 20
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """The first GPU. Neither torch nor a context is loaded in this process: its trainers have theirs."""
    found = probe()
    if isinstance(found, NoGpu):
        pytest.skip(f"no GPU: {found.reason}")
    if not found.devices[0].shareable:
        pytest.skip(f"{found.devices[0].name} cannot hand memory to other processes")
    return found.devices[0]


class Bench:
    """A broker with some regions, and trainers that map them, each in a process of its own."""

    def __init__(self, ledger: Ledger, broker: CudaBroker, region_bytes: int) -> None:
        self.ledger = ledger
        self.broker = broker
        self.region_bytes = region_bytes

    @contextmanager
    def trainer(
        self, role: str, regions: int, module: str = "trainer_process", **settings: object
    ) -> Iterator[subprocess.Popen[str]]:
        """A trainer with so many regions that plays this role of that module; killed at the end."""
        slot, epoch = self.ledger.claim_slot(os.getpid())
        self.ledger.grant(slot, regions * self.region_bytes)
        here, there = socket.socketpair()
        told = {"ledger": self.ledger.fd, "slot": slot, "epoch": epoch, "socket": there.fileno(), **settings}
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.gpu.{module}", role, json.dumps(told)],
            cwd=ROOT,
            pass_fds=(self.ledger.fd, there.fileno()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            there.close()
            self.broker.send(here.fileno())
            yield process
        finally:
            here.close()
            process.kill()
            process.communicate()
            self.ledger.release_slot(slot)


@pytest.fixture
def bench(gpu: Gpu) -> Bench:
    """Sixteen regions: 1 GiB."""
    ledger = Ledger.create(16 * REGION_BYTES, REGION_BYTES, 1 << 33, 1 << 33, None)
    return Bench(ledger, CudaBroker(gpu.ordinal, REGION_BYTES, 16), REGION_BYTES)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that a trainer printed."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the trainer ended with {process.wait()}"
    found: dict[str, Any] = json.loads(line)
    return found


def say(process: subprocess.Popen[str]) -> None:
    """Let a trainer that waits for a line go on."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def report(what: str, **figures: object) -> None:
    """One measurement, with the machine's name where parts.py has told it."""
    machine = os.environ.get("TENSILE_GPU_MACHINE")
    line = json.dumps({"measured": what, **({"machine": machine} if machine else {}), **figures})
    print(line)
    if "TENSILE_GPU_RESULTS" in os.environ:
        with Path(os.environ["TENSILE_GPU_RESULTS"]).open("a", encoding="utf-8") as results:
            results.write(f"{line}\n")
