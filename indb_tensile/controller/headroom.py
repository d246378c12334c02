"""What a GPU has room for while other programs use it too: how much jobs may have, and how many may run.

Beside the jobs' memory every trainer needs its footprint (executor/headroom.py). What NVML counts as used is the
jobs' memory, the trainers' footprints, and the rest: other programs and the driver. The rest comes and goes. Where
each trainer makes memory of its own, jobs plan for less of it while others have more. Where the controller holds all
regions, that would give nobody a byte: there new jobs wait while the room beside the regions is too small for another
trainer. Nothing ends for it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from indb_tensile.executor.nvml import Process, Reading

log = logging.getLogger("controller")

_WAVERING = 4  # a place that lacks this part of a footprint still is one: the driver's own use wavers, too
_RISE_REGIONS = 4  # jobs plan anew for a larger budget where it is larger by this much: others' use wavers


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The room on a device: bytes for jobs, and how many jobs may run at the same time."""

    budget_bytes: int
    max_jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the settings allow. `shared`: the controller has made all regions, the capacity; else trainers do."""

    budget_bytes: int
    capacity_bytes: int
    region_bytes: int
    max_jobs: int
    shared: bool


class Headroom:
    """Follows a device's use. `keep` is given each new footprint of a trainer, the largest so far."""

    def __init__(self, limits: Limits, footprint_bytes: int, keep: Callable[[int], None]) -> None:
        self.limits = limits
        self.footprint_bytes = footprint_bytes
        self._keep = keep
        self._measured_bytes = 0
        self._idle_bytes: int | None = None  # of the rest, what belongs to no process: the driver's
        self._allowed_bytes = limits.budget_bytes

    def look(self, reading: Reading, trainers: frozenset[int], held_bytes: int) -> Room:
        """What there is room for. `trainers` are the processes with a job; `held_bytes` the memory that jobs hold."""
        limits = self.limits
        made_bytes = limits.capacity_bytes if limits.shared else held_bytes
        beside_bytes = max(0, reading.used_bytes - made_bytes)
        others_bytes = _others(reading.processes, trainers)
        if others_bytes is None:  # nobody tells whose: footprints are what they were known to be
            rest_bytes = max(0, beside_bytes - len(trainers) * self.footprint_bytes)
        else:
            if not trainers:
                self._idle_bytes = max(0, beside_bytes - others_bytes)
            elif self._idle_bytes is not None:
                self._measure((beside_bytes - others_bytes - self._idle_bytes) // len(trainers))
            rest_bytes = others_bytes + (self._idle_bytes or 0)
        return self._room(reading, rest_bytes)

    def _room(self, reading: Reading, rest_bytes: int) -> Room:
        limits = self.limits
        free_bytes = reading.total_bytes - rest_bytes
        if limits.shared:
            beside_bytes = max(0, free_bytes - limits.capacity_bytes)
            places = (beside_bytes + self.footprint_bytes // _WAVERING) // max(1, self.footprint_bytes)
            return Room(budget_bytes=limits.budget_bytes, max_jobs=max(1, min(limits.max_jobs, places)))
        budget_bytes = min(limits.budget_bytes, free_bytes - limits.max_jobs * self.footprint_bytes)
        if budget_bytes < limits.budget_bytes:
            budget_bytes = max(limits.region_bytes, budget_bytes - budget_bytes % limits.region_bytes)
            if 0 < budget_bytes - self._allowed_bytes < _RISE_REGIONS * limits.region_bytes:
                budget_bytes = self._allowed_bytes
        self._allowed_bytes = budget_bytes
        return Room(budget_bytes=budget_bytes, max_jobs=limits.max_jobs)

    def _measure(self, size_bytes: int) -> None:
        """The largest counts: a trainer that has just attached has not loaded all its kernels."""
        if size_bytes <= self._measured_bytes:
            return
        self._measured_bytes = size_bytes
        if size_bytes != self.footprint_bytes:
            log.info("a trainer takes %d bytes of the device beside the jobs' memory", size_bytes)
            self.footprint_bytes = size_bytes
            self._keep(size_bytes)


def _others(processes: tuple[Process, ...] | None, trainers: frozenset[int]) -> int | None:
    """What processes that are no trainers of ours use; None where that is not told.

    In a container the ids may be another namespace's: then none of ours is listed.
    """
    if processes is None or (trainers and trainers.isdisjoint(one.pid for one in processes)):
        return None
    used = [one.used_bytes for one in processes if one.pid not in trainers]
    return None if None in used else sum(size_bytes or 0 for size_bytes in used)
