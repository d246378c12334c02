"""Copies moved within the memory that a plan leaves unused: back earlier, and away later, where it waits for them.

The search brings every tensor back as late as the lanes allow on the time axis that it foresees. Where memory is so
short that tensors have to be away until just before they are needed, the lanes are late for all of them, and what
room there is between the peaks stands empty. Here each swap takes its memory at the earliest boundary from which on
there is room, in the order in which the tensors are needed, since a lane is first in, first out; and gives it back
at the latest before the room ends. The peak stays what it was. How far ahead of its need a tensor may come is a
matter of what else could use that room: a few distances are tried, and the time decides.

The moves are made and timed natively (native/planner/advance.cpp): in Python one simulation of a graph of two
thousand operators took 20 ms, and a first plan five of them. Lanes that disturb each other are known to the
simulator alone, so on such a link the simulator compares the result with the plan as it was.
"""

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.search.step_search import StepSearch
from indb_tensile.scheduler.timing.simulate import JobRun, simulate

DISTANCES = (3, 10, 30, 100)  # operators that a tensor may come before it is needed, or stay after it was


def advanced(search: StepSearch, policy: str, link: Link) -> Plan:
    """The fastest of what is chosen there and of plans that differ from it in when memory is given back and taken."""
    plan = None if link.duplex == 1 else search.plan(policy)
    moved = search.plan(policy) if search.advance(DISTANCES) else plan or search.plan(policy)
    if plan is None or plan == moved:
        return moved
    return min((plan, moved), key=lambda one: _iteration_ns(search, one, link))


def _iteration_ns(search: StepSearch, plan: Plan, link: Link) -> int:
    run = JobRun(graph=search.graph, plan=plan, latency_ns=search.captured_ns)
    return simulate([run], link)[0].iteration_ns
