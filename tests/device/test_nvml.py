"""NVML's answers, its silences and its absence."""

from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

from indb_tensile.device.nvml import Library, NoNvml, Nvml, Process, Reading
from indb_tensile.errors import DeviceError, DeviceLostError

UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"


@dataclass
class Row:
    """Whatever a function of the library answers: a structure with these fields."""

    fields: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.fields[name]


@dataclass
class FakeLibrary:
    """Answers as the real one; `errors` names the functions that raise and what."""

    errors: dict[str, int] = field(default_factory=dict)
    uuid: str = UUID
    started: int = 0
    used_bytes: int = 300
    clients: tuple[int, ...] = ()

    def _enter(self, name: str) -> None:
        if name in self.errors:
            raise pynvml.NVMLError(self.errors[name])

    def nvmlInit(self) -> None:
        self._enter("init")
        self.started += 1

    def nvmlShutdown(self) -> None:
        self._enter("shutdown")
        self.started -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Any:
        self._enter("handle")
        if uuid != self.uuid:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "handle"

    def nvmlDeviceGetMemoryInfo(self, handle: Any, /) -> Any:
        assert handle == "handle"
        self._enter("memory")
        return Row({"total": 1000, "used": self.used_bytes})

    def nvmlDeviceGetUtilizationRates(self, handle: Any, /) -> Any:
        assert handle == "handle"
        self._enter("rates")
        return Row({"gpu": 80, "memory": 25})

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any, /) -> Any:
        assert handle == "handle"
        self._enter("processes")
        return [Row({"pid": 12, "usedGpuMemory": None}), Row({"pid": 7, "usedGpuMemory": 200})]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Any, /) -> Any:
        assert handle == "handle"
        self._enter("clients")
        return [Row({"pid": pid, "usedGpuMemory": 50}) for pid in self.clients]


def started(library: Library) -> Nvml:
    nvml = Nvml.start(library)
    assert isinstance(nvml, Nvml)
    return nvml


def test_a_device_is_read_over_all_processes() -> None:
    library = FakeLibrary()
    with started(library) as nvml:
        assert nvml.read(UUID) == Reading(
            total_bytes=1000,
            used_bytes=300,
            busy_percent=80,
            memory_busy_percent=25,
            processes=(Process(pid=7, used_bytes=200), Process(pid=12, used_bytes=None)),
        )
    assert library.started == 0


def test_a_part_of_a_gpu_is_found_by_the_uuid_that_the_driver_gives_it() -> None:
    assert started(FakeLibrary(uuid=UUID.replace("GPU", "MIG"))).read(UUID).used_bytes == 300
    with pytest.raises(DeviceError, match=f"device {UUID}: NVML answers: Not Found"):
        started(FakeLibrary(uuid="GPU-0")).read(UUID)


def test_what_a_device_or_user_is_not_told_is_none() -> None:
    library = FakeLibrary(
        errors={"rates": pynvml.NVML_ERROR_NOT_SUPPORTED, "processes": pynvml.NVML_ERROR_NO_PERMISSION}
    )
    assert started(library).read(UUID) == Reading(
        total_bytes=1000, used_bytes=300, busy_percent=None, memory_busy_percent=None, processes=None
    )


@pytest.mark.parametrize("function", ["handle", "memory", "rates", "processes"])
def test_a_device_that_is_lost_is_told_from_another_fault(function: str) -> None:
    nvml = started(FakeLibrary(errors={function: pynvml.NVML_ERROR_GPU_IS_LOST}))
    with pytest.raises(DeviceLostError, match=f"device {UUID}: NVML answers: GPU is lost"):
        nvml.read(UUID)
    nvml = started(FakeLibrary(errors={function: pynvml.NVML_ERROR_UNKNOWN}))
    with pytest.raises(DeviceError, match="NVML answers: Unknown Error") as raised:
        nvml.read(UUID)
    assert type(raised.value) is DeviceError


def test_a_machine_without_the_library_is_told_so() -> None:
    library = FakeLibrary(errors={"init": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND})
    assert Nvml.start(library) == NoNvml(reason="NVML does not start: NVML Shared Library Not Found")


def test_the_real_library_starts_or_says_why_it_does_not() -> None:
    match Nvml.start():
        case NoNvml(reason=reason):
            assert reason.startswith("NVML does not start: ")
        case nvml:
            nvml.close()


def test_an_end_that_fails_is_a_fault_of_the_device() -> None:
    with pytest.raises(DeviceError, match="NVML does not end: Uninitialized"):
        started(FakeLibrary(errors={"shutdown": pynvml.NVML_ERROR_UNINITIALIZED})).close()


def test_clients_of_mps_are_among_the_processes_each_once() -> None:
    with started(FakeLibrary(clients=(3, 7, 12))) as nvml:
        assert nvml.read(UUID).processes == (
            Process(pid=3, used_bytes=50),
            Process(pid=7, used_bytes=200),
            Process(pid=12, used_bytes=50),
        )


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
def test_a_driver_that_tells_nothing_of_mps_tells_the_other_processes(error: int) -> None:
    with started(FakeLibrary(errors={"clients": error})) as nvml:
        assert [one.pid for one in nvml.read(UUID).processes or ()] == [7, 12]
