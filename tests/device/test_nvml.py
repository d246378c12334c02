"""NVML's readings, its missing readings, and a machine without NVML."""

import pynvml
import pytest

from indb_tensile.device.nvml import NoNvml, Nvml, Process, Reading
from indb_tensile.errors import DeviceError, DeviceLostError
from tests.device.fake_nvml import UUID, FakeLibrary, started


def test_memory_utilisation_and_processes_of_a_device_are_read() -> None:
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


def test_a_partition_of_a_gpu_is_identified_by_the_drivers_uuid() -> None:
    assert started(FakeLibrary(uuid=UUID.replace("GPU", "MIG"))).read(UUID).used_bytes == 300
    with pytest.raises(DeviceError, match=f"device {UUID}: NVML answers: Not Found"):
        started(FakeLibrary(uuid="GPU-0")).read(UUID)


def test_a_reading_that_nvml_refuses_is_none() -> None:
    library = FakeLibrary(
        errors={"rates": pynvml.NVML_ERROR_NOT_SUPPORTED, "processes": pynvml.NVML_ERROR_NO_PERMISSION}
    )
    assert started(library).read(UUID) == Reading(
        total_bytes=1000, used_bytes=300, busy_percent=None, memory_busy_percent=None, processes=None
    )


@pytest.mark.parametrize("function", ["handle", "memory", "rates", "processes"])
def test_a_lost_device_is_distinguished_from_another_fault(function: str) -> None:
    nvml = started(FakeLibrary(errors={function: pynvml.NVML_ERROR_GPU_IS_LOST}))
    with pytest.raises(DeviceLostError, match=f"device {UUID}: NVML answers: GPU is lost"):
        nvml.read(UUID)
    nvml = started(FakeLibrary(errors={function: pynvml.NVML_ERROR_UNKNOWN}))
    with pytest.raises(DeviceError, match="NVML answers: Unknown Error") as raised:
        nvml.read(UUID)
    assert type(raised.value) is DeviceError


def test_on_a_machine_without_the_library_the_reason_is_returned() -> None:
    library = FakeLibrary(errors={"init": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND})
    assert Nvml.start(library) == NoNvml(reason="NVML does not start: NVML Shared Library Not Found")


def test_the_real_library_starts_or_gives_the_reason() -> None:
    match Nvml.start():
        case NoNvml(reason=reason):
            assert reason.startswith("NVML does not start: ")
        case nvml:
            nvml.close()


def test_a_failed_shutdown_is_an_error_of_the_device() -> None:
    with pytest.raises(DeviceError, match="NVML does not end: Uninitialized"):
        started(FakeLibrary(errors={"shutdown": pynvml.NVML_ERROR_UNINITIALIZED})).close()


def test_the_processes_include_each_client_of_mps_once() -> None:
    with started(FakeLibrary(clients=(3, 7, 12))) as nvml:
        assert nvml.read(UUID).processes == (
            Process(pid=3, used_bytes=50),
            Process(pid=7, used_bytes=200),
            Process(pid=12, used_bytes=50),
        )


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
def test_without_readings_of_mps_the_other_processes_are_returned(error: int) -> None:
    with started(FakeLibrary(errors={"clients": error})) as nvml:
        assert [process.pid for process in nvml.read(UUID).processes or ()] == [7, 12]
