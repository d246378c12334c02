"""Check TENSILE's Algorithm 3: which tensor is swapped or recomputed next, for any number of jobs, and when the
search ends. Copying a byte takes 1 us.
"""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import OpIndex, Role, StepGraph, TensorId
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.policies.tensile import over_its_rate, stands_still, tensile
from indb_tensile.scheduler.tensile.swap_events import Rules
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.workload import Workload
from tests.nightly import some_examples
from tests.scheduler.access_rows import graph_from_rows
from tests.scheduler.strategies import links, several_workloads

LINK = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)
US = 1000
ACTIVATION, PARAMETER, STATE, BATCH = Role.ACTIVATION, Role.PARAMETER, Role.OPTIMIZER_STATE, Role.INPUT

LARGE_BUDGET, NO_BUDGET = 10**9, 0

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


def test_swapping_ignores_the_budget_and_nothing_is_recomputed_within_it() -> None:
    """Sections IV-C and V-A: swapping saves as much as possible. Section IV-D: recomputation is for memory above the
    budget.
    """
    job = _job(BOTH_WAYS, latency=_short_first_latencies())
    (plan,) = _plans((job,), budget=LARGE_BUDGET)
    assert (plan.executions, [s.tensor for s in plan.swaps]) == ((), [2])
    assert peak(BOTH_WAYS, plan) == 170
    assert _plans((job,), budget=170) == [plan]


def test_tensors_are_recomputed_above_the_budget_and_swaps_stay() -> None:
    job = _job(BOTH_WAYS, latency=_short_first_latencies())
    (swapped,) = _plans((job,), budget=LARGE_BUDGET)
    (plan,) = _plans((job,), budget=169)
    assert plan.executions == tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 2, 3, 4, 5, 1, 6))
    assert [s.tensor for s in plan.swaps] == [s.tensor for s in swapped.swaps]
    assert peak(BOTH_WAYS, plan) == 110
    assert check.faults(BOTH_WAYS, plan) == ()


def test_recomputation_stops_as_soon_as_the_budget_is_met() -> None:
    """Both tensors can be recomputed from the batch. 60 bytes are enough for a budget of 120 and have the larger
    MSPS.
    """
    graph = graph_from_rows(
        (10, BATCH, "wrr...r"),
        (60, ACTIVATION, ".w....r"),
        (10, ACTIVATION, "..w..r."),
        (100, ACTIVATION, "...wr.."),
        uploads=(0,),
    )
    job = _job(graph, latency=(10,) * 7)
    assert [peak(graph, _plans((job,), budget=budget)[0]) for budget in (180, 120, 119)] == [180, 120, 110]


def test_recomputation_continues_if_its_plan_needs_more_than_estimated() -> None:
    """60 bytes less seem enough for 150. But 30 bytes have to stay for the recomputation (see
    test_recompute_events.py), so 20 bytes follow.
    """
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


def test_plan_without_rewrites_only_swaps() -> None:
    job = _job(BOTH_WAYS, latency=_short_first_latencies())
    ((plan,),) = tensile((job,), budget_bytes=NO_BUDGET, link=LINK, rewrites=False)
    assert plan == _plans((job,), budget=LARGE_BUDGET)[0]
    (without_recomputation,) = _plans((job,), budget=NO_BUDGET, rules=Rules(recomputes=False))
    assert without_recomputation == plan


def test_recomputation_also_serves_a_jobs_own_limit() -> None:
    job = _job(BOTH_WAYS, latency=_short_first_latencies())
    limited = dataclasses.replace(job, limit_bytes=169)
    other = dataclasses.replace(job, job=JobId(2))
    plans = _plans((limited, other), budget=LARGE_BUDGET)
    assert [peak(BOTH_WAYS, plan) for plan in plans] == [110, 170]


def test_plan_update_equals_a_cold_start_with_the_new_latencies() -> None:
    """Section IV-E. A copy takes less than one operator of 100 us, and nearly two operators of 25 us."""
    graph = graph_from_rows((40, PARAMETER, "r.....r"), (100, ACTIVATION, "...wr.."))
    (cold,) = _plans((_job(graph, latency=(100,) * 7),), budget=LARGE_BUDGET)
    (updated,) = _plans((_job(graph, latency=(25,) * 7),), budget=LARGE_BUDGET)
    swap = dataclasses.replace(SWAP_ALONE, tensor=TensorId(0))
    assert cold == Plan(policy="tensile", swaps=(swap,))
    assert updated == Plan(policy="tensile", swaps=(dataclasses.replace(swap, free_at=OpIndex(3), in_at=OpIndex(4)),))


# --- several jobs ------------------------------------------------------------------------------------------------


def test_largest_tensor_at_the_peak_of_any_job_is_swapped_first() -> None:
    """Swapping ends after 101 rounds. Until then all larger tensors of any job are swapped."""
    large, small = _job(_many_parameters(60, 11), 1), _job(_many_parameters(60, 10), 2)
    assert [len(plan.swaps) for plan in _plans((large, small), budget=LARGE_BUDGET)] == [60, 41]
    assert [len(plan.swaps) for plan in _plans((small, large), budget=LARGE_BUDGET)] == [41, 60]


def test_first_job_is_swapped_first_among_equals() -> None:
    equal = _job(_many_parameters(60, 10), 1), _job(_many_parameters(60, 10), 2)
    assert [len(plan.swaps) for plan in _plans(equal, budget=LARGE_BUDGET)] == [60, 41]


def test_lower_maximum_swapping_rate_means_fewer_swaps() -> None:
    """Section IV-C. Six tensors could be swapped, and the first job gives up no more than its rate allows."""
    graph = graph_from_rows(
        *((40 - k, PARAMETER, "r............r") for k in range(3)), (100, ACTIVATION, "......wr......")
    )
    first, second = _job(graph, 1), _job(graph, 2)
    spared = dataclasses.replace(first, max_swapping_rate=0.2)
    assert [len(plan.swaps) for plan in _plans((first, second), budget=LARGE_BUDGET)] == [3, 3]
    assert [len(plan.swaps) for plan in _plans((spared, second), budget=LARGE_BUDGET)] == [1, 3]


def test_jobs_rate_is_its_share_of_all_swapped_tensors() -> None:
    """Algorithm 2, line 28: a share equal to the rate is allowed."""
    assert not over_its_rate(0, 0, 0.0)
    assert over_its_rate(1, 1, 0.5)
    assert not over_its_rate(1, 2, 0.5)
    assert over_its_rate(2, 3, 0.5)
    assert not over_its_rate(3, 3, 1.0)


def test_each_job_has_a_channel_since_copies_of_jobs_cannot_be_ordered() -> None:
    plans = _plans((_swappable(1, 40), _swappable(2, 40)), budget=LARGE_BUDGET)
    assert plans == _plans((_swappable(1, 40),), budget=LARGE_BUDGET) * 2


def test_largest_msps_of_all_jobs_is_recomputed_first() -> None:
    """The second job's operator takes half the time."""
    graph = graph_from_rows(
        (10, BATCH, "wr....r"), (60, ACTIVATION, ".w....r"), (100, ACTIVATION, "...wr.."), uploads=(0,)
    )
    slow, fast = _job(graph, 1, latency=(2,) * 7), _job(graph, 2, latency=(1,) * 7)
    plans = _plans((slow, fast), budget=330)
    assert [bool(plan.executions) for plan in plans] == [False, True]
    assert [peak(graph, plan) for plan in plans] == [170, 110]


def test_worst_graph_is_planned_and_tensors_without_accesses_stay_on_the_host() -> None:
    train = graph_from_rows((40, PARAMETER, "ru"), (40, STATE, ".u"))
    evaluate = graph_from_rows((40, PARAMETER, "rr."), (40, STATE, "..."), (100, ACTIVATION, "wr."))
    job = Workload(job=JobId(1), graphs=(train, evaluate), latency_ns=((US,) * 2, (US,) * 3))
    ((first, second),) = tensile((job,), budget_bytes=LARGE_BUDGET, link=LINK)
    assert first == Plan(policy="tensile")
    assert second == Plan(policy="tensile", away=frozenset({TensorId(1)}))


# --- when the search ends ---------------------------------------------------------------------------------------


def test_search_runs_for_at_least_a_hundred_rounds() -> None:
    """Algorithm 3, line 4: iter > 100."""
    assert not stands_still([0] * 100, [(1000,)] * 100)
    assert stands_still([0] * 101, [(1000,)] * 101)


def test_search_ends_if_three_rounds_saved_less_than_a_twentieth_of_a_percent() -> None:
    steady = [(2_000_000,)] * 98
    assert stands_still([0] * 101, [*steady, (1_999_900,), (1_999_500,), (1_999_001,)])
    assert not stands_still([0] * 101, [*steady, (1_999_900,), (1_999_500,), (1_999_000,)])
    four_rounds_ago = [(2_100_000,)] * 97
    assert stands_still([0] * 101, [*four_rounds_ago, *[(2_000_000,)] * 4])


def test_only_selected_jobs_decide_whether_the_search_ends() -> None:
    """The mean is over the jobs whose tensors the last three rounds chose. The peaks of other jobs do not count."""
    falling = [(1000, 10_000 - 10 * k) for k in range(101)]
    assert stands_still([1] * 98 + [0] * 3, falling)
    assert not stands_still([1] * 98 + [0, 1, 0], falling)


def test_recomputation_continues_after_swapping_has_ended() -> None:
    """Each of 120 parameters saves 0.01 % of the peak. Another tensor can be recomputed from the large parameter."""
    graph = _many_parameters(120, 10, (5, ACTIVATION, ".w" + "." * 257 + "r"))
    job = _job(graph)
    assert len(_plans((job,), budget=LARGE_BUDGET)[0].swaps) == 101
    assert len(_plans((job,), budget=LARGE_BUDGET, rules=Rules(stands_still=False))[0].swaps) == 121
    assert len(_plans((job,), budget=NO_BUDGET)[0].executions) == 261


# --- any jobs ----------------------------------------------------------------------------------------------------


@some_examples()
@given(several_workloads(), links(), st.floats(0, 1.2), st.integers(1, 40))
def test_plans_are_valid_swap_without_stalls_and_recompute_to_no_higher_peak(
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
    plans_by_job = tensile(jobs, budget_bytes=budget, link=LINK, rules=rules or Rules())
    return [plan for (plan,) in plans_by_job]


def _job(graph: StepGraph, job: int = 1, *, latency: tuple[int, ...] | None = None) -> Workload:
    latency_ns = tuple(us * US for us in latency or (100,) * len(graph.operators))
    return Workload(job=JobId(job), graphs=(graph,), latency_ns=(latency_ns,))


def _swappable(job: int, size_bytes: int) -> Workload:
    """Return a job of one parameter that can be swapped around a peak of 100 bytes more."""
    return _job(graph_from_rows((size_bytes, PARAMETER, "r.....r"), (100, ACTIVATION, "...wr..")), job)


def _many_parameters(count: int, size_bytes: int, *more: tuple[int, Role, str]) -> StepGraph:
    """Return a graph of `count` parameters of one size, idle around a peak in the middle of 260 operators. All
    operators read a large parameter.
    """
    idle = [(size_bytes, PARAMETER, "r" + "." * 258 + "r")] * count
    return graph_from_rows(
        *idle, *more, (100_000, PARAMETER, "r" * 260), (2000, ACTIVATION, "." * 150 + "wr" + "." * 108)
    )


def _short_first_latencies() -> tuple[int, ...]:
    """Return latencies at which 60 bytes cannot leave before operator 3 and 40 can: operators 1 and 2 take 55 us
    together.
    """
    return (100, 30, 25, 100, 100, 100, 100)


def _slowed(job: Workload, factor: int) -> Workload:
    latency_ns = tuple(tuple(ns * factor for ns in row) for row in job.latency_ns)
    return dataclasses.replace(job, latency_ns=latency_ns)
