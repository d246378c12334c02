"""The rules of every device's arena (devices.py names the devices), and further tests of the emulated arena."""

import ctypes
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.device.device import REGION_BYTES, ArenaUsage, EmulatedDevice
from indb_tensile.device.ledger import Ledger
from indb_tensile.errors import DeviceError, DeviceMemoryError, InvariantError
from tests.device.devices import BACK_ENDS, Devices, devices, read_device, write_device

GRANT_BYTES = 4 * REGION_BYTES


class Hook(ctypes.Structure):
    """`tensile_arena_hook` of native/arena_hook.h."""

    _fields_ = (
        ("context", ctypes.c_void_p),
        ("allocate", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)),
        ("release", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("begin", ctypes.c_size_t),
        ("end", ctypes.c_size_t),
    )


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.create(2 * GRANT_BYTES, REGION_BYTES, 10**12, 10**12) as opened:
        yield opened


def emulated(ledger: Ledger, *, alignment_bytes: int = 64) -> EmulatedDevice:
    slot, epoch = ledger.claim_slot(1)
    ledger.grant(slot, GRANT_BYTES)
    return EmulatedDevice(ledger.fd, slot, epoch, 1 << 20, chunk_bytes=1000, alignment_bytes=alignment_bytes)


@pytest.fixture(params=BACK_ENDS, scope="module")
def openers(request: pytest.FixtureRequest) -> Iterator[Devices]:
    """Open empty devices with the same grant."""
    opened = devices(request.param)
    yield opened
    opened.close()


def test_equal_calls_give_equal_offsets(openers: Devices) -> None:
    offsets = []
    behind = max(128, openers.alignment_bytes)  # the first address after 100 bytes
    for _ in range(2):
        device = openers.open()
        first, second = device.allocate(100), device.allocate(2 * openers.region_bytes)
        device.free(first)
        third, fourth = device.allocate(behind + 1), device.allocate(64)
        offsets.append([address - device.arena_range.start for address in (first, second, third, fourth)])
    assert offsets[0] == offsets[1] == [0, behind, behind + 2 * openers.region_bytes, 0]


def test_a_planned_offset_is_allocated_if_it_is_free(openers: Devices) -> None:
    device, region_bytes, unit_bytes = openers.open(), openers.region_bytes, openers.alignment_bytes
    planned = device.allocate_at(region_bytes - unit_bytes, unit_bytes + 36)
    assert planned == device.arena_range[region_bytes - unit_bytes]
    with pytest.raises(
        InvariantError, match=f"64 bytes at offset {region_bytes} are not free in the regions of this"
    ):
        device.allocate_at(region_bytes, 64)
    device.free(planned)
    assert device.allocate_at(region_bytes, 64) == planned + unit_bytes


def test_an_allocation_cannot_be_freed_twice(openers: Devices) -> None:
    device = openers.open()
    address = device.allocate(1)
    device.free(address)
    with pytest.raises(InvariantError, match="is no allocation of the arena, or no longer"):
        device.free(address)


def test_the_arena_reports_its_usage(openers: Devices) -> None:
    device, region_bytes, unit_bytes = openers.open(), openers.region_bytes, openers.alignment_bytes
    grant_bytes = openers.grant_bytes
    large = device.allocate(region_bytes)
    device.allocate(1)
    device.free(large)
    refusal = f"the arena has no {grant_bytes} bytes in one piece: {unit_bytes} of {grant_bytes} bytes"
    with pytest.raises(DeviceMemoryError, match=refusal):
        device.allocate(grant_bytes)
    assert device.arena_usage() == ArenaUsage(
        owned_bytes=grant_bytes,
        reserved_bytes=2 * region_bytes,
        allocated_bytes=unit_bytes,
        requested_bytes=1,
        high_water_bytes=region_bytes + unit_bytes,
        reserved_high_water_bytes=2 * region_bytes,
        largest_free_bytes=grant_bytes - region_bytes - unit_bytes,
        fallbacks=0,
        unaccounted_bytes=region_bytes + 1,
    )


@given(turns=st.lists(st.tuples(st.integers(1, 2 * REGION_BYTES), st.integers(0, 5)), max_size=25))
def test_allocations_never_overlap_and_keep_their_bytes(openers: Devices, turns: list[tuple[int, int]]) -> None:
    device = openers.open()
    live: list[tuple[int, int, bytes]] = []

    def check_and_free(address: int, size_bytes: int, tail: bytes) -> None:
        assert read_device(device, address + size_bytes - len(tail), len(tail)) == tail
        device.free(address)

    for size_bytes, victim in turns:
        try:
            address = device.allocate(size_bytes)
        except DeviceMemoryError:
            if live:
                check_and_free(*live.pop(victim % len(live)))
            continue
        assert address % openers.alignment_bytes == 0
        assert all(address + size_bytes <= other or other + size <= address for other, size, _ in live)
        tail = random.Random(address).randbytes(min(size_bytes, 32))
        write_device(device, address + size_bytes - len(tail), tail)
        live.append((address, size_bytes, tail))
        assert device.arena_usage().requested_bytes == sum(size for _, size, _ in live)
    for allocation in live:
        check_and_free(*allocation)
    assert device.arena_usage().allocated_bytes == 0


def test_an_allocation_beyond_the_count_is_recorded(openers: Devices) -> None:
    """Alignment may take more memory than is counted, so the requested sizes are compared."""
    device = openers.open()
    sizes = [100, REGION_BYTES, 77, 1]
    device.move(0, sum(sizes))
    addresses = [device.allocate(size) for size in sizes]
    device.free(addresses[1])
    device.move(sizes[1], 10)
    device.allocate(10)
    assert device.arena_usage().requested_bytes == device.usage().used_bytes
    assert device.arena_usage().unaccounted_bytes == 0
    device.free(device.allocate(5))
    device.move(0, 2)
    device.allocate(3)
    assert device.arena_usage().unaccounted_bytes == 5
    device.reset_high_water()
    assert device.arena_usage().unaccounted_bytes == 0


def test_a_tensor_is_copied_out_of_the_arena_and_in_at_another_address(ledger: Ledger) -> None:
    device = emulated(ledger)
    content = random.Random(1).randbytes(10_000)
    first, second = device.allocate(10_000), device.allocate_at(REGION_BYTES, 10_000)
    ctypes.memmove(first, content, 10_000)
    host = device.host_allocate(10_000)
    device.wait(device.copy_out(host, first, 10_000))
    device.free(first)
    device.wait(device.copy_in(second, host, 10_000))
    assert ctypes.string_at(second, 10_000) == content


def test_c_code_allocates_through_the_hook_until_the_process_ends(ledger: Ledger) -> None:
    device = emulated(ledger)
    hook = Hook.from_address(device.hook_address())
    assert (hook.begin, hook.end) == (device.arena_range.start, device.arena_range.stop)
    first = hook.allocate(hook.context, GRANT_BYTES)
    assert first == hook.begin
    assert hook.allocate(hook.context, 1) is None
    assert device.arena_usage().fallbacks == 1
    device.close()
    del device
    ctypes.memset(first, 1, GRANT_BYTES)
    assert hook.release(hook.context, first) == 0
    assert hook.release(hook.context, first) != 0
    assert hook.allocate(hook.context, 1) == first


def test_the_emulated_arena_can_have_the_alignment_of_a_gpu(ledger: Ledger) -> None:
    device = emulated(ledger, alignment_bytes=512)
    assert device.allocate(1) + 512 == device.allocate(513)


def test_a_device_that_only_counts_bytes_has_no_arena() -> None:
    with Ledger.create(1000, 1000, 1, 1, None) as counting:
        slot, epoch = counting.claim_slot(1)
        device = EmulatedDevice(counting.fd, slot, epoch, 0)
        for ask in (device.arena_usage, device.hook_address, lambda: device.arena_range, lambda: device.allocate(1)):
            with pytest.raises(DeviceError, match="the device has no memory of its own"):
                ask()


def test_a_region_size_that_is_not_a_multiple_of_a_page_is_refused_with_the_way_out() -> None:
    with pytest.raises(DeviceError) as raised:
        Ledger.create(10_000, 1000, 1, 1)
    assert raised.value.message == "a region of 1000 bytes is not a multiple of the 4096 bytes of a page of memory"
    assert raised.value.hint == "Set region_bytes to a multiple of 4096."


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """An empty directory in memory that no other process writes to."""
    with tempfile.TemporaryDirectory(prefix="suite-arena-", dir="/dev/shm") as directory:
        yield Path(directory)


def test_a_controller_that_is_killed_leaves_no_file(in_memory: Path) -> None:
    program = (
        "import sys\n"
        "from indb_tensile.device.device import EmulatedDevice\n"
        "from indb_tensile.device.ledger import Ledger\n"
        "ledger = Ledger.create(1 << 20, 4096, 1, 1, sys.argv[1])\n"
        "slot, epoch = ledger.claim_slot(1)\n"
        "ledger.grant(slot, 1 << 20)\n"
        "EmulatedDevice(ledger.fd, slot, epoch, 0).allocate(1 << 20)\n"
        "print('ready', flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        (sys.executable, "-c", program, in_memory), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"ready\n"
        controller.kill()
    assert list(in_memory.iterdir()) == []


@pytest.mark.parametrize("named", [False, True], ids=["anonymous", "directory"])
def test_a_closed_device_leaves_neither_files_descriptors_nor_mappings(in_memory: Path, named: bool) -> None:
    directory = str(in_memory) if named else ""
    before = _descriptors(), _device_mappings()
    for _ in range(3):
        with Ledger.create(GRANT_BYTES, REGION_BYTES, 10**12, 10**12, directory) as ledger:
            device = emulated(ledger)
            ctypes.memset(device.allocate(REGION_BYTES), 1, REGION_BYTES)
            assert list(in_memory.iterdir()) == []  # the open file has no name
            device.close()
            del device
    assert (_descriptors(), _device_mappings()) == before
    assert list(in_memory.iterdir()) == []


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _device_mappings() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "tensile-device" in line or "/dev/shm" in line]
