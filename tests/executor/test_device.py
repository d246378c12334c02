"""What every device must do, tried on the emulated one and on the tests' own fake."""

import ctypes
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import DeviceError, DeviceMemoryError, InvariantError
from indb_tensile.executor.device import REGION_BYTES, Device, EmulatedDevice, HostBuffer, Ledger, Ticket, Usage
from tests.executor.fake_device import FakeDevice
from tests.remains import nothing_remains

GRANT_BYTES = 4 * REGION_BYTES
POOL_BYTES = 8 * REGION_BYTES
CHUNK_BYTES = 4096

Opener = Callable[[], Device]


@pytest.fixture(params=["emulated", "fake"], scope="module")
def open_device(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Opens devices with the same grant and pool, each with a fresh account."""
    if request.param == "fake":
        yield lambda: FakeDevice(GRANT_BYTES, POOL_BYTES)
        return
    ledgers: list[Ledger] = []

    def open_emulated() -> Device:
        ledgers.append(Ledger.create(2 * GRANT_BYTES, REGION_BYTES, 10**12, 10**12))
        slot, epoch = ledgers[-1].claim_slot(1)
        ledgers[-1].grant(slot, GRANT_BYTES)
        return EmulatedDevice(ledgers[-1].fd, slot, epoch, POOL_BYTES, chunk_bytes=CHUNK_BYTES)

    yield open_emulated
    for ledger in ledgers:
        ledger.close()


@pytest.fixture
def device(open_device: Opener) -> Device:
    return open_device()


def test_a_fresh_device_has_its_grant_and_nothing_in_use(device: Device) -> None:
    assert device.usage() == Usage(granted_bytes=GRANT_BYTES, used_bytes=0, high_water_bytes=0)


def test_a_move_gives_back_before_it_takes(device: Device) -> None:
    device.move(0, GRANT_BYTES)
    device.move(GRANT_BYTES, GRANT_BYTES - 1)
    assert device.usage() == Usage(
        granted_bytes=GRANT_BYTES, used_bytes=GRANT_BYTES - 1, high_water_bytes=GRANT_BYTES
    )


def test_a_new_high_water_mark_starts_at_the_present_use(device: Device) -> None:
    device.move(0, 1000)
    device.move(900, 0)
    device.reset_high_water()
    device.move(0, 50)
    assert device.usage() == Usage(granted_bytes=GRANT_BYTES, used_bytes=150, high_water_bytes=150)


def test_taking_beyond_the_grant_says_by_how_much_and_changes_nothing(device: Device) -> None:
    device.move(0, GRANT_BYTES - 100)
    with pytest.raises(DeviceMemoryError) as raised:
        device.move(10, 200)
    assert raised.value.message == (
        f"slot 0: taking 200 bytes after giving back 10 of {GRANT_BYTES - 100} bytes in use exceeds the grant of"
        f" {GRANT_BYTES} bytes by 90"
    )
    assert device.usage().used_bytes == GRANT_BYTES - 100
    assert device.usage().high_water_bytes == GRANT_BYTES - 100


def test_giving_back_more_than_is_in_use_is_our_own_fault(device: Device) -> None:
    device.move(0, 10)
    with pytest.raises(InvariantError, match="giving back 11 bytes of which only 10 are in use"):
        device.move(11, 500)
    assert device.usage().used_bytes == 10


@given(moves=st.lists(st.tuples(st.integers(0, GRANT_BYTES), st.integers(0, GRANT_BYTES + 1)), max_size=40))
def test_any_moves_agree_with_the_account_on_paper(open_device: Opener, moves: list[tuple[int, int]]) -> None:
    device = open_device()
    used_bytes = high_water_bytes = 0
    for freed_bytes, taken_bytes in moves:
        after_bytes = used_bytes - freed_bytes + taken_bytes
        if freed_bytes > used_bytes:
            with pytest.raises(InvariantError):
                device.move(freed_bytes, taken_bytes)
        elif after_bytes > GRANT_BYTES:
            with pytest.raises(DeviceMemoryError):
                device.move(freed_bytes, taken_bytes)
        else:
            device.move(freed_bytes, taken_bytes)
            used_bytes, high_water_bytes = after_bytes, max(high_water_bytes, after_bytes)
        assert device.usage() == Usage(
            granted_bytes=GRANT_BYTES, used_bytes=used_bytes, high_water_bytes=high_water_bytes
        )


@pytest.mark.parametrize("size_bytes", [1, 63, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 17])
def test_what_goes_out_comes_back_whole(device: Device, size_bytes: int) -> None:
    original = random.Random(size_bytes).randbytes(size_bytes)
    tensor = ctypes.create_string_buffer(original, size_bytes)
    fence = ctypes.create_string_buffer(b"\x5a" * (size_bytes + 2), size_bytes + 2)
    host = device.host_allocate(size_bytes)
    assert device.wait(device.copy_out(host, ctypes.addressof(tensor), size_bytes)) >= 0
    assert device.wait(device.copy_in(ctypes.addressof(fence) + 1, host, size_bytes)) >= 0
    assert fence.raw == b"\x5a" + original + b"\x5a"


@given(sizes=st.lists(st.integers(1, 3 * CHUNK_BYTES), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_many_copies_at_once_arrive_whole(open_device: Opener, sizes: list[int], seed: int) -> None:
    device = open_device()
    source = random.Random(seed)
    tensors = [ctypes.create_string_buffer(source.randbytes(size), size) for size in sizes]
    hosts = [device.host_allocate(size) for size in sizes]
    tickets = [
        device.copy_out(host, ctypes.addressof(tensor), len(tensor))
        for host, tensor in zip(hosts, tensors, strict=True)
    ]
    assert tickets == sorted(set(tickets))
    device.wait(tickets[-1])  # one lane: the last is done when all are
    assert [ctypes.string_at(host, size) for host, size in zip(hosts, sizes, strict=True)] == [t.raw for t in tensors]


def test_waiting_again_costs_nothing(device: Device) -> None:
    byte = ctypes.create_string_buffer(b"x", 1)
    ticket = device.copy_out(device.host_allocate(1), ctypes.addressof(byte), 1)
    device.wait(ticket)
    assert device.wait(ticket) == 0


def test_a_ticket_that_was_never_given_is_refused(device: Device) -> None:
    with pytest.raises(InvariantError, match="was never queued"):
        device.wait(Ticket(1_000_000))


def test_the_host_pool_has_a_limit_and_room_again_after_a_free(device: Device) -> None:
    all_of_it = device.host_allocate(POOL_BYTES)
    with pytest.raises(
        DeviceMemoryError,
        match=f"no 64 bytes in one piece: {POOL_BYTES} of its limit of {POOL_BYTES} bytes are in use",
    ):
        device.host_allocate(1)
    device.host_free(all_of_it)
    device.host_allocate(POOL_BYTES)


def test_buffers_of_the_host_pool_do_not_overlap(device: Device) -> None:
    buffers = [device.host_allocate(size) for size in (1, 100, 1000, 64)]
    ends = sorted((int(buffer), int(buffer) + size) for buffer, size in zip(buffers, (1, 100, 1000, 64), strict=True))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


def test_a_buffer_is_freed_once(device: Device) -> None:
    host = device.host_allocate(100)
    device.host_free(host)
    with pytest.raises(InvariantError, match="is no buffer of the host pool"):
        device.host_free(host)


def test_a_copy_is_between_a_live_buffer_and_no_more_than_its_size(device: Device) -> None:
    tensor = ctypes.create_string_buffer(1000)
    host = device.host_allocate(100)
    with pytest.raises(InvariantError, match="a copy of 1000 bytes and a host buffer of 128"):
        device.copy_out(host, ctypes.addressof(tensor), 1000)
    with pytest.raises(InvariantError, match="a copy of 0 bytes"):
        device.copy_out(host, ctypes.addressof(tensor), 0)
    with pytest.raises(InvariantError, match="is no buffer of the host pool"):
        device.copy_in(ctypes.addressof(tensor), HostBuffer(ctypes.addressof(tensor)), 1)


@pytest.mark.parametrize("directory", ["", "/dev/shm"])
def test_a_device_that_is_closed_or_cannot_be_made_leaves_nothing(directory: str) -> None:
    with nothing_remains():
        with Ledger.create(4 * REGION_BYTES, REGION_BYTES, 10**9, 10**9, directory) as ledger:
            slot, epoch = ledger.claim_slot(1)
            ledger.grant(slot, 2 * REGION_BYTES)
            with EmulatedDevice(ledger.fd, slot, epoch, 1 << 20) as device:
                device.allocate(REGION_BYTES)
                device.copy_out(device.host_allocate(4096), device.arena_range.start, 4096)
            with pytest.raises(DeviceError, match="epoch"):
                EmulatedDevice(ledger.fd, slot, epoch + 1, 1 << 20)
            del device
        with pytest.raises(DeviceError, match="not a multiple"):
            Ledger.create(1 << 20, 5000, 1, 1, directory)
        with pytest.raises(DeviceError, match="memory_directory '/nowhere'"):
            Ledger.create(1 << 20, 4096, 1, 1, "/nowhere")
        with Path("/dev/null").open() as other, pytest.raises(DeviceError):
            Ledger.attach(other.fileno())
