"""The GPU's back end runs from Python on the fake driver: discovery, a broker and a trainer in two processes."""

import json
from pathlib import Path

import pytest

from indb_tensile.device.cuda import Absence, Gpus, NoGpu, probe
from tests.native.cuda_double import environment, run

FACTS = "import json, dataclasses as d, indb_tensile.device.cuda as c; print(json.dumps(d.asdict(c.probe())))"


def test_this_machine_has_gpus_or_a_reason_for_having_none() -> None:
    result = probe()
    assert isinstance(result, Gpus) or (isinstance(result, NoGpu) and result.reason and result.hint)


def test_the_facts_about_each_device_of_a_driver_are_listed(library: Path) -> None:
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
def test_the_reason_for_having_no_gpu_is_a_value_with_the_way_out(
    library: Path, settings: dict[str, str], why: str, reason: str
) -> None:
    answer = json.loads(run(FACTS, environment(library, **settings)))
    assert answer["why"] == why
    assert reason in answer["reason"]
    assert answer["hint"]
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
own_end, trainer_end = socket.socketpair()
command = [sys.executable, "-c", sys.argv[1], str(ledger.fd), str(slot), str(epoch), str(trainer_end.fileno())]
trainer = subprocess.Popen(command, pass_fds=(ledger.fd, trainer_end.fileno()))
trainer_end.close()
broker.send(own_end.fileno())
before = len(os.listdir("/proc/self/fd"))
assert trainer.wait() == 0
lane = ledger.device_usage().in_lane
print(lane.reserved_bytes, lane.reserved_ns > 0, before)
"""


def test_a_trainer_uses_regions_that_a_broker_in_another_process_made(library: Path) -> None:
    lines = run(BROKER, environment(library), TRAINER).splitlines()
    assert lines[0] == "100000 100352 200064"  # sizes are rounded up to units of 512 and 64 bytes
    assert lines[1] == str(8 << 20)
    assert lines[2].startswith("100000 True ")


def test_taking_memory_and_passing_regions_between_jobs_need_no_call_of_the_driver(library: Path) -> None:
    source = """
import ctypes
from indb_tensile.errors import DeviceError
from indb_tensile.device.cuda import CudaDevice
from indb_tensile.device.ledger import Ledger
ledger = Ledger.create(8 << 20, 2 << 20, 1, 1)
slot, epoch = ledger.claim_slot(1)
ledger.grant(slot, 4 << 20)
device = CudaDevice(ledger.fd, slot, epoch, 1 << 20)
device.free(device.allocate(3 << 20))  # maps and clears the regions, once
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
    device.allocate(3 << 20)  # the other job's regions must be cleared first
except DeviceError as error:
    print(error.message)
"""
    lent, owned, message = run(source, environment(library)).splitlines()
    assert (int(lent), int(owned)) == (6 << 20, 4 << 20)
    assert "CUDA_ERROR_UNKNOWN" in message


def test_a_trainer_that_ends_before_its_regions_arrive_is_a_device_error(library: Path) -> None:
    source = """
import socket
from indb_tensile.errors import DeviceError
from indb_tensile.device.cuda import CudaBroker
own_end, trainer_end = socket.socketpair()
trainer_end.close()
try:
    CudaBroker(0, 2 << 20, 2).send(own_end.fileno())
except DeviceError as error:
    print(error.message, "|", error.hint)
"""
    assert "the other process closed the socket | Look why that process ended" in run(source, environment(library))


def test_a_region_size_that_the_device_does_not_support_is_refused_with_the_way_out(library: Path) -> None:
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


def test_a_lost_device_is_a_separate_error_so_that_the_job_is_retried(library: Path) -> None:
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


@pytest.mark.nightly
def test_a_fault_of_a_jobs_own_computation_is_not_a_lost_device(library: Path) -> None:
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
            raise RuntimeError("CUDA error: unspecified launch failure")  # torch's message for both faults
    except (ComputationError, DeviceLostError) as error:
        print(type(error).__name__, error.message)
        ctypes.CDLL("libcuda.so.1")._ZN9fake_cuda4loseEN7tensile4cuda6ResultE(0)
"""
    message = "cuCtxPushCurrent failed: CUDA_ERROR_{} (the fake driver's words)"
    assert run(source, environment(library)).splitlines() == [
        f"ComputationError using the device from this thread: {message.format('LAUNCH_FAILED')}",
        f"DeviceLostError using the device from this thread: {message.format('ECC_UNCORRECTABLE')}",
    ]


def test_a_controller_works_without_shared_memory_if_sharing_is_unsupported_and_fails_if_memory_is_short(
    library: Path,
) -> None:
    source = """
import ctypes
from indb_tensile.controller.gpu_regions import broker
from indb_tensile.errors import DeviceError
from indb_tensile.device.cuda import CudaBroker, probe
driver = ctypes.CDLL("libcuda.so.1")
(gpu,) = probe().devices
def brokers(code):
    results = []
    for number in range(1, 5):
        driver.fake_cuda_fail_call(ctypes.c_uint64(number), code)
        try:
            made, _ = broker(gpu, region_bytes=2 << 20, capacity_bytes=4 << 20, shares=True)
            results.append(type(made).__name__)
        except DeviceError as error:
            results.append(type(error).__name__)
    driver.fake_cuda_fail_call(ctypes.c_uint64(0), 0)
    return results
print(*brokers(801))
print(*brokers(46))
print(*brokers(2))
print(broker(gpu, region_bytes=2 << 20, capacity_bytes=4 << 20, shares=False)[0])
print(broker(gpu, region_bytes=2 << 20, capacity_bytes=512 << 20, least_bytes=2 << 20, shares=True)[1] >> 20)
"""
    refused, lost, full, private, fewer = run(source, environment(library)).splitlines()
    assert 240 <= int(fewer) <= 256  # the device has 256 MB, half of the requested capacity
    assert refused.split() == ["NoneType"] * 4
    assert lost.split() == ["DeviceLostError"] * 4
    assert full.split() == ["DeviceMemoryError"] * 4
    assert private == "None"


@pytest.mark.by_day("another process")
@pytest.mark.parametrize(
    ("settings", "shared", "message"),
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
def test_a_broker_checks_that_another_process_can_use_a_region_before_it_makes_all_regions(
    library: Path, settings: dict[str, str], shared: str, message: str
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
    *log, kind = run(source, environment(library, **settings)).splitlines()
    assert kind == shared
    assert message in "".join(log)


LISTENER = """
import sys
from indb_tensile.device.cuda import CudaRegions
regions = CudaRegions(0, int(sys.argv[1]))
print("mapped", flush=True)
sys.stdin.read()
"""


def test_released_regions_leave_no_memory_in_any_process_and_come_back_also_if_a_trainer_crashes(
    library: Path,
) -> None:
    source = """
import os, signal, socket, subprocess, sys
from contextlib import closing
from indb_tensile.controller.shared_regions import SharedRegions
from indb_tensile.device.cuda import CudaBroker
from indb_tensile.scheduler.admission.pool import TrainerId
from tests.native.cuda_double import physical_bytes
from tests.native.ledger_trainers import wait_until

def start(number):
    own_end, trainer_end = socket.socketpair()
    with trainer_end:
        command = [sys.executable, "-c", sys.argv[1], str(trainer_end.fileno())]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        trainer = subprocess.Popen(command, pass_fds=(trainer_end.fileno(),), **pipes)
    shared.send(TrainerId(number), own_end)
    trainer.stdout.readline()
    return trainer

def change(begin, regions):
    begin(regions)
    wait_until(lambda: shared._change.done(), goal="the change")
    return shared.take_created(), physical_bytes(os.getpid()) >> 20, shared.made_bytes >> 20

with closing(SharedRegions(CudaBroker(0, 2 << 20, 16), 2 << 20)) as shared:
    trainers = [start(number) for number in range(3)]
    print(physical_bytes(os.getpid()) >> 20)
    print(*change(shared.release, [12, 13, 14, 15]))
    os.kill(trainers[1].pid, signal.SIGSTOP)  # it neither answers nor ends
    shared.release([8, 9])
    os.kill(trainers[1].pid, signal.SIGKILL)
    trainers[1].wait()
    wait_until(lambda: shared._change.done(), goal="the change")
    print(shared.take_created(), physical_bytes(os.getpid()) >> 20)
    print(*change(shared.create, [8, 9, 15]))
    trainers.append(start(3))
    print(*change(shared.create, [12]))
    for trainer in (trainers[0], trainers[2], trainers[3]):
        trainer.stdin.close()
        assert trainer.wait() == 0
"""
    assert run(source, environment(library), LISTENER).splitlines() == [
        "32",
        "() 24 24",
        "() 20",
        "(8, 9, 15) 26 26",
        "(12,) 28 28",
    ]


def test_no_region_is_exported_for_a_spare_trainer_without_a_job(library: Path) -> None:
    source = """
import os, socket, threading
from indb_tensile.device.cuda import CudaBroker, CudaRegions
broker = CudaBroker(0, 2 << 20, 100)
pairs = [socket.socketpair() for _ in range(8)]
before = len(os.listdir("/proc/self/fd"))
senders = [threading.Thread(target=broker.send, args=(own_end.fileno(),)) for own_end, _ in pairs]
for sender in senders:
    sender.start()
for _, trainer_end in pairs:
    trainer_end.recv(1, socket.MSG_PEEK)  # the broker's greeting has arrived
print(len(os.listdir("/proc/self/fd")) - before)
for _, trainer_end in pairs:
    CudaRegions(0, trainer_end.fileno()).touch()
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


@pytest.mark.nightly
def test_doctor_reports_the_gpu_and_whether_it_can_be_used(library: Path) -> None:
    source = "from indb_tensile.cli.doctor import _gpu; print(_gpu())"
    assert run(source, environment(library)).startswith("(True, 'Fake GPU 0 with 256 MB, driver for CUDA 12.8, ")
    assert run(source, environment(library, FAKE_CUDA_VERSION="11080")).startswith(
        "(False, 'the driver supports CUDA 11.8, and 12.0 is needed', "
    )
    assert run(source, environment(library, FAKE_CUDA_DEVICES="0")).startswith(
        "(True, 'none: the CUDA driver sees no GPU', "
    )


@pytest.mark.nightly
def test_the_gpu_suite_runs_on_the_double_without_the_packages_that_a_gpu_machine_lacks(
    library: Path, tmp_path: Path
) -> None:
    source = """
import sys
for name in ("psycopg", "sqlalchemy", "msgspec"):
    sys.modules[name] = None
import pytest
import tests.gpu.steps, tests.gpu.trainer_process  # need torch and must not need the packages above
options = ["-q", "-p", "no:cacheprovider", "--confcutdir=tests/gpu", "tests/gpu"]
sys.exit(pytest.main([*options, "-k", "swapped or mapped or broker or maps or released"]))
"""
    results = tmp_path / "results"
    settings = {"FAKE_CUDA_MEMORY_MB": "4096", "TENSILE_GPU_RESULTS": str(results)}
    assert "5 passed" in run(source, environment(library, **settings))
    assert [json.loads(line)["measured"] for line in results.read_text().splitlines()] == [
        "mapping",
        "capacity",
        "change of regions",
        "change of regions",
        "memory that changes of regions free and take",
        "whole device",
    ]


def test_the_gpus_back_end_passes_the_suite_of_every_device(library: Path) -> None:
    source = """
import ctypes, pytest
class Profile:
    def pytest_configure(self):  # as tests/conftest.py, which this run leaves out
        from hypothesis import settings
        settings.register_profile("double", max_examples=25, derandomize=True, deadline=None)
        settings.load_profile("double")
suite = ["tests/device/test_device.py", "tests/device/test_arena.py"]
ended = pytest.main(["-q", "--noconftest", "-p", "no:cacheprovider", "-k", "cuda", *suite], plugins=[Profile()])
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_cuda_violations.restype = ctypes.c_char_p
print(int(ended), "violations:", driver.fake_cuda_violations().decode())
"""
    output = run(source, environment(library, FAKE_CUDA_MEMORY_MB="2048", TENSILE_TEST_DEVICES="cuda"))
    assert output.splitlines()[-1] == "0 violations: ", output
