"""What every device's arena must do, tried on the emulated one and on the tests' own fake."""

import ctypes
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import DeviceError, DeviceMemoryError, InvariantError
from indb_tensile.executor.device import REGION_BYTES, ArenaDevice, ArenaUsage, EmulatedDevice, Ledger
from tests.executor.fake_device import FakeDevice

GRANT_BYTES = 4 * REGION_BYTES
ALIGNMENT_BYTES = 64

Opener = Callable[[], ArenaDevice]


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


@pytest.fixture(params=["emulated", "fake"], scope="module")
def open_device(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Opens devices with the same grant, each empty."""
    if request.param == "fake":
        yield lambda: FakeDevice(GRANT_BYTES, 1 << 20)
        return
    ledgers: list[Ledger] = []

    def open_emulated() -> ArenaDevice:
        ledgers.append(Ledger.create(2 * GRANT_BYTES, REGION_BYTES, 10**12, 10**12))
        return emulated(ledgers[-1])

    yield open_emulated
    for ledger in ledgers:
        ledger.close()


def test_equal_calls_give_equal_offsets(open_device: Opener) -> None:
    offsets = []
    for _ in range(2):
        device = open_device()
        first, second = device.allocate(100), device.allocate(2 * REGION_BYTES)
        device.free(first)
        third, fourth = device.allocate(200), device.allocate(64)
        offsets.append([address - device.arena_range.start for address in (first, second, third, fourth)])
    assert offsets[0] == offsets[1] == [0, 128, 128 + 2 * REGION_BYTES, 0]


def test_a_planned_offset_is_given_where_it_is_free(open_device: Opener) -> None:
    device = open_device()
    planned = device.allocate_at(REGION_BYTES - 64, 100)
    assert planned == device.arena_range[REGION_BYTES - 64]
    with pytest.raises(InvariantError, match="64 bytes at offset 1048576 are not free in the regions of this job"):
        device.allocate_at(REGION_BYTES, 64)
    device.free(planned)
    assert device.allocate_at(REGION_BYTES, 64) == planned + 64


def test_an_allocation_is_freed_once(open_device: Opener) -> None:
    device = open_device()
    address = device.allocate(1)
    device.free(address)
    with pytest.raises(InvariantError, match="is no allocation of the arena, or no longer"):
        device.free(address)


def test_the_arena_says_what_it_holds(open_device: Opener) -> None:
    device = open_device()
    large = device.allocate(REGION_BYTES)
    device.allocate(1)
    device.free(large)
    with pytest.raises(DeviceMemoryError, match="the arena has no 4194304 bytes in one piece: 64 of 4194304 bytes"):
        device.allocate(GRANT_BYTES)
    assert device.arena_usage() == ArenaUsage(
        owned_bytes=GRANT_BYTES,
        reserved_bytes=2 * REGION_BYTES,
        allocated_bytes=64,
        requested_bytes=1,
        high_water_bytes=REGION_BYTES + 64,
        reserved_high_water_bytes=2 * REGION_BYTES,
        largest_free_bytes=GRANT_BYTES - REGION_BYTES - 64,
        fallbacks=0,
        unaccounted_bytes=REGION_BYTES + 1,
    )


@given(turns=st.lists(st.tuples(st.integers(1, 2 * REGION_BYTES), st.integers(0, 5)), max_size=25))
def test_allocations_never_overlap_and_keep_their_bytes(open_device: Opener, turns: list[tuple[int, int]]) -> None:
    device = open_device()
    live: list[tuple[int, int, bytes]] = []
    for size_bytes, victim in turns:
        try:
            address = device.allocate(size_bytes)
        except DeviceMemoryError:
            if live:
                address, size_bytes, tail = live.pop(victim % len(live))
                assert ctypes.string_at(address + size_bytes - len(tail), len(tail)) == tail
                device.free(address)
            continue
        assert address % ALIGNMENT_BYTES == 0
        assert all(address + size_bytes <= other or other + size <= address for other, size, _ in live)
        tail = random.Random(address).randbytes(min(size_bytes, 32))
        ctypes.memmove(address + size_bytes - len(tail), tail, len(tail))
        live.append((address, size_bytes, tail))
        assert device.arena_usage().requested_bytes == sum(size for _, size, _ in live)
    for address, size_bytes, tail in live:
        assert ctypes.string_at(address + size_bytes - len(tail), len(tail)) == tail
        device.free(address)
    assert device.arena_usage().allocated_bytes == 0


def test_what_is_allocated_beyond_the_account_is_noted(open_device: Opener) -> None:
    """Alignment may cost more memory than the account counts, so what was asked for is what is compared."""
    device = open_device()
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


def test_a_copy_out_of_the_arena_and_back_in_elsewhere(ledger: Ledger) -> None:
    device = emulated(ledger)
    content = random.Random(1).randbytes(10_000)
    first, second = device.allocate(10_000), device.allocate_at(REGION_BYTES, 10_000)
    ctypes.memmove(first, content, 10_000)
    host = device.host_allocate(10_000)
    device.wait(device.copy_out(host, first, 10_000))
    device.free(first)
    device.wait(device.copy_in(second, host, 10_000))
    assert ctypes.string_at(second, 10_000) == content


def test_c_allocates_by_the_hook_for_as_long_as_the_process_lives(ledger: Ledger) -> None:
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


def test_the_alignment_of_a_gpu_can_be_had(ledger: Ledger) -> None:
    device = emulated(ledger, alignment_bytes=512)
    assert device.allocate(1) + 512 == device.allocate(513)


def test_a_device_that_only_counts_has_no_arena() -> None:
    with Ledger.create(1000, 1000, 1, 1, None) as counting:
        slot, epoch = counting.claim_slot(1)
        device = EmulatedDevice(counting.fd, slot, epoch, 0)
        for ask in (device.arena_usage, device.hook_address, lambda: device.arena_range, lambda: device.allocate(1)):
            with pytest.raises(DeviceError, match="the device has no memory of its own"):
                ask()


def test_a_region_that_is_no_multiple_of_a_page_is_refused_with_the_way_out() -> None:
    with pytest.raises(DeviceError) as raised:
        Ledger.create(10_000, 1000, 1, 1)
    assert raised.value.message == "a region of 1000 bytes is not a multiple of the 4096 bytes of a page of memory"
    assert raised.value.hint == "Set region_bytes to a multiple of 4096."


def test_a_controller_that_is_killed_leaves_no_file() -> None:
    before = sorted(Path("/dev/shm").iterdir())
    program = (
        "from indb_tensile.executor.device import *\n"
        "ledger = Ledger.create(1 << 20, 4096, 1, 1, '/dev/shm')\n"
        "slot, epoch = ledger.claim_slot(1)\n"
        "ledger.grant(slot, 1 << 20)\n"
        "EmulatedDevice(ledger.fd, slot, epoch, 0).allocate(1 << 20)\n"
        "print('ready', flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        (sys.executable, "-c", program), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"ready\n"
        controller.kill()
    assert sorted(Path("/dev/shm").iterdir()) == before


@pytest.mark.parametrize("directory", ["", "/dev/shm"])
def test_nothing_of_the_memory_stays_behind(directory: str) -> None:
    before = _descriptors(), _device_mappings(), sorted(Path("/dev/shm").iterdir())
    for _ in range(3):
        with Ledger.create(GRANT_BYTES, REGION_BYTES, 10**12, 10**12, directory) as ledger:
            device = emulated(ledger)
            ctypes.memset(device.allocate(REGION_BYTES), 1, REGION_BYTES)
            assert sorted(Path("/dev/shm").iterdir()) == before[2]  # the file has no name even now
            device.close()
            del device
    assert (_descriptors(), _device_mappings(), sorted(Path("/dev/shm").iterdir())) == before


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _device_mappings() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "tensile-device" in line or "/dev/shm" in line]
