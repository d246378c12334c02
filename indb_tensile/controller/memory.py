"""The device's ledger as the controller keeps it: one slot for each trainer that has a job.

What a dead trainer had comes back in two steps. `revoke`, when its process has ended: its epoch is over, and its
regions are in quarantine, still its own. `release`, when nothing is left that could write to them: they are wiped
and free.
"""

from dataclasses import replace
from typing import Protocol

from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.controller.gauge import Gauge, NoGauge
from indb_tensile.controller.headroom import Headroom, Room
from indb_tensile.errors import DeviceError
from indb_tensile.executor.device import DeviceUsage, SlotUsage
from indb_tensile.job import JobId, Slot
from indb_tensile.scheduler.admission.pool import Pool, TrainerId


class Account(Protocol):
    """The part of `executor.device.Ledger` that the controller uses."""

    @property
    def fd(self) -> int:
        """The descriptor that trainers inherit."""
        ...

    def claim_slot(self, pid: int) -> tuple[Slot, int]:
        """A free slot for this process, and the epoch its writes must carry."""
        ...

    def grant(self, slot: Slot, size_bytes: int) -> int:
        """Let the slot use so many bytes; returns them in whole regions. Raises DeviceMemoryError."""
        ...

    def revoke_slot(self, slot: Slot) -> None:
        """End the slot's epoch: its writes are refused from now on. What it holds stays its own."""
        ...

    def release_slot(self, slot: Slot) -> None:
        """Take back whatever the slot holds."""
        ...

    def usage(self, slot: Slot) -> SlotUsage:
        """What the slot holds."""
        ...

    def device_usage(self) -> DeviceUsage:
        """The device as a whole."""
        ...


class DeviceMemory:
    """Slots by trainer. `fd` is what trainers inherit."""

    def __init__(
        self, account: Account, *, kind: str, gauge: Gauge | None = None, headroom: Headroom | None = None
    ) -> None:
        """`headroom` follows a GPU that other programs use too."""
        self._headroom = headroom
        self._account = account
        self._gauge = gauge or NoGauge()
        self._kind = kind
        self._slots: dict[TrainerId, Slot] = {}
        self._revoked: dict[TrainerId, Slot] = {}

    @property
    def fd(self) -> int:
        """The ledger's descriptor."""
        return self._account.fd

    def claim(self, trainer: TrainerId, pid: int) -> tuple[Slot, int]:
        """A slot, and its epoch. Raises DeviceError when all are taken."""
        slot, epoch = self._account.claim_slot(pid)
        self._slots[trainer] = slot
        return slot, epoch

    def grant(self, trainer: TrainerId, grant_bytes: int) -> int | None:
        """Set a trainer's grant; what it holds then: more, where regions that a lower one takes back are in use.

        Those come back when they are empty and this is called again. A dead one's grant stays: None. Raises
        DeviceError where it uses more or the device has less.
        """
        if trainer in self._revoked:
            return None
        slot = self._slots.get(trainer)
        if slot is None:
            raise DeviceError(f"trainer {trainer} has no slot in the device's ledger")
        self._account.grant(slot, grant_bytes)
        return self._account.usage(slot).held_bytes

    def revoke(self, trainer: TrainerId) -> None:
        """The trainer is dead: nothing of it can use its slot, if it has one, which stays taken."""
        slot = self._slots.pop(trainer, None)
        if slot is not None:
            self._account.revoke_slot(slot)
            self._revoked[trainer] = slot

    def release(self, trainer: TrainerId) -> None:
        """Everything the trainer had is free; without a slot there is nothing to do."""
        self.revoke(trainer)
        slot = self._revoked.pop(trainer, None)
        if slot is not None:
            self._account.release_slot(slot)

    def allow(self, budget_bytes: int) -> int:
        """Set the budget. Returns the bytes that jobs may have now, which may be fewer where there is less room."""
        if self._headroom is None:
            return budget_bytes
        self._headroom.limits = replace(self._headroom.limits, budget_bytes=budget_bytes)
        room = self.room()
        return budget_bytes if room is None else room.budget_bytes

    def room(self) -> Room | None:
        """What the device had room for when it was last looked at (`use`); None where nobody tells."""
        if self._headroom is None or self._gauge.reading is None:
            return None
        slots = [self._account.usage(slot) for slot in (*self._slots.values(), *self._revoked.values())]
        trainers = frozenset(slot.pid for slot in slots if slot.pid)
        return self._headroom.look(self._gauge.reading, trainers, sum(slot.held_bytes for slot in slots))

    def use(self, pool: Pool) -> tuple[DeviceUse, tuple[JobUse, ...]]:
        """Who uses how much, for the catalog."""
        whole, load = self._account.device_usage(), self._gauge.read()
        shares = tuple(
            share for member in pool.members if (share := self._share(member.job.job, member.trainer)) is not None
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
            granted_bytes=usage.granted_bytes,
            used_bytes=usage.used_bytes,
            high_water_bytes=usage.high_water_bytes,
        )
