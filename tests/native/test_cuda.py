"""The GPU's back end from Python, on the fake driver: what is there, and a broker and a trainer as two processes."""

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from indb_tensile.device.cuda import Absence, Gpus, NoGpu, probe
from tests.native.cuda_double import build, environment

FACTS = "import json, dataclasses as d, indb_tensile.device.cuda as c; print(json.dumps(d.asdict(c.probe())))"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


def run(source: str, variables: Mapping[str, str], *arguments: str) -> str:
    """What a process printed that ran this."""
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_this_machine_has_gpus_or_says_why_not() -> None:
    found = probe()
    assert isinstance(found, Gpus) or (isinstance(found, NoGpu) and found.reason and found.hint)


def test_the_devices_of_a_driver_are_listed_with_what_matters(library: Path) -> None:
    assert json.loads(run(FACTS, environment(library))) == {
        "driver_version": 12080,
        "devices": [
            {
                "ordinal": 0,
                "name": "Fake GPU 0",
                "uuid": "GPU-00112233-4455-6677-8899-aabbccddeeff",
                "memory_bytes": 256 << 20,
                "capability": [8, 6],
                "multiprocessors": 10,
                "clock_khz": 1_000_000,
                "memory_clock_khz": 500_000,
                "memory_bus_bits": 256,
                "copy_engines": 2,
                "virtual_memory": True,
                "shareable": True,
                "granularity_bytes": 2 << 20,
            }
        ],
    }


@pytest.mark.parametrize(
    ("settings", "why", "reason"),
    [
        ({"FAKE_CUDA_VERSION": "11080"}, "old driver", "the driver supports CUDA 11.8, and 12.0 is needed"),
        ({"FAKE_CUDA_DEVICES": "0"}, "no device", "the CUDA driver sees no GPU"),
        ({"FAKE_CUDA_LACKS": "cuMemMap"}, "broken driver", "libcuda.so.1 supports CUDA 12.8 and lacks cuMemMap"),
        ({"FAKE_CUDA_INIT": "802"}, "refused", "cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY"),
        ({"FAKE_CUDA_FAIL": "5:999"}, "refused", "looking at device 0: cuDeviceGetName failed: CUDA_ERROR_UNKNOWN"),
    ],
)
def test_why_there_is_no_gpu_is_a_value_with_the_way_out(
    library: Path, settings: dict[str, str], why: str, reason: str
) -> None:
    found = json.loads(run(FACTS, environment(library, **settings)))
    assert found["why"] == why
    assert reason in found["reason"]
    assert found["hint"]
    assert NoGpu(why=Absence(why), reason="", hint="").is_fault == (why != "no device")


TRAINER = """
import ctypes, sys
from indb_tensile.device.cuda import CudaDevice, CudaRegions
ledger, slot, epoch, socket = map(int, sys.argv[1:])
with CudaDevice(ledger, slot, epoch, 1 << 20, regions=CudaRegions(0, socket)) as device:
    device.host_prepare(1 << 20)
    tensor = device.allocate(100_000)
    assert device.arena_range[0] == tensor
    host = device.host_allocate(100_000)
    ctypes.memset(host, 0x5A, 100_000)
    device.compute_on(0)
    into = device.copy_in(tensor, host, 100_000)
    device.compute_after(into)
    device.wait(into)
    back = device.host_allocate(100_000)
    device.wait(device.copy_out(back, tensor, 100_000))
    assert ctypes.string_at(back, 100_000) == b"Z" * 100_000
    device.move(0, 100_000)
    print(device.usage().used_bytes, device.arena_usage().allocated_bytes, device.host_usage().used_bytes)
    print(device.arena_range[-1] + 1 - device.arena_range[0])
"""

BROKER = """
import os, socket, subprocess, sys
from indb_tensile.device.cuda import CudaBroker
from indb_tensile.device.ledger import Ledger
ledger = Ledger.create(8 << 20, 2 << 20, 1, 1)
slot, epoch = ledger.claim_slot(1)
ledger.grant(slot, 4 << 20)
broker = CudaBroker(0, 2 << 20, 4)
here, there = socket.socketpair()
command = [sys.executable, "-c", sys.argv[1], str(ledger.fd), str(slot), str(epoch), str(there.fileno())]
trainer = subprocess.Popen(command, pass_fds=(ledger.fd, there.fileno()))
there.close()
broker.send(here.fileno())
before = len(os.listdir("/proc/self/fd"))
assert trainer.wait() == 0
lane = ledger.device_usage().in_lane
print(lane.reserved_bytes, lane.reserved_ns > 0, before)
"""


def test_a_trainer_works_in_regions_that_a_broker_in_another_process_made(library: Path) -> None:
    lines = run(BROKER, environment(library), TRAINER).splitlines()
    assert lines[0] == "100000 100352 200064"  # 512 bytes and 64 bytes are the units
    assert lines[1] == str(8 << 20)
    assert lines[2].startswith("100000 True ")


def test_memory_is_taken_and_regions_pass_between_jobs_without_a_call_of_the_driver(library: Path) -> None:
    source = """
import ctypes
from indb_tensile.errors import DeviceError
from indb_tensile.device.cuda import CudaDevice
from indb_tensile.device.ledger import Ledger
ledger = Ledger.create(8 << 20, 2 << 20, 1, 1)
slot, epoch = ledger.claim_slot(1)
ledger.grant(slot, 4 << 20)
device = CudaDevice(ledger.fd, slot, epoch, 1 << 20)
device.free(device.allocate(3 << 20))  # once, regions are mapped and cleared
ctypes.CDLL("libcuda.so.1").fake_cuda_fail_call(ctypes.c_uint64(1), 999)
for size_bytes in (1000, 3 << 20) * 10:
    device.move(0, size_bytes)
    device.free(device.allocate(size_bytes))
    device.move(size_bytes, 0)
ledger.grant(slot, 2 << 20)
other, _ = ledger.claim_slot(2)
print(ledger.grant(other, 6 << 20))
ledger.release_slot(other)
ledger.grant(slot, 4 << 20)
print(device.arena_usage().owned_bytes)
try:
    device.allocate(3 << 20)  # what another job had is cleared
except DeviceError as error:
    print(error.message)
"""
    lent, owned, told = run(source, environment(library)).splitlines()
    assert (int(lent), int(owned)) == (6 << 20, 4 << 20)
    assert "CUDA_ERROR_UNKNOWN" in told


def test_a_trainer_that_ends_before_its_regions_arrive_is_a_fault_of_the_device(library: Path) -> None:
    source = """
import socket
from indb_tensile.errors import DeviceError
from indb_tensile.device.cuda import CudaBroker
here, there = socket.socketpair()
there.close()
try:
    CudaBroker(0, 2 << 20, 2).send(here.fileno())
except DeviceError as error:
    print(error.message, "|", error.hint)
"""
    assert "the other process closed the socket | Look why that process ended" in run(source, environment(library))


def test_a_region_size_that_the_device_cannot_give_is_refused_with_the_way_out(library: Path) -> None:
    source = """
from indb_tensile.errors import DeviceError
from indb_tensile.device.cuda import CudaBroker
try:
    CudaBroker(0, 3 << 20, 2)
except DeviceError as error:
    print(error.message, "|", error.hint)
"""
    assert run(source, environment(library)).strip() == (
        "regions of 3145728 bytes: device 0 gives memory in units of 2097152 bytes"
        " | Set the region size to a multiple of 2097152 bytes, such as 2097152."
    )


def test_a_lost_device_is_an_error_of_its_own_that_another_attempt_may_survive(library: Path) -> None:
    source = """
from indb_tensile.errors import DeviceLostError
from indb_tensile.device.cuda import CudaDevice
from indb_tensile.device.ledger import Ledger
ledger = Ledger.create(8 << 20, 2 << 20, 1, 1)
try:
    CudaDevice(ledger.fd, *ledger.claim_slot(1), 1 << 20)
except DeviceLostError as error:
    print(error.message, error.sqlstate)
"""
    printed = run(source, environment(library, FAKE_CUDA_FAIL="6:214"))
    assert "failed: CUDA_ERROR_ECC_UNCORRECTABLE (the fake driver's words) 58000" in printed


def test_what_a_job_does_to_its_own_context_is_no_lost_device(library: Path) -> None:
    source = """
import ctypes
import torch
from indb_tensile.errors import ComputationError, DeviceLostError
from indb_tensile.device.ledger import Ledger
from indb_tensile.executor.run.open_device import open_device
ledger = Ledger.create(8 << 20, 2 << 20, 1, 1)
for number, result in enumerate((719, 214)):
    try:
        claim = (ledger.fd, *ledger.claim_slot(number + 1))
        with open_device("cuda:0", claim, 1 << 20, None, torch.device("cpu")):
            ctypes.CDLL("libcuda.so.1")._ZN9fake_cuda4loseEN7tensile4cuda6ResultE(result)
            raise RuntimeError("CUDA error: unspecified launch failure")  # as torch tells of both
    except (ComputationError, DeviceLostError) as error:
        print(type(error).__name__, error.message)
        ctypes.CDLL("libcuda.so.1")._ZN9fake_cuda4loseEN7tensile4cuda6ResultE(0)
"""
    told = "cuCtxPushCurrent failed: CUDA_ERROR_{} (the fake driver's words)"
    assert run(source, environment(library)).splitlines() == [
        f"ComputationError using the device from this thread: {told.format('LAUNCH_FAILED')}",
        f"DeviceLostError using the device from this thread: {told.format('ECC_UNCORRECTABLE')}",
    ]


# The double's driver, and what stands for a capture of torch there.
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


def test_copies_are_recorded_with_what_is_computed_and_made_by_each_launch(library: Path) -> None:
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
for number in (*range(1, 40, 4), 1000):  # whichever call fails, what was recorded is given up
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


def test_a_controller_does_without_shared_memory_where_none_is_handed_over_and_not_where_there_is_none(
    library: Path,
) -> None:
    source = """
import ctypes
from indb_tensile.controller.gpu_regions import broker
from indb_tensile.errors import DeviceError
from indb_tensile.device.cuda import CudaBroker, probe
driver = ctypes.CDLL("libcuda.so.1")
(gpu,) = probe().devices
def made(code):
    found = []
    for number in range(1, 5):
        driver.fake_cuda_fail_call(ctypes.c_uint64(number), code)
        try:
            made, _ = broker(gpu, region_bytes=2 << 20, capacity_bytes=4 << 20, shares=True)
            found.append(type(made).__name__)
        except DeviceError as error:
            found.append(type(error).__name__)
    driver.fake_cuda_fail_call(ctypes.c_uint64(0), 0)
    return found
print(*made(801))
print(*made(46))
print(*made(2))
print(broker(gpu, region_bytes=2 << 20, capacity_bytes=4 << 20, shares=False)[0])
print(broker(gpu, region_bytes=2 << 20, capacity_bytes=512 << 20, least_bytes=2 << 20, shares=True)[1] >> 20)
"""
    refused, lost, full, private, fewer = run(source, environment(library)).splitlines()
    assert 240 <= int(fewer) <= 256  # of the 256 MB that there are, where twice as much was asked for
    assert refused.split() == ["NoneType"] * 4
    assert lost.split() == ["DeviceLostError"] * 4
    assert full.split() == ["DeviceMemoryError"] * 4
    assert private == "None"


@pytest.mark.parametrize(
    ("settings", "shared", "said"),
    [
        ({}, "CudaBroker", ""),
        ({"FAKE_CUDA_STRICT_MAPS": "1"}, "CudaBroker", ""),
        (
            {"FAKE_CUDA_IMPORT": "801"},
            "NoneType",
            "another process cannot use Fake GPU 0's memory: importing region 0: cuMemImportFromShareableHandle",
        ),
    ],
)
def test_whether_another_process_can_map_and_use_regions_is_tried_before_all_are_made(
    library: Path, settings: dict[str, str], shared: str, said: str
) -> None:
    source = """
import logging, sys
from indb_tensile.controller.gpu_regions import broker
from indb_tensile.device.cuda import probe
logging.basicConfig(stream=sys.stdout, format="%(message)s")
(gpu,) = probe().devices
mapper = (sys.executable, "-m", "indb_tensile.worker.probe_sharing")
made, _ = broker(gpu, region_bytes=2 << 20, capacity_bytes=4 << 20, shares=True, mapper=mapper)
print(type(made).__name__)
"""
    *told, kind = run(source, environment(library, **settings)).splitlines()
    assert kind == shared
    assert said in "".join(told)


def test_nothing_is_exported_for_a_spare_trainer_that_has_no_job_yet(library: Path) -> None:
    source = """
import os, socket, threading
from indb_tensile.device.cuda import CudaBroker, CudaRegions
broker = CudaBroker(0, 2 << 20, 100)
pairs = [socket.socketpair() for _ in range(8)]
before = len(os.listdir("/proc/self/fd"))
senders = [threading.Thread(target=broker.send, args=(here.fileno(),)) for here, _ in pairs]
for sender in senders:
    sender.start()
for _, there in pairs:
    there.recv(1, socket.MSG_PEEK)  # its greeting has come
print(len(os.listdir("/proc/self/fd")) - before)
for _, there in pairs:
    CudaRegions(0, there.fileno()).touch()
for sender in senders:
    sender.join()
"""
    assert run(source, environment(library, FAKE_CUDA_MEMORY_MB="2048")) == "0\n"


def test_a_trainer_maps_its_regions_with_its_context_current(library: Path) -> None:
    run(BROKER, environment(library, FAKE_CUDA_STRICT_MAPS="1"), TRAINER)
    source = """
from indb_tensile.device.cuda import CudaDevice
from indb_tensile.device.ledger import Ledger
ledger = Ledger.create(8 << 20, 2 << 20, 1, 1, None)
slot, epoch = ledger.claim_slot(1)
ledger.grant(slot, 8 << 20)
with CudaDevice(ledger.fd, slot, epoch, 1 << 20) as device:
    device.free(device.allocate(6 << 20))
    device.trim()
    print(device.arena_usage().requested_bytes)
"""
    assert run(source, environment(library, FAKE_CUDA_STRICT_MAPS="1")) == "0\n"


def test_what_torch_calls_is_there_by_name(library: Path) -> None:
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


def test_where_there_is_no_room_torchs_own_error_is_thrown_which_makes_cudnn_try_another_algorithm(
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
"""
    assert run(source, environment(library), str(tmp_path / "catcher.so")).splitlines() == [
        "1",
        "0",
        "the job's regions have no 6291456 bytes in one piece for torch, and 0 bytes outside them are in use",
        f"({6 << 20}, {6 << 20})",
    ]


def test_a_recorded_iteration_finds_words_of_its_own_that_no_plan_has_a_place_for(library: Path) -> None:
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
iterate()  # regions are mapped and cleared, which cannot be recorded
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
    told = run(source, environment(library)).splitlines()
    assert told == ["False 0", "0", f"True {1 << 20}", "0", "0", ""]


def test_doctor_says_which_gpu_there_is_and_whether_it_can_be_used(library: Path) -> None:
    source = "from indb_tensile.cli.doctor import _gpu; print(_gpu())"
    assert run(source, environment(library)).startswith("(True, 'Fake GPU 0 with 256 MB, driver for CUDA 12.8, ")
    assert run(source, environment(library, FAKE_CUDA_VERSION="11080")).startswith(
        "(False, 'the driver supports CUDA 11.8, and 12.0 is needed', "
    )
    assert run(source, environment(library, FAKE_CUDA_DEVICES="0")).startswith(
        "(True, 'none: the CUDA driver sees no GPU', "
    )


def test_the_suite_for_a_gpu_runs_on_the_double_without_what_a_gpus_machine_lacks(
    library: Path, tmp_path: Path
) -> None:
    source = """
import sys
for name in ("psycopg", "sqlalchemy", "msgspec"):
    sys.modules[name] = None
import pytest
import tests.gpu.steps, tests.gpu.trainer_process  # what needs torch, without what it must not need
options = ["-q", "-p", "no:cacheprovider", "--confcutdir=tests/gpu", "tests/gpu"]
sys.exit(pytest.main([*options, "-k", "swapped or mapped or broker or maps"]))
"""
    results = tmp_path / "results"
    settings = {"FAKE_CUDA_MEMORY_MB": "4096", "TENSILE_GPU_RESULTS": str(results)}
    assert "4 passed" in run(source, environment(library, **settings))
    assert [json.loads(line)["measured"] for line in results.read_text().splitlines()] == [
        "mapping",
        "capacity",
        "whole device",
    ]


def test_what_every_device_must_do_the_back_end_for_gpus_does(library: Path) -> None:
    source = """
import ctypes, pytest
suite = ["tests/device/test_device.py", "tests/device/test_arena.py"]
ended = pytest.main(["-q", "--noconftest", "-p", "no:cacheprovider", "-k", "cuda", *suite])
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_cuda_violations.restype = ctypes.c_char_p
print(int(ended), "violations:", driver.fake_cuda_violations().decode())
"""
    told = run(source, environment(library, FAKE_CUDA_MEMORY_MB="2048", TENSILE_TEST_DEVICES="cuda"))
    assert told.splitlines()[-1] == "0 violations: ", told
