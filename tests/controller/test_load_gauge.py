"""Check how the controller reads a GPU's load, with a double of the management library."""

import logging
from dataclasses import dataclass

import pynvml
import pytest

from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.controller.load_gauge import DeviceLoad, GpuGauge
from indb_tensile.device.ledger import Ledger
from indb_tensile.scheduler.admission.pool import Pool
from tests.device.fake_nvml import UUID, FakeLibrary, started

MIB = 1 << 20


@dataclass
class RegionsOf:
    """Shared regions of this size."""

    made_bytes: int
    changing: bool = False


def test_memory_outside_the_regions_counts_as_outside_memory() -> None:
    nvml = started(FakeLibrary())
    read = GpuGauge(nvml, UUID, regions=RegionsOf(256)).read()
    assert read == DeviceLoad(busy_percent=80, memory_busy_percent=25, outside_bytes=44)
    assert GpuGauge(nvml, UUID, regions=RegionsOf(400)).read().outside_bytes == 0  # not all regions are allocated yet


def test_rates_that_the_driver_does_not_support_are_unknown() -> None:
    silent = FakeLibrary(errors={"rates": pynvml.NVML_ERROR_NOT_SUPPORTED})
    assert GpuGauge(started(silent), UUID, regions=RegionsOf(256)).read() == DeviceLoad(outside_bytes=44)


def test_unreadable_load_is_logged_once_until_it_can_be_read_again(caplog: pytest.LogCaptureFixture) -> None:
    library = FakeLibrary(errors={"memory": pynvml.NVML_ERROR_GPU_IS_LOST})
    gauge = GpuGauge(started(library), UUID, regions=RegionsOf(256))
    caplog.set_level(logging.WARNING)
    assert gauge.read() == gauge.read() == DeviceLoad()
    library.errors.clear()
    assert gauge.read().busy_percent == 80
    library.errors["memory"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert gauge.read() == DeviceLoad()
    warning = f"the device's load is unknown: device {UUID}: NVML answers: GPU is lost"
    assert [record.message for record in caplog.records] == [warning, warning]


def test_outside_memory_is_unknown_without_shared_regions() -> None:
    assert GpuGauge(started(FakeLibrary()), UUID, regions=None).read().outside_bytes is None


def test_memory_outside_is_unknown_while_regions_are_changing() -> None:
    regions = RegionsOf(256, changing=True)
    gauge = GpuGauge(started(FakeLibrary()), UUID, regions=regions)
    assert gauge.read() == DeviceLoad(busy_percent=80, memory_busy_percent=25)
    assert gauge.reading is None
    regions.changing, regions.made_bytes = False, 200
    assert gauge.read().outside_bytes == 100
    assert gauge.reading is not None


def test_load_is_recorded_with_the_device_use() -> None:
    with Ledger.create(8 * MIB, MIB, 1000, 1000) as ledger:
        gauge = GpuGauge(started(FakeLibrary()), UUID, regions=RegionsOf(256))
        pool = Pool(budget_bytes=8 * MIB, region_bytes=MIB)
        use, _ = DeviceMemory(ledger, kind="fake", gauge=gauge).use(pool)
        assert (use.busy_percent, use.memory_busy_percent, use.outside_bytes) == (80, 25, 44)
        use, _ = DeviceMemory(ledger, kind="emulated").use(pool)
        assert (use.busy_percent, use.memory_busy_percent, use.outside_bytes) == (None, None, None)
