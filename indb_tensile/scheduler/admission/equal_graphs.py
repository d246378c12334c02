"""Use one graph object for equal graphs of several jobs, such as those of a search over hyperparameters.

The planner's cache looks values up by the identity of the graph (plan_cache.py). With one object, what it has
computed for the first of the jobs serves the others.
"""

from indb_tensile.scheduler.admission.pool import Pool
from indb_tensile.scheduler.graph import StepGraph


def with_known_graphs(pool: Pool, graphs: tuple[StepGraph, ...]) -> tuple[StepGraph, ...]:
    """Return the graphs, each replaced by the equal graph of a job of the pool if there is one."""
    known = [graph for member in pool.members if member.workload is not None for graph in member.workload.graphs]
    return tuple(next((other for other in known if _are_equal(graph, other)), graph) for graph in graphs)


def _are_equal(graph: StepGraph, other: StepGraph) -> bool:
    # The sizes and the signature tell most graphs apart. Comparing all operators takes milliseconds.
    sizes = (graph.signature, len(graph.operators), len(graph.tensors))
    return sizes == (other.signature, len(other.operators), len(other.tensors)) and graph == other
