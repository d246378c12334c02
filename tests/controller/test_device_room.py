"""Check how many jobs and which budget a GPU has room for while trainers and other programs start and end."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.controller.device_room import DeviceRoom, Headroom, RoomLimits
from indb_tensile.controller.load_gauge import DeviceLoad
from indb_tensile.device.nvml import Process, Reading
from indb_tensile.job import ClaimedRank, ClaimToken
from indb_tensile.scheduler.admission.admission_orders import RequeueJob
from indb_tensile.scheduler.admission.pool import TrainerId
from tests.controller.fakes import (
    MIB,
    FakeLedger,
)
from tests.controller.harness import controller_harness

PRIVATE = RoomLimits(budget_bytes=800, capacity_bytes=800, region_bytes=10, max_jobs=4, shared=False, rise_looks=1)
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


def test_other_programs_lower_the_budget_of_shared_regions_and_new_jobs_wait_until_the_regions_are_released() -> None:
    headroom = StoredFootprints().headroom(SHARED)

    def room(others_bytes: int, regions_bytes: int) -> DeviceRoom:
        listed = reading(regions_bytes + others_bytes, {9: others_bytes} if others_bytes else {})
        return headroom.look(listed, frozenset(), 0, regions_bytes)

    assert room(0, 800) == DeviceRoom(budget_bytes=800, max_jobs=4, regions_bytes=800)
    assert room(12, 800) == DeviceRoom(budget_bytes=800, max_jobs=4, regions_bytes=800)  # less than 1/4 footprint
    assert room(80, 800) == DeviceRoom(budget_bytes=720, max_jobs=2, regions_bytes=720)
    assert room(80, 720) == DeviceRoom(budget_bytes=720, max_jobs=4, regions_bytes=720)
    assert room(125, 720) == DeviceRoom(budget_bytes=670, max_jobs=3, regions_bytes=670)
    assert room(190, 800).max_jobs == 1
    assert room(90, 610) == DeviceRoom(budget_bytes=710, max_jobs=4, regions_bytes=710)
    assert room(0, 610) == DeviceRoom(budget_bytes=800, max_jobs=4, regions_bytes=800)


def test_fixed_capacity_that_leaves_no_room_for_all_jobs_is_not_reduced_unless_other_programs_come() -> None:
    headroom = StoredFootprints().headroom(replace(SHARED, capacity_bytes=900, budget_bytes=900, fixed=True))
    assert headroom.look(reading(920, {}), frozenset(), 0, 900) == DeviceRoom(
        budget_bytes=900, max_jobs=1, regions_bytes=900
    )
    assert headroom.look(reading(970, {9: 50}), frozenset(), 0, 900).regions_bytes == 850


def test_lower_setting_of_the_budget_releases_no_region() -> None:
    headroom = StoredFootprints().headroom(replace(SHARED, budget_bytes=300))
    room = headroom.look(reading(800, {}), frozenset(), 0, 800)
    assert (room.budget_bytes, room.regions_bytes) == (300, 800)
    headroom.limits = replace(headroom.limits, budget_bytes=600)
    assert headroom.look(reading(880, {9: 80}), frozenset(), 0, 800).budget_bytes == 600
    assert headroom.look(reading(1000, {9: 300}), frozenset(), 0, 700).budget_bytes == 500


@pytest.mark.parametrize("limits", [PRIVATE, SHARED])
def test_program_that_takes_and_returns_memory_every_second_lowers_the_budget_once(limits: RoomLimits) -> None:
    headroom = StoredFootprints().headroom(replace(limits, rise_looks=5))
    made_bytes = 800 if limits.shared else 0
    budgets = []
    for others_bytes in (0, 200, 0, 200, 0, 200, 0, 0, 0, 0, 0, 0):
        listed = reading(made_bytes + others_bytes, {9: others_bytes} if others_bytes else {}, 1200)
        if not limits.shared:
            listed = replace(listed, total_bytes=1000)
        budgets.append(headroom.look(listed, frozenset(), 0, made_bytes).budget_bytes)
    low = 600 if not limits.shared else 800
    assert budgets == [800] + [low] * 9 + [800, 800]


def test_larger_footprint_than_reserved_releases_regions_unless_a_setting_fixes_the_capacity() -> None:
    def rooms(limits: RoomLimits) -> list[DeviceRoom]:
        headroom = StoredFootprints().headroom(limits)
        headroom.look(reading(800, {}), frozenset(), 0, 800)
        first = headroom.look(reading(850, {7: None}), frozenset({7}), 100, 800)
        return [first, headroom.look(reading(930, {7: None, 8: None}), frozenset({7, 8}), 100, 800)]

    # Four trainers need 4 x 65 bytes beside the regions: 60 more than the 200 that were reserved.
    assert rooms(SHARED) == [
        DeviceRoom(budget_bytes=800, max_jobs=4, regions_bytes=800),
        DeviceRoom(budget_bytes=740, max_jobs=3, regions_bytes=740),
    ]
    assert rooms(replace(SHARED, fixed=True)) == [
        DeviceRoom(budget_bytes=800, max_jobs=4, regions_bytes=800),
        DeviceRoom(budget_bytes=800, max_jobs=3, regions_bytes=800),
    ]


def test_room_is_reserved_for_fewer_trainers_if_their_footprints_would_take_most_of_the_free_memory() -> None:
    headroom = StoredFootprints().headroom(SHARED)
    assert headroom.look(reading(1000, {9: 700}), frozenset(), 0, 300).regions_bytes == 150
    # The trainers that run have their footprints already.
    listed = {9: 700, **dict.fromkeys(range(4), None)}
    headroom = StoredFootprints().headroom(SHARED)
    assert headroom.look(reading(1000, listed), frozenset(range(4)), 0, 100).regions_bytes == 100


@given(
    looks=st.lists(
        st.tuples(st.integers(0, 1000), st.integers(0, 4), st.integers(0, 200), st.booleans()),
        min_size=1,
        max_size=20,
    ),
    fixed=st.booleans(),
)
def test_regions_and_reserve_fit_beside_other_programs_whatever_these_do(
    looks: list[tuple[int, int, int, bool]], *, fixed: bool
) -> None:
    headroom = StoredFootprints().headroom(replace(SHARED, fixed=fixed))
    made_bytes = 800
    for others_bytes, count, footprint_bytes, listed in looks:
        trainers = frozenset(range(1, count + 1))
        used_bytes = min(1000, made_bytes + others_bytes + count * footprint_bytes)
        processes = dict.fromkeys(trainers, None) | {9: others_bytes} if listed else None
        room = headroom.look(reading(used_bytes, processes), trainers, 0, made_bytes)
        assert 10 <= room.regions_bytes <= 800
        assert room.regions_bytes % 10 == 0
        assert room.budget_bytes == room.regions_bytes
        assert 1 <= room.max_jobs <= 4
        if room.regions_bytes > 10 and processes and not fixed:
            tolerated_bytes = headroom.footprint_bytes // 4
            assert room.regions_bytes + count * headroom.footprint_bytes + others_bytes <= 1000 + tolerated_bytes
        made_bytes = min(room.regions_bytes, max(10, 1000 - others_bytes) // 10 * 10)


def test_footprint_is_measured_when_the_driver_has_had_time_to_count_released_regions() -> None:
    footprints = StoredFootprints()
    headroom = footprints.headroom(replace(SHARED, rise_looks=3))
    headroom.look(reading(800, {}), frozenset(), 0, 800)
    # The driver still counts 100 bytes of regions that the controller has released.
    for _ in range(3):
        headroom.look(reading(830, {7: None}), frozenset({7}), 100, 700)
    headroom.look(reading(830, {7: None}), frozenset({7}), 100, 800)
    assert footprints.sizes == []
    headroom.look(reading(840, {7: None}), frozenset({7}), 100, 800)
    assert footprints.sizes == [40]
    for _ in range(5):
        headroom.look(reading(748, {7: None}), frozenset({7}), 100, 700)
    assert footprints.sizes == [40, 48]


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
    limits = RoomLimits(
        budget_bytes=16 * MIB,
        capacity_bytes=16 * MIB,
        region_bytes=MIB,
        max_jobs=4,
        shared=False,
        rise_looks=1,
    )
    with controller_harness(gauge=gauge, headroom=StoredFootprints().headroom(limits, MIB), max_jobs=4) as s:
        job = s.records.enqueue("train", 10 * MIB)
        s.until_adopted(job)
        gauge.reading = reading(15 * MIB, None, 20 * MIB)  # job: 10, footprint: 1, other programs: 4
        s.until(lambda: s.controller.pool.budget_bytes == 12 * MIB)
        gauge.reading = reading(11 * MIB, None, 20 * MIB)
        s.until(lambda: s.controller.pool.budget_bytes == 16 * MIB)
        assert not [w for w in s.records.written if isinstance(w, RequeueJob)]


@dataclass
class FakeChanges:
    """Shared regions whose changes are complete at once. `lacking` is the number of regions that find no memory."""

    made_bytes: int
    lacking: int = 0
    asked: list[tuple[str, int]] = field(default_factory=list)
    created: tuple[int, ...] | None = None
    refusing: frozenset[TrainerId] = frozenset()

    @property
    def changing(self) -> bool:
        return self.created is not None

    def release(self, regions: Sequence[int]) -> None:
        self.asked.append(("release", len(regions)))
        self.made_bytes -= len(regions) * MIB
        self.created = ()

    def create(self, regions: Sequence[int]) -> None:
        self.asked.append(("create", len(regions)))
        self.created = tuple(regions[: len(regions) - self.lacking])
        self.made_bytes += len(self.created) * MIB

    def take_created(self) -> tuple[int, ...]:
        created, self.created = self.created or (), None
        return created

    def take_refusing(self) -> frozenset[TrainerId]:
        refusing, self.refusing = self.refusing, frozenset()
        return refusing


@dataclass
class SharedDevice:
    """A device of 20 MiB with 16 MiB of shared regions, and the memory that other programs use."""

    changes: FakeChanges = field(default_factory=lambda: FakeChanges(16 * MIB))
    others_bytes: int = 0
    reading: Reading | None = None

    def read(self) -> DeviceLoad:
        used_bytes = self.changes.made_bytes + self.others_bytes
        self.reading = reading(used_bytes, {9: self.others_bytes}, 20 * MIB)
        return DeviceLoad()

    def headroom(self) -> Headroom:
        limits = RoomLimits(
            budget_bytes=16 * MIB,
            capacity_bytes=16 * MIB,
            region_bytes=MIB,
            max_jobs=4,
            shared=True,
            rise_looks=1,
        )
        return StoredFootprints().headroom(limits, MIB)


def test_rank_is_planned_for_beside_the_memory_of_its_connection_which_regions_make_room_for() -> None:
    device = SharedDevice()
    with controller_harness(gauge=device, headroom=device.headroom(), changing=device.changes, max_jobs=4) as s:
        job = s.records.enqueue("train", 6 * MIB)
        s.records.gangs[job] = ClaimedRank(rank=0, ranks=2, attempt_claim=ClaimToken(101), connection_bytes=5 * MIB)
        s.until(lambda: device.changes.made_bytes == 11 * MIB)
        assert s.controller.pool.budget_bytes == 11 * MIB
        s.until_adopted(job)
        s.trainers.kill_all()
        s.until(lambda: s.controller.pool.budget_bytes == 16 * MIB)
        assert device.changes.made_bytes == 16 * MIB


def test_regions_that_no_job_has_are_released_and_the_budget_rises_after_they_were_created_again() -> None:
    device = SharedDevice()
    with controller_harness(gauge=device, headroom=device.headroom(), changing=device.changes, max_jobs=4) as s:
        job = s.records.enqueue("train", 6 * MIB)
        s.until_adopted(job)
        device.others_bytes = 9 * MIB
        s.until(lambda: device.changes.made_bytes == 8 * MIB)
        assert s.controller.pool.budget_bytes == 8 * MIB
        assert s.ledger.absent_bytes == 8 * MIB
        device.others_bytes = 0
        s.until(lambda: s.controller.pool.budget_bytes == 16 * MIB)
        assert (device.changes.made_bytes, s.ledger.absent_bytes) == (16 * MIB, 0)
        assert sum(s.ledger.grants.values()) == 6 * MIB
        assert not [w for w in s.records.written if isinstance(w, RequeueJob)]


def test_regions_that_find_no_memory_are_granted_to_nobody_and_are_tried_again() -> None:
    device = SharedDevice()
    ledger = FakeLedger(16 * MIB)
    memory = DeviceMemory(ledger, kind="fake", gauge=device, headroom=device.headroom(), regions=device.changes)
    try:
        memory.fit_regions(10 * MIB)
        memory.restore_regions()
        device.changes.lacking = 4
        memory.fit_regions(16 * MIB)
        memory.restore_regions()
        device.read()
        room = memory.room()
        assert room is not None
        assert (ledger.absent_bytes, room.budget_bytes) == (4 * MIB, 12 * MIB)
        device.changes.lacking = 0
        for _ in range(20):
            memory.fit_regions(16 * MIB)
            memory.restore_regions()
        assert device.changes.asked == [("release", 6), ("create", 6), ("create", 4)]
        assert ledger.absent_bytes == 0
    finally:
        ledger.close()


def test_memory_of_a_dead_trainer_counts_as_the_jobs_until_it_is_reclaimed() -> None:
    gauge = FakeGauge(reading(15 * MIB, None, 20 * MIB))
    limits = replace(PRIVATE, budget_bytes=16 * MIB, capacity_bytes=16 * MIB, region_bytes=MIB)
    ledger = FakeLedger(16 * MIB)
    memory = DeviceMemory(ledger, kind="fake", gauge=gauge, headroom=StoredFootprints().headroom(limits, MIB))
    try:
        memory.claim(TrainerId(1), 70)
        memory.grant(TrainerId(1), 10 * MIB)
        alive = memory.room()
        memory.revoke(TrainerId(1))
        assert memory.room() == alive == DeviceRoom(budget_bytes=12 * MIB, max_jobs=4, regions_bytes=16 * MIB)
        memory.release(TrainerId(1))
        gauge.reading = reading(4 * MIB, None, 20 * MIB)
        assert memory.room() == alive
    finally:
        ledger.close()


def test_connection_of_a_rank_lowers_the_budget_before_and_while_it_has_its_memory() -> None:
    """120 bytes: the budget falls when the rank is claimed, and rises when it has ended."""
    footprints = StoredFootprints()
    headroom = footprints.headroom(SHARED)
    headroom.look(reading(800, {}), frozenset(), 0, 800)
    trainer = frozenset({7})
    before = headroom.look(reading(850, {7: None}), trainer, 0, 800)
    claimed = headroom.look(reading(850, {7: None}), trainer, 0, 800, beside_bytes=120)
    released = headroom.look(reading(730, {7: None}), trainer, 0, 680, beside_bytes=120)
    connected = headroom.look(reading(850, {7: None}), trainer, 0, 680, beside_bytes=120)
    ended = headroom.look(reading(730, {7: None}), trainer, 0, 680)
    assert before == DeviceRoom(budget_bytes=800, max_jobs=4, regions_bytes=800)
    assert claimed == DeviceRoom(budget_bytes=680, max_jobs=1, regions_bytes=680)
    assert released == connected == DeviceRoom(budget_bytes=680, max_jobs=4, regions_bytes=680)
    assert ended == DeviceRoom(budget_bytes=800, max_jobs=4, regions_bytes=800)
    assert footprints.sizes == [], "the connection is no part of a trainer's footprint"


def test_connection_of_a_rank_lowers_the_budget_of_trainers_that_make_their_regions() -> None:
    headroom = StoredFootprints().headroom(PRIVATE)
    headroom.look(reading(20, {}), frozenset(), 0)
    budgets = [
        headroom.look(reading(70 + beside_bytes, {7: None}), frozenset({7}), 0, beside_bytes=120).budget_bytes
        for beside_bytes in (0, 120)
    ]
    assert budgets == [660, 660]


def test_connection_is_reserved_beside_a_fixed_capacity_only_as_far_as_there_is_no_room_for_it() -> None:
    """200 bytes are reserved for four trainers; those beyond are room for the connection."""
    fixed = replace(SHARED, capacity_bytes=700, budget_bytes=700, fixed=True)
    for capacity_bytes, budget_bytes in ((700, 660), (600, 600)):
        limits = replace(fixed, capacity_bytes=capacity_bytes, budget_bytes=capacity_bytes)
        headroom = StoredFootprints().headroom(limits)
        headroom.look(reading(capacity_bytes + 20, {}), frozenset(), 0, capacity_bytes)
        used = reading(capacity_bytes + 70, {7: None})
        room = headroom.look(used, frozenset({7}), 0, capacity_bytes, beside_bytes=120)
        assert room.budget_bytes == budget_bytes


@pytest.mark.parametrize("limits", [PRIVATE, SHARED])
def test_connection_of_a_rank_is_not_counted_twice_where_the_owners_of_memory_are_unknown(limits: RoomLimits) -> None:
    headroom = StoredFootprints().headroom(limits)
    made_bytes = 800 if limits.shared else 0
    headroom.look(reading(20 + made_bytes, None), frozenset(), 0, made_bytes)
    budgets = []
    for used_bytes, made in ((70, made_bytes), (190, made_bytes and 660), (250, made_bytes and 660)):
        room = headroom.look(reading(used_bytes + made, None), frozenset({7}), 0, made, beside_bytes=120)
        budgets.append(room.budget_bytes)
    assert budgets == [660, 660, 600], "at last another program has taken 60"


def test_memory_beside_a_trainer_is_reserved_until_its_release() -> None:
    gauge = FakeGauge(reading(0, None, 20 * MIB))
    limits = replace(PRIVATE, budget_bytes=20 * MIB, capacity_bytes=20 * MIB, region_bytes=MIB)
    ledger = FakeLedger(20 * MIB)
    memory = DeviceMemory(ledger, kind="fake", gauge=gauge, headroom=StoredFootprints().headroom(limits, MIB))

    def budget() -> int:
        room = memory.room()
        assert room is not None
        return room.budget_bytes // MIB

    try:
        budgets = [budget()]
        memory.claim(TrainerId(1), 70, 5 * MIB)
        budgets.append(budget())
        memory.revoke(TrainerId(1))
        budgets.append(budget())
        memory.release(TrainerId(1))
        budgets.append(budget())
        assert budgets == [16, 11, 11, 16]
    finally:
        ledger.close()


def test_trainer_that_does_not_follow_a_change_ends_and_its_job_runs_again() -> None:
    device = SharedDevice()
    with controller_harness(gauge=device, headroom=device.headroom(), changing=device.changes, max_jobs=4) as s:
        job = s.records.enqueue("train", 4 * MIB)
        s.until_adopted(job)
        device.changes.refusing = frozenset({s.trainer_of(job)})
        requeue = s.until_requeued(job)
        assert "does not follow a change of the device's regions" in str(requeue)
