"""Computes the room on a GPU that other programs use too: the budget of jobs and how many jobs may run.

Beside the memory of its job, every trainer needs its footprint: a CUDA context, kernels, and memory of torch
(device/trainer_footprint.py). The memory that NVML counts as used is that of jobs, the footprints, and the rest:
other programs and the driver. The rest varies. If each trainer allocates its own regions, the jobs' budget shrinks
while other programs use more. If the controller holds all regions, a smaller budget would free no memory; instead,
new jobs wait while the memory outside the regions is too small for another trainer. No running job ends for this.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from indb_tensile.device.nvml import Process, Reading

log = logging.getLogger("controller")

# A place for a trainer still counts if it lacks up to 1/4 of a footprint, because the driver's own use varies too.
_TOLERATED_PART = 4
# A smaller rise of the budget is ignored unless it reaches the limit, because the use of other programs varies.
_LEAST_RISE_REGIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRoom:
    """The room on a device: bytes for jobs, and how many jobs may run at the same time."""

    budget_bytes: int
    max_jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomLimits:
    """The limits that the settings allow.

    `shared` is true if the controller has made all regions, `capacity_bytes` in total; otherwise trainers make them.
    """

    budget_bytes: int
    capacity_bytes: int
    region_bytes: int
    max_jobs: int
    shared: bool


class Headroom:
    """Follows a device's use. `keep` is called with each new largest footprint of a trainer."""

    def __init__(self, limits: RoomLimits, footprint_bytes: int, keep: Callable[[int], None]) -> None:
        self.limits = limits
        self.footprint_bytes = footprint_bytes
        self._keep = keep
        self._measured_bytes = 0
        self._idle_bytes: int | None = None  # the part of the rest that belongs to no process: the driver's
        self._allowed_bytes = limits.budget_bytes

    def look(self, reading: Reading, trainers: frozenset[int], held_bytes: int) -> DeviceRoom:
        """Return the room on the device.

        `trainers` are the processes with a job; `held_bytes` is the memory that jobs have allocated.
        """
        limits = self.limits
        made_bytes = limits.capacity_bytes if limits.shared else held_bytes
        beside_bytes = max(0, reading.used_bytes - made_bytes)
        others_bytes = _other_bytes(reading.processes, trainers)
        if others_bytes is None:  # the owners are unknown: the footprint keeps its last value
            rest_bytes = max(0, beside_bytes - len(trainers) * self.footprint_bytes)
        else:
            if not trainers:
                self._idle_bytes = max(0, beside_bytes - others_bytes)
            elif self._idle_bytes is not None:
                self._record_footprint((beside_bytes - others_bytes - self._idle_bytes) // len(trainers))
            rest_bytes = others_bytes + (self._idle_bytes or 0)
        return self._room(reading, rest_bytes)

    def _room(self, reading: Reading, rest_bytes: int) -> DeviceRoom:
        limits = self.limits
        free_bytes = reading.total_bytes - rest_bytes
        if limits.shared:
            beside_bytes = max(0, free_bytes - limits.capacity_bytes)
            places = (beside_bytes + self.footprint_bytes // _TOLERATED_PART) // max(1, self.footprint_bytes)
            return DeviceRoom(budget_bytes=limits.budget_bytes, max_jobs=max(1, min(limits.max_jobs, places)))
        budget_bytes = min(limits.budget_bytes, free_bytes - limits.max_jobs * self.footprint_bytes)
        if budget_bytes < limits.budget_bytes:
            budget_bytes = max(limits.region_bytes, budget_bytes - budget_bytes % limits.region_bytes)
            if 0 < budget_bytes - self._allowed_bytes < _LEAST_RISE_REGIONS * limits.region_bytes:
                budget_bytes = self._allowed_bytes
        self._allowed_bytes = budget_bytes
        return DeviceRoom(budget_bytes=budget_bytes, max_jobs=limits.max_jobs)

    def _record_footprint(self, size_bytes: int) -> None:
        """Keep the largest footprint: a trainer that has just attached has not loaded all its kernels."""
        if size_bytes <= self._measured_bytes:
            return
        self._measured_bytes = size_bytes
        if size_bytes != self.footprint_bytes:
            log.info("a trainer needs %d bytes of the device beside the memory of its job", size_bytes)
            self.footprint_bytes = size_bytes
            self._keep(size_bytes)


def _other_bytes(processes: tuple[Process, ...] | None, trainers: frozenset[int]) -> int | None:
    """Return the bytes of processes that are not trainers of this controller, or None if they are unknown.

    In a container NVML may list process ids of another namespace: then it lists no trainer of this controller.
    """
    if processes is None or (trainers and trainers.isdisjoint(process.pid for process in processes)):
        return None
    used = [process.used_bytes for process in processes if process.pid not in trainers]
    return None if None in used else sum(size_bytes or 0 for size_bytes in used)
