"""Members of a round borrow its regions and wait for each other in the ledger, also while some of them are killed."""

import mmap
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile import _native
from indb_tensile.device.device import EmulatedDevice
from indb_tensile.device.ledger import Ledger, Region, RegionState
from indb_tensile.errors import DeviceError, DeviceMemoryError, InvariantError
from indb_tensile.job import Slot
from tests.native.ledger_trainers import wait_until
from tests.nightly import nightly_unless

REGION_BYTES = 4096
REGIONS = 12
FAST = 10**12
NOW_NS, SOON_NS = 0, 10**9


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.create(REGIONS * REGION_BYTES, REGION_BYTES, FAST, FAST) as opened:
        yield opened


def _member(ledger: Ledger, base_regions: int) -> tuple[Slot, int, EmulatedDevice]:
    slot, epoch = ledger.claim_slot(os.getpid())
    ledger.grant(slot, base_regions * REGION_BYTES)
    return slot, epoch, EmulatedDevice(ledger.fd, slot, epoch, 0)


def _lent(ledger: Ledger, slot: Slot, epoch: int, places: int) -> _native.LentRegions:
    return _native.LentRegions(ledger.fd, slot, epoch, 0, places)


def _states(ledger: Ledger) -> dict[RegionState, int]:
    states = [region.state for region in ledger.regions()]
    return {state: states.count(state) for state in set(states)}


# --- regions ---------------------------------------------------------------------------------------------------


def test_two_members_whose_peaks_together_exceed_the_device_take_turns_with_the_rounds_regions(
    ledger: Ledger,
) -> None:
    """Each has 2 regions of its own and needs 8 more at its peak. 20 regions would be needed without a round."""
    first_member, first_epoch, first = _member(ledger, 2)
    two, second_epoch, second = _member(ledger, 2)
    assert ledger.set_pool(8 * REGION_BYTES) == 8 * REGION_BYTES
    places = list(range(8))
    lent, also_lent = _lent(ledger, first_member, first_epoch, 8), _lent(ledger, two, second_epoch, 8)
    for member, regions in ((first, lent), (second, also_lent)) * 3:
        assert regions.take_for(places, NOW_NS)
        member.move(0, 10 * REGION_BYTES)
        assert ledger.device_usage().granted_bytes == 12 * REGION_BYTES
        member.move(8 * REGION_BYTES, 0)
        regions.give(places)
        member.move(2 * REGION_BYTES, 0)
    assert ledger.device_usage().high_water_bytes == 10 * REGION_BYTES


def test_member_cannot_use_more_than_its_grant_and_what_it_borrowed(ledger: Ledger) -> None:
    slot, epoch, device = _member(ledger, 1)
    ledger.set_pool(3 * REGION_BYTES)
    lent = _lent(ledger, slot, epoch, 3)
    assert lent.take_for([0, 2], NOW_NS)
    assert ledger.usage(slot).lent_bytes == lent.held_bytes() == 2 * REGION_BYTES
    device.move(0, 3 * REGION_BYTES)
    with pytest.raises(DeviceMemoryError, match="exceeds the grant of 12288 bytes by 1"):
        device.move(0, 1)


def test_region_is_lent_to_one_member_at_a_time_and_another_waits_for_it(ledger: Ledger) -> None:
    first_member, first_epoch, _ = _member(ledger, 1)
    two, second_epoch, _ = _member(ledger, 1)
    ledger.set_pool(2 * REGION_BYTES)
    first, second = _lent(ledger, first_member, first_epoch, 2), _lent(ledger, two, second_epoch, 1)
    assert first.take_for([0, 1], NOW_NS)
    assert not second.take_for([0], NOW_NS)
    taking = threading.Thread(target=lambda: second.take_for([0], 60 * SOON_NS))
    taking.start()
    first.give([1])
    taking.join()
    assert (first.held_bytes(), second.held_bytes()) == (REGION_BYTES, REGION_BYTES)


def test_regions_that_join_the_round_later_wake_a_member_that_waits_for_them(ledger: Ledger) -> None:
    slot, epoch, _ = _member(ledger, 1)
    lent = _lent(ledger, slot, epoch, 1)
    taking = threading.Thread(target=lambda: lent.take_for([0], 60 * SOON_NS))
    taking.start()
    ledger.set_pool(REGION_BYTES)
    taking.join()
    assert lent.held_bytes() == REGION_BYTES


def test_member_takes_the_regions_again_that_it_had_and_maps_none_anew(ledger: Ledger) -> None:
    slot, epoch, _ = _member(ledger, 1)
    ledger.set_pool(5 * REGION_BYTES)
    with mmap.mmap(-1, 5 * REGION_BYTES) as room:
        view = (memoryview(room), _address(room))
        lent = _native.LentRegions(ledger.fd, slot, epoch, view[1], 5)
        for _ in range(4):
            assert lent.take_for([0, 1, 4], NOW_NS)
            lent.give([1, 4])
            assert lent.take_for([2, 4], NOW_NS)
            lent.give([0, 2, 4])
        assert lent.mapped_count() == 4
        del lent
        view[0].release()


def test_bytes_in_a_lent_place_are_the_devices(ledger: Ledger) -> None:
    slot, epoch, device = _member(ledger, 1)
    ledger.set_pool(REGION_BYTES)
    with mmap.mmap(-1, REGION_BYTES) as room:
        lent = _native.LentRegions(ledger.fd, slot, epoch, _address(room), 1)
        assert lent.take_for([0], NOW_NS)
        room[:4] = b"here"
        (region,) = [n for n, r in enumerate(ledger.regions()) if r.state is RegionState.LENT]
        with mmap.mmap(ledger.fd, 0) as whole:
            assert whole.find(b"here") % REGION_BYTES == 0
        assert ledger.regions()[region] == Region(state=RegionState.LENT, backed=True, slot=slot, epoch=epoch)
        del lent
    assert device.usage().used_bytes == 0


def test_place_that_does_not_exist_is_refused(ledger: Ledger) -> None:
    slot, epoch, _ = _member(ledger, 1)
    with pytest.raises(InvariantError, match="place 3: this part of the block has 3 places"):
        _lent(ledger, slot, epoch, 3).take_for([3], NOW_NS)


def test_lowered_grant_does_not_count_what_a_member_has_borrowed(ledger: Ledger) -> None:
    slot, epoch, device = _member(ledger, 4)
    ledger.set_pool(3 * REGION_BYTES)
    lent = _lent(ledger, slot, epoch, 3)
    assert lent.take_for([0, 1, 2], NOW_NS)
    device.move(0, 5 * REGION_BYTES)
    assert ledger.grant(slot, 2 * REGION_BYTES) == 2 * REGION_BYTES
    with pytest.raises(DeviceMemoryError, match="cannot be lowered to 4096 bytes while 8192 bytes are in use"):
        ledger.grant(slot, REGION_BYTES)


def test_regions_of_a_member_that_died_are_the_rounds_again_and_hold_zeros(ledger: Ledger) -> None:
    slot, epoch, device = _member(ledger, 1)
    ledger.set_pool(2 * REGION_BYTES)
    with mmap.mmap(-1, 2 * REGION_BYTES) as room:
        lent = _native.LentRegions(ledger.fd, slot, epoch, _address(room), 2)
        assert lent.take_for([0, 1], NOW_NS)
        room[:6] = b"secret"
        device.move(0, 3 * REGION_BYTES)
        ledger.revoke_slot(slot)
        assert _states(ledger)[RegionState.LENT] == 2
        assert ledger.set_pool(0) == 2 * REGION_BYTES
        ledger.release_slot(slot)
        assert _states(ledger) == {RegionState.POOLED: 2, RegionState.FREE: REGIONS - 2}
        assert bytes(room[:6]) == bytes(6)
        with pytest.raises(DeviceError, match="epoch 1 is over"):
            lent.give([0])
        del lent
    assert ledger.device_usage().used_bytes == 0
    next_slot, _ = ledger.claim_slot(1)
    assert (next_slot, ledger.usage(next_slot).lent_bytes) == (slot, 0)
    assert ledger.set_pool(0) == 0
    assert _states(ledger) == {RegionState.FREE: REGIONS}


def test_round_gets_no_more_regions_than_are_free(ledger: Ledger) -> None:
    _member(ledger, 9)
    assert ledger.set_pool(5 * REGION_BYTES) == 3 * REGION_BYTES
    assert ledger.device_usage().pooled_bytes == 3 * REGION_BYTES


# --- progress --------------------------------------------------------------------------------------------------


def test_progress_is_only_ever_raised(ledger: Ledger) -> None:
    passages = _native.Passages(ledger.fd)
    for round_, boundary, expected in (
        (1, 5, (1, 5)),
        (1, 3, (1, 5)),
        (2, 0, (2, 0)),
        (1, 99, (2, 0)),
        (2, 1, (2, 1)),
    ):
        passages.advance(3, round_, boundary)
        assert passages.progress(3) == expected
    assert passages.progress(2) == (0, 0)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), min_size=1),
    st.tuples(st.integers(1, 3), st.integers(0, 5)),
)
def test_wait_is_over_exactly_if_the_largest_progress_is_far_enough(
    reports: list[tuple[int, int]], until: tuple[int, int]
) -> None:
    with Ledger.create(REGION_BYTES, REGION_BYTES, FAST, FAST, None) as ledger:
        passages = _native.Passages(ledger.fd)
        for report in reports:
            passages.advance(0, *report)
        assert passages.wait_for(0, *until, NOW_NS) == (max(reports) >= until)


def test_waiting_process_is_woken_by_progress_and_by_the_end_of_the_round(ledger: Ledger) -> None:
    passages = _native.Passages(ledger.fd)
    for way in ("progress", "end"):
        waiting = threading.Thread(target=lambda: passages.wait_for(1, 1, 7, 60 * SOON_NS))
        waiting.start()
        if way == "progress":
            passages.advance(1, 1, 7)
        else:
            passages.end(1)
        waiting.join()
    assert passages.is_over(1)
    assert not passages.is_over(2)
    assert not passages.wait_for(1, 2, 0, NOW_NS)


def test_unknown_slot_and_boundary_are_refused(ledger: Ledger) -> None:
    passages = _native.Passages(ledger.fd)
    with pytest.raises(InvariantError, match="slot 64: the device has slots 0 to 63"):
        passages.advance(64, 1, 0)
    with pytest.raises(InvariantError, match="round 0 has no boundary 0"):
        passages.advance(0, 0, 0)


# --- kills -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", nightly_unless(lambda members: members < 12, [5, 12]))
def test_no_region_is_lost_or_lent_twice_when_members_are_killed_at_any_moment(ledger: Ledger, members: int) -> None:
    """Members of two kinds take and give places until they are killed. Then everything is free again."""
    fork = multiprocessing.get_context("fork")
    choose = random.Random(5)
    ledger.set_pool(6 * REGION_BYTES)
    running: list[tuple[Slot, multiprocessing.process.BaseProcess]] = []
    for number in range(members):
        slot, epoch = ledger.claim_slot(1)
        ledger.grant(slot, REGION_BYTES)
        process: multiprocessing.process.BaseProcess = fork.Process(
            target=_borrow_for_ever, args=(ledger.fd, slot, epoch, number)
        )
        process.start()
        running.append((slot, process))
        wait_until(_has_borrowed(ledger, slot), goal="the member has borrowed")
        if len(running) == 3:
            died, victim = running.pop(choose.randrange(3))
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
            ledger.release_slot(died)
        usage = ledger.device_usage()
        assert usage.granted_bytes == (6 + len(running)) * REGION_BYTES
        assert usage.high_water_bytes <= usage.capacity_bytes
    for slot, process in running:
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        ledger.release_slot(slot)
    assert _states(ledger) == {RegionState.POOLED: 6, RegionState.FREE: REGIONS - 6}
    assert ledger.device_usage().used_bytes == 0


def _has_borrowed(ledger: Ledger, slot: Slot) -> Callable[[], bool]:
    return lambda: ledger.usage(slot).high_water_bytes > REGION_BYTES


def _borrow_for_ever(fd: int, slot: Slot, epoch: int, seed: int) -> None:
    device = EmulatedDevice(fd, slot, epoch, 0)
    lent, choose = _native.LentRegions(fd, slot, epoch, 0, 2), random.Random(seed)
    while True:
        places = choose.choice(([0], [1], [0, 1]))
        if not lent.take_for(places, SOON_NS):
            os._exit(3)
        used_bytes = REGION_BYTES + lent.held_bytes()
        device.move(0, used_bytes)
        device.move(used_bytes, 0)
        lent.give(places)


def _address(room: mmap.mmap) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(room))
