"""The times of exchanges with other devices, which run on the network's lane beside the operators.

The latency of an operator that waits for an exchange is the exchange's own time. What the operator then adds to an
iteration is only what is left of the exchange when the operator comes. The simulator (simulate.py) computes that for
each plan. Searches for plans, and sums of latencies, take it from the captured order without waits for copies.
"""

from collections.abc import Sequence

from indb_tensile.scheduler.graph import StepGraph


def blocking_ns(graph: StepGraph, latency_ns: Sequence[int]) -> tuple[int, ...]:
    """Return the nanoseconds of each operator, and of one that waits for an exchange those for which it waits."""
    if not any(operator.awaits is not None for operator in graph.operators):
        return tuple(latency_ns)
    steps = [*zip(graph.operators, latency_ns, strict=True)]
    exchange_ns = {operator.awaits: ns for operator, ns in steps if operator.awaits is not None}
    ends_ns: dict[int, int] = {}
    now_ns = free_ns = 0
    result_ns = []
    for operator, latency in steps:
        own_ns = latency if operator.awaits is None else max(0, ends_ns[operator.awaits] - now_ns)
        now_ns += own_ns
        result_ns.append(own_ns)
        if operator.starts is not None:
            free_ns = ends_ns[operator.starts] = max(now_ns, free_ns) + exchange_ns[operator.starts]
    return tuple(result_ns)
