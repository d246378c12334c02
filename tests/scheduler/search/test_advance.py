"""Copies moved to where memory is unused."""

from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import peak
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.search.advance import advanced
from indb_tensile.scheduler.search.step_search import StepSearch
from indb_tensile.scheduler.simulate import JobRun, simulate
from indb_tensile.scheduler.workload import Workload
from tests.scheduler.strategies import links, workloads

SLOW = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)  # 1 us a byte


def test_a_tensor_stays_until_it_is_copied_and_returns_before_it_is_needed() -> None:
    """Copies take two operators' time; within three operators of its uses there is room for it."""
    assert _advanced(full=(4,)) == _plan(free_at=3, in_at=5)


def test_a_tensor_returns_only_from_where_on_there_is_room() -> None:
    """Operator 2 and operator 6 need all the memory that there is."""
    assert _advanced(full=(2, 6)) == _plan(free_at=2, in_at=7)


def test_what_waits_for_nothing_stays_as_it_is() -> None:
    graph, plan = _graph(full=(4,)), _plan(free_at=3, in_at=5)
    assert advanced(graph, plan, (5_000,) * 10, SLOW) is plan


@settings(max_examples=200, deadline=None)
@given(workloads(graphs_each=1), links(), st.sampled_from(sorted(POLICIES)), st.booleans())
def test_it_breaks_no_rule_needs_no_more_memory_and_is_no_slower(
    job: Workload, link: Link, policy: str, exhausted: bool
) -> None:
    (graph,), (latency_ns,) = job.graphs, job.latency_ns
    ((plan,),) = POLICIES[policy]((job,), budget_bytes=0, link=link)
    if exhausted:
        search = StepSearch(graph, latency_ns, link)
        search.exhaust()
        plan = search.plan("swaps")
    found = advanced(graph, plan, latency_ns, link)
    assert faults(graph, found) == ()
    assert peak(graph, found) <= peak(graph, plan)
    assert _iteration_ns(graph, found, latency_ns, link) <= _iteration_ns(graph, plan, latency_ns, link)


def _iteration_ns(graph: StepGraph, plan: Plan, latency_ns: tuple[int, ...], link: Link) -> int:
    return simulate([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link)[0].iteration_ns


def _advanced(full: tuple[int, ...]) -> Plan:
    return advanced(_graph(full), _plan(free_at=1, in_at=8), (5_000,) * 10, SLOW)


def _plan(*, free_at: int, in_at: int) -> Plan:
    swap = Swap(
        tensor=TensorId(0),
        out_after=OpIndex(0),
        free_at=OpIndex(free_at),
        in_at=OpIndex(in_at),
        needed_by=OpIndex(8),
    )
    return Plan(policy="swap", swaps=(swap,))


def _graph(full: tuple[int, ...]) -> StepGraph:
    """A parameter of 10 bytes that operators 0 and 8 change, and operators that need 100 bytes for themselves."""
    parameter = Tensor(id=TensorId(0), name="p", size_bytes=10, role=Role.PARAMETER)
    operators = tuple(
        Operator(
            name="op",
            signature="op",
            stage=Stage.FORWARD,
            reads=(),
            writes=(TensorId(0),) if k in (0, 8) else (),
            workspace_bytes=100 * (k in full),
        )
        for k in range(10)
    )
    return StepGraph(tensors=(parameter,), operators=operators)
