"""What a GPU has room for while trainers and other programs come and go."""

from dataclasses import dataclass, field, replace

import pytest

from indb_tensile.controller.device_room import DeviceRoom, Headroom, RoomLimits
from indb_tensile.controller.load_gauge import DeviceLoad
from indb_tensile.device.nvml import Process, Reading
from indb_tensile.scheduler.admission.admission_orders import RequeueJob
from tests.controller.fakes import MIB, stage

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
class Kept:
    """The footprints that were kept, in order."""

    sizes: list[int] = field(default_factory=list)

    def headroom(self, limits: RoomLimits, footprint_bytes: int = 50) -> Headroom:
        return Headroom(limits, footprint_bytes, self.sizes.append)


def test_the_footprint_of_a_trainer_is_measured_as_trainers_attach_and_kept() -> None:
    kept = Kept()
    headroom = kept.headroom(SHARED)
    headroom.look(reading(820, {}), frozenset(), 0)  # the driver has 20
    headroom.look(reading(850, {7: None}), frozenset({7}), 100)
    headroom.look(reading(860, {7: None, 9: 5}), frozenset({7}), 100)  # another program has 5
    headroom.look(reading(920, {7: None, 8: None}), frozenset({7, 8}), 100)
    headroom.look(reading(900, {7: None, 8: None}), frozenset({7, 8}), 100)
    assert kept.sizes == [30, 35, 50]
    assert headroom.footprint_bytes == 50


def test_where_all_regions_are_made_no_more_jobs_start_than_find_room_beside_them() -> None:
    headroom = Kept().headroom(SHARED)
    assert headroom.look(reading(800, {}), frozenset(), 0) == DeviceRoom(budget_bytes=800, max_jobs=4)
    assert headroom.look(reading(880, {9: 80}), frozenset(), 0) == DeviceRoom(budget_bytes=800, max_jobs=2)
    assert headroom.look(reading(990, {9: 190}), frozenset(), 0).max_jobs == 1
    assert headroom.look(reading(800, {}), frozenset(), 0).max_jobs == 4


def test_where_trainers_make_their_own_jobs_have_less_while_others_have_more() -> None:
    headroom = Kept().headroom(PRIVATE)
    assert headroom.look(reading(0, {}), frozenset(), 0).budget_bytes == 800
    assert headroom.look(reading(300, {9: 300}), frozenset(), 0).budget_bytes == 500
    assert headroom.look(reading(280, {9: 280}), frozenset(), 0).budget_bytes == 500  # too little to plan anew for
    assert headroom.look(reading(250, {9: 250}), frozenset(), 0).budget_bytes == 550
    assert headroom.look(reading(990, {9: 990}), frozenset(), 0).budget_bytes == 10
    assert headroom.look(reading(0, {}), frozenset(), 0).budget_bytes == 800


@pytest.mark.parametrize("processes", [None, {1: 5}])
def test_where_nobody_tells_whose_memory_is_whose_trainers_count_as_they_were_known(
    processes: dict[int, int | None] | None,
) -> None:
    kept = Kept()
    headroom = kept.headroom(PRIVATE)
    trainers = frozenset({70, 80})  # under other ids in the namespace that the driver lists
    assert headroom.look(reading(600, processes), trainers, 200).budget_bytes == 500
    assert kept.sizes == []


@dataclass
class FakeGauge:
    """A device as its driver shows it."""

    reading: Reading | None = None

    def read(self) -> DeviceLoad:
        return DeviceLoad()


def test_a_program_that_takes_memory_shrinks_the_jobs_and_ends_nobody() -> None:
    gauge = FakeGauge(reading(0, {}, 20 * MIB))
    limits = RoomLimits(budget_bytes=16 * MIB, capacity_bytes=16 * MIB, region_bytes=MIB, max_jobs=4, shared=False)
    with stage(gauge=gauge, headroom=Kept().headroom(limits, MIB), max_jobs=4) as s:
        job = s.records.enqueue("train", 10 * MIB)
        s.until_adopted(job)
        gauge.reading = reading(15 * MIB, None, 20 * MIB)  # the job's 10, its trainer's 1, and 4 of others
        s.until(lambda: s.controller.pool.budget_bytes == 12 * MIB)
        gauge.reading = reading(11 * MIB, None, 20 * MIB)
        s.until(lambda: s.controller.pool.budget_bytes == 16 * MIB)
        assert not [w for w in s.records.written if isinstance(w, RequeueJob)]
