"""Check how the controller grants, revokes and releases device and host memory in the native device ledger."""

import os

import pytest

from indb_tensile.catalog.plans import JobUse
from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.device.device import EmulatedDevice
from indb_tensile.device.ledger import Ledger, Region, RegionState
from indb_tensile.errors import DeviceMemoryError
from indb_tensile.job import ClaimedJob, ClaimToken, JobId
from indb_tensile.scheduler.admission.pool import Member, Pool, RunningSet, TrainerId
from tests.controller.fakes import spec

MIB = 1 << 20


def test_host_pool_memory_of_a_trainer_stays_reserved_until_its_release() -> None:
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


def test_regions_of_a_dead_trainer_stay_reserved_until_its_release() -> None:
    with Ledger.create(8 * MIB, MIB, 1000, 1000) as ledger:
        memory = DeviceMemory(ledger, kind="fake")
        dead, alive = TrainerId(1), TrainerId(2)
        slot, epoch = memory.claim(dead, os.getpid())
        memory.grant(dead, 5 * MIB)
        memory.claim(alive, os.getpid())
        memory.revoke(dead)
        memory.grant(dead, 8 * MIB)  # a grant that was decided before the controller knew of the death
        with pytest.raises(DeviceMemoryError, match="does not fit beside 5242880 bytes granted to others"):
            memory.grant(alive, 4 * MIB)
        assert ledger.regions()[0] == Region(state=RegionState.EMPTY, slot=slot, epoch=epoch)
        memory.release(dead)
        memory.release(dead)
        memory.grant(alive, 8 * MIB)
        assert {region.slot for region in ledger.regions()} == {slot + 1}


def test_use_of_a_job_has_its_grant_and_its_speed_beside_the_others() -> None:
    with Ledger.create(8 * MIB, MIB, 1000, 1000) as ledger:
        memory = DeviceMemory(ledger, kind="fake")
        members = tuple(
            Member(
                job=ClaimedJob(job=JobId(n), claim=ClaimToken(n), attempt=1, owner_oid=10, spec=spec("train")),
                trainer=TrainerId(n) if n < 3 else None,
            )
            for n in (1, 2, 3)
        )
        for trainer, granted_bytes in ((TrainerId(1), 5 * MIB), (TrainerId(2), 2 * MIB)):
            memory.claim(trainer, os.getpid())
            memory.grant(trainer, granted_bytes)
        running_set = RunningSet(jobs=(JobId(1), JobId(2)), speeds=((JobId(1), 0.5),))
        pool = Pool(budget_bytes=8 * MIB, region_bytes=MIB, members=members, running_set=running_set)
        assert memory.use(pool)[1] == (
            JobUse(job=JobId(1), granted_bytes=5 * MIB, used_bytes=0, high_water_bytes=0, speed=0.5),
            JobUse(job=JobId(2), granted_bytes=2 * MIB, used_bytes=0, high_water_bytes=0, speed=None),
        )
