"""Copies moved within the memory that a plan leaves unused: back earlier, and away later, where it waits for them.

The search brings every tensor back as late as the lanes allow on the time axis that it foresees. Where memory is so
short that tensors have to be away until just before they are needed, the lanes are late for all of them, and what
room there is between the peaks stands empty. Here each swap takes its memory at the earliest boundary from which on
there is room, in the order in which the tensors are needed, since a lane is first in, first out; and gives it back
at the latest before the room ends. The peak stays what it was. How far ahead of its need a tensor may come is a
matter of what else could use that room: a few distances are tried, and the simulator decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.scheduler.graph import OpIndex, StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import load, unrolled
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.simulate import Forecast, JobRun, simulate

DISTANCES = (3, 10, 30, 100)  # operators that a tensor may come before it is needed, or stay after it was


def advanced(graph: StepGraph, plan: Plan, latency_ns: Sequence[int], link: Link, most: int = len(DISTANCES)) -> Plan:
    """The fastest of this plan and of at most so many that differ from it in when memory is given back and taken."""
    if not plan.swaps or most == 0:
        return plan
    step = effective(graph, plan)
    load_bytes = load(graph, plan)
    tried = [plan]
    forecasts = [_forecast(graph, plan, latency_ns, link)]
    if forecasts[0].stall_out_ns + forecasts[0].stall_in_ns == 0:
        return plan
    for distance in DISTANCES[:most]:
        tried.append(_moved(step, plan, load_bytes, distance))
        forecasts.append(_forecast(graph, tried[-1], latency_ns, link))
    times = [forecast.iteration_ns for forecast in forecasts]
    return tried[times.index(min(times))]


def _forecast(graph: StepGraph, plan: Plan, latency_ns: Sequence[int], link: Link) -> Forecast:
    (forecast,) = simulate([JobRun(graph=graph, plan=plan, latency_ns=tuple(latency_ns))], link)
    return forecast


@dataclass(slots=True)
class _Stay:
    """One swap in positions counted on from `after`."""

    swap: Swap
    size_bytes: int
    after: int
    free: int
    back: int
    need: int


def _moved(step: StepGraph, plan: Plan, load_bytes: Sequence[int], distance: int) -> Plan:
    count = len(step.operators)
    most = max(load_bytes)
    room = [most - one for one in load_bytes]
    stays = [_stay(swap, step.tensors[swap.tensor].size_bytes, count) for swap in plan.swaps]
    for stay in sorted(stays, key=lambda s: (s.after, s.swap.tensor)):
        if stay.swap.copies:
            _leave_later(stay, room, distance)
    previous = -count
    for stay in sorted(stays, key=lambda s: (s.need % count, s.swap.tensor)):
        previous = _return_earlier(stay, room, distance, previous)
    swaps = tuple(replace(s.swap, free_at=OpIndex(s.free % count), in_at=OpIndex(s.back % count)) for s in stays)
    return replace(plan, swaps=swaps)


def _stay(swap: Swap, size_bytes: int, count: int) -> _Stay:
    free = unrolled(swap.free_at, swap.out_after, count)
    return _Stay(
        swap=swap,
        size_bytes=size_bytes,
        after=swap.out_after,
        free=free,
        back=unrolled(swap.in_at, free, count),
        need=unrolled(swap.needed_by, swap.out_after, count),
    )


def _leave_later(stay: _Stay, room: list[int], distance: int) -> None:
    count = len(room)
    latest = min(stay.back - 1, stay.after + distance)
    while stay.free < latest and room[stay.free % count] >= stay.size_bytes:
        room[stay.free % count] -= stay.size_bytes
        stay.free += 1


def _return_earlier(stay: _Stay, room: list[int], distance: int, previous: int) -> int:
    """Not before `previous`, at which the tensor returns that is needed before this one. When this one does now.

    A tensor that is away when the iteration begins stays so: whether its host copy serves again depends on that.
    """
    count = len(room)
    turn = stay.need // count * count
    earliest = max(stay.free + 1, stay.need - distance, previous + turn)
    if stay.back > count:
        earliest = max(earliest, count + 1)
    while stay.back > earliest and room[(stay.back - 1) % count] >= stay.size_bytes:
        stay.back -= 1
        room[stay.back % count] -= stay.size_bytes
    return max(previous, stay.back - turn)
