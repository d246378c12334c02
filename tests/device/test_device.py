"""The rules of every device. devices.py names the devices that are tested."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.device.device import REGION_BYTES, ArenaDevice, Device, EmulatedDevice, HostBuffer, Ticket, Usage
from indb_tensile.device.ledger import Ledger
from indb_tensile.errors import DeviceError, DeviceMemoryError, InvariantError
from tests.device.devices import (
    BACK_ENDS,
    CHUNK_BYTES,
    POOL_BYTES,
    Devices,
    devices,
    read_buffer,
    read_device,
    write_device,
)
from tests.remains import nothing_remains


@pytest.fixture(params=BACK_ENDS, scope="module")
def openers(request: pytest.FixtureRequest) -> Iterator[Devices]:
    """Open devices with the same grant and pool."""
    opened = devices(request.param)
    yield opened
    opened.close()


@pytest.fixture
def device(openers: Devices) -> ArenaDevice:
    return openers.open()


@pytest.fixture
def grant_bytes(openers: Devices) -> int:
    return openers.grant_bytes


def test_a_fresh_device_has_its_grant_and_nothing_in_use(device: Device, grant_bytes: int) -> None:
    assert device.usage() == Usage(granted_bytes=grant_bytes, used_bytes=0, high_water_bytes=0)


def test_a_move_frees_before_it_takes(device: Device, grant_bytes: int) -> None:
    device.move(0, grant_bytes)
    device.move(grant_bytes, grant_bytes - 1)
    assert device.usage() == Usage(
        granted_bytes=grant_bytes, used_bytes=grant_bytes - 1, high_water_bytes=grant_bytes
    )


def test_a_new_high_water_mark_starts_at_the_present_use(device: Device, grant_bytes: int) -> None:
    device.move(0, 1000)
    device.move(900, 0)
    device.reset_high_water()
    device.move(0, 50)
    assert device.usage() == Usage(granted_bytes=grant_bytes, used_bytes=150, high_water_bytes=150)


def test_taking_beyond_the_grant_is_refused_with_the_excess_and_changes_nothing(
    device: Device, grant_bytes: int
) -> None:
    device.move(0, grant_bytes - 100)
    with pytest.raises(DeviceMemoryError) as raised:
        device.move(10, 200)
    assert raised.value.message == (
        f"slot 0: taking 200 bytes after giving back 10 of {grant_bytes - 100} bytes in use exceeds the grant of"
        f" {grant_bytes} bytes by 90"
    )
    assert device.usage().used_bytes == grant_bytes - 100
    assert device.usage().high_water_bytes == grant_bytes - 100


def test_freeing_more_than_is_in_use_is_an_internal_error(device: Device) -> None:
    device.move(0, 10)
    with pytest.raises(InvariantError, match="giving back 11 bytes of which only 10 are in use"):
        device.move(11, 500)
    assert device.usage().used_bytes == 10


@given(moves=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=40))
def test_any_sequence_of_moves_agrees_with_a_simple_count(openers: Devices, moves: list[tuple[float, float]]) -> None:
    device, grant_bytes = openers.open(), openers.grant_bytes
    used_bytes = high_water_bytes = 0
    for freed, taken in moves:
        freed_bytes, taken_bytes = round(freed * grant_bytes), round(taken * (grant_bytes + 1))
        after_bytes = used_bytes - freed_bytes + taken_bytes
        if freed_bytes > used_bytes:
            with pytest.raises(InvariantError):
                device.move(freed_bytes, taken_bytes)
        elif after_bytes > grant_bytes:
            with pytest.raises(DeviceMemoryError):
                device.move(freed_bytes, taken_bytes)
        else:
            device.move(freed_bytes, taken_bytes)
            used_bytes, high_water_bytes = after_bytes, max(high_water_bytes, after_bytes)
        assert device.usage() == Usage(
            granted_bytes=grant_bytes, used_bytes=used_bytes, high_water_bytes=high_water_bytes
        )


@pytest.mark.parametrize("size_bytes", [1, 63, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 17])
def test_a_tensor_copied_out_and_in_again_is_unchanged(device: ArenaDevice, size_bytes: int) -> None:
    original = random.Random(size_bytes).randbytes(size_bytes)
    tensor, fence = device.allocate(size_bytes), device.allocate(size_bytes + 2)
    write_device(device, tensor, original)
    write_device(device, fence, b"\x5a" * (size_bytes + 2))
    host = device.host_allocate(size_bytes)
    assert device.wait(device.copy_out(host, tensor, size_bytes)) >= 0
    assert device.wait(device.copy_in(fence + 1, host, size_bytes)) >= 0
    assert read_device(device, fence, size_bytes + 2) == b"\x5a" + original + b"\x5a"


@given(sizes=st.lists(st.integers(1, 3 * CHUNK_BYTES), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_many_copies_at_once_are_complete(openers: Devices, sizes: list[int], seed: int) -> None:
    device = openers.open()
    source = random.Random(seed)
    contents = [source.randbytes(size) for size in sizes]
    tensors = [device.allocate(size) for size in sizes]
    for tensor, content in zip(tensors, contents, strict=True):
        write_device(device, tensor, content)
    hosts = [device.host_allocate(size) for size in sizes]
    tickets = [device.copy_out(host, tensor, size) for host, tensor, size in zip(hosts, tensors, sizes, strict=True)]
    assert tickets == sorted(set(tickets))
    device.wait(tickets[-1])  # all copies use one lane, so the last copy ends last
    assert [read_buffer(device, host, size) for host, size in zip(hosts, sizes, strict=True)] == contents


def test_a_copy_waits_for_an_earlier_copy_that_writes_its_source(device: ArenaDevice) -> None:
    """The host waits for neither copy.

    A swap-in follows a swap-out in progress, and computation follows the swap-in.
    """
    size_bytes = 5 * CHUNK_BYTES
    content = random.Random(1).randbytes(size_bytes)
    first, second = device.allocate(size_bytes), device.allocate(size_bytes)
    write_device(device, first, content)
    host = device.host_allocate(size_bytes)
    device.compute_after(device.copy_out(host, first, size_bytes))
    device.compute_after(device.copy_in(second, host, size_bytes))
    assert read_device(device, second, size_bytes) == content


def test_a_second_wait_for_a_copy_takes_no_time(device: ArenaDevice) -> None:
    ticket = device.copy_out(device.host_allocate(1), device.allocate(1), 1)
    device.wait(ticket)
    assert device.wait(ticket) == 0


def test_an_unknown_ticket_is_refused(device: Device) -> None:
    with pytest.raises(InvariantError, match="was never queued"):
        device.wait(Ticket(1_000_000))


def test_the_host_pool_has_a_limit_and_reuses_freed_memory(openers: Devices) -> None:
    device = openers.open()
    whole_pool = device.host_allocate(POOL_BYTES)
    with pytest.raises(
        DeviceMemoryError,
        match=f"no {openers.unit_bytes} bytes in one piece: {POOL_BYTES} of its limit of {POOL_BYTES} bytes",
    ):
        device.host_allocate(1)
    device.host_free(whole_pool)
    device.host_allocate(POOL_BYTES)


def test_buffers_of_the_host_pool_do_not_overlap(device: Device) -> None:
    buffers = [device.host_allocate(size) for size in (1, 100, 1000, 64)]
    ends = sorted((int(buffer), int(buffer) + size) for buffer, size in zip(buffers, (1, 100, 1000, 64), strict=True))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


def test_a_buffer_cannot_be_freed_twice(device: Device) -> None:
    host = device.host_allocate(100)
    device.host_free(host)
    with pytest.raises(InvariantError, match="is not, or is no longer, a buffer of the host pool"):
        device.host_free(host)


def test_a_copy_needs_a_live_buffer_and_a_size_within_it(openers: Devices) -> None:
    device = openers.open()
    tensor = device.allocate(10_000)
    host = device.host_allocate(100)
    size_bytes = -(-100 // openers.unit_bytes) * openers.unit_bytes
    with pytest.raises(InvariantError, match=f"a copy of 10000 bytes exceeds the host buffer of {size_bytes} bytes"):
        device.copy_out(host, tensor, 10_000)
    with pytest.raises(InvariantError, match="a copy of 0 bytes"):
        device.copy_out(host, tensor, 0)
    with pytest.raises(InvariantError, match="is not, or is no longer, a buffer of the host pool"):
        device.copy_in(tensor, HostBuffer(tensor), 1)


def test_packed_buffers_keep_their_bytes(device: ArenaDevice) -> None:
    tensor = device.allocate(3000)
    write_device(device, tensor, b"abc" * 1000)
    first, second = device.host_allocate(1000), device.host_allocate(3000)
    device.wait(device.copy_out(second, tensor, 3000))
    device.host_free(first)
    moved = device.host_pack()
    device.wait(device.copy_in(tensor, moved.get(second, second), 3000))
    assert read_device(device, tensor, 3000) == b"abc" * 1000


@pytest.mark.parametrize("directory", ["", "/dev/shm"])
def test_a_device_that_is_closed_or_cannot_be_made_leaves_no_file(directory: str) -> None:
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
