"""Check the cost model on examples computed by hand: which operator waits for which copy, and for how long."""

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.scheduler.exchange_times import ExchangeTime, beside_each_other, blocking_ns
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import CopyLoss, Link
from indb_tensile.scheduler.memory.peak import LIVENESS, load
from indb_tensile.scheduler.plan import Infeasible, Plan, Swap
from indb_tensile.scheduler.planner import Workload, plan_jobs
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.search.step_search import StepSearch
from indb_tensile.scheduler.timing.copy_flow import Flow, Lane
from indb_tensile.scheduler.timing.job_runs import Compute, EventKind, Forecast, JobRun
from indb_tensile.scheduler.timing.simulate import simulate, timeline
from tests.nightly import some_examples
from tests.scheduler.strategies import graphs, latencies, links, several_workloads

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # 1 ns a byte


def test_iteration_without_swaps_takes_the_time_of_its_operators() -> None:
    (forecast,) = simulate([_run(Plan(policy="test"))], LINK)
    assert forecast == _forecast(iteration_ns=400, compute_ns=400, peak_bytes=50)


def test_hidden_copies_cost_nothing() -> None:
    """Operator 0 of four operators of 100 ns uses p (50 bytes). The copy out lasts from 100 to 150 ns, the copy back
    from 300 to 350.
    """
    (forecast,) = simulate([_run(_swap_plan(2, 3))], LINK)
    assert forecast == _forecast(iteration_ns=400, compute_ns=400, peak_bytes=50, out_bytes=50, in_bytes=50)


def test_late_copy_out_stalls_the_operator_at_which_its_memory_is_released() -> None:
    slow = dataclasses.replace(
        LINK, out_bytes_per_s=400_000_000
    )  # the copy takes 125 ns and ends 25 ns after operator 1
    (forecast,) = simulate([_run(_swap_plan(2, 3))], slow)
    expected = _forecast(iteration_ns=425, compute_ns=400, stall_out_ns=25, peak_bytes=50, out_bytes=50, in_bytes=50)
    assert forecast == expected


def test_late_copy_in_stalls_the_operator_that_needs_it() -> None:
    slow = dataclasses.replace(LINK, in_bytes_per_s=400_000_000)
    (forecast,) = simulate([_run(_swap_plan(2, 3))], slow)
    expected = _forecast(iteration_ns=425, compute_ns=400, stall_in_ns=25, peak_bytes=50, out_bytes=50, in_bytes=50)
    assert forecast == expected
    (at_the_last,) = simulate([_run(_swap_plan(2, 0))], LINK)
    assert (at_the_last.stall_in_ns, at_the_last.iteration_ns) == (50, 450)


def test_valid_host_copy_saves_the_copy_out() -> None:
    plan = Plan(policy="test", swaps=(dataclasses.replace(_swap_plan(1, 3).swaps[0], copies=False),))
    (forecast,) = simulate([_run(plan)], LINK)
    assert forecast == _forecast(iteration_ns=400, compute_ns=400, peak_bytes=50, in_bytes=50)


def test_operators_take_longer_by_what_copies_beside_them_take_of_the_processor() -> None:
    loss = CopyLoss(per_copy_ns=7, per_mib_ns=1 << 20)  # 57 ns for the copy of 50 bytes
    run = dataclasses.replace(_run(_swap_plan(2, 3)), copy_loss=loss)
    (forecast,) = simulate([run], LINK)
    lost_ns = 2 * 57
    expected = _forecast(
        iteration_ns=400 + lost_ns, compute_ns=400 + lost_ns, peak_bytes=50, out_bytes=50, in_bytes=50
    )
    assert forecast == expected
    kept = dataclasses.replace(_swap_plan(1, 3).swaps[0], copies=False)
    once = dataclasses.replace(run, plan=Plan(policy="test", swaps=(kept,)))
    assert simulate([once], LINK)[0].iteration_ns == 400 + 57, "what is not copied costs nothing"


def test_each_copy_costs_its_start_up_time() -> None:
    assert (LINK.out_ns(7), dataclasses.replace(LINK, per_copy_ns=30).in_ns(7)) == (7, 37)
    assert Link(out_bytes_per_s=3 * 10**9, in_bytes_per_s=1).out_ns(1) == 1, "copy times are rounded up"


# Operators of 100 ns; 1 and 2 start exchanges, for which 4 and 5 wait.
@pytest.mark.parametrize(
    ("exchange_ns", "waits_ns"),
    [
        ((150, 40), 0),  # from 200 to 350 and from 350 to 390, and operator 4 comes at 400
        ((250, 40), 50 + 40),  # until 450, and the second until 490
        ((150, 300), 250),  # the second from 350 to 650
        ((0, 0), 0),
    ],
)
def test_exchanges_run_beside_operators_one_after_another(exchange_ns: tuple[int, int], waits_ns: int) -> None:
    run = _exchanging(exchange_ns)
    (forecast,) = simulate([run], LINK)
    expected = _forecast(iteration_ns=500 + waits_ns, compute_ns=500, exchange_ns=waits_ns, peak_bytes=50)
    assert (forecast, forecast.operators_ns) == (expected, 500 + waits_ns)
    blocking = blocking_ns(run.graph, run.latency_ns)
    assert sum(blocking) == forecast.iteration_ns
    assert [ns for op, ns in zip(run.graph.operators, blocking, strict=True) if op.awaits is None] == [100] * 5


def _time(alone_ns: int, beside_ns: int, lost_ns: int) -> ExchangeTime:
    return ExchangeTime(alone_ns=alone_ns, beside_ns=beside_ns, lost_ns=lost_ns)


# Operators of 100 ns; 1 and 2 start exchanges, for which 4 and 5 wait. Operators 2, 3 and 6 come after.
@pytest.mark.parametrize(
    ("first", "second", "latency_ns"),
    [
        # Nothing is lost: as long as alone, or as beside operators.
        (_time(150, 150, 0), _time(40, 40, 0), (100, 100, 100, 100, 150, 40, 100)),
        (_time(50, 90, 0), _time(30, 60, 0), (100, 100, 100, 100, 90, 60, 100)),
        # Operators run at half their pace until 400, when the first exchange ends with operator 2. The second one
        # runs for 40 beside operator 3, which loses 10.
        (_time(100, 200, 100), _time(20, 40, 10), (100, 100, 200, 110, 200, 40, 100)),
        # After 400 (both operators in 200), half of the first exchange is left, and alone it takes 300 more.
        (_time(600, 800, 400), _time(20, 40, 10), (100, 100, 200, 200, 400 + 300, 20, 100)),
        # Operators stand still until the first exchange ends.
        (_time(100, 150, 150), _time(0, 0, 0), (100, 100, 250, 100, 150, 0, 100)),
    ],
)
def test_operators_lose_what_exchanges_beside_them_take_of_the_processor(
    first: ExchangeTime, second: ExchangeTime, latency_ns: tuple[int, ...]
) -> None:
    run = _exchanging((0, 0))
    beside = beside_each_other(run.graph, run.latency_ns, {0: first, 1: second})
    assert beside == latency_ns
    (forecast,) = simulate([dataclasses.replace(run, latency_ns=beside)], LINK)
    assert forecast.iteration_ns == sum(blocking_ns(run.graph, beside))


def test_timeline_shows_exchanges_and_the_waits_for_them() -> None:
    shown = [
        (event.kind, event.operator, event.start_ns, event.end_ns)
        for event in timeline([_exchanging((250, 40))], LINK)
        if event.kind in (EventKind.EXCHANGE, EventKind.LATE_EXCHANGE)
    ]
    begin = 2 * 590  # two iterations are the warm-up
    assert shown == [
        (EventKind.EXCHANGE, 1, begin + 200, begin + 450),
        (EventKind.LATE_EXCHANGE, 4, begin + 400, begin + 450),
        (EventKind.EXCHANGE, 2, begin + 450, begin + 490),
        (EventKind.LATE_EXCHANGE, 5, begin + 450, begin + 490),
    ]


def test_waits_for_copies_hide_exchanges() -> None:
    """The parameter of operators 0 and 3 leaves after 0 and comes back from 200 ns to 325 ns: 25 ns late."""
    run = _exchanging((250, 40))
    away = Swap(tensor=TensorId(0), out_after=OpIndex(0), free_at=OpIndex(2), in_at=OpIndex(2), needed_by=OpIndex(3))
    slow = dataclasses.replace(LINK, in_bytes_per_s=400_000_000)
    (forecast,) = simulate([dataclasses.replace(run, plan=Plan(policy="test", swaps=(away,)))], slow)
    assert (forecast.stall_in_ns, forecast.exchange_ns) == (25, 90 - 25)


def test_upload_occupies_the_lane_while_its_job_waits() -> None:
    batch = Tensor(id=TensorId(0), name="batch", size_bytes=70, role=Role.INPUT)
    upload = Operator(name="upload", signature="u", stage=Stage.UPLOAD, reads=(), writes=(batch.id,))
    graph = StepGraph(tensors=(batch,), operators=(upload, _operator((batch.id,))))
    run = JobRun(graph=graph, plan=LIVENESS, latency_ns=(5, 100))
    (alone,) = simulate([run], LINK)
    assert alone == _forecast(iteration_ns=170, compute_ns=100, upload_ns=70, peak_bytes=70)
    crowded = simulate([run, run, run], LINK)
    assert [f.iteration_ns for f in crowded] == [310, 310, 310], "three uploads at once take three times as long"
    assert [f.upload_ns for f in crowded] == [210, 210, 210]


@pytest.mark.parametrize(("copy_ns", "waited_ns"), [(70, 0), (100, 0), (140, 40)])
def test_batch_that_is_uploaded_ahead_is_waited_for_only_as_long_as_its_copy_exceeds_the_room(
    copy_ns: int, waited_ns: int
) -> None:
    """Only while the last of three operators of 100 ns runs is there room for a second batch of 70 bytes."""
    batch, large, small = (
        Tensor(id=TensorId(k), name=name, size_bytes=size_bytes, role=role)
        for k, (name, size_bytes, role) in enumerate(
            (("x", 70, Role.INPUT), ("large", 200, Role.ACTIVATION), ("small", 1, Role.ACTIVATION))
        )
    )
    upload = Operator(name="upload", signature="u", stage=Stage.UPLOAD, reads=(), writes=(batch.id,))
    operators = [
        Operator(name="f", signature="f", stage=Stage.FORWARD, reads=(read.id,), writes=written)
        for read, written in ((batch, (large.id,)), (large, (small.id,)), (small, ()))
    ]
    graph = StepGraph(tensors=(batch, large, small), operators=(upload, *operators))
    link = Link(out_bytes_per_s=10**9, in_bytes_per_s=70 * 10**9 // copy_ns)
    own = JobRun(graph=graph, plan=LIVENESS, latency_ns=(5, 100, 100, 100))
    ahead = dataclasses.replace(own, batch=("x",))
    forecasts = [simulate([run], link)[0] for run in (own, ahead)]
    assert [(f.iteration_ns, f.upload_ns) for f in forecasts] == [
        (300 + copy_ns, copy_ns),
        (300 + waited_ns, waited_ns),
    ]
    assert forecasts[0].peak_bytes == forecasts[1].peak_bytes == 270
    (seen,) = simulate([dataclasses.replace(ahead, batch=("y",))], link)
    assert seen == forecasts[0], "no tensor of this name is uploaded"
    (lent,) = simulate([dataclasses.replace(ahead, beside=True)], link)
    assert (lent.iteration_ns, lent.upload_ns) == (300 + max(0, copy_ns - 300), max(0, copy_ns - 300))
    work = Workload(job=JobId(1), graphs=(graph,), latency_ns=(own.latency_ns,), batch=("x",))
    planned = plan_jobs((work,), budget_bytes=270, link=link, policy="liveness")
    assert not isinstance(planned, Infeasible)
    assert planned[0].forecast == forecasts[1]


def test_jobs_that_copy_at_once_share_the_lane() -> None:
    """A copy back takes 500 ns alone, and starts 300 ns after the end of the job's previous copy back."""
    link = dataclasses.replace(LINK, in_bytes_per_s=100_000_000)
    runs = [_run(_swap_plan(2, 3))] * 3
    assert [f.iteration_ns for f in simulate(runs[:1], link)] == [800]
    assert [f.iteration_ns for f in simulate(runs[:2], link)] == [1300, 1300]
    assert [(f.iteration_ns, f.stall_in_ns) for f in simulate(runs, link)] == [(1850, 1400)] * 3, (
        "50 ns more for the copies out"
    )
    copies = [e for e in timeline(runs, link) if e.kind is EventKind.SWAP_IN]
    assert {e.end_ns - e.start_ns for e in copies} == {1500}


def test_small_copy_does_not_wait_for_a_large_copy_of_another_job() -> None:
    """Copies of 10 and 1,000 bytes share the lane. The small copy takes 20 ns and does not wait for the end of the
    large one.
    """
    large = _run(_swap_plan(2, 3), size_bytes=1000)
    small = _run(_swap_plan(2, 3), size_bytes=10)
    heavy, light = simulate([large, small], LINK)
    assert (light.iteration_ns, light.stall_in_ns, light.stall_out_ns) == (400, 0, 0)
    assert heavy.iteration_ns > 2000


def test_interfering_lanes_are_slower_while_both_copy() -> None:
    """One job copies out while another job copies in."""
    flow = Flow(duplex=0.5)
    out, back = flow.queue(Lane.OUT, 0, 100), flow.queue(Lane.IN, 1, 30)
    flow.advance(1000)
    assert (back.done_ns, out.done_ns) == (60, 130)


def test_copy_that_ends_within_the_time_resolution_still_wakes_its_job() -> None:
    """The lanes hardly slow each other down: 6 bytes take 6.0006 ns. The simulator's resolution does not distinguish
    this from 6 ns.
    """
    tensor = Tensor(id=TensorId(0), name="p", size_bytes=6, role=Role.PARAMETER)
    graph = StepGraph(tensors=(tensor,), operators=(_operator((tensor.id,)), _operator(()), _operator((tensor.id,))))
    away = Swap(tensor=tensor.id, out_after=OpIndex(0), free_at=OpIndex(1), in_at=OpIndex(2), needed_by=OpIndex(2))
    plans = [Plan(policy="test", swaps=(dataclasses.replace(away, copies=copies),)) for copies in (True, False)]
    runs = [JobRun(graph=graph, plan=plan, latency_ns=(1, 4, 3)) for plan in plans]
    copies_both_ways, copies_in_only = simulate(runs, dataclasses.replace(LINK, duplex=0.9999))
    assert (copies_both_ways.stall_in_ns + copies_both_ways.stall_out_ns, copies_in_only.stall_out_ns) == (
        copies_both_ways.iteration_ns - 8,
        0,
    )
    assert copies_in_only.stall_in_ns == copies_in_only.iteration_ns - 8 > 0


def test_taking_turns_makes_jobs_wait_for_each_other() -> None:
    runs = [_run(Plan(policy="test"))] * 3
    overlap, turns = simulate(runs, LINK), simulate(runs, LINK, compute=Compute.TURNS)
    assert [f.iteration_ns for f in overlap] == [400, 400, 400]
    assert [f.iteration_ns for f in turns] == [1200, 1200, 1200]
    assert [f.turn_ns for f in turns] == [800, 800, 800]
    assert simulate(runs[:1], LINK, compute=Compute.TURNS) == simulate(runs[:1], LINK)


def test_timeline_has_operators_copies_and_waits() -> None:
    slow = dataclasses.replace(LINK, in_bytes_per_s=400_000_000)
    events = timeline([_run(_swap_plan(2, 3))], slow)
    start = min(e.start_ns for e in events if e.kind is EventKind.LATE_IN)
    shown = [(e.kind, e.operator, e.start_ns - start, e.end_ns - start) for e in events if e.start_ns >= start]
    assert shown[:6] == [
        (EventKind.LATE_IN, 0, 0, 25),
        (EventKind.COMPUTE, 0, 25, 125),
        (EventKind.SWAP_OUT, 1, 125, 175),
        (EventKind.COMPUTE, 1, 125, 225),
        (EventKind.COMPUTE, 2, 225, 325),
        (EventKind.COMPUTE, 3, 325, 425),
    ]
    assert shown[6] == (EventKind.SWAP_IN, 3, 325, 450)
    assert {e.tensor for e in events if e.kind is EventKind.SWAP_IN} == {TensorId(0)}


def test_simulation_of_jobs_of_very_different_length_ends() -> None:
    long = dataclasses.replace(_run(Plan(policy="test")), latency_ns=(10**9,) * 4)
    short, slow = simulate([_run(Plan(policy="test")), long], LINK)
    assert (short.iteration_ns, slow.iteration_ns) == (400, 4 * 10**9)


def test_very_short_job_loads_the_lane_of_a_long_one_all_the_time() -> None:
    """The short job uploads for 70 ns and computes for 100 ns. While the long job copies, the upload takes 140 ns,
    and in 240 ns the copy progresses by 170 ns. So a copy of 100 ms takes 141 ms, of which an operator hides 100 ms.
    """
    batch = Tensor(id=TensorId(0), name="batch", size_bytes=70, role=Role.INPUT)
    upload = Operator(name="upload", signature="u", stage=Stage.UPLOAD, reads=(), writes=(batch.id,))
    graph = StepGraph(tensors=(batch,), operators=(upload, _operator((batch.id,))))
    short = JobRun(graph=graph, plan=LIVENESS, latency_ns=(0, 100))
    long = dataclasses.replace(_run(_swap_plan(2, 3), size_bytes=10**8), latency_ns=(10**8,) * 4)
    quick, slow = simulate([short, long], LINK)
    assert slow.stall_in_ns == pytest.approx(0.41 * 10**8, rel=0.05)
    assert quick.iteration_ns == pytest.approx(170 + 70 * 1.41 / 4.41, rel=0.05)


@some_examples()
@given(several_workloads(exchanges=True), links(), st.floats(0, 1), st.sampled_from(Compute))
def test_iteration_time_is_the_sum_of_its_parts_and_bounded_below(
    jobs: tuple[Workload, ...], link: Link, fraction: float, compute: Compute
) -> None:
    planned = plan_jobs(jobs, budget_bytes=_budget_between(jobs, link, fraction), link=link)
    assert not isinstance(planned, Infeasible)
    runs = [
        JobRun(graph=w.graphs[0], plan=p.plans[0], latency_ns=w.latency_ns[0])
        for w, p in zip(jobs, planned, strict=True)
    ]
    forecasts = simulate(runs, link, compute=compute)
    assert forecasts == simulate(runs, link, compute=compute)
    for run, forecast in zip(runs, forecasts, strict=True):
        parts = (forecast.operators_ns, forecast.stall_out_ns, forecast.stall_in_ns, forecast.upload_ns)
        assert abs(forecast.iteration_ns - sum(parts) - forecast.turn_ns) <= 4, "seven rounded figures"
        assert min(parts) >= 0
        assert forecast.peak_bytes == max(load(run.graph, run.plan))
        tensors = effective(run.graph, run.plan).tensors
        copied_ns = sum(link.in_ns(tensors[s.tensor].size_bytes) for s in run.plan.swaps)
        if len(runs) == 1:
            assert forecast.iteration_ns >= copied_ns - 1, "a lane cannot copy faster than its rate"


@given(graphs(), links(), st.data())
def test_nothing_runs_beside_an_upload_of_its_own_job(graph: StepGraph, link: Link, data: st.DataObject) -> None:
    """This holds at any position of the upload, whatever swaps use the lane. The search assumes the same."""
    stages = [
        data.draw(st.sampled_from((op.stage, Stage.UPLOAD))) if op.writes else op.stage for op in graph.operators
    ]
    operators = tuple(dataclasses.replace(op, stage=stage) for op, stage in zip(graph.operators, stages, strict=True))
    graph = dataclasses.replace(graph, operators=operators)
    latency_ns = data.draw(latencies(graph))
    search = StepSearch(graph, latency_ns, link)
    search.exhaust()
    run = JobRun(graph=graph, plan=search.plan("test"), latency_ns=latency_ns)
    assert simulate([run], link)[0].iteration_ns == search.iteration_ns
    operator_events = [e for e in timeline([run], link) if e.kind in (EventKind.COMPUTE, EventKind.UPLOAD)]
    assert all(earlier.end_ns <= later.start_ns for earlier, later in pairwise(operator_events))


def test_senseless_runs_are_refused() -> None:
    with pytest.raises(InvariantError, match="3 latencies for 4 operators"):
        dataclasses.replace(_run(LIVENESS), latency_ns=(1, 2, 3))
    with pytest.raises(InvariantError, match="not be negative nor all 0"):
        dataclasses.replace(_run(LIVENESS), latency_ns=(1, -2, 3, 4))
    with pytest.raises(InvariantError, match="not be negative nor all 0"):
        dataclasses.replace(_run(LIVENESS), latency_ns=(0,) * 4)
    with pytest.raises(InvariantError, match="rates must be positive"):
        Link(out_bytes_per_s=0, in_bytes_per_s=1)
    with pytest.raises(InvariantError, match=r"duplex is 0.3"):
        Link(out_bytes_per_s=1, in_bytes_per_s=1, duplex=0.3)


def _budget_between(jobs: tuple[Workload, ...], link: Link, fraction: float) -> int:
    """Return a budget between the floors and the peaks without plans."""
    planned = plan_jobs(jobs, budget_bytes=10**9, link=link)
    assert not isinstance(planned, Infeasible)
    floors = [max(p.floor_bytes, *map(_exchange_floor, job.graphs)) for job, p in zip(jobs, planned, strict=True)]
    peaks = [p.liveness_peak_bytes for p in planned]
    between = (low + int((high - low) * fraction) for low, high in zip(floors, peaks, strict=True))
    return sum(between) + len(planned)


def _exchange_floor(graph: StepGraph) -> int:
    """Return what operators need while exchanges are under way, whose tensors stay on the device."""
    under_way: dict[int, frozenset[TensorId]] = {}
    floor_bytes = 0
    for operator in graph.operators:
        if operator.starts is not None:
            under_way[operator.starts] = operator.tensors
        needed = operator.tensors.union(*under_way.values())
        size_bytes = operator.workspace_bytes + sum(graph.tensors[tensor].size_bytes for tensor in needed)
        floor_bytes = max(floor_bytes, size_bytes)
        if operator.awaits is not None:
            del under_way[operator.awaits]
    return floor_bytes


def _forecast(**figures: int) -> Forecast:
    zeros = dict.fromkeys((f.name for f in dataclasses.fields(Forecast)), 0)
    return Forecast(**{**zeros, **figures})


def _operator(reads: tuple[TensorId, ...]) -> Operator:
    return Operator(name="op", signature="op", stage=Stage.FORWARD, reads=reads, writes=())


def _swap_plan(free_at: int, in_at: int) -> Plan:
    swap = Swap(
        tensor=TensorId(0),
        out_after=OpIndex(0),
        free_at=OpIndex(free_at),
        in_at=OpIndex(in_at),
        needed_by=OpIndex(0),
    )
    return Plan(policy="test", swaps=(swap,))


def _run(plan: Plan, size_bytes: int = 50) -> JobRun:
    """Return a run of four operators of 100 ns. The first one uses a parameter of `size_bytes`."""
    tensor = Tensor(id=TensorId(0), name="p", size_bytes=size_bytes, role=Role.PARAMETER)
    operators = (_operator((tensor.id,)), *[_operator(())] * 3)
    return JobRun(graph=StepGraph(tensors=(tensor,), operators=operators), plan=plan, latency_ns=(100,) * 4)


def _exchanging(exchange_ns: tuple[int, int]) -> JobRun:
    """Return a run of seven operators: 1 and 2 start exchanges that last so long, and 4 and 5 wait for them."""
    tensor = Tensor(id=TensorId(0), name="p", size_bytes=50, role=Role.PARAMETER)
    plain = _operator(())
    first, second = (dataclasses.replace(plain, random=True, starts=number) for number in (0, 1))
    ends = [dataclasses.replace(plain, random=True, awaits=number) for number in (0, 1)]
    operators = (_operator((tensor.id,)), first, second, _operator((tensor.id,)), *ends, plain)
    latency_ns = (100, 100, 100, 100, *exchange_ns, 100)
    graph = StepGraph(tensors=(tensor,), operators=operators)
    return JobRun(graph=graph, plan=Plan(policy="test"), latency_ns=latency_ns)
