"""What one iteration of a job does, for the simulator: the boundaries at which the job copies or waits.

Between two such boundaries a job only computes, so the simulator passes over all operators in between at once.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate

from indb_tensile.scheduler.graph import Stage, StepGraph, TensorId
from indb_tensile.scheduler.link import FREE_COPIES, CopyLoss, Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.rewrite import effective_latency

# Iterations of a fast job that are simulated for one of the slowest job (`iterations_together`). Seven sets of a
# network with iterations of 0.7 s and small ones of 1 to 2 ms, against a simulation of every iteration: the slow
# job's forecast differs by up to 7 %, that of a fast job that waits for copies by up to 27 % (with 64: 10 %), and the
# simulation takes a tenth of the time.
_FINE_ENOUGH = 32


@dataclass(slots=True)
class IterationStop:
    """A boundary at which the job does more than compute. Actions happen in the order of the fields."""

    operator: int
    outs: list[tuple[int, int]] = field(default_factory=list)  # swaps whose copy out is queued, as (swap, duration)
    frees: list[int] = field(default_factory=list)  # swaps whose copy out the job waits for
    ins: list[tuple[int, int]] = field(default_factory=list)  # swaps whose copy in is queued, as (swap, duration)
    ahead: list[tuple[int, int]] = field(default_factory=list)  # next uploads that are queued: (operator, duration)
    needs: list[int] = field(default_factory=list)  # swaps whose copy in the job waits for
    upload_ns: int = 0  # on the in-lane; 0 if the operator is not an upload
    awaits: int | None = None  # the exchange with other devices that the job waits for
    starts: tuple[int, int] | None = (
        None  # the exchange that the operator before this boundary starts: (number, duration)
    )
    gated: bool = False  # the job waits for other jobs here, or they wait for this boundary
    compute_ns: int = 0  # from here to the next stop

    @property
    def shared(self) -> bool:
        """Return whether this stop depends on other jobs, or other jobs on this stop."""
        return bool(self.outs or self.ins or self.frees or self.ahead or self.needs or self.upload_ns or self.gated)


def stops_of(
    graph: StepGraph,
    plan: Plan,
    captured_ns: Sequence[int],
    link: Link,
    gated: Set[int],
    *,
    every: bool,
    stretch: int = 1,
    copy_loss: CopyLoss = FREE_COPIES,
    batch: Sequence[TensorId] = (),
    ahead_from: int | None = None,
) -> tuple[IterationStop, ...]:
    """Return the boundaries of one iteration at which the job does more than compute. Boundary 0 is always included.

    With `ahead_from` the uploads of the tensors in `batch` are queued at this boundary of the iteration before.

    `graph` is the graph that runs under the plan, and `captured_ns` has the latencies of the captured operators. With
    `every`, each boundary is a stop. All durations are multiplied by `stretch`. What a copy costs operators counts
    where it is queued. An upload that is not ahead costs nothing, because the job waits for it.
    """
    count = len(graph.operators)
    uploads = {k for k, op in enumerate(graph.operators) if op.stage is Stage.UPLOAD}
    latency_ns = effective_latency(captured_ns, plan)
    awaits = {op.awaits: k for k, op in enumerate(graph.operators) if op.awaits is not None}
    starts = {k + 1: op.starts for k, op in enumerate(graph.operators) if op.starts is not None}
    positions = set(range(count)) if every else {0, *uploads, *gated, *awaits.values(), *starts}
    if ahead_from is not None:
        positions.add(ahead_from)
    for swap in plan.swaps:
        positions |= {(swap.out_after + 1) % count, swap.free_at, swap.in_at, swap.needed_by}
    stops = {k: IterationStop(k, gated=k in gated) for k in sorted(positions)}
    elsewhere = uploads.union(awaits.values())
    before = (0, *accumulate(0 if k in elsewhere else ns for k, ns in enumerate(latency_ns)))
    for stop, end in zip(stops.values(), (*list(stops)[1:], count), strict=True):
        stop.compute_ns = stretch * (before[end] - before[stop.operator])
    for exchange, index in awaits.items():
        stops[index].awaits = exchange
    for boundary, exchange in starts.items():
        stops[boundary].starts = (exchange, stretch * latency_ns[awaits[exchange]])
    for number, swap in enumerate(plan.swaps):
        size_bytes = graph.tensors[swap.tensor].size_bytes
        lost_ns = stretch * copy_loss.ns(size_bytes)
        if swap.copies:
            leaving = stops[(swap.out_after + 1) % count]
            leaving.outs.append((number, stretch * link.out_ns(size_bytes)))
            leaving.compute_ns += lost_ns
        stops[swap.free_at].frees.append(number)
        stops[swap.in_at].ins.append((number, stretch * link.in_ns(size_bytes)))
        stops[swap.in_at].compute_ns += lost_ns
        stops[swap.needed_by].needs.append(number)
    for index in sorted(uploads):
        written = {*graph.operators[index].writes}
        size_bytes = sum(graph.tensors[t].size_bytes for t in written)
        stops[index].upload_ns = stretch * link.in_ns(size_bytes)
        if ahead_from is not None and not written.isdisjoint(batch):
            stops[ahead_from].ahead.append((index, stops[index].upload_ns))
            stops[ahead_from].compute_ns += stretch * copy_loss.ns(size_bytes)
    return tuple(stops.values())


def iterations_together(runs: Sequence[tuple[Sequence[int], Plan, StepGraph]], link: Link) -> tuple[int, ...]:
    """Return for each job the number of iterations that are simulated as one. A job has the latencies of its captured
    operators, its plan, and the graph that runs under the plan.

    A job with iterations of 1 ms beside one of 1 s would need a thousand iterations for one of the other. It is
    simulated with operators and copies that take a multiple of their time, so that it loads the lanes equally. A copy
    of the slow job shares its lane with many iterations of the fast one in either case.
    """
    least_ns = [_least_ns(captured_ns, plan, graph, link) for captured_ns, plan, graph in runs]
    longest_ns = max(least_ns)
    return tuple(max(1, longest_ns // (_FINE_ENOUGH * ns)) for ns in least_ns)


def _least_ns(captured_ns: Sequence[int], plan: Plan, graph: StepGraph, link: Link) -> int:
    """Return the time that an iteration of the graph that runs takes at least: that of its operators, or of its
    copies on one lane.
    """
    sizes = [(swap.copies, graph.tensors[swap.tensor].size_bytes) for swap in plan.swaps]
    out_ns = sum(link.out_ns(size_bytes) for copies, size_bytes in sizes if copies)
    in_ns = sum(link.in_ns(size_bytes) for _, size_bytes in sizes)
    latency_ns = effective_latency(captured_ns, plan)
    exchange_ns = sum(
        ns for operator, ns in zip(graph.operators, latency_ns, strict=True) if operator.awaits is not None
    )
    return max(1, sum(latency_ns) - exchange_ns, exchange_ns, out_ns, in_ns)
