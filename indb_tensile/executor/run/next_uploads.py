"""Where in an iteration the next batch can be uploaded: in the plan's own room, or in memory that the job is lent.

The plan's room begins late in the iteration, and the upload is tried at each of its boundaries. Lent memory is free
from the moment at which the iteration has taken its own batch. Trying costs a call each time, so up to the plan's own
room a few boundaries have to do.
"""

from dataclasses import dataclass
from typing import Final

from indb_tensile.executor.capture.replay import INPUTS
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.memory.next_batch import batch_tensors, room_beside, room_by_load
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import effective

_MOST_TRIALS = 32  # before the plan's own room


@dataclass(frozen=True, slots=True, kw_only=True)
class NextUploads:
    """The boundaries at which the upload is tried.

    From `by_load` on the plan's loads leave room for the next batch, and from `beside` on it can go to lent memory;
    None where there is no such boundary.
    """

    boundaries: frozenset[int] = frozenset()
    by_load: int | None = None
    beside: int | None = None

    @property
    def amid(self) -> int | None:
        """The boundary halfway from `beside` on."""
        later = sorted(
            boundary for boundary in self.boundaries if self.beside is not None and boundary >= self.beside
        )
        return later[len(later) // 2] if later else None


NO_NEXT_UPLOADS: Final = NextUploads()


def next_uploads(graph: StepGraph, plan: Plan, cache: PlanCache) -> NextUploads:
    """Return the boundaries of an iteration of this graph under this plan."""
    batch = batch_tensors(graph, INPUTS)
    count = len(effective(graph, plan, cache).operators)
    bounds = room_by_load(graph, plan, batch, cache)
    by_load, beside = None if bounds is None else bounds[0], room_beside(graph, plan, batch, cache)
    own = range(0) if by_load is None else range(by_load, count + 1)
    lent = range(0) if beside is None else range(beside, count if by_load is None else by_load)
    return NextUploads(
        boundaries=frozenset({*lent[:: -(-len(lent) // _MOST_TRIALS) or 1], *own}), by_load=by_load, beside=beside
    )
