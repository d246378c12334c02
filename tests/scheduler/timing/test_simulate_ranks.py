"""Check what is foretold of ranks that train together: by hand, against one rank alone, and by a judge of its own."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.scheduler.exchange_times import ExchangeTime, beside_each_other
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import CopyLoss, Link
from indb_tensile.scheduler.memory.peak import floor, liveness_peak
from indb_tensile.scheduler.plan import Infeasible, Plan, Swap
from indb_tensile.scheduler.planner import Workload, plan_jobs
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.timing.simulate_ranks import (
    RankForecast,
    RankRun,
    simulate_ranks,
    step_of_rank,
    without_waits,
)
from tests.scheduler.strategies import graphs_with_exchanges, latencies, links
from tests.scheduler.timing.rank_judge import mean_iterations_ns

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # 1 ns a byte
WHOLE = Plan(policy="test")
# A rank that is a little faster than another one may come closer to it for hundreds of iterations. Until
# then means differ by up to one iteration in a dozen for each of both.
STEADY = 13 / 11


def test_exchange_begins_when_the_last_rank_comes_to_it() -> None:
    """Operators 0 to 2 take 100 ns, or 150 ns on rank 1. 1 starts an exchange of 200 ns, for which 3 waits."""
    quick, slow = rank_of((100, 100, 100)), rank_of((150, 150, 150))
    ahead, behind = simulate_ranks([quick, slow])
    assert [own.forecast.iteration_ns for own in (ahead, behind)] == [500, 500]
    assert (ahead.forecast.compute_ns, ahead.forecast.exchange_ns) == (300, 200)
    assert (behind.forecast.compute_ns, behind.forecast.exchange_ns) == (450, 50)
    # from 300, when it has computed, until 300, when the other one starts the exchange
    assert (ahead.late_ns, behind.late_ns) == (0, 0)
    (ahead, behind) = simulate_ranks([quick, rank_of((300, 200, 100))])
    assert (ahead.late_ns, ahead.forecast.iteration_ns, ahead.forecast.exchange_ns) == (200, 700, 400)


def test_copy_that_is_late_on_one_rank_makes_all_wait() -> None:
    """The parameter leaves rank 1 after operator 0 and comes back 275 ns late for operator 1."""
    away = Swap(tensor=TensorId(0), out_after=OpIndex(0), free_at=OpIndex(1), in_at=OpIndex(1), needed_by=OpIndex(1))
    slow = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9, per_copy_ns=87)
    swapping = replace(rank_of((100, 100, 100), Plan(policy="test", swaps=(away,))), link=slow)
    ahead, behind = simulate_ranks([rank_of((100, 100, 100)), swapping])
    assert (behind.forecast.stall_out_ns, behind.forecast.stall_in_ns, behind.late_ns) == (137, 137, 0)
    assert (ahead.late_ns, ahead.forecast.exchange_ns) == (174, 374)
    assert ahead.forecast.iteration_ns == behind.forecast.iteration_ns == 100 + 274 + 100 + 200


def test_exchange_that_takes_processors_does_so_by_the_share_of_ranks_that_compute() -> None:
    """Beside both it takes 400 ns and they lose 200, so an operator of 100 ns takes 200. Alone it takes 100 ns."""
    time = ExchangeTime(alone_ns=100, beside_ns=400, lost_ns=200)
    both = [replace(rank_of((100, 100, 100)), exchanges=(time,))] * 2
    # operator 2 takes 200 ns, which are half of the exchange; the other half takes 50 ns alone
    assert [own.forecast.iteration_ns for own in simulate_ranks(both)] == [450, 450]
    apart = [replace(own, host=host) for own, host in zip(both, "ab", strict=True)]
    assert simulate_ranks(apart) == simulate_ranks(both)
    # Rank 1 computes for 400 ns after it has started the exchange. Rank 0 has done so before, and only waits. Half of
    # the ranks compute: the exchange takes 250 ns, of which rank 1 loses 100.
    uneven = [both[0], replace(both[1], run=replace(both[1].run, latency_ns=(100, 100, 400, 0)))]
    first, second = simulate_ranks(uneven)
    assert (second.forecast.compute_ns, second.forecast.exchange_ns) == (700, 0)
    assert (first.forecast.compute_ns, first.forecast.exchange_ns, first.late_ns) == (300, 400, 150)


def test_measured_exchange_takes_as_long_as_the_rank_that_came_last_to_it() -> None:
    early, late = rank_of((100, 100, 100)), replace(rank_of((300, 200, 100)), exchanges=(ExchangeTime.free(150),))
    assert without_waits([early, late]) == (replace(early, exchanges=late.exchanges), late)


def test_time_between_iterations_lengthens_each_of_them_and_the_work_before_the_first_exchange() -> None:
    rank = rank_of((100, 100, 100))
    slow = replace(rank, between_ns=50)
    (before, _), (after, other) = simulate_ranks([rank, rank]), simulate_ranks([slow, rank])
    whole_ns, compute_ns = before.forecast.iteration_ns + 50, before.forecast.compute_ns + 50
    assert after.forecast == replace(before.forecast, iteration_ns=whole_ns, compute_ns=compute_ns)
    assert other.forecast.iteration_ns == whole_ns
    assert other.forecast.exchange_ns == before.forecast.exchange_ns + 50  # it waits for the slow one
    first, *rest = step_of_rank(rank).work_ns
    assert step_of_rank(slow).work_ns == (first + 50, *rest)


def test_ranks_that_make_different_exchanges_are_refused() -> None:
    silent = RankRun(
        run=JobRun(graph=_graph(exchanging=False), plan=WHOLE, latency_ns=(1,) * 4), exchanges=(), link=LINK
    )
    with pytest.raises(InvariantError, match=r"different numbers of exchanges in a step: \[0, 1\]"):
        simulate_ranks([rank_of((1, 1, 1)), silent])
    with pytest.raises(InvariantError, match="times of 0 exchanges for 1 exchanges"):
        replace(rank_of((1, 1, 1)), exchanges=())


@given(graphs_with_exchanges(), links(), st.data())
def test_equal_ranks_take_as_long_as_one_alone(graph: StepGraph, link: Link, data: st.DataObject) -> None:
    """Exchanges cost operators nothing here, so they are latencies as in the simulation of jobs."""
    latency_ns = data.draw(latencies(graph))
    plan = _plan(graph, latency_ns, link, data.draw(st.floats(0, 1)))
    run = JobRun(
        graph=graph, plan=plan, latency_ns=latency_ns, copy_loss=CopyLoss(per_copy_ns=data.draw(st.integers(0, 99)))
    )
    times = tuple(
        ExchangeTime.free(ns) for op, ns in zip(graph.operators, latency_ns, strict=True) if op.awaits is not None
    )
    assume(_takes_time(graph, latency_ns, times))
    ranks = [RankRun(run=run, exchanges=times, link=link)] * data.draw(st.integers(1, 4))
    (alone,) = simulate([run], link)
    for own in simulate_ranks(ranks):
        assert own.late_ns == 0
        assert own.forecast.iteration_ns == pytest.approx(alone.iteration_ns, abs=2)
        assert own.forecast.exchange_ns == pytest.approx(alone.exchange_ns, abs=2)
        assert own.forecast.copies_ns == pytest.approx(alone.copies_ns, abs=3)


@given(graphs_with_exchanges(), st.data())
def test_equal_ranks_lose_to_exchanges_what_is_foretold_in_captured_order(
    graph: StepGraph, data: st.DataObject
) -> None:
    latency_ns = data.draw(latencies(graph))
    uploads = [op.stage is Stage.UPLOAD for op in graph.operators]
    assume(not any(uploads))
    times = tuple(data.draw(_exchange_times()) for op in graph.operators if op.starts is not None)
    assume(_takes_time(graph, latency_ns, times))
    ranks = [RankRun(run=JobRun(graph=graph, plan=WHOLE, latency_ns=latency_ns), exchanges=times, link=LINK)] * 2
    beside = beside_each_other(graph, latency_ns, dict(enumerate(times)))
    (alone,) = simulate([JobRun(graph=graph, plan=WHOLE, latency_ns=beside)], LINK)
    for own in simulate_ranks(ranks):
        assert own.forecast.iteration_ns == pytest.approx(alone.iteration_ns, abs=2 + len(graph.operators))


def test_first_iteration_of_a_rank_that_waits_only_in_it_does_not_count() -> None:
    """Rank 0 computes before it starts the second exchange, and rank 1 after it. So rank 1 is late once, for ever."""
    tensors = tuple(Tensor(id=TensorId(k), name=f"t{k}", size_bytes=1, role=Role.ACTIVATION) for k in range(2))
    operators = (
        _operator((), (TensorId(0), TensorId(1))),
        replace(_operator((TensorId(0),), (TensorId(0),)), starts=0),
        replace(_operator((TensorId(1),), (TensorId(1),)), starts=1),
        replace(_operator((TensorId(0),), (TensorId(0),)), awaits=0),
        _operator((TensorId(0),), ()),
        replace(_operator((TensorId(1),), (TensorId(1),)), awaits=1),
    )
    graph = StepGraph(tensors=tensors, operators=operators)
    ranks = [
        RankRun(
            run=JobRun(graph=graph, plan=WHOLE, latency_ns=latency_ns),
            exchanges=(ExchangeTime.free(0),) * 2,
            link=LINK,
        )
        for latency_ns in ((500, 0, 0, 0, 0, 0), (0, 0, 0, 0, 500, 0))
    ]
    assert [own.forecast.iteration_ns for own in simulate_ranks(ranks)] == [500, 500]


@given(st.data())
def test_judge_has_the_same_iterations(data: st.DataObject) -> None:
    """Ranks have plans, latencies, links and hosts of their own."""
    ranks = data.draw(gangs())
    judged = mean_iterations_ns(ranks)
    assume(judged is not None)
    assert judged is not None
    foretold = [own.forecast for own in simulate_ranks(ranks)]
    for forecast, exact in zip(foretold, judged, strict=True):
        assert forecast.iteration_ns == pytest.approx(exact, rel=5e-3, abs=2)
        parts = forecast.compute_ns + forecast.copies_ns + forecast.exchange_ns
        assert parts == pytest.approx(forecast.iteration_ns, abs=6)


@given(st.data())
def test_ranks_that_exchange_stay_together_and_none_is_faster_than_alone(data: st.DataObject) -> None:
    ranks = data.draw(gangs(free=True))
    together = simulate_ranks(ranks)
    if ranks[0].exchanges:
        assert max(own.forecast.iteration_ns for own in together) <= min(map(_iteration_ns, together)) * STEADY + 4
    for rank in ranks:
        (alone,) = simulate_ranks([rank])
        assert max(map(_iteration_ns, together)) >= alone.forecast.iteration_ns / STEADY - 2


@given(st.data())
def test_slower_operator_on_one_rank_makes_no_rank_faster(data: st.DataObject) -> None:
    """Exchanges cost operators nothing here, and lanes do not slow each other. Where they do, later may be better."""
    ranks = data.draw(gangs(free=True))
    slowed = data.draw(st.integers(0, len(ranks) - 1))
    run = ranks[slowed].run
    place = data.draw(st.integers(0, len(run.latency_ns) - 1))
    more_ns = data.draw(st.integers(1, 30_000))
    longer = (*run.latency_ns[:place], run.latency_ns[place] + more_ns, *run.latency_ns[place + 1 :])
    changed = replace(ranks[slowed], run=replace(run, latency_ns=longer))
    before = max(map(_iteration_ns, simulate_ranks(ranks)))
    after = max(map(_iteration_ns, simulate_ranks([*ranks[:slowed], changed, *ranks[slowed + 1 :]])))
    assert after >= before / STEADY - 2


def _iteration_ns(own: RankForecast) -> int:
    return own.forecast.iteration_ns


@st.composite
def _exchange_times(draw: st.DrawFn, *, free: bool = False) -> ExchangeTime:
    alone_ns = draw(st.integers(0, 20_000))
    if free:
        return ExchangeTime.free(alone_ns)
    beside_ns = alone_ns + draw(st.integers(0, 20_000))
    return ExchangeTime(alone_ns=alone_ns, beside_ns=beside_ns, lost_ns=draw(st.integers(0, beside_ns)))


@st.composite
def gangs(draw: st.DrawFn, *, free: bool = False, copies: bool = True) -> list[RankRun]:
    """Draw ranks of one step, each under a plan of its own. With `free`, exchanges cost operators nothing. Without
    `copies` no plan swaps.
    """
    graph = draw(graphs_with_exchanges())
    count = sum(operator.starts is not None for operator in graph.operators)
    ranks = []
    for _ in range(draw(st.integers(1, 3))):
        latency_ns, link = draw(latencies(graph)), draw(links())
        plan = _plan(graph, latency_ns, link, draw(st.floats(0, 1))) if copies else WHOLE
        times = tuple(draw(_exchange_times(free=free)) for _ in range(count))
        assume(_takes_time(graph, latency_ns, times))
        ranks.append(
            RankRun(
                run=JobRun(graph=graph, plan=plan, latency_ns=latency_ns),
                exchanges=times,
                link=link if free else replace(link, duplex=draw(st.sampled_from((1.0, 0.75, 0.5)))),
                host=draw(st.sampled_from("ab")),
                between_ns=draw(st.sampled_from((0, draw(st.integers(1, 30_000))))),
            )
        )
    return ranks


def _takes_time(graph: StepGraph, latency_ns: Sequence[int], times: Sequence[ExchangeTime]) -> bool:
    own_ns = [ns for op, ns in zip(graph.operators, latency_ns, strict=True) if op.awaits is None]
    return sum(own_ns) + sum(time.alone_ns for time in times) > 0


def _plan(graph: StepGraph, latency_ns: Sequence[int], link: Link, share: float) -> Plan:
    """Return the plan for a budget between the least memory and that without a swap."""
    least, most = floor(graph), liveness_peak(graph)
    budget_bytes = round(least + share * max(0, most - least))
    workload = Workload(job=JobId(1), graphs=(graph,), latency_ns=(tuple(latency_ns),))
    plans = plan_jobs((workload,), budget_bytes=budget_bytes, link=link)
    return WHOLE if isinstance(plans, Infeasible) else plans[0].plans[0]


def rank_of(latency_ns: tuple[int, int, int], plan: Plan = WHOLE) -> RankRun:
    """Return a rank of four operators, of which 1 starts an exchange of 200 ns and 3 waits for it."""
    run = JobRun(graph=_graph(), plan=plan, latency_ns=(*latency_ns, 0))
    return RankRun(run=run, exchanges=(ExchangeTime.free(200),), link=LINK)


def _graph(*, exchanging: bool = True) -> StepGraph:
    """Return a graph whose operators 0 and 1 read p (50 bytes), and 1 and 3 exchange a."""
    p = Tensor(id=TensorId(0), name="p", size_bytes=50, role=Role.PARAMETER)
    a = Tensor(id=TensorId(1), name="a", size_bytes=1, role=Role.ACTIVATION)
    number = 0 if exchanging else None
    operators = (
        _operator((p.id,), (a.id,)),
        replace(_operator((a.id, p.id), (a.id,)), starts=number),
        _operator((), ()),
        replace(_operator((a.id, p.id), (a.id,)), awaits=number),
    )
    return StepGraph(tensors=(p, a), operators=operators)


def _operator(reads: tuple[TensorId, ...], writes: tuple[TensorId, ...]) -> Operator:
    return Operator(name="op", signature="op", stage=Stage.FORWARD, reads=reads, writes=writes)
