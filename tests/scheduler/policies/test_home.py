"""Check HOME's rules on a network small enough to follow by hand.

Operators take 30 us, and a byte takes 1 us or 2 us on the link. Operators 0 to 3 make feature maps of 10, 40, 10 and
10 bytes. Operator 4, the loss, has a workspace of 30 bytes. Operators 5, 6 and 7 are the backward pass. The load is
10, 50, 60, 70, 100, 70, 60, 50.
"""

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, load, peak
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.policies.feature_maps import Action, Evaluator, FeatureMap, backward_start, feature_maps
from indb_tensile.scheduler.policies.home import home, longest_parts
from indb_tensile.scheduler.recomputation.recompute import Recomputation
from indb_tensile.scheduler.rewrite import rewrite
from indb_tensile.scheduler.workload import Workload
from tests.nightly import some_examples
from tests.scheduler.plan_parts import execution_order, idle_gap, iteration_ns
from tests.scheduler.strategies import links, several_workloads

RETAIN, SWAP, RECOMPUTE = Action
FAST = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)
SLOW = Link(out_bytes_per_s=500_000, in_bytes_per_s=500_000)
LIMIT = 70


def test_feature_maps_cross_from_the_forward_to_the_backward_pass() -> None:
    """Operators 4 and 5 read the fourth map, with nothing in between."""
    graph = _network()
    assert backward_start(graph) == 5
    maps = feature_maps(graph, Recomputation(graph, (30_000,) * 8), least_bytes=0, most=9)
    assert maps == (
        FeatureMap(gap=idle_gap(0, 1, 7), size_bytes=10, recompute_ns=30_000),
        FeatureMap(gap=idle_gap(1, 2, 6), size_bytes=40, recompute_ns=30_000, sources=(0,)),
        FeatureMap(gap=idle_gap(2, 3, 5), size_bytes=10, recompute_ns=30_000, sources=(1,)),
    )
    assert [m.size_bytes for m in feature_maps(graph, None, least_bytes=10, most=9)] == [40]
    assert [m.size_bytes for m in feature_maps(graph, None, least_bytes=0, most=2)] == [10, 40]


def test_retaining_everything_exceeds_the_limit() -> None:
    assert _cost(RETAIN, RETAIN, RETAIN) == (30, 240_000)


def test_swap_costs_the_copy_time_that_neighbouring_operators_do_not_hide() -> None:
    """The copy out takes 40 us: operator 3 hides 30 us and the loss waits. The copy back takes 40 us, of which
    operator 5 hides 30 us.
    """
    assert _cost(RETAIN, SWAP, RETAIN) == (0, 260_000)
    assert _cost(RETAIN, SWAP, RETAIN, link=SLOW) == (0, 240_000 + 50_000 + 50_000)


def test_swap_costs_nothing_without_a_tight_limit() -> None:
    assert _cost(RETAIN, SWAP, RETAIN, limit=100) == (0, 240_000)


def test_recomputation_costs_its_operators_and_returns_their_sources() -> None:
    assert _cost(RETAIN, RECOMPUTE, RETAIN) == (0, 270_000)
    assert _cost(RECOMPUTE, RECOMPUTE, RETAIN) == (0, 300_000)


def test_swapped_tensor_returns_for_a_recomputation_that_reads_it() -> None:
    """Operator 5 hides the 10 us of the copy back. A return for operator 7 only would be hidden as well."""
    assert _cost(SWAP, RECOMPUTE, RETAIN) == (0, 270_000)
    assert _cost(SWAP, RECOMPUTE, RETAIN, limit=50) == (10, 280_000)


def test_home_swaps_if_copies_are_cheaper_than_operators() -> None:
    swap = Swap(tensor=TensorId(1), out_after=OpIndex(2), free_at=OpIndex(4), in_at=OpIndex(5), needed_by=OpIndex(6))
    plan = _planned(FAST)
    assert plan == Plan(policy="home", swaps=(swap,))
    assert _iteration_ns(plan, FAST) == 260_000


def test_home_recomputes_if_operators_are_cheaper_than_copies() -> None:
    plan = _planned(SLOW)
    assert plan == Plan(policy="home", executions=execution_order(0, 1, 2, 3, 4, 5, 1, 6, 7))
    assert _iteration_ns(plan, SLOW) == 270_000


def test_home_only_swaps_if_operators_cannot_run_again() -> None:
    plan = _planned(SLOW, rewrites=False)
    assert [swap.tensor for swap in plan.swaps] == [1]
    assert plan.executions == ()
    assert _iteration_ns(plan, SLOW) == 340_000


def test_home_retains_everything_if_the_limit_allows() -> None:
    assert _planned(FAST, budget=100) == Plan(policy="home")


def test_gap_split_by_a_recomputation_is_swapped_in_its_longer_part() -> None:
    """Operator 1 runs again before operator 6 and reads what operator 0 made."""
    executions = execution_order(0, 1, 2, 3, 4, 5, 1, 6, 7)
    graph = rewrite(_network(), executions).graph
    assert longest_parts(graph, [idle_gap(0, 1, 7)], executions, (30_000,) * 9) == [idle_gap(0, 1, 6)]
    assert longest_parts(graph, [idle_gap(0, 1, 7)], executions, (*(1,) * 7, 900, 1)) == [idle_gap(0, 6, 8)]


@some_examples()
@given(several_workloads(most=2), links(), st.floats(0, 1))
def test_plans_with_recomputation_are_valid_and_never_raise_the_peak(
    jobs: tuple[Workload, ...], link: Link, fraction: float
) -> None:
    budget = int(sum(max(liveness_peak(g) for g in w.graphs) for w in jobs) * fraction)
    planned = home(jobs, budget_bytes=budget, link=link)
    assert planned == home(jobs, budget_bytes=budget, link=link)
    for workload, plans in zip(jobs, planned, strict=True):
        for graph, plan in zip(workload.graphs, plans, strict=True):
            assert faults(graph, plan) == ()
            assert peak(graph, plan) <= liveness_peak(graph)


def _cost(*policy: Action, limit: int = LIMIT, link: Link = FAST) -> tuple[int, int]:
    """Return the bytes above the limit and the time of this choice of actions for the first three feature maps."""
    graph, latency_ns = _network(), (30_000,) * 8
    maps = feature_maps(graph, Recomputation(graph, latency_ns), least_bytes=0, most=9)
    return Evaluator(graph, latency_ns, link, maps, limit_bytes=limit)(policy)


def _planned(link: Link, *, budget: int = LIMIT, rewrites: bool = True) -> Plan:
    workload = Workload(job=JobId(1), graphs=(_network(),), latency_ns=((30_000,) * 8,))
    ((plan,),) = home((workload,), budget_bytes=budget, link=link, rewrites=rewrites)
    assert faults(_network(), plan, limit_bytes=budget) == ()
    return plan


def _iteration_ns(plan: Plan, link: Link) -> int:
    return iteration_ns(_network(), plan, (30_000,) * 8, link)


def _network() -> StepGraph:
    """Return the network that the module's docstring describes."""
    tensors = tuple(
        Tensor(id=TensorId(i), name=f"map{i}", size_bytes=size, role=Role.ACTIVATION)
        for i, size in enumerate((10, 40, 10, 10))
    )
    accessed = (
        ((), (0,)),
        ((0,), (1,)),
        ((1,), (2,)),
        ((2,), (3,)),
        ((3,), ()),
        ((3, 2), ()),
        ((2, 1), ()),
        ((1, 0), ()),
    )
    operators = tuple(
        Operator(
            name=f"op{k}",
            signature=f"op{k}",
            stage=Stage.FORWARD if k < 5 else Stage.BACKWARD,
            reads=tuple(TensorId(t) for t in reads),
            writes=tuple(TensorId(t) for t in writes),
            workspace_bytes=30 * (k == 4),
        )
        for k, (reads, writes) in enumerate(accessed)
    )
    graph = StepGraph(tensors=tensors, operators=operators)
    assert load(graph, Plan(policy="liveness")) == (10, 50, 60, 70, 100, 70, 60, 50)
    return graph
