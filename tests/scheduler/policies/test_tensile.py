"""TENSILE's Algorithm 3: what comes next, for any number of jobs, and when it ends. A byte is copied in 1 us."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import OpIndex, Role, StepGraph, TensorId
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.policies.tensile import over_its_rate, stands_still, tensile
from indb_tensile.scheduler.tensile.swap_events import Rules
from indb_tensile.scheduler.timing.simulate import JobRun, simulate
from indb_tensile.scheduler.workload import Workload
from tests.scheduler.access_rows import graph_from_rows
from tests.scheduler.strategies import links, several_workloads

LINK = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)
US = 1000
ACTIVATION, PARAMETER, STATE, BATCH = Role.ACTIVATION, Role.PARAMETER, Role.OPTIMIZER_STATE, Role.INPUT

PLENTY, NOTHING = 10**9, 0

# Tensor 1 can be recomputed from the batch, tensor 2 can be swapped, tensor 3 is the peak: 10 + 60 + 40 + 100 bytes.
BOTH_WAYS = graph_from_rows(
    (10, BATCH, "wr.r..r"),
    (60, ACTIVATION, ".w....r"),
    (40, PARAMETER, "r.....r"),
    (100, ACTIVATION, "...wr.."),
    uploads=(0,),
)
SWAP_ALONE = Swap(
    tensor=TensorId(2), out_after=OpIndex(0), free_at=OpIndex(2), in_at=OpIndex(5), needed_by=OpIndex(6)
)


# --- one job -----------------------------------------------------------------------------------------------------


def test_swapping_goes_as_far_as_it_can_whatever_the_budget_and_nothing_is_recomputed_within_it() -> None:
    """Sections IV-C and V-A: as much as possible is saved; IV-D: recomputation is for what exceeds the memory."""
    job = _job(BOTH_WAYS, latency=_with_short_first_use())
    (plan,) = _plans((job,), budget=PLENTY)
    assert (plan.executions, [s.tensor for s in plan.swaps]) == ((), [2])
    assert peak(BOTH_WAYS, plan) == 170
    assert _plans((job,), budget=170) == [plan]


def test_over_the_budget_tensors_are_recomputed_and_the_swaps_stay() -> None:
    job = _job(BOTH_WAYS, latency=_with_short_first_use())
    (swapped,) = _plans((job,), budget=PLENTY)
    (plan,) = _plans((job,), budget=169)
    assert plan.executions == tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 2, 3, 4, 5, 1, 6))
    assert [s.tensor for s in plan.swaps] == [s.tensor for s in swapped.swaps]
    assert peak(BOTH_WAYS, plan) == 110
    assert check.faults(BOTH_WAYS, plan) == ()


def test_recomputation_stops_as_soon_as_the_memory_is_enough() -> None:
    """Both can be made again of the batch; 60 bytes are enough for a budget of 120, and their MSPS is larger."""
    graph = graph_from_rows(
        (10, BATCH, "wrr...r"),
        (60, ACTIVATION, ".w....r"),
        (10, ACTIVATION, "..w..r."),
        (100, ACTIVATION, "...wr.."),
        uploads=(0,),
    )
    job = _job(graph, latency=(10,) * 7)
    assert [peak(graph, _plans((job,), budget=budget)[0]) for budget in (180, 120, 119)] == [180, 120, 110]


def test_recomputation_goes_on_where_its_plan_needs_more_than_was_estimated() -> None:
    """60 bytes less seem enough for 150, but 30 have to stay for it (see test_recompute_events), so 20 follow."""
    graph = graph_from_rows(
        (10, BATCH, "wrr.r...r"),
        (8, Role.BUFFER, ".r.u....."),
        (60, ACTIVATION, ".w.....r."),
        (30, ACTIVATION, "..wr....."),
        (20, ACTIVATION, "....w...r"),
        (100, ACTIVATION, ".....wr.."),
        uploads=(0,),
    )
    (plan,) = _plans((_job(graph, latency=(1,) * 9),), budget=150)
    assert peak(graph, plan) == 148


def test_a_plan_for_those_who_cannot_run_operators_again_does_without() -> None:
    job = _job(BOTH_WAYS, latency=_with_short_first_use())
    ((plan,),) = tensile((job,), budget_bytes=NOTHING, link=LINK, rewrites=False)
    assert plan == _plans((job,), budget=PLENTY)[0]
    (switched_off,) = _plans((job,), budget=NOTHING, rules=Rules(recomputes=False))
    assert switched_off == plan


def test_a_jobs_own_limit_is_met_by_recomputation_as_well_as_it_can() -> None:
    job = _job(BOTH_WAYS, latency=_with_short_first_use())
    limited = dataclasses.replace(job, limit_bytes=169)
    other = dataclasses.replace(job, job=JobId(2))
    plans = _plans((limited, other), budget=PLENTY)
    assert [peak(BOTH_WAYS, plan) for plan in plans] == [110, 170]


def test_an_update_is_a_cold_start_with_other_latencies() -> None:
    """Section IV-E. With operators of 100 us the copies take less than one of them, with 25 us nearly two."""
    graph = graph_from_rows((40, PARAMETER, "r.....r"), (100, ACTIVATION, "...wr.."))
    (cold,) = _plans((_job(graph, latency=(100,) * 7),), budget=PLENTY)
    (updated,) = _plans((_job(graph, latency=(25,) * 7),), budget=PLENTY)
    moved = dataclasses.replace(SWAP_ALONE, tensor=TensorId(0))
    assert cold == Plan(policy="tensile", swaps=(moved,))
    assert updated == Plan(
        policy="tensile", swaps=(dataclasses.replace(moved, free_at=OpIndex(3), in_at=OpIndex(4)),)
    )


# --- several jobs ------------------------------------------------------------------------------------------------


def test_the_largest_tensor_at_the_peak_of_any_job_is_swapped_first() -> None:
    """Swapping ends after 101 rounds: all that is larger has gone by then, of whichever job it is."""
    large, small = _job(_crowd(60, 11), 1), _job(_crowd(60, 10), 2)
    assert [len(plan.swaps) for plan in _plans((large, small), budget=PLENTY)] == [60, 41]
    assert [len(plan.swaps) for plan in _plans((small, large), budget=PLENTY)] == [41, 60]


def test_among_equals_the_first_job_goes_first() -> None:
    equal = _job(_crowd(60, 10), 1), _job(_crowd(60, 10), 2)
    assert [len(plan.swaps) for plan in _plans(equal, budget=PLENTY)] == [60, 41]


def test_a_lower_maximum_swapping_rate_is_a_higher_priority() -> None:
    """Section IV-C. Of the tensors that six could be, the first job gives no more than its rate allows."""
    graph = graph_from_rows(
        *((40 - k, PARAMETER, "r............r") for k in range(3)), (100, ACTIVATION, "......wr......")
    )
    first, second = _job(graph, 1), _job(graph, 2)
    spared = dataclasses.replace(first, max_swapping_rate=0.2)
    assert [len(plan.swaps) for plan in _plans((first, second), budget=PLENTY)] == [3, 3]
    assert [len(plan.swaps) for plan in _plans((spared, second), budget=PLENTY)] == [1, 3]


def test_a_job_is_over_its_rate_by_its_share_of_all_swapped_tensors() -> None:
    """Algorithm 2, line 28: less or equal is allowed."""
    assert not over_its_rate(0, 0, 0.0)
    assert over_its_rate(1, 1, 0.5)
    assert not over_its_rate(1, 2, 0.5)
    assert over_its_rate(2, 3, 0.5)
    assert not over_its_rate(3, 3, 1.0)


def test_jobs_have_a_channel_each_since_their_copies_cannot_be_ordered() -> None:
    both = _plans((_swappable(1, 40), _swappable(2, 40)), budget=PLENTY)
    assert both == _plans((_swappable(1, 40),), budget=PLENTY) * 2


def test_the_largest_msps_of_all_jobs_is_recomputed_first() -> None:
    """The second job's operator takes half the time."""
    graph = graph_from_rows(
        (10, BATCH, "wr....r"), (60, ACTIVATION, ".w....r"), (100, ACTIVATION, "...wr.."), uploads=(0,)
    )
    slow, fast = _job(graph, 1, latency=(2,) * 7), _job(graph, 2, latency=(1,) * 7)
    plans = _plans((slow, fast), budget=330)
    assert [bool(plan.executions) for plan in plans] == [False, True]
    assert [peak(graph, plan) for plan in plans] == [170, 110]


def test_of_a_job_with_several_graphs_the_worst_is_planned_and_what_it_never_accesses_waits_on_the_host() -> None:
    train = graph_from_rows((40, PARAMETER, "ru"), (40, STATE, ".u"))
    evaluate = graph_from_rows((40, PARAMETER, "rr."), (40, STATE, "..."), (100, ACTIVATION, "wr."))
    job = Workload(job=JobId(1), graphs=(train, evaluate), latency_ns=((US,) * 2, (US,) * 3))
    ((first, second),) = tensile((job,), budget_bytes=PLENTY, link=LINK)
    assert first == Plan(policy="tensile")
    assert second == Plan(policy="tensile", away=frozenset({TensorId(1)}))


# --- the end -----------------------------------------------------------------------------------------------------


def test_rounds_stand_still_only_after_a_hundred() -> None:
    """Algorithm 3, line 4: iter > 100."""
    assert not stands_still([0] * 100, [(1000,)] * 100)
    assert stands_still([0] * 101, [(1000,)] * 101)


def test_rounds_stand_still_where_three_of_them_saved_less_than_a_twentieth_of_a_percent() -> None:
    steady = [(2_000_000,)] * 98
    assert stands_still([0] * 101, [*steady, (1_999_900,), (1_999_500,), (1_999_001,)])
    assert not stands_still([0] * 101, [*steady, (1_999_900,), (1_999_500,), (1_999_000,)])
    four_rounds_ago = [(2_100_000,)] * 97
    assert stands_still([0] * 101, [*four_rounds_ago, *[(2_000_000,)] * 4])


def test_rounds_stand_still_where_the_jobs_that_were_selected_do() -> None:
    """The mean is over the jobs of the last three rounds' tensors; what another job's peak does is nothing to it."""
    falling = [(1000, 10_000 - 10 * k) for k in range(101)]
    assert stands_still([1] * 98 + [0] * 3, falling)
    assert not stands_still([1] * 98 + [0, 1, 0], falling)


def test_swapping_ends_where_it_stands_still_and_recomputation_goes_on() -> None:
    """Each of 120 parameters saves 0.01 % of the peak; another tensor can be made again of what is busy."""
    graph = _crowd(120, 10, (5, ACTIVATION, ".w" + "." * 257 + "r"))
    job = _job(graph)
    assert len(_plans((job,), budget=PLENTY)[0].swaps) == 101
    assert len(_plans((job,), budget=PLENTY, rules=Rules(stands_still=False))[0].swaps) == 121
    assert len(_plans((job,), budget=NOTHING)[0].executions) == 261


# --- any jobs ----------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(several_workloads(), links(), st.floats(0, 1.2), st.integers(1, 40))
def test_plans_break_no_rule_stall_nobody_by_swapping_and_recompute_to_no_higher_peak(
    jobs: tuple[Workload, ...], link: Link, fraction: float, slow: int
) -> None:
    jobs = tuple(_slowed(job, slow) for job in jobs)
    budget = int(sum(max(liveness_peak(g) for g in job.graphs) for job in jobs) * fraction)
    planned = tensile(jobs, budget_bytes=budget, link=link)
    assert planned == tensile(jobs, budget_bytes=budget, link=link)
    swapped = tensile(jobs, budget_bytes=budget, link=link, rewrites=False)
    for job, chosen, plain in zip(jobs, planned, swapped, strict=True):
        for number, graph in enumerate(job.graphs):
            assert check.faults(graph, chosen[number]) == ()
            assert peak(graph, chosen[number]) <= peak(graph, plain[number]) <= liveness_peak(graph)
            run = JobRun(graph=graph, plan=plain[number], latency_ns=job.latency_ns[number])
            (forecast,) = simulate([run], link)
            assert (forecast.stall_out_ns, forecast.stall_in_ns) == (0, 0)


def _plans(jobs: tuple[Workload, ...], *, budget: int, rules: Rules | None = None) -> list[Plan]:
    found = tensile(jobs, budget_bytes=budget, link=LINK, rules=rules or Rules())
    return [plan for (plan,) in found]


def _job(graph: StepGraph, job: int = 1, *, latency: tuple[int, ...] | None = None) -> Workload:
    latency_ns = tuple(us * US for us in latency or (100,) * len(graph.operators))
    return Workload(job=JobId(job), graphs=(graph,), latency_ns=(latency_ns,))


def _swappable(job: int, size_bytes: int) -> Workload:
    """One parameter that can be swapped around a peak of 100 bytes more."""
    return _job(graph_from_rows((size_bytes, PARAMETER, "r.....r"), (100, ACTIVATION, "...wr..")), job)


def _crowd(count: int, size_bytes: int, *more: tuple[int, Role, str]) -> StepGraph:
    """So many parameters of one size, idle around a peak in the middle of 260 operators, beside a busy large one."""
    idle = [(size_bytes, PARAMETER, "r" + "." * 258 + "r")] * count
    return graph_from_rows(
        *idle, *more, (100_000, PARAMETER, "r" * 260), (2000, ACTIVATION, "." * 150 + "wr" + "." * 108)
    )


def _with_short_first_use() -> tuple[int, ...]:
    """60 bytes cannot leave before operator 3 starts, and 40 can: 55 us for both of operators 1 and 2."""
    return (100, 30, 25, 100, 100, 100, 100)


def _slowed(job: Workload, factor: int) -> Workload:
    latency_ns = tuple(tuple(ns * factor for ns in row) for row in job.latency_ns)
    return dataclasses.replace(job, latency_ns=latency_ns)
