"""Keeps the device's ledger for the controller: one slot for each trainer that has a job.

The memory of a dead trainer is freed in two steps. `revoke`, when its process has ended: the epoch of its slot ends,
and its regions stay reserved. `release`, when no process that could write to them is left: they are wiped and free.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.controller.device_room import DeviceRoom, Headroom
from indb_tensile.controller.load_gauge import Gauge, NoGauge
from indb_tensile.device.ledger import DeviceUsage, SlotUsage
from indb_tensile.errors import DeviceError
from indb_tensile.job import JobId, Slot
from indb_tensile.scheduler.admission.pool import Pool, TrainerId

log = logging.getLogger("controller")

_RETRY_LOOKS = 10  # between two attempts to create regions for which the device had no memory


class ChangingRegions(Protocol):
    """The methods of a GPU's shared regions (shared_regions.py) that the controller uses."""

    made_bytes: int

    @property
    def changing(self) -> bool:
        """True until `take_created` has returned the result of a change."""
        ...

    def release(self, regions: Sequence[int]) -> None:
        """Begin to release the memory of these regions."""
        ...

    def create(self, regions: Sequence[int]) -> None:
        """Begin to allocate these regions."""
        ...

    def take_created(self) -> tuple[int, ...]:
        """Return the regions that a complete change has created, once."""
        ...

    def take_refusing(self) -> frozenset[TrainerId]:
        """Return the trainers that have not followed a change, each once."""
        ...


class Account(Protocol):
    """The methods of `executor.device.Ledger` that the controller uses."""

    @property
    def fd(self) -> int:
        """The descriptor that trainers inherit."""
        ...

    def claim_slot(self, pid: int) -> tuple[Slot, int]:
        """Claim a free slot for this process. Returns the slot and the epoch that its writes must carry."""
        ...

    def grant(self, slot: Slot, size_bytes: int) -> int:
        """Let the slot use this many bytes. Returns them rounded up to whole regions. Raises DeviceMemoryError."""
        ...

    def set_pool(self, size_bytes: int) -> int:
        """Give a round this many bytes of free regions, and return the bytes that it has. 0 takes all back."""
        ...

    def revoke_slot(self, slot: Slot) -> None:
        """End the slot's epoch: the ledger refuses its writes from now on. Its regions stay reserved."""
        ...

    def release_slot(self, slot: Slot) -> None:
        """Free the slot and its regions."""
        ...

    def withdraw(self, count: int) -> tuple[int, ...]:
        """Make at most this many free regions absent, and return them."""
        ...

    def restore(self, regions: Sequence[int]) -> None:
        """Make absent regions free, after they have got memory again."""
        ...

    def usage(self, slot: Slot) -> SlotUsage:
        """Return the use of the slot."""
        ...

    def device_usage(self) -> DeviceUsage:
        """Return the use of the whole device."""
        ...


class DeviceMemory:
    """Stores the slot of each trainer. Trainers inherit `fd`."""

    def __init__(
        self,
        account: Account,
        *,
        kind: str,
        gauge: Gauge | None = None,
        headroom: Headroom | None = None,
        regions: ChangingRegions | None = None,
    ) -> None:
        """`headroom` is given for a GPU that other programs use too, `regions` if the controller makes them."""
        self._regions = regions
        self._absent: set[int] = set()  # the regions without memory, or about to have none
        self._pause_looks = 0  # before regions are created again
        self._headroom = headroom
        self._account = account
        self._gauge = gauge or NoGauge()
        self._kind = kind
        self._slots: dict[TrainerId, Slot] = {}
        self._revoked: dict[TrainerId, SlotUsage] = {}  # the last use, which the ledger no longer has
        self._beside_bytes: dict[TrainerId, int] = {}  # of those with a slot, and of dead ones until their release
        self._wanted_pool_bytes = 0
        self._pool_settled = True

    @property
    def fd(self) -> int:
        """The ledger's descriptor."""
        return self._account.fd

    def claim(self, trainer: TrainerId, pid: int, beside_bytes: int = 0) -> tuple[Slot, int]:
        """Claim a slot for a trainer. Returns it with its epoch. Raises DeviceError if no slot is free.

        `beside_bytes` are kept free for what this trainer takes beside its footprint and every plan, until `release`.
        """
        slot, epoch = self._account.claim_slot(pid)
        self._slots[trainer] = slot
        self._beside_bytes[trainer] = beside_bytes
        return slot, epoch

    def grant(self, trainer: TrainerId, grant_bytes: int) -> int | None:
        """Set a trainer's grant. Returns the bytes that it then has, or None for a dead trainer, whose grant stays.

        The result exceeds a lowered grant while regions beyond it are in use; call this again to take them back when
        they are empty. Raises DeviceError if the trainer uses more than the grant, or if the device has less.
        """
        if trainer in self._revoked:
            return None
        slot = self._slots.get(trainer)
        if slot is None:
            raise DeviceError(f"trainer {trainer} has no slot in the device's ledger")
        self._account.grant(slot, grant_bytes)
        return self._account.usage(slot).held_bytes

    def slot(self, trainer: TrainerId) -> Slot:
        """Return a trainer's slot, also after its death. Raises DeviceError if it has none."""
        if trainer in self._revoked:
            return self._revoked[trainer].slot
        if trainer not in self._slots:
            raise DeviceError(f"trainer {trainer} has no slot in the device's ledger")
        return self._slots[trainer]

    def set_pool(self, size_bytes: int) -> None:
        """Give a round this many bytes of free regions; 0 takes them back.

        If too few regions are free, `refill_pool` gives it the others later.
        """
        self._wanted_pool_bytes = size_bytes
        pool_bytes = self._account.set_pool(size_bytes)
        self._pool_settled = pool_bytes == size_bytes
        if not self._pool_settled:
            log.warning("a round has %d bytes of regions, and is to have %d", pool_bytes, size_bytes)

    def refill_pool(self) -> None:
        """Give a round the regions that were not free at `set_pool`."""
        if not self._pool_settled:
            self.set_pool(self._wanted_pool_bytes)

    def revoke(self, trainer: TrainerId) -> None:
        """End the epoch of a dead trainer's slot, if it has one. The slot stays taken until `release`."""
        slot = self._slots.pop(trainer, None)
        if slot is not None:
            self._revoked[trainer] = self._account.usage(slot)
            self._account.revoke_slot(slot)

    def release(self, trainer: TrainerId) -> None:
        """Free everything that the trainer had. Does nothing if it has no slot."""
        self._beside_bytes.pop(trainer, None)
        self.revoke(trainer)
        usage = self._revoked.pop(trainer, None)
        if usage is not None:
            self._account.release_slot(usage.slot)

    def allow(self, budget_bytes: int) -> int:
        """Set the budget. Returns the bytes that jobs may have now: fewer if the device has less room."""
        if self._headroom is None:
            return budget_bytes
        self._headroom.limits = replace(self._headroom.limits, budget_bytes=budget_bytes)
        room = self.room()
        return budget_bytes if room is None else room.budget_bytes

    def room(self) -> DeviceRoom | None:
        """Return the room on the device at the last call of `use`; None if it is unknown.

        The budget never exceeds the memory of the regions that exist.
        """
        if self._headroom is None or self._gauge.reading is None:
            return None
        slots = [*map(self._account.usage, self._slots.values()), *self._revoked.values()]
        trainers = frozenset(slot.pid for slot in slots if slot.pid)
        held_bytes = sum(slot.held_bytes for slot in slots)
        beside_bytes = sum(self._beside_bytes.values())
        if self._regions is None:
            return self._headroom.look(self._gauge.reading, trainers, held_bytes, beside_bytes=beside_bytes)
        room = self._headroom.look(
            self._gauge.reading, trainers, held_bytes, self._regions.made_bytes, beside_bytes=beside_bytes
        )
        usage = self._account.device_usage()
        present_bytes = usage.capacity_bytes - usage.absent_bytes
        return replace(room, budget_bytes=min(room.budget_bytes, present_bytes))

    def take_refusing(self) -> frozenset[TrainerId]:
        """Return the trainers that have not followed a change of regions, each once: they must end."""
        return frozenset() if self._regions is None else self._regions.take_refusing()

    def restore_regions(self) -> None:
        """Let jobs use the regions that have been created since the last call."""
        if self._regions is None:
            return
        created = self._regions.take_created()
        self._account.restore(created)
        self._absent.difference_update(created)

    def fit_regions(self, regions_bytes: int) -> None:
        """Begin to release or create regions, until this much of the device's memory is in regions.

        Only free regions are released, so call this again as jobs shrink. Jobs' budget must not exceed
        `regions_bytes`.
        """
        if self._regions is None or self._regions.changing:
            return
        usage = self._account.device_usage()
        missing = (regions_bytes - usage.capacity_bytes + usage.absent_bytes) // usage.region_bytes
        self._pause_looks = max(0, self._pause_looks - 1)
        if missing < 0:
            withdrawn = self._account.withdraw(-missing)
            if withdrawn:
                self._absent.update(withdrawn)
                self._regions.release(withdrawn)
        elif missing and self._absent and not self._pause_looks:
            self._pause_looks = _RETRY_LOOKS
            self._regions.create(sorted(self._absent)[:missing])

    def use(self, pool: Pool) -> tuple[DeviceUse, tuple[JobUse, ...]]:
        """Return the use of the device as a whole and by each job, for the catalog."""
        whole, load = self._account.device_usage(), self._gauge.read()
        speeds = dict(pool.running_set.speeds)
        shares = tuple(
            replace(share, speed=speeds.get(share.job), lent_bytes=member.lent_bytes)
            for member in pool.members
            if (share := self._share(member.job.job, member.trainer)) is not None
        )
        use = DeviceUse(
            kind=self._kind,
            capacity_bytes=whole.capacity_bytes,
            budget_bytes=pool.budget_bytes,
            granted_bytes=whole.granted_bytes,
            used_bytes=whole.used_bytes,
            high_water_bytes=whole.high_water_bytes,
            host_bytes=whole.host_bytes,
            busy_percent=load.busy_percent,
            memory_busy_percent=load.memory_busy_percent,
            outside_bytes=load.outside_bytes,
        )
        return use, shares

    def _share(self, job: JobId, trainer: TrainerId | None) -> JobUse | None:
        slot = None if trainer is None else self._slots.get(trainer)
        if slot is None:
            return None
        usage = self._account.usage(slot)
        return JobUse(
            job=job,
            granted_bytes=usage.granted_bytes + usage.lent_bytes,
            used_bytes=usage.used_bytes,
            high_water_bytes=usage.high_water_bytes,
        )
