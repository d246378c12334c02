"""What a step program has to know of exchanges with other devices, which run beside its operators."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from indb_tensile.errors import InvariantError
from indb_tensile.executor.capture.exchange_operator import last_spans
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.memory.peak import staying
from indb_tensile.scheduler.plan import Plan


def operator_times(graph: StepGraph, times: Sequence[int], stalls: Sequence[int]) -> list[int]:
    """Return the nanoseconds of each operator of the iteration that has just run, without its waits for copies.

    `times` and `stalls` are those at each boundary. An operator that waits for an exchange has that of the exchange,
    and not that for which the program has waited for it.
    """
    taken_ns = [
        end - begin - stall for (begin, end), stall in zip(pairwise(times), _differences(stalls), strict=True)
    ]
    waits = [k for k, operator in enumerate(graph.operators) if operator.awaits is not None]
    for k, (began_ns, ended_ns) in zip(waits, last_spans(len(waits)), strict=True):
        taken_ns[k] = ended_ns - began_ns
    return taken_ns


def _differences(values: Sequence[int]) -> Iterator[int]:
    return (later - earlier for earlier, later in pairwise(values))


def check_exchanges(plan: Plan, graph: StepGraph) -> None:
    """Raise InvariantError if the plan, under which `graph` runs, moves a tensor while an exchange uses it."""
    stays = staying(graph)
    for swap in plan.swaps:
        if (swap.tensor, swap.out_after) in stays:
            named = f"tensor {swap.tensor} ({graph.tensors[swap.tensor].name})"
            raise InvariantError(
                f"plan of policy {plan.policy}: {named} leaves after operator {swap.out_after}, "
                "while an exchange with other devices uses it"
            )
