"""Further tests of the processor's device, which swaps to a disk (test_device.py has the rules of every device)."""

import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from indb_tensile.device.device import REGION_BYTES, CpuDevice, HostBuffer
from indb_tensile.device.ledger import Ledger
from indb_tensile.errors import DeviceError, DeviceLostError, InvariantError

SIZE_BYTES = 32 << 20

SWAPPER = """
import os, signal, sys
from indb_tensile.device.device import REGION_BYTES, CpuDevice
from indb_tensile.device.ledger import Ledger
ledger = Ledger.create(64 * REGION_BYTES, REGION_BYTES, 1, 1)
slot, epoch = ledger.claim_slot(1)
ledger.grant(slot, 32 * REGION_BYTES)
device = CpuDevice(ledger.fd, slot, epoch, 64 << 20, sys.argv[1])
address, host = device.allocate(1 << 20), device.host_allocate(1 << 20)
device.wait(device.copy_out(host, address, 1 << 20))
links = [f"/proc/self/fd/{number}" for number in range(3, 64)]
print(any(os.path.islink(link) and sys.argv[1] in os.readlink(link) for link in links), flush=True)
signal.pause()
"""


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.create(64 * REGION_BYTES, REGION_BYTES, 1, 1) as made:
        yield made


@pytest.fixture
def device(ledger: Ledger, tmp_path: Path) -> Iterator[CpuDevice]:
    slot, epoch = ledger.claim_slot(os.getpid())
    ledger.grant(slot, 64 * REGION_BYTES)
    with CpuDevice(ledger.fd, slot, epoch, 64 << 20, str(tmp_path)) as opened:
        yield opened


def _resident_bytes() -> int:
    """Return this process's memory. Each shared page is divided by the number of processes that map it."""
    proportional = re.search(r"^Pss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    assert proportional is not None
    return int(proportional[1]) << 10


def _fill(address: int, seed: int) -> bytes:
    content = random.Random(seed).randbytes(1 << 20) * (SIZE_BYTES >> 20)
    ctypes.memmove(address, content, SIZE_BYTES)
    return content


def test_a_tensor_that_is_swapped_out_takes_no_memory_and_is_restored(device: CpuDevice, ledger: Ledger) -> None:
    address = device.allocate(SIZE_BYTES)
    expected = hash(_fill(address, 1))
    host = device.host_allocate(SIZE_BYTES)
    full_bytes = _resident_bytes()
    device.wait(device.copy_out(host, address, SIZE_BYTES))
    device.free(address)
    ledger.grant(ledger.slots()[0].slot, 0)  # returns its regions to the machine
    assert full_bytes - _resident_bytes() > SIZE_BYTES * 0.9
    ledger.grant(ledger.slots()[0].slot, 64 * REGION_BYTES)
    address = device.allocate(SIZE_BYTES)
    device.wait(device.copy_in(address, host, SIZE_BYTES))
    assert hash(ctypes.string_at(address, SIZE_BYTES)) == expected


def test_the_host_reads_and_writes_buffers_only_through_the_device(device: CpuDevice) -> None:
    host = device.host_allocate(10_000)
    content, target = (
        ctypes.create_string_buffer(random.Random(2).randbytes(10_000), 10_000),
        (ctypes.c_char * 10_000)(),
    )
    device.host_write(host, ctypes.addressof(content), 10_000)
    device.host_read(ctypes.addressof(target), host, 10_000)
    assert target.raw == content.raw
    with pytest.raises(InvariantError, match="a copy of 20000 bytes exceeds the host buffer of 12288 bytes"):
        device.host_read(ctypes.addressof(target), host, 20_000)
    with pytest.raises(InvariantError, match="is not, or is no longer, a buffer of the host pool"):
        device.host_write(HostBuffer(host + 1), ctypes.addressof(content), 1)


def test_the_swap_file_is_deleted_when_its_process_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SWAPPER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert list(tmp_path.iterdir()) == []  # the swap file has no name
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_swap_directory_is_refused_with_the_way_out(ledger: Ledger) -> None:
    slot, epoch = ledger.claim_slot(os.getpid())
    with pytest.raises(DeviceError, match="no swap file can be made in swap_directory '/nowhere'") as refused:
        CpuDevice(ledger.fd, slot, epoch, 1 << 20, "/nowhere")
    assert "TENSILE_SWAP_DIRECTORY" in refused.value.hint


def test_a_full_disk_is_a_lost_device_with_a_hint_to_free_space(ledger: Ledger, tmp_path: Path) -> None:
    too_much = 2 * shutil.disk_usage(tmp_path).total
    slot, epoch = ledger.claim_slot(os.getpid())
    with CpuDevice(ledger.fd, slot, epoch, too_much, str(tmp_path)) as device:
        with pytest.raises(DeviceLostError, match="No space left on device") as refused:
            device.host_allocate(too_much)
        assert str(tmp_path) in refused.value.message
        assert "Free space on that disk" in refused.value.hint
        device.host_allocate(4096)  # there is still room for 4 KiB
