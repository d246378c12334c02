"""The controller uses the ledger, alone and with trainers that are killed."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.device.device import EmulatedDevice
from indb_tensile.device.ledger import Ledger, SlotUsage
from indb_tensile.errors import DeviceError, DeviceMemoryError, InvariantError
from indb_tensile.job import Slot
from tests.native.ledger_trainers import trainer, wait_until

REGION_BYTES = 4096
CAPACITY_BYTES = 20 * REGION_BYTES
FAST = 10**12


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.create(CAPACITY_BYTES, REGION_BYTES, FAST, FAST) as opened:
        yield opened


def test_a_grant_that_does_not_fit_is_refused_with_the_grants_of_others(ledger: Ledger) -> None:
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


def test_a_killed_trainers_memory_is_released_to_the_byte(ledger: Ledger) -> None:
    neighbour_slot, neighbour_epoch = ledger.claim_slot(os.getpid())
    ledger.grant(neighbour_slot, REGION_BYTES)
    neighbour = EmulatedDevice(ledger.fd, neighbour_slot, neighbour_epoch, 0)
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
        assert [row.slot for row in ledger.slots()] == [neighbour_slot]


def test_a_trainer_whose_slot_was_released_is_refused(ledger: Ledger) -> None:
    slot, epoch = ledger.claim_slot(1)
    ledger.grant(slot, 5000)
    with trainer(ledger, slot, epoch, "move", 5000) as process:
        ledger.release_slot(slot)
        assert process.stderr is not None
        assert "DeviceError: slot 0: epoch 1 is over" in process.stderr.read()
    assert ledger.device_usage().used_bytes == 0


def test_a_device_with_an_ended_claim_is_refused(ledger: Ledger) -> None:
    slot, epoch = ledger.claim_slot(1)
    ledger.release_slot(slot)
    with pytest.raises(DeviceError, match="slot 0: epoch 1 is over, the device's ledger is at epoch 2"):
        EmulatedDevice(ledger.fd, slot, epoch, 0)


def test_an_unclaimed_slot_has_no_usage(ledger: Ledger) -> None:
    with pytest.raises(InvariantError, match="slot 5: nobody has claimed it"):
        ledger.usage(Slot(5))


def test_a_closed_ledger_is_refused(ledger: Ledger) -> None:
    ledger.close()
    ledger.close()
    with pytest.raises(InvariantError, match="the device ledger is closed"):
        ledger.slots()


def test_a_descriptor_of_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    with path.open("r+b") as file, pytest.raises(DeviceError, match="is no device ledger"):
        Ledger.attach(file.fileno())


def test_a_closed_device_leaves_no_descriptor_and_no_thread() -> None:
    before = _open_descriptors(), _threads()
    for _ in range(20):
        with Ledger.create(CAPACITY_BYTES, REGION_BYTES, FAST, FAST) as ledger:
            slot, epoch = ledger.claim_slot(1)
            EmulatedDevice(ledger.fd, slot, epoch, 1 << 20).close()
            with pytest.raises(DeviceError):
                EmulatedDevice(ledger.fd, slot, epoch + 1, 1 << 20)
            Ledger.attach(ledger.fd).close()
    wait_until(lambda: (_open_descriptors(), _threads()) == before, goal="descriptors and threads as before")


def test_the_controllers_modules_import_without_torch_and_numpy() -> None:
    source = "import sys, indb_tensile.device.device; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


@dataclass
class SimpleCount:
    """The same count of grants and use, kept in the simplest way."""

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
def test_any_sequence_of_operations_agrees_with_a_simple_count(operations: list[tuple[str, int, int, int]]) -> None:
    count = SimpleCount()
    devices: dict[Slot, EmulatedDevice] = {}
    with Ledger.create(CAPACITY_BYTES, REGION_BYTES, FAST, FAST) as ledger:
        for operation, number, first, second in operations:
            slot = Slot(number)
            if operation == "claim" and len(count.used) < 4:
                slot, epoch = ledger.claim_slot(1)
                devices[slot] = EmulatedDevice(ledger.fd, slot, epoch, 0)
                count.granted[slot] = count.used[slot] = 0
            elif slot not in count.used:
                continue
            elif operation == "release":
                ledger.release_slot(slot)
                del count.granted[slot], count.used[slot], devices[slot]
            elif operation == "grant":
                _grant(ledger, count, slot, first)
            elif operation == "move":
                _move(devices[slot], count, slot, first % (count.used[slot] + 2), second)
            device = ledger.device_usage()
            assert {row.slot: row.granted_bytes for row in ledger.slots()} == count.granted
            assert {row.slot: row.used_bytes for row in ledger.slots()} == count.used
            assert device.granted_bytes == sum(count.granted.values())
            assert device.used_bytes == sum(count.used.values())
            assert device.high_water_bytes == count.high_water_bytes


def _grant(ledger: Ledger, count: SimpleCount, slot: Slot, size_bytes: int) -> None:
    rounded_bytes = -(-size_bytes // REGION_BYTES) * REGION_BYTES
    others_bytes = sum(count.granted.values()) - count.granted[slot]
    if rounded_bytes + others_bytes > CAPACITY_BYTES or rounded_bytes < count.used[slot]:
        with pytest.raises(DeviceMemoryError):
            ledger.grant(slot, size_bytes)
    else:
        assert ledger.grant(slot, size_bytes) == rounded_bytes
        count.granted[slot] = rounded_bytes


def _move(device: EmulatedDevice, count: SimpleCount, slot: Slot, freed_bytes: int, taken_bytes: int) -> None:
    after_bytes = count.used[slot] - freed_bytes + taken_bytes
    if freed_bytes > count.used[slot]:
        with pytest.raises(InvariantError):
            device.move(freed_bytes, taken_bytes)
    elif after_bytes > count.granted[slot]:
        with pytest.raises(DeviceMemoryError):
            device.move(freed_bytes, taken_bytes)
    else:
        device.move(freed_bytes, taken_bytes)
        count.used[slot] = after_bytes
        count.high_water_bytes = max(count.high_water_bytes, sum(count.used.values()))


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
