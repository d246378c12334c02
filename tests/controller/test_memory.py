"""The device's use as the catalog sees it."""

import os

import pytest

from indb_tensile.controller.memory import DeviceMemory
from indb_tensile.errors import DeviceMemoryError
from indb_tensile.executor.device import Ledger, Region, RegionState
from indb_tensile.scheduler.admission.pool import Pool, TrainerId

MIB = 1 << 20


def test_what_trainers_hold_on_the_host_counts_while_they_have_a_slot() -> None:
    with Ledger.create(8 * MIB, MIB, 1000, 1000) as ledger:
        memory = DeviceMemory(ledger, kind="fake")
        pool = Pool(budget_bytes=8 * MIB, region_bytes=MIB)
        first, second = TrainerId(1), TrainerId(2)
        memory.claim(first, os.getpid())
        memory.claim(second, os.getpid())
        memory.note_host(first, 300)
        memory.note_host(second, 40)
        memory.note_host(second, 50)
        assert memory.use(pool)[0].host_bytes == 350
        memory.release(first)
        memory.note_host(first, 300)  # its last words arrive after its end
        assert memory.use(pool)[0].host_bytes == 50


def test_a_dead_trainers_regions_wait_until_nothing_is_left_of_it() -> None:
    with Ledger.create(8 * MIB, MIB, 1000, 1000) as ledger:
        memory = DeviceMemory(ledger, kind="fake")
        dead, alive = TrainerId(1), TrainerId(2)
        slot, epoch = memory.claim(dead, os.getpid())
        memory.grant(dead, 5 * MIB)
        memory.claim(alive, os.getpid())
        memory.revoke(dead)
        memory.grant(dead, 8 * MIB)  # decided before its death was known
        with pytest.raises(DeviceMemoryError, match="does not fit beside 5242880 bytes granted to others"):
            memory.grant(alive, 4 * MIB)
        assert ledger.regions()[0] == Region(state=RegionState.EMPTY, slot=slot, epoch=epoch)
        memory.release(dead)
        memory.release(dead)
        memory.grant(alive, 8 * MIB)
        assert {region.slot for region in ledger.regions()} == {slot + 1}
