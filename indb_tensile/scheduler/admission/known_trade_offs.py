"""Remember the trade-offs of kinds of jobs, so that the planner is asked once for each kind.

It takes 0.03 to 0.4 s of a processor to compute the trade-offs of a job. On a device without a GPU that time is taken
from the jobs that train, and no job can start meanwhile. Jobs of one kind have equal graphs, so their plans are the
same but for the latencies of their operators, which differ by little: the trade-offs are scaled by the sum, as after
a measurement. Kinds without signatures and jobs with a limit of memory of their own are not remembered.
"""

from collections.abc import Callable
from dataclasses import dataclass

from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.workload import Workload

MOST_KINDS = 64

Points = tuple[TradeOff, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTradeOffs:
    """The trade-offs of the jobs whose graphs have these signatures, for operators that take `alone_ns` in all."""

    signatures: tuple[str, ...]
    alone_ns: int
    points: Points


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTradeOffs:
    """The kinds of jobs whose trade-offs are remembered. The kind that was computed last is the last one."""

    kinds: tuple[KindTradeOffs, ...] = ()

    def of(self, workload: Workload, scaled: Callable[[Points, float], Points]) -> Points:
        """Return the trade-offs of a job like this one; none if they are not known.

        `scaled` returns trade-offs for operators that take a multiple of their time.
        """
        signatures = _signatures(workload)
        known = next((kind for kind in self.kinds if kind.signatures == signatures), None)
        return () if known is None else scaled(known.points, workload.step_ns / known.alone_ns)

    def with_those_of(self, workload: Workload, points: Points) -> "KnownTradeOffs":
        """Return what is known after the planner has computed the trade-offs of this job."""
        signatures = _signatures(workload)
        if not signatures or not points:
            return self
        others = tuple(kind for kind in self.kinds if kind.signatures != signatures)
        latest = KindTradeOffs(signatures=signatures, alone_ns=workload.step_ns, points=points)
        return KnownTradeOffs(kinds=(*others, latest)[-MOST_KINDS:])


def _signatures(workload: Workload) -> tuple[str, ...]:
    """Return the signatures of the job's graphs; none if the job's trade-offs are not those of its kind."""
    signatures = tuple(graph.signature for graph in workload.graphs)
    return signatures if all(signatures) and workload.limit_bytes is None else ()
