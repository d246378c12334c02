"""The two copy lanes share the device's clock among all processes.

A copy blocks only the thread that waits for it.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from indb_tensile.device.device import EmulatedDevice, HostUsage
from indb_tensile.device.ledger import Ledger
from indb_tensile.errors import InvariantError
from tests.native.ledger_trainers import trainer, wait_until

BYTES_PER_S = 1_000_000
COPY_BYTES = 200_000  # 0.2 s at BYTES_PER_S
COPY_NS = 200_000_000


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.create(1 << 20, 4096, BYTES_PER_S, 2 * BYTES_PER_S) as opened:
        yield opened


@pytest.fixture
def device(ledger: Ledger) -> Iterator[EmulatedDevice]:
    slot, epoch = ledger.claim_slot(os.getpid())
    with EmulatedDevice(ledger.fd, slot, epoch, 1 << 20) as opened:
        yield opened


def test_each_direction_has_its_own_rate_and_clock(ledger: Ledger, device: EmulatedDevice) -> None:
    tensor = ctypes.create_string_buffer(COPY_BYTES)
    host = device.host_allocate(COPY_BYTES)
    start_ns = time.monotonic_ns()
    device.wait(device.copy_out(host, ctypes.addressof(tensor), COPY_BYTES))
    device.wait(device.copy_in(ctypes.addressof(tensor), host, COPY_BYTES))
    usage = ledger.device_usage()
    assert (usage.out_lane.reserved_ns, usage.in_lane.reserved_ns) == (COPY_NS, COPY_NS // 2)
    assert (usage.out_lane.reserved_bytes, usage.in_lane.reserved_bytes) == (COPY_BYTES, COPY_BYTES)
    assert usage.out_lane.free_ns >= start_ns + COPY_NS
    assert usage.in_lane.free_ns >= usage.out_lane.free_ns + COPY_NS // 2


def test_copies_of_two_processes_on_one_lane_take_twice_as_long(ledger: Ledger) -> None:
    claims = [ledger.claim_slot(1) for _ in range(2)]
    with (
        trainer(ledger, *claims[0], "copy", COPY_BYTES) as first,
        trainer(ledger, *claims[1], "copy", COPY_BYTES) as second,
    ):
        start_ns = time.monotonic_ns()
        _say_go(first)
        _say_go(second)
        assert (_answer(first), _answer(second)) == ("done\n", "done\n")
    lane = ledger.device_usage().out_lane
    assert lane.reserved_bytes == 2 * COPY_BYTES
    assert lane.reserved_ns == 2 * COPY_NS
    assert lane.free_ns - start_ns >= 2 * COPY_NS


def test_a_copy_waits_for_the_reservation_of_another_process(ledger: Ledger, device: EmulatedDevice) -> None:
    tensor = ctypes.create_string_buffer(1000)
    host = device.host_allocate(1000)
    slot, epoch = ledger.claim_slot(1)
    with EmulatedDevice(ledger.fd, slot, epoch, 1 << 20) as other:
        large = ctypes.create_string_buffer(COPY_BYTES)
        first = other.copy_out(other.host_allocate(COPY_BYTES), ctypes.addressof(large), COPY_BYTES)
        wait_until(lambda: ledger.device_usage().out_lane.reserved_bytes == COPY_BYTES, goal="reserved in one chunk")
        reserved_until_ns = ledger.device_usage().out_lane.free_ns
        device.wait(device.copy_out(host, ctypes.addressof(tensor), 1000))
        assert time.monotonic_ns() >= reserved_until_ns + 1_000_000
        assert ledger.device_usage().out_lane.free_ns == reserved_until_ns + 1_000_000
        other.wait(first)


def test_a_wait_reports_its_duration_and_releases_the_interpreter_lock(device: EmulatedDevice) -> None:
    tensor = ctypes.create_string_buffer(COPY_BYTES)
    ticket = device.copy_out(device.host_allocate(COPY_BYTES), ctypes.addressof(tensor), COPY_BYTES)
    waited_ns: list[int] = []
    entered = threading.Event()

    def wait() -> None:
        entered.set()
        waited_ns.append(device.wait(ticket))

    waiter = threading.Thread(target=wait)
    start_ns = time.monotonic_ns()
    waiter.start()
    entered.wait()
    looks = 0
    while not device.done(ticket):
        looks += 1
    waiter.join()
    assert looks > 100  # far fewer if the waiting thread kept the interpreter's lock
    assert 0 < waited_ns[0] <= time.monotonic_ns() - start_ns


def test_a_signal_interrupts_a_wait_and_the_copy_continues(device: EmulatedDevice) -> None:
    class AlarmError(Exception):
        pass

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise AlarmError

    tensor = ctypes.create_string_buffer(b"\x42" * 400_000, 400_000)
    host = device.host_allocate(400_000)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        ticket = device.copy_out(host, ctypes.addressof(tensor), 400_000)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(AlarmError):
            device.wait(ticket)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not device.done(ticket)
    device.drain()
    assert ctypes.string_at(host, 400_000) == tensor.raw


def test_a_process_completes_its_copies_before_it_ends(ledger: Ledger) -> None:
    slot, epoch = ledger.claim_slot(1)
    with trainer(ledger, slot, epoch, "copy and exit", COPY_BYTES) as process:
        _say_go(process)
        assert process.wait() == 0
    assert ledger.device_usage().out_lane.reserved_bytes == COPY_BYTES


def test_a_forked_child_ends_without_its_parents_threads() -> None:
    source = """
import ctypes, os, sys
from indb_tensile.device.device import EmulatedDevice
from indb_tensile.device.ledger import Ledger
ledger = Ledger.create(4096, 4096, 1_000_000, 1_000_000)
device = EmulatedDevice(ledger.fd, *ledger.claim_slot(1), 1 << 20)
tensor = ctypes.create_string_buffer(50_000)
device.copy_out(device.host_allocate(50_000), ctypes.addressof(tensor), 50_000)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)


def test_the_host_pool_counts_its_allocations(device: EmulatedDevice) -> None:
    small = device.host_allocate(1)
    large = device.host_allocate(1000)
    device.host_free(small)
    assert device.host_usage() == HostUsage(
        limit_bytes=1 << 20, used_bytes=1024, high_water_bytes=1088, resident_bytes=1 << 20
    )
    device.host_free(large)
    assert device.host_allocate(1000) == small  # the freed memory is one range again, used from its start


def test_a_buffer_of_a_pending_copy_cannot_be_freed(device: EmulatedDevice) -> None:
    tensor = ctypes.create_string_buffer(COPY_BYTES)
    host = device.host_allocate(COPY_BYTES)
    ticket = device.copy_out(host, ctypes.addressof(tensor), COPY_BYTES)
    with pytest.raises(InvariantError, match="is freed while a copy still uses it"):
        device.host_free(host)
    device.wait(ticket)
    device.host_free(host)


def test_a_closed_device_refuses_copies(device: EmulatedDevice) -> None:
    tensor = ctypes.create_string_buffer(10)
    host = device.host_allocate(10)
    device.close()
    with pytest.raises(InvariantError, match="the device is closed"):
        device.copy_out(host, ctypes.addressof(tensor), 10)


def _say_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
