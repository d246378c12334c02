"""A GPU's load as the controller reads it, from a double of the management library."""

import logging

import pynvml
import pytest

from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.controller.load_gauge import DeviceLoad, GpuGauge
from indb_tensile.device.ledger import Ledger
from indb_tensile.scheduler.admission.pool import Pool
from tests.device.test_nvml import UUID, FakeLibrary, started

MIB = 1 << 20


def test_what_is_used_beside_the_regions_is_others() -> None:
    nvml = started(FakeLibrary())
    read = GpuGauge(nvml, UUID, regions_bytes=256).read()
    assert read == DeviceLoad(busy_percent=80, memory_busy_percent=25, outside_bytes=44)
    assert GpuGauge(nvml, UUID, regions_bytes=400).read().outside_bytes == 0  # not all of them are made yet


def test_a_driver_that_tells_less_leaves_it_open() -> None:
    silent = FakeLibrary(errors={"rates": pynvml.NVML_ERROR_NOT_SUPPORTED})
    assert GpuGauge(started(silent), UUID, regions_bytes=256).read() == DeviceLoad(outside_bytes=44)


def test_a_device_that_does_not_answer_is_complained_of_once_until_it_does(caplog: pytest.LogCaptureFixture) -> None:
    library = FakeLibrary(errors={"memory": pynvml.NVML_ERROR_GPU_IS_LOST})
    gauge = GpuGauge(started(library), UUID, regions_bytes=256)
    caplog.set_level(logging.WARNING)
    assert gauge.read() == gauge.read() == DeviceLoad()
    library.errors.clear()
    assert gauge.read().busy_percent == 80
    library.errors["memory"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert gauge.read() == DeviceLoad()
    said = f"the device's load is unknown: device {UUID}: NVML answers: GPU is lost"
    assert [record.message for record in caplog.records] == [said, said]


def test_without_regions_of_its_own_a_controller_does_not_know_what_others_have() -> None:
    assert GpuGauge(started(FakeLibrary()), UUID, regions_bytes=None).read().outside_bytes is None


def test_the_load_is_written_beside_what_jobs_use() -> None:
    with Ledger.create(8 * MIB, MIB, 1000, 1000) as ledger:
        gauge = GpuGauge(started(FakeLibrary()), UUID, regions_bytes=256)
        pool = Pool(budget_bytes=8 * MIB, region_bytes=MIB)
        use, _ = DeviceMemory(ledger, kind="fake", gauge=gauge).use(pool)
        assert (use.busy_percent, use.memory_busy_percent, use.outside_bytes) == (80, 25, 44)
        use, _ = DeviceMemory(ledger, kind="emulated").use(pool)
        assert (use.busy_percent, use.memory_busy_percent, use.outside_bytes) == (None, None, None)
