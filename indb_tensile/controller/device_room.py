"""Computes the room on a GPU that other programs use too: the budget of jobs and how many jobs may run.

Beside the memory of its job, every trainer needs its footprint: a CUDA context, kernels, and memory of torch
(device/trainer_footprint.py). The memory that NVML counts as used is that of jobs, the footprints, and the rest:
other programs and the driver. The rest varies, and while other programs use more the jobs' budget shrinks. If the
controller has made all regions, it also releases those beyond the budget, and creates them again when the other
programs use less. Until they are released, new jobs wait if the memory outside the regions is too small for another
trainer. No running job is ended for this purpose.

The connection of a rank by NCCL takes memory, too, while its job trains (executor/ranks/nccl_connection.py). The
budget falls by that as soon as a controller claims the rank, so before its first plan, and regions are released for
it. It rises again after the rank has ended.

A program can only allocate memory that is free. So the footprints' memory stays free for other programs too: as they
use it, regions are released until the same amount is free again. The same happens if trainers turn out to need more
than was reserved for them, unless a setting fixes the capacity: then fewer jobs run.

Each change of the budget makes all jobs change plans. So the budget falls at once, and rises only after the rest has
been lower for several looks: programs that take and return memory every second do not change plans every second.
"""

import logging
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from indb_tensile.device.nvml import Process, Reading
from indb_tensile.device.trainer_footprint import capacity_beside

log = logging.getLogger("controller")

# A place for a trainer still counts if it lacks up to 1/4 of a footprint, because the driver's own use varies too.
# For the same reason, regions are not released for so little memory.
_TOLERATED_PART = 4
# A smaller rise of the budget is ignored unless it reaches the limit, because the use of other programs varies.
_LEAST_RISE_REGIONS = 4
# The looks, one a second, for which a lower use of other programs must last before the budget rises. More looks
# change plans less often, and leave memory unused for longer.
_RISE_LOOKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRoom:
    """The room on a device: bytes for jobs, and how many jobs may run at the same time.

    `regions_bytes` is the size of the regions that may have memory.
    """

    budget_bytes: int
    max_jobs: int
    regions_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomLimits:
    """The limits that the settings allow.

    `shared` is true if the controller makes all regions, at most `capacity_bytes` in total; otherwise trainers make
    them. `fixed` is true if a setting names the capacity; otherwise it follows from the free memory and the
    footprints. `rise_looks` is the number of looks for which a lower use of other programs must last.
    """

    budget_bytes: int
    capacity_bytes: int
    region_bytes: int
    max_jobs: int
    shared: bool
    fixed: bool = False
    rise_looks: int = _RISE_LOOKS


class Headroom:
    """Follows a device's use. `keep` is called with each new largest footprint of a trainer."""

    def __init__(self, limits: RoomLimits, footprint_bytes: int, keep: Callable[[int], None]) -> None:
        self.limits = limits
        self.footprint_bytes = footprint_bytes
        self._keep = keep
        self._measured_bytes = 0
        self._idle_bytes: int | None = None  # the part of the rest that belongs to no process: the driver's
        self._rest_bytes: deque[int] = deque(maxlen=limits.rise_looks)  # at the last looks
        self._least_rest_bytes = sys.maxsize
        self._allowed_bytes = limits.capacity_bytes if limits.shared else limits.budget_bytes
        self._made_bytes: int | None = None  # of shared regions, at the last look
        self._steady_looks = 0  # since `_made_bytes` has changed

    def look(
        self,
        reading: Reading,
        trainers: frozenset[int],
        held_bytes: int,
        regions_bytes: int | None = None,
        *,
        beside_bytes: int = 0,
    ) -> DeviceRoom:
        """Return the room on the device.

        `trainers` are the processes with a job; `held_bytes` is the memory that jobs have allocated. `regions_bytes`
        is the memory of shared regions; without it all of them have memory. Trainers take `beside_bytes` together
        beside their footprints, or will take them.
        """
        limits = self.limits
        made_bytes = held_bytes
        if limits.shared:
            made_bytes = limits.capacity_bytes if regions_bytes is None else regions_bytes
        settled = self._are_regions_settled(made_bytes)
        outside_bytes = max(0, reading.used_bytes - made_bytes)
        others_bytes = _other_bytes(reading.processes, trainers)
        if others_bytes is None:  # the owners are unknown: the footprint keeps its last value
            rest_bytes = self._foreign_bytes(outside_bytes - len(trainers) * self.footprint_bytes, beside_bytes)
        else:
            if not trainers:
                self._idle_bytes = max(0, outside_bytes - others_bytes)
            elif self._idle_bytes is not None and settled:
                of_trainers_bytes = outside_bytes - others_bytes - self._idle_bytes - beside_bytes
                self._record_footprint(of_trainers_bytes // len(trainers))
            rest_bytes = others_bytes + (self._idle_bytes or 0)
        self._rest_bytes.append(rest_bytes)
        free_bytes = reading.total_bytes - max(self._rest_bytes)
        if limits.shared:
            self._least_rest_bytes = min(rest_bytes, self._least_rest_bytes)
            reserved_bytes = self._reserved_bytes(reading.total_bytes, free_bytes - beside_bytes, len(trainers))
            return self._shared_room(free_bytes - beside_bytes, reserved_bytes, made_bytes)
        budget_bytes = self._allow(
            free_bytes - beside_bytes - limits.max_jobs * self.footprint_bytes, most_bytes=limits.budget_bytes
        )
        return DeviceRoom(budget_bytes=budget_bytes, max_jobs=limits.max_jobs, regions_bytes=limits.capacity_bytes)

    def _foreign_bytes(self, outside_bytes: int, beside_bytes: int) -> int:
        """Return the rest, if the owners of these bytes are unknown. They may have `beside_bytes` of trainers or not.

        While they have not taken them, the rest is what it was, or less.
        """
        last_bytes = self._rest_bytes[-1] if self._rest_bytes else outside_bytes
        return max(0, outside_bytes - beside_bytes, min(last_bytes, outside_bytes))

    def _are_regions_settled(self, made_bytes: int) -> bool:
        """Return whether the driver counts the shared regions as they are, so that footprints can be measured.

        The driver may still count memory that was released a moment ago, as long as a dead trainer has it mapped.
        """
        limits = self.limits
        changed = self._made_bytes is not None and self._made_bytes != made_bytes
        self._steady_looks = 0 if changed else self._steady_looks + 1
        self._made_bytes = made_bytes
        is_whole = made_bytes > limits.capacity_bytes - limits.region_bytes
        return not limits.shared or self._steady_looks >= (1 if is_whole else 1 + limits.rise_looks)

    def _reserved_bytes(self, total_bytes: int, free_bytes: int, trainers: int) -> int:
        """Return the bytes that stay free beside the shared regions for footprints.

        Capacity that a setting fixes leaves them what it left when other programs used least, so regions are released
        only for what those use beyond that. Otherwise there is room for every trainer that runs, and for as many as
        at the start of a controller with this footprint.
        """
        limits = self.limits
        if limits.fixed:
            beside_bytes = max(0, total_bytes - self._least_rest_bytes - limits.capacity_bytes)
            return min(limits.max_jobs * self.footprint_bytes, beside_bytes)
        _, places = capacity_beside(free_bytes, self.footprint_bytes, limits.max_jobs)
        return max(trainers, places) * self.footprint_bytes

    def _shared_room(self, free_bytes: int, reserved_bytes: int, made_bytes: int) -> DeviceRoom:
        """Return the room if the controller makes the regions."""
        limits, tolerated_bytes = self.limits, self.footprint_bytes // _TOLERATED_PART
        wanted_bytes = free_bytes - reserved_bytes
        if wanted_bytes + tolerated_bytes >= limits.capacity_bytes:
            wanted_bytes = limits.capacity_bytes
        regions_bytes = self._allow(wanted_bytes, most_bytes=limits.capacity_bytes)
        places = (max(0, free_bytes - made_bytes) + tolerated_bytes) // max(1, self.footprint_bytes)
        return DeviceRoom(
            budget_bytes=min(limits.budget_bytes, regions_bytes),
            max_jobs=max(1, min(limits.max_jobs, places)),
            regions_bytes=regions_bytes,
        )

    def _allow(self, size_bytes: int, *, most_bytes: int) -> int:
        """Return the bytes allowed from now on: at most these, in whole regions. A small rise is ignored."""
        limits = self.limits
        if size_bytes >= most_bytes:
            allowed_bytes = most_bytes
        else:
            allowed_bytes = max(limits.region_bytes, size_bytes - size_bytes % limits.region_bytes)
            if 0 < allowed_bytes - self._allowed_bytes < _LEAST_RISE_REGIONS * limits.region_bytes:
                allowed_bytes = self._allowed_bytes
        self._allowed_bytes = allowed_bytes
        return allowed_bytes

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
