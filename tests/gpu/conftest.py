"""The suite for a machine with a GPU. On any other machine it skips with the reason.

The tests that need no torch also run on the driver's double (tests/native/test_cuda.py). The suite needs torch,
pytest and this package built there, but not psycopg, SQLAlchemy and msgspec. It prints each measurement as one JSON
object a line (`-s` shows them) and appends the line to the file that TENSILE_GPU_RESULTS names. It asserts only that
a measurement is plausible. `run.sh` beside this file builds the package and runs everything:

    sh tests/gpu/run.sh
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

from indb_tensile.device.allocator_shim import preload_environment
from indb_tensile.device.cuda import CudaBroker, Gpu, NoGpu, probe
from indb_tensile.device.ledger import Ledger
from tests.gpu.place import ON_DOUBLE

REGION_BYTES = 64 << 20
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """Return the first GPU. This process loads neither torch nor a context; its trainers do."""
    result = probe()
    if isinstance(result, NoGpu):
        pytest.skip(f"no GPU: {result.reason}")
    if not result.devices[0].shareable:
        pytest.skip(f"{result.devices[0].name} cannot hand memory to other processes")
    return result.devices[0]


class Bench:
    """A broker with some regions, and the processes of trainers that map them."""

    def __init__(self, ledger: Ledger, broker: CudaBroker, region_bytes: int) -> None:
        self.ledger = ledger
        self.broker = broker
        self.region_bytes = region_bytes

    @contextmanager
    def trainer(
        self, role: str, regions: int, module: str = "trainer_process", **settings: object
    ) -> Iterator[subprocess.Popen[str]]:
        """Start a trainer with this number of regions and this role of the module. Kill it at the end."""
        slot, epoch = self.ledger.claim_slot(os.getpid())
        self.ledger.grant(slot, regions * self.region_bytes)
        own_end, trainer_end = socket.socketpair()
        claim = {"ledger": self.ledger.fd, "slot": slot, "epoch": epoch, "socket": trainer_end.fileno()}
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.gpu.{module}", role, json.dumps({**claim, **settings})],
            cwd=ROOT,
            env=preload_environment(os.environ) if ON_DOUBLE else None,
            pass_fds=(self.ledger.fd, trainer_end.fileno()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            trainer_end.close()
            self.broker.send(own_end.fileno())
            yield process
        finally:
            own_end.close()
            process.kill()
            process.communicate()
            self.ledger.release_slot(slot)


@pytest.fixture
def bench(gpu: Gpu) -> Bench:
    """Return a bench with sixteen regions, 1 GiB in all."""
    ledger = Ledger.create(16 * REGION_BYTES, REGION_BYTES, 1 << 33, 1 << 33, None)
    return Bench(ledger, CudaBroker(gpu.ordinal, REGION_BYTES, 16), REGION_BYTES)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the figures of the next line that a trainer printed."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the trainer ended with {process.wait()}"
    figures: dict[str, Any] = json.loads(line)
    return figures


def resume(process: subprocess.Popen[str]) -> None:
    """Let a trainer continue that waits for a line."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def report(measured: str, **figures: object) -> None:
    """Print one measurement, with the machine's name if parts.py has set it."""
    machine = os.environ.get("TENSILE_GPU_MACHINE")
    line = json.dumps({"measured": measured, **({"machine": machine} if machine else {}), **figures})
    print(line)
    if "TENSILE_GPU_RESULTS" in os.environ:
        with Path(os.environ["TENSILE_GPU_RESULTS"]).open("a", encoding="utf-8") as results:
            results.write(f"{line}\n")
