"""Torch's allocations and recorded iterations use the GPU's back end, on the fake driver."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.native.cuda_double import environment, run

# The double's driver, and a replacement of torch's capture of a CUDA graph.
CAPTURE = """
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_cuda_side_stream.restype = ctypes.c_void_p
class Capture:
    opened = 0
    def begin(self):
        Capture.opened += 1
        driver.fake_cuda_begin_capture()
    def end(self):
        assert driver.fake_cuda_end_capture() == 0
    def give_up(self):
        driver.fake_cuda_drop_capture()
    def launch(self):
        driver.fake_cuda_replay()
    def close(self):
        Capture.opened -= 1
"""


@pytest.mark.nightly
def test_copies_are_recorded_with_the_computation_and_repeated_by_each_launch(library: Path) -> None:
    source = """
import ctypes
from indb_tensile.errors import DeviceError
from indb_tensile.device.cuda import CudaDevice
from indb_tensile.device.ledger import Ledger
from indb_tensile.executor.run.cuda_graphs import CudaGraphs
"""
    source += (
        CAPTURE
        + """
ledger = Ledger.create(8 << 20, 2 << 20, 1, 1)
slot, epoch = ledger.claim_slot(1)
ledger.grant(slot, 8 << 20)
device = CudaDevice(ledger.fd, slot, epoch, 1 << 20)
device.compute_on(driver.fake_cuda_side_stream())
memory, batch, result = device.allocate(1000), device.host_allocate(1000), device.host_allocate(1000)
def iterate():
    device.compute_after(device.copy_in(memory, batch, 1000))
    device.copy_out(result, memory, 1000)
graphs = CudaGraphs(device, Capture)
failed = 0
for number in (*range(1, 40, 4), 1000):  # whichever call fails, the recording is dropped
    driver.fake_cuda_fail_call(ctypes.c_uint64(number), 901)
    try:
        graph = graphs.record(iterate)
    except DeviceError as error:
        assert "error 901" in error.message, error.message
        failed += 1
driver.fake_cuda_fail_call(ctypes.c_uint64(0), 0)
print(failed, Capture.opened)
before = ledger.device_usage().in_lane.reserved_bytes
for value in (1, 2, 3):
    ctypes.memset(batch, value, 1000)
    graph.launch()
    print(ctypes.string_at(result, 1000) == bytes([value]) * 1000)
print(ledger.device_usage().in_lane.reserved_bytes - before)
iterate()
device.drain()
driver.fake_cuda_violations.restype = ctypes.c_char_p
print(driver.fake_cuda_violations().decode())
"""
    )
    failed, opened, *rest = run(source, environment(library)).split()
    assert (int(failed) > 4, int(failed) + int(opened), rest) == (True, 11, ["True", "True", "True", "3000"])


def test_the_functions_that_torch_calls_are_exported_by_name(library: Path) -> None:
    source = """
import ctypes
from indb_tensile import _native
from indb_tensile.device.cuda import CudaDevice
from indb_tensile.device.ledger import Ledger
ledger = Ledger.create(8 << 20, 2 << 20, 1, 1)
slot, epoch = ledger.claim_slot(1)
ledger.grant(slot, 8 << 20)
device = CudaDevice(ledger.fd, slot, epoch, 1 << 20)
device.serve_torch()
library = ctypes.CDLL(_native.__file__)
library.tensile_cuda_allocate.restype = ctypes.c_void_p
library.tensile_cuda_allocate.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
library.tensile_cuda_free.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
library.tensile_cuda_record_stream.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
address = library.tensile_cuda_allocate(1000, 0, None)
library.tensile_cuda_record_stream(address, None)
print(address == device.arena_range[0], device.arena_usage().requested_bytes)
library.tensile_cuda_free(address, 1000, 0, None)
print(device.arena_usage().requested_bytes)
_native.cuda_end_torch()
"""
    assert run(source, environment(library)).split() == ["True", "1000", "0"]


CATCHER = """
#include <c10/util/Exception.h>
extern "C" int caught(void* (*allocate)(std::size_t, int, void*), std::size_t size, char* words, std::size_t room) {
  try {
    allocate(size, 0, nullptr);
    return 0;
  } catch (const c10::OutOfMemoryError& error) {
    std::snprintf(words, room, "%s", error.what_without_backtrace());
    return 1;
  } catch (const std::exception&) {
    return 2;
  }
}
"""


@pytest.mark.nightly
def test_a_refused_allocation_throws_torchs_own_error_so_that_cudnn_tries_another_algorithm(
    library: Path, tmp_path: Path
) -> None:
    torch = Path(find_spec("torch").origin).parent  # type: ignore[union-attr,arg-type]
    (tmp_path / "catcher.cpp").write_text(CATCHER)
    command = ["c++", "-std=c++20", "-shared", "-fPIC", f"-I{torch / 'include'}", "catcher.cpp", "-o", "catcher.so"]
    subprocess.run([*command, f"-L{torch / 'lib'}", "-lc10"], cwd=tmp_path, check=True, timeout=250)
    source = """
import ctypes, sys
import torch
from indb_tensile import _native
from indb_tensile.device.cuda import CudaDevice
from indb_tensile.device.ledger import Ledger
ledger = Ledger.create(8 << 20, 2 << 20, 1, 1, None)
slot, epoch = ledger.claim_slot(1)
ledger.grant(slot, 4 << 20)
device = CudaDevice(ledger.fd, slot, epoch, 1 << 20)
device.serve_torch()
catcher = ctypes.CDLL(sys.argv[1])
words = ctypes.create_string_buffer(300)
allocate = ctypes.CDLL(_native.__file__).tensile_cuda_allocate
for size_bytes in (6 << 20, 1 << 20):
    print(catcher.caught(allocate, ctypes.c_size_t(size_bytes), words, ctypes.c_size_t(300)))
print(words.value.decode())
print(_native.cuda_take_refusal())
from indb_tensile.device.allocator_shim import ArenaServing
serving = ArenaServing(device.hook_address(), _native.cuda_serve_address(), device.pieces_address())
serving.reserve(1 << 20)
serving.position[0] = 1
with serving.on(_native.Sheet([[], [(1000, 0)]])):
    for size_bytes in (6 << 20, 16 << 20):  # the operator tries again with more memory than the device has
        print(catcher.caught(allocate, ctypes.c_size_t(size_bytes), words, ctypes.c_size_t(300)))
print(serving.take_excess())
"""
    assert run(source, environment(library), str(tmp_path / "catcher.so")).splitlines() == [
        "1",
        "0",
        "the job's regions have no 6291456 bytes in one piece for torch, and 0 bytes outside them are in use",
        f"({6 << 20}, {6 << 20})",
        "1",
        "1",
        f"((1, {6 << 20}),)",
    ]


def test_memory_outside_the_regions_that_an_operator_needs_beyond_its_plan_is_remembered(library: Path) -> None:
    source = """
import ctypes
from indb_tensile import _native
from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.device.cuda import CudaDevice
from indb_tensile.device.ledger import Ledger
ledger = Ledger.create(8 << 20, 2 << 20, 1, 1, None)
slot, epoch = ledger.claim_slot(1)
ledger.grant(slot, 2 << 20)
device = CudaDevice(ledger.fd, slot, epoch, 1 << 20)
device.allow_outside(4 << 20)
device.serve_torch()
serving = ArenaServing(device.hook_address(), _native.cuda_serve_address(), device.pieces_address())
print(serving.reserve(2 << 20))
library = ctypes.CDLL(_native.__file__)
allocate, free = library.tensile_cuda_allocate, library.tensile_cuda_free
allocate.restype = ctypes.c_void_p
allocate.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
free.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
for sheet in (_native.Sheet([[(1000, 0)]]), _native.Sheet([[(1000, 0)]], [], [(1 << 20, 1024)])):
    with serving.on(sheet):
        serving.position[0] = 0
        addresses = [allocate(size_bytes, 0, None) for size_bytes in (1000, 500_000)]
        print(serving.take_excess(), device.outside_bytes() > 0)
        for address in addresses:
            free(address, 0, 0, None)
_native.cuda_end_torch()
"""
    assert run(source, environment(library)).splitlines() == ["True", "((0, 500224),) True", "() False"]


@pytest.mark.nightly
def test_a_recorded_iteration_has_its_seeds_outside_the_planned_block(library: Path) -> None:
    source = """
import ctypes
from indb_tensile import _native
from indb_tensile.device.cuda import CudaDevice
from indb_tensile.device.ledger import Ledger
from indb_tensile.executor.run.cuda_graphs import CudaGraphs
from indb_tensile.device.allocator_shim import ArenaServing
"""
    source += (
        CAPTURE
        + """
ledger = Ledger.create(16 << 20, 2 << 20, 1, 1, None)
slot, epoch = ledger.claim_slot(1)
ledger.grant(slot, 16 << 20)
device = CudaDevice(ledger.fd, slot, epoch, 1 << 20)
device.allow_outside(4 << 20)
device.compute_on(driver.fake_cuda_side_stream())
device.serve_torch()
serving = ArenaServing(device.hook_address(), _native.cuda_serve_address(), device.pieces_address())
serving.reserve(1 << 20)
library = ctypes.CDLL(_native.__file__)
allocate, free = library.tensile_cuda_allocate, library.tensile_cuda_free
allocate.restype = ctypes.c_void_p
allocate.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
free.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
sheet = _native.Sheet([[(1000, 0)]], ["a tensor"])
stream = driver.fake_cuda_side_stream()
def iterate():
    with serving.on(sheet):
        seeds = [allocate(8, 0, stream) for _ in range(2)]
        tensor = allocate(1000, 0, stream)
        for address in (*seeds, tensor):
            free(address, 8, 0, stream)
iterate()  # maps and clears the regions, which cannot be recorded
for graphs in (CudaGraphs(device, Capture), CudaGraphs(device, Capture, serving)):
    before = serving.served()
    graph = graphs.record(iterate)
    print(serving.served().as_planned_since(before), device.outside_bytes())
    graph.launch()
    graph.close()
    print(device.outside_bytes())
def broken():
    iterate()
    raise RuntimeError("no")
try:
    CudaGraphs(device, Capture, serving).record(broken)
except RuntimeError:
    print(device.outside_bytes())
driver.fake_cuda_violations.restype = ctypes.c_char_p
print(driver.fake_cuda_violations().decode())
"""
    )
    lines = run(source, environment(library)).splitlines()
    assert lines == ["False 0", "0", f"True {1 << 20}", "0", "0", ""]
