"""A job's part in a round: the regions that it takes and gives back in an iteration, and the gates that it passes.

In a round, jobs share memory by phases. A job keeps `base_bytes` for itself, and the rest of its block of addresses
lies in *places* of one region each, which have memory only while the job needs it. The round has a pool of regions;
at the first operator of a segment the job gives places back, reports its progress, waits at its gates, and takes
places.

Whole regions are taken and given back, so the load of a job at any operator is the number of its places in use, and
not the bytes of its tensors. The gates are made for this load (phases/gates.py), so a job that has passed its gates
always finds the regions that it needs. For ResNet-50 in regions of 1 MiB the load in places is at most 1 % higher
than that in bytes; in regions of 64 MiB it is 5 to 40 % higher, because tensors that live at different times share
regions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.residency import intervals
from indb_tensile.scheduler.memory.tensor_placement import place_plan
from indb_tensile.scheduler.phases.interleaved_schedule import MOST_SEGMENTS
from indb_tensile.scheduler.phases.load_cycle import Cycle, cycle, merge_segments
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.schedule import Schedule
from indb_tensile.scheduler.workload import Workload

Use = npt.NDArray[np.bool_]  # by segment and place: whether the job has the place


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Operators from `operator` on, during which the job has the same places.

    Before them it gives back the places `returned`, which it has from the segment before, and takes `taken`.
    """

    operator: int
    returned: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A gate: `operator` of iteration `iteration` of a round waits until another member has passed `boundary`.

    Boundaries are counted from the other member's first iteration. In each further round the boundary is `each`
    higher. A boundary that is not positive is passed from the start.
    """

    iteration: int
    operator: int
    position: int  # of the other member in the round
    boundary: int
    each: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPart:
    """The part of the member at `position`. A round repeats; the job runs `iterations` iterations in each."""

    position: int
    operators: int  # of an iteration
    iterations: int
    base_bytes: int
    region_bytes: int
    segments: tuple[Segment, ...]
    waits: tuple[Wait, ...] = ()

    def __post_init__(self) -> None:
        starts = [segment.operator for segment in self.segments]
        if not starts or starts[0] != 0 or sorted(set(starts)) != starts or starts[-1] >= self.operators:
            raise InvariantError(f"part {self.position} of a round: segments start at {starts} of {self.operators}")
        held: set[int] = set()
        for segment in self.segments:
            if not held.issuperset(segment.returned) or held.intersection(segment.taken):
                raise InvariantError(f"part {self.position} of a round: {segment} after places {sorted(held)}")
            held = held.difference(segment.returned).union(segment.taken)
        known = set(starts)
        for wait in self.waits:
            if wait.operator not in known or not 0 <= wait.iteration < self.iterations:
                raise InvariantError(f"part {self.position} of a round: {wait} is not before a segment")

    @property
    def places(self) -> int:
        """The number of places."""
        return 1 + max((place for segment in self.segments for place in segment.taken), default=-1)

    @property
    def kept(self) -> tuple[int, ...]:
        """The places that the job has at the end of the iteration, and gives back there."""
        held: set[int] = set()
        for segment in self.segments:
            held = held.difference(segment.returned).union(segment.taken)
        return tuple(sorted(held))

    def before(self, iteration: int, operator: int) -> tuple[tuple[int, int], ...]:
        """Return the gates before an operator: positions of members, and the boundaries that they must have passed.

        `iteration` is counted from the job's first iteration in the round.
        """
        rounds, own = divmod(iteration, self.iterations)
        at = [
            (w.position, w.boundary + rounds * w.each)
            for w in self.waits
            if (w.iteration, w.operator) == (own, operator)
        ]
        return tuple((position, boundary) for position, boundary in at if boundary > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUse:
    """How a job's plans use its block: the regions that it keeps, and the places that it has, segment by segment."""

    base_regions: int
    region_bytes: int
    operators: int
    stops: tuple[int, ...]  # the operator after each segment
    use: tuple[tuple[int, ...], ...]  # the places of each segment
    cycle: Cycle

    @property
    def size_bytes(self) -> int:
        """The bytes of the block's addresses. Tensors leave gaps, so this may exceed the most that is in use."""
        places = 1 + max((place for segment in self.use for place in segment), default=-1)
        return (self.base_regions + places) * self.region_bytes

    def part(self, position: int, schedule: Schedule, operators: Sequence[int]) -> RoundPart:
        """Return the job's part in this schedule of jobs as positions. `operators` are those of all jobs."""
        starts = (0, *self.stops[:-1])
        segments = [
            Segment(operator=start, returned=_less(before, now), taken=_less(now, before))
            for start, before, now in zip(starts, ((), *self.use), self.use, strict=False)
        ]
        waits = tuple(
            Wait(
                iteration=gate.iteration,
                operator=gate.operator,
                position=gate.after_job,
                boundary=gate.after_iteration * operators[gate.after_job] + gate.after_operator + 1,
                each=schedule.iterations[gate.after_job] * operators[gate.after_job],
            )
            for gate in schedule.gates
            if gate.job == position
        )
        return RoundPart(
            position=position,
            operators=self.operators,
            iterations=schedule.iterations[position],
            base_bytes=self.base_regions * self.region_bytes,
            region_bytes=self.region_bytes,
            segments=tuple(segments),
            waits=waits,
        )


def _less(places: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(set(places).difference(others)))


def block_use(
    workload: Workload,
    plans: Sequence[Plan],
    link: Link,
    *,
    region_bytes: int,
    most_segments: int = MOST_SEGMENTS,
    cache: PlanCache | None = None,
) -> BlockUse:
    """Return how these plans use a block, in at most `most_segments` segments. The base holds all that is on the
    device between two iterations, and the blocks of the job's other graphs, which run between iterations.
    """
    graph, plan = workload.graphs[0], plans[0]
    placed = place_plan(graph, plan, region_bytes=region_bytes, cache=cache)
    count = len(effective(graph, plan, cache).operators)
    residencies = intervals(graph, plan, cache)
    persistent = {tensor.id for tensor in effective(graph, plan, cache).tensors if tensor.persistent}
    use = np.zeros((count, -(-placed.size_bytes // region_bytes)), dtype=np.bool_)
    base_bytes = region_bytes  # no block is empty
    for residency, offset in zip(residencies, placed.offsets, strict=True):
        end = offset + residency.size_bytes
        if residency.tensor in persistent and (residency.first == 0 or residency.stop > count):
            base_bytes = max(base_bytes, end)
        places = slice(offset // region_bytes, -(-end // region_bytes))
        use[residency.first : min(residency.stop, count), places] = True
        use[: max(0, residency.stop - count), places] = True
    others = [
        place_plan(graph, plan, region_bytes=region_bytes, cache=cache).size_bytes
        for graph, plan in zip(workload.graphs[1:], plans[1:], strict=True)
    ]
    base_regions = -(-max(base_bytes, *others, 0) // region_bytes)
    own = cycle(JobRun(graph=graph, plan=plan, latency_ns=workload.latency_ns[0]), link, cache)
    return _in_segments(use[:, base_regions:], own, base_regions, region_bytes, most_segments)


def _in_segments(use: Use, own: Cycle, base_regions: int, region_bytes: int, most_segments: int) -> BlockUse:
    """Merge operators into segments. In a segment the job has all places that any of its operators needs."""
    base_bytes = base_regions * region_bytes
    loads = replace(
        own,
        load_bytes=tuple(base_bytes + int(places) * region_bytes for places in use.sum(axis=1)),
        idle_bytes=base_bytes,
        stops=(),
    )
    stops = merge_segments(loads, most_segments).stops
    starts = (0, *stops[:-1])
    united = [np.flatnonzero(use[start:stop].any(axis=0)) for start, stop in zip(starts, stops, strict=True)]
    return BlockUse(
        base_regions=base_regions,
        region_bytes=region_bytes,
        operators=len(use),
        stops=stops,
        use=tuple(tuple(places.tolist()) for places in united),
        cycle=Cycle(
            load_bytes=tuple(base_bytes + len(places) * region_bytes for places in united),
            duration_ns=tuple(sum(own.duration_ns[start:stop]) for start, stop in zip(starts, stops, strict=True)),
            idle_bytes=base_bytes,
            stops=stops,
        ),
    )
