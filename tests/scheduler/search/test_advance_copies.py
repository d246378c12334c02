"""Check that copies move to moments at which memory is unused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.search.advance_copies import advance_copies
from indb_tensile.scheduler.search.step_search import StepSearch
from tests.scheduler.plan_parts import iteration_ns
from tests.scheduler.strategies import graphs as step_graphs
from tests.scheduler.strategies import latencies as step_latencies
from tests.scheduler.strategies import links

SLOW = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)  # 1 us a byte
LANES = (1.0, 0.7)  # duplex: lanes that do not slow each other down, and lanes that do


@pytest.mark.parametrize("duplex", LANES)
def test_tensor_stays_until_its_copy_out_ends_and_returns_before_its_use(duplex: float) -> None:
    """A copy takes the time of two operators. Memory is free for three operators after the first use and before the
    second.
    """
    assert _advanced(full=(4,), duplex=duplex) == _plan(free_at=3, in_at=5)


@pytest.mark.parametrize("duplex", LANES)
def test_tensor_returns_only_once_memory_is_free(duplex: float) -> None:
    """Operators 2 and 6 need all memory."""
    assert _advanced(full=(2, 6), duplex=duplex) == _plan(free_at=2, in_at=7)


def test_plan_without_stalls_is_unchanged() -> None:
    search = _search(full=(4,), covered=(4, 4))
    before = search.plan("swap")
    assert not search.advance((3, 10, 30, 100))
    assert search.plan("swap") == before


@given(step_graphs(), links(), st.sampled_from(("exhaust", "sweep", "press", "fill")), st.data())
def test_advanced_copies_are_valid_need_no_more_memory_and_are_no_slower(
    graph: StepGraph, link: Link, method: str, data: st.DataObject
) -> None:
    latency_ns = data.draw(step_latencies(graph))
    search = StepSearch(graph, latency_ns, link)
    limit_bytes = data.draw(st.integers(search.floor_bytes, max(search.floor_bytes, liveness_peak(graph))))
    _choose(search, method, limit_bytes)
    plan = search.plan("test")
    advanced = advance_copies(search, "test", link)
    assert faults(graph, advanced) == ()
    assert peak(graph, advanced) <= peak(graph, plan)
    assert iteration_ns(graph, advanced, latency_ns, link) <= iteration_ns(graph, plan, latency_ns, link)


@given(step_graphs(), links(), st.data())
def test_time_of_advanced_copies_is_that_of_the_simulator(graph: StepGraph, link: Link, data: st.DataObject) -> None:
    link = replace(link, duplex=1.0)
    latency_ns = data.draw(step_latencies(graph))
    search = StepSearch(graph, latency_ns, link)
    search.exhaust()
    if search.advance((3, 10, 30, 100)):
        assert search.iteration_ns == iteration_ns(graph, search.plan("test"), latency_ns, link)


def _choose(search: StepSearch, method: str, limit_bytes: int) -> None:
    if method == "sweep" and search.sweep(limit_bytes, drops=True, lane_price=0.05):
        return
    if method == "press" and search.press(limit_bytes, most=100):
        return
    search.exhaust()
    if method == "fill":
        search.fill(limit_bytes)


def _advanced(full: tuple[int, ...], duplex: float) -> Plan:
    return advance_copies(_search(full, covered=(1, 7), duplex=duplex), "swap", replace(SLOW, duplex=duplex))


def _search(full: tuple[int, ...], covered: tuple[int, int], duplex: float = 1.0) -> StepSearch:
    """Return a search in which the parameter is away at least at the operators `covered`."""
    search = StepSearch(_graph(full), (5_000,) * 10, replace(SLOW, duplex=duplex))
    gap = next(k for k, (tensor, _, _) in enumerate(search.gap_keys) if tensor == 0)
    search.choose([(gap, *covered)])
    return search


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
    """Return a graph of a parameter of 10 bytes that operators 0 and 8 write. Operators in `full` have a workspace of
    100 bytes.
    """
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
