"""Use one graph object for equal graphs of several jobs, such as those of a search over hyperparameters.

The planner's cache looks values up by the identity of the graph (plan_cache.py). With one object, what it has
computed for the first of the jobs serves the others.
"""

from indb_tensile.scheduler.admission.known_plans import are_equal
from indb_tensile.scheduler.admission.pool import Pool
from indb_tensile.scheduler.graph import StepGraph


def with_known_graphs(pool: Pool, graphs: tuple[StepGraph, ...]) -> tuple[StepGraph, ...]:
    """Return the graphs, each replaced by the equal graph of a job of the pool, or of a remembered set of jobs, if
    there is one.
    """
    present = [graph for member in pool.members if member.workload is not None for graph in member.workload.graphs]
    known = (*present, *pool.plans.graphs)
    return tuple(next((other for other in known if are_equal(graph, other)), graph) for graph in graphs)
