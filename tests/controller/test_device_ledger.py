"""The device's use as the catalog sees it."""

import os

import pytest

from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.device.device import EmulatedDevice
from indb_tensile.device.ledger import Ledger, Region, RegionState
from indb_tensile.errors import DeviceMemoryError
from indb_tensile.scheduler.admission.pool import Pool, TrainerId

MIB = 1 << 20


def test_what_trainers_have_of_the_host_pool_is_theirs_until_nothing_is_left_of_them() -> None:
    with Ledger.create(8 * MIB, MIB, 1000, 1000, host_bytes=3 * MIB) as ledger:
        memory = DeviceMemory(ledger, kind="fake")
        pool = Pool(budget_bytes=8 * MIB, region_bytes=MIB)
        first, second = TrainerId(1), TrainerId(2)
        devices = [EmulatedDevice(ledger.fd, *memory.claim(t, os.getpid()), 3 * MIB) for t in (first, second)]
        for device, size_bytes in zip(devices, (2 * MIB, MIB), strict=True):
            device.host_fit(size_bytes)
        assert memory.use(pool)[0].host_bytes == 3 * MIB
        memory.revoke(first)
        with pytest.raises(
            DeviceMemoryError, match="of its 3145728 bytes this job has 1048576 and others have 2097152"
        ):
            devices[1].host_fit(2 * MIB)
        memory.release(first)
        devices[1].host_fit(3 * MIB)
        assert memory.use(pool)[0].host_bytes == 3 * MIB


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
