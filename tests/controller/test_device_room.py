"""Check how many jobs and which budget a GPU has room for while trainers and other programs start and end."""

from dataclasses import dataclass, field, replace

import pytest

from indb_tensile.controller.device_room import DeviceRoom, Headroom, RoomLimits
from indb_tensile.controller.load_gauge import DeviceLoad
from indb_tensile.device.nvml import Process, Reading
from indb_tensile.scheduler.admission.admission_orders import RequeueJob
from tests.controller.fakes import MIB, controller_harness

PRIVATE = RoomLimits(budget_bytes=800, capacity_bytes=800, region_bytes=10, max_jobs=4, shared=False)
SHARED = replace(PRIVATE, shared=True)


def reading(used_bytes: int, processes: dict[int, int | None] | None, total_bytes: int = 1000) -> Reading:
    listed = None
    if processes is not None:
        listed = tuple(Process(pid=pid, used_bytes=size) for pid, size in sorted(processes.items()))
    return Reading(
        total_bytes=total_bytes,
        used_bytes=used_bytes,
        busy_percent=None,
        memory_busy_percent=None,
        processes=listed,
    )


@dataclass
class StoredFootprints:
    """The footprints that were stored, in order."""

    sizes: list[int] = field(default_factory=list)

    def headroom(self, limits: RoomLimits, footprint_bytes: int = 50) -> Headroom:
        return Headroom(limits, footprint_bytes, self.sizes.append)


def test_footprint_is_measured_and_stored_when_trainers_attach() -> None:
    footprints = StoredFootprints()
    headroom = footprints.headroom(SHARED)
    headroom.look(reading(820, {}), frozenset(), 0)  # the driver uses 20
    headroom.look(reading(850, {7: None}), frozenset({7}), 100)
    headroom.look(reading(860, {7: None, 9: 5}), frozenset({7}), 100)  # another program uses 5
    headroom.look(reading(920, {7: None, 8: None}), frozenset({7, 8}), 100)
    headroom.look(reading(900, {7: None, 8: None}), frozenset({7, 8}), 100)
    assert footprints.sizes == [30, 35, 50]
    assert headroom.footprint_bytes == 50


def test_memory_beside_shared_regions_limits_the_number_of_jobs() -> None:
    headroom = StoredFootprints().headroom(SHARED)
    assert headroom.look(reading(800, {}), frozenset(), 0) == DeviceRoom(budget_bytes=800, max_jobs=4)
    assert headroom.look(reading(880, {9: 80}), frozenset(), 0) == DeviceRoom(budget_bytes=800, max_jobs=2)
    assert headroom.look(reading(990, {9: 190}), frozenset(), 0).max_jobs == 1
    assert headroom.look(reading(800, {}), frozenset(), 0).max_jobs == 4


def test_memory_of_other_programs_lowers_the_budget_of_private_regions() -> None:
    headroom = StoredFootprints().headroom(PRIVATE)
    assert headroom.look(reading(0, {}), frozenset(), 0).budget_bytes == 800
    assert headroom.look(reading(300, {9: 300}), frozenset(), 0).budget_bytes == 500
    assert headroom.look(reading(280, {9: 280}), frozenset(), 0).budget_bytes == 500  # too small a change
    assert headroom.look(reading(250, {9: 250}), frozenset(), 0).budget_bytes == 550
    assert headroom.look(reading(990, {9: 990}), frozenset(), 0).budget_bytes == 10
    assert headroom.look(reading(0, {}), frozenset(), 0).budget_bytes == 800


@pytest.mark.parametrize("processes", [None, {1: 5}])
def test_stored_footprint_counts_where_the_driver_does_not_list_the_trainers(
    processes: dict[int, int | None] | None,
) -> None:
    footprints = StoredFootprints()
    headroom = footprints.headroom(PRIVATE)
    trainers = frozenset({70, 80})  # the driver lists the ids of another process namespace
    assert headroom.look(reading(600, processes), trainers, 200).budget_bytes == 500
    assert footprints.sizes == []


@dataclass
class FakeGauge:
    """A load gauge with a reading that the test sets."""

    reading: Reading | None = None

    def read(self) -> DeviceLoad:
        return DeviceLoad()


def test_program_that_takes_memory_lowers_the_budget_and_ends_no_job() -> None:
    gauge = FakeGauge(reading(0, {}, 20 * MIB))
    limits = RoomLimits(budget_bytes=16 * MIB, capacity_bytes=16 * MIB, region_bytes=MIB, max_jobs=4, shared=False)
    with controller_harness(gauge=gauge, headroom=StoredFootprints().headroom(limits, MIB), max_jobs=4) as s:
        job = s.records.enqueue("train", 10 * MIB)
        s.until_adopted(job)
        gauge.reading = reading(15 * MIB, None, 20 * MIB)  # job: 10, footprint: 1, other programs: 4
        s.until(lambda: s.controller.pool.budget_bytes == 12 * MIB)
        gauge.reading = reading(11 * MIB, None, 20 * MIB)
        s.until(lambda: s.controller.pool.budget_bytes == 16 * MIB)
        assert not [w for w in s.records.written if isinstance(w, RequeueJob)]
