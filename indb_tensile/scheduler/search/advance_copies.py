"""Move the copies of a plan within the memory that the plan leaves unused: swap-ins earlier, frees later.

In a plan of the search every tensor returns as late as the lanes allow on the predicted time axis. If memory is so
short that tensors have to be away until just before they are needed, all copies are late, and the memory between the
peaks is unused. Here each swap takes its memory at the earliest boundary from which on there is room. Swaps are
handled in the order in which their tensors are needed, because a lane copies one job's tensors first in, first out.
Each swap gives its memory back at the latest boundary up to which there is room. The peak stays the same. How early a
tensor should return depends on what else could use that memory, so a few distances are tried and the fastest result
is taken.

The moves are made and timed natively (native/planner/advance.cpp). In Python one simulation of a graph of two
thousand operators took 20 ms, and a first plan needs five simulations. Only the simulator models lanes that slow each
other down, so on such a link the simulator compares the result with the original plan.
"""

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.search.step_search import StepSearch
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate

# The numbers of operators by which a tensor may return before it is needed, or stay after its last use; each is about
# three times the one before. A further distance costs one more native layout and simulation for each plan.
DISTANCES = (3, 10, 30, 100)


def advance_copies(search: StepSearch, policy: str, link: Link) -> Plan:
    """Return the fastest of the search's present plan and of plans that give memory back and take it at other
    boundaries.
    """
    if link.duplex == 1:
        search.advance(DISTANCES)
        return search.plan(policy)
    plan = search.plan(policy)
    if not search.advance(DISTANCES):
        return plan
    moved = search.plan(policy)
    return min((plan, moved), key=lambda candidate: _iteration_ns(search, candidate, link))


def _iteration_ns(search: StepSearch, plan: Plan, link: Link) -> int:
    run = JobRun(graph=search.graph, plan=plan, latency_ns=search.captured_ns)
    return simulate([run], link, cache=search.cache)[0].iteration_ns
