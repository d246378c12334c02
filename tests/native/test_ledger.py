"""The controller's end of the ledger, alone and with trainers that are killed."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.device.device import EmulatedDevice
from indb_tensile.device.ledger import Ledger, SlotUsage
from indb_tensile.errors import DeviceError, DeviceMemoryError, InvariantError
from indb_tensile.job import Slot

REGION_BYTES = 4096
CAPACITY_BYTES = 20 * REGION_BYTES
FAST = 10**12
DEADLINE_S = 60


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.create(CAPACITY_BYTES, REGION_BYTES, FAST, FAST) as opened:
        yield opened


@contextmanager
def trainer(ledger: Ledger, slot: Slot, epoch: int, what: str, size_bytes: int) -> Iterator[subprocess.Popen[str]]:
    """A trainer process that has said its first word, or ended."""
    command = [sys.executable, "-m", "tests.native.trainer_process", str(ledger.fd), str(slot), str(epoch), what]
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


def wait_until(condition: Callable[[], bool], *, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S} s"


def test_a_grant_that_does_not_fit_says_what_is_in_the_way(ledger: Ledger) -> None:
    first, _ = ledger.claim_slot(1)
    second, _ = ledger.claim_slot(2)
    assert ledger.grant(first, 60_000) == 61_440
    with pytest.raises(DeviceMemoryError) as raised:
        ledger.grant(second, 20_481)
    assert raised.value.message == (
        "slot 1: a grant of 24576 bytes does not fit beside 61440 bytes granted to others on a device of 81920 bytes"
    )
    assert raised.value.hint == "Lower other grants first, or wait until a job ends."
    assert [row.granted_bytes for row in ledger.slots()] == [61_440, 0]


def test_usage_is_the_same_from_any_process(ledger: Ledger) -> None:
    slot, epoch = ledger.claim_slot(os.getpid())
    ledger.grant(slot, REGION_BYTES)
    with trainer(ledger, slot, epoch, "hold", 2345) as process:
        ledger.set_pid(slot, process.pid)
        expected = SlotUsage(
            slot=slot,
            epoch=epoch,
            pid=process.pid,
            granted_bytes=REGION_BYTES,
            held_bytes=REGION_BYTES,
            used_bytes=2345,
            high_water_bytes=2345,
            host_bytes=0,
        )
        assert ledger.usage(slot) == expected
        with Ledger.attach(ledger.fd) as other:
            assert other.slots() == (expected,)
            assert other.device_usage() == ledger.device_usage()
    assert ledger.device_usage().used_bytes == 2345


def test_a_killed_trainers_memory_comes_back_to_the_byte(ledger: Ledger) -> None:
    kept, kept_epoch = ledger.claim_slot(os.getpid())
    ledger.grant(kept, REGION_BYTES)
    neighbour = EmulatedDevice(ledger.fd, kept, kept_epoch, 0)
    neighbour.move(0, 77)
    for pause in random.Random(3).sample(range(2000), 8):
        slot, epoch = ledger.claim_slot(1)
        ledger.grant(slot, 5000)
        with trainer(ledger, slot, epoch, "move", 5000) as process:
            for _ in range(pause):
                neighbour.move(0, 1)
                neighbour.move(1, 0)
            process.send_signal(signal.SIGKILL)
            process.wait()
        ledger.release_slot(slot)
        device = ledger.device_usage()
        assert (device.used_bytes, device.granted_bytes) == (77, REGION_BYTES)
        assert [row.slot for row in ledger.slots()] == [kept]


def test_a_trainer_whose_slot_was_released_is_refused(ledger: Ledger) -> None:
    slot, epoch = ledger.claim_slot(1)
    ledger.grant(slot, 5000)
    with trainer(ledger, slot, epoch, "move", 5000) as process:
        ledger.release_slot(slot)
        assert process.stderr is not None
        assert "DeviceError: slot 0: epoch 1 is over" in process.stderr.read()
    assert ledger.device_usage().used_bytes == 0


def test_a_device_of_an_old_claim_is_refused(ledger: Ledger) -> None:
    slot, epoch = ledger.claim_slot(1)
    ledger.release_slot(slot)
    with pytest.raises(DeviceError, match="slot 0: epoch 1 is over, the device's ledger is at epoch 2"):
        EmulatedDevice(ledger.fd, slot, epoch, 0)


def test_a_slot_nobody_claimed_has_no_usage(ledger: Ledger) -> None:
    with pytest.raises(InvariantError, match="slot 5: nobody has claimed it"):
        ledger.usage(Slot(5))


def test_a_closed_ledger_is_refused(ledger: Ledger) -> None:
    ledger.close()
    ledger.close()
    with pytest.raises(InvariantError, match="the device ledger is closed"):
        ledger.slots()


def test_a_descriptor_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    with path.open("r+b") as file, pytest.raises(DeviceError, match="is no device ledger"):
        Ledger.attach(file.fileno())


def test_nothing_stays_open_behind_a_closed_device() -> None:
    before = _open_descriptors(), _threads()
    for _ in range(20):
        with Ledger.create(CAPACITY_BYTES, REGION_BYTES, FAST, FAST) as ledger:
            slot, epoch = ledger.claim_slot(1)
            EmulatedDevice(ledger.fd, slot, epoch, 1 << 20).close()
            with pytest.raises(DeviceError):
                EmulatedDevice(ledger.fd, slot, epoch + 1, 1 << 20)
            Ledger.attach(ledger.fd).close()
    wait_until(lambda: (_open_descriptors(), _threads()) == before, what="descriptors and threads as before")


def test_the_controllers_end_needs_no_torch() -> None:
    source = "import sys, indb_tensile.device.device; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


@dataclass
class Paper:
    """The same account kept the simple way."""

    granted: dict[Slot, int] = field(default_factory=dict)
    used: dict[Slot, int] = field(default_factory=dict)
    high_water_bytes: int = 0


_operations = st.lists(
    st.tuples(
        st.sampled_from(["claim", "release", "grant", "move"]),
        st.integers(0, 3),
        st.integers(0, CAPACITY_BYTES + 1),
        st.integers(0, CAPACITY_BYTES + 1),
    ),
    max_size=60,
)


@given(operations=_operations)
def test_any_sequence_agrees_with_the_account_on_paper(operations: list[tuple[str, int, int, int]]) -> None:
    paper = Paper()
    devices: dict[Slot, EmulatedDevice] = {}
    with Ledger.create(CAPACITY_BYTES, REGION_BYTES, FAST, FAST) as ledger:
        for operation, number, first, second in operations:
            slot = Slot(number)
            if operation == "claim" and len(paper.used) < 4:
                slot, epoch = ledger.claim_slot(1)
                devices[slot] = EmulatedDevice(ledger.fd, slot, epoch, 0)
                paper.granted[slot] = paper.used[slot] = 0
            elif slot not in paper.used:
                continue
            elif operation == "release":
                ledger.release_slot(slot)
                del paper.granted[slot], paper.used[slot], devices[slot]
            elif operation == "grant":
                _grant(ledger, paper, slot, first)
            elif operation == "move":
                _move(devices[slot], paper, slot, first % (paper.used[slot] + 2), second)
            device = ledger.device_usage()
            assert {row.slot: row.granted_bytes for row in ledger.slots()} == paper.granted
            assert {row.slot: row.used_bytes for row in ledger.slots()} == paper.used
            assert device.granted_bytes == sum(paper.granted.values())
            assert device.used_bytes == sum(paper.used.values())
            assert device.high_water_bytes == paper.high_water_bytes


def _grant(ledger: Ledger, paper: Paper, slot: Slot, size_bytes: int) -> None:
    rounded_bytes = -(-size_bytes // REGION_BYTES) * REGION_BYTES
    others_bytes = sum(paper.granted.values()) - paper.granted[slot]
    if rounded_bytes + others_bytes > CAPACITY_BYTES or rounded_bytes < paper.used[slot]:
        with pytest.raises(DeviceMemoryError):
            ledger.grant(slot, size_bytes)
    else:
        assert ledger.grant(slot, size_bytes) == rounded_bytes
        paper.granted[slot] = rounded_bytes


def _move(device: EmulatedDevice, paper: Paper, slot: Slot, freed_bytes: int, taken_bytes: int) -> None:
    after_bytes = paper.used[slot] - freed_bytes + taken_bytes
    if freed_bytes > paper.used[slot]:
        with pytest.raises(InvariantError):
            device.move(freed_bytes, taken_bytes)
    elif after_bytes > paper.granted[slot]:
        with pytest.raises(DeviceMemoryError):
            device.move(freed_bytes, taken_bytes)
    else:
        device.move(freed_bytes, taken_bytes)
        paper.used[slot] = after_bytes
        paper.high_water_bytes = max(paper.high_water_bytes, sum(paper.used.values()))


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
