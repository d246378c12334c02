"""Check vDNN on examples computed by hand: the inputs of convolutions are offloaded at once or behind the next layer,
and are prefetched one layer ahead.
"""

import dataclasses

from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, liveness_peak, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies.vdnn import vdnn
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from tests.scheduler.plan_parts import swap
from tests.scheduler.policies.layers import BACKWARD, FORWARD, RELU, job, step, three_convolutions

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)
X, B, D = TensorId(0), TensorId(5), TensorId(7)


def test_each_offload_and_prefetch_is_hidden_by_the_neighbouring_layer() -> None:
    """x is away after the second convolution (3), b after the third (5). d would be away during no operator."""
    graph = three_convolutions()
    plan = _planned(graph, liveness_peak(graph) - 1)
    assert plan == Plan(policy="vdnn", swaps=(swap(X, 1, 4, 10, 12), swap(B, 3, 6, 8, 10)))
    assert faults(graph, plan) == ()
    run = JobRun(graph=graph, plan=plan, latency_ns=(0, *[40] * 12))
    (forecast,) = simulate([run], LINK)
    # The layers hide 80 ns of each copy: the offloads take 50 (x) and 100 (b), the prefetches 100 (b) and 50 (x).
    assert (forecast.stall_out_ns, forecast.stall_in_ns) == (20, 20)


def test_computation_waits_for_offloads_if_memory_is_too_small() -> None:
    graph = three_convolutions()
    plan = _planned(graph, 0)
    assert plan == Plan(policy="vdnn", swaps=(swap(X, 1, 2, 10, 12), swap(B, 3, 4, 8, 10), swap(D, 5, 6, 7, 8)))
    assert faults(graph, plan) == ()
    (forecast,) = simulate([JobRun(graph=graph, plan=plan, latency_ns=(0, *[40] * 12))], LINK)
    assert forecast.stall_out_ns == 50 + 100 + 100


def test_sufficient_budget_or_no_convolutions_need_no_swaps() -> None:
    graph = three_convolutions()
    assert _planned(graph, liveness_peak(graph)) == Plan(policy="vdnn")
    dense = step(
        {"a": 9, "b": 9, "loss": 1, "g": 9},
        [
            (RELU, FORWARD, "", "a"),
            (RELU, FORWARD, "a", "b"),
            ("aten.sum.default", FORWARD, "b", "loss"),
            (RELU, BACKWARD, "loss", "g"),
            (RELU, BACKWARD, "g a", ""),
        ],
    )
    assert _planned(dense, 0) == Plan(policy="vdnn")


def test_map_of_a_skip_connection_is_offloaded_after_its_last_use() -> None:
    graph = three_convolutions()
    operators = list(graph.operators)
    operators[5] = dataclasses.replace(operators[5], reads=(*operators[5].reads, B))
    skipped = dataclasses.replace(graph, operators=tuple(operators))
    assert [s.out_after for s in _planned(skipped, 0).swaps if s.tensor == B] == [5]


def test_all_jobs_are_planned_alike_and_a_limit_counts_like_a_budget() -> None:
    graph = three_convolutions()
    first, second = job(graph), job(graph, number=2)
    top = liveness_peak(graph)
    plans = vdnn((first, second), budget_bytes=2 * top - 1, link=LINK)
    assert plans == ((_planned(graph, top - 1),),) * 2
    limited = dataclasses.replace(second, limit_bytes=top - 1)
    assert vdnn((first, limited), budget_bytes=2 * top, link=LINK) == plans
    assert peak(graph, plans[0][0]) < peak(graph, LIVENESS)


def _planned(graph: StepGraph, budget_bytes: int) -> Plan:
    ((plan,),) = vdnn((job(graph),), budget_bytes=budget_bytes, link=LINK)
    return plan
