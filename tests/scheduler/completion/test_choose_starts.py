"""The jobs of the foretold schedule that ends first start now. No simple rule has both a lower makespan and ANTT."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.completion.choose_starts import StartChoice, choose_starts
from indb_tensile.scheduler.completion.contention import Contention, of_cores
from indb_tensile.scheduler.completion.demand import JobDemand, TradeOff
from indb_tensile.scheduler.completion.foretell import (
    ScheduleMoment,
    ScheduleTree,
    first_moment,
    start,
    until_one_leaves,
)
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, SharedDevice, members
from tests.nightly import few_examples

from .job_demands import MIB, MS, first_fit, in_turns, job_demands, left_over, set_forecasts

_NO_CONTENTION = Contention(points=((1, 1.0), (8, 1.0)))
_ROUNDING = 1e-9
_SQUEEZED = JobDemand(
    job=JobId(1),
    owner=1,
    priority=1,
    steps=1,
    steps_left=1,
    trade_offs=tuple(
        TradeOff(peak_bytes=peak * MIB, iteration_ns=MS + stall_ns, compute_ns=MS, stall_ns=stall_ns)
        for peak, stall_ns in ((50, 0), (40, MS + 1), (30, 2 * MS + 2))
    ),
    startup_ns=100 * MS,
)


@given(forecasts=set_forecasts(7))
def test_neither_turns_nor_first_fit_end_earlier_and_have_a_lower_antt_than_the_foretold_schedule(
    forecasts: SetForecasts,
) -> None:
    choice = choose_starts(forecasts, 0)
    jobs = len(forecasts.demands)
    for rival in (in_turns(forecasts), first_fit(forecasts)):
        earlier = rival.makespan_ns < choice.makespan_ns * (1 - _ROUNDING)
        assert not (earlier and rival.turnaround / jobs < choice.antt * (1 - _ROUNDING))


@given(forecasts=set_forecasts(7))
def test_neither_rival_is_better_in_both_if_the_choice_is_made_again_at_each_end(forecasts: SetForecasts) -> None:
    # Each choice may give up a makespan of this part for a lower ANTT. A later choice may find an earlier end and
    # take it at the cost of that ANTT, so a rival can be better in both by less than that.
    band = 0.02
    chosen = _run(forecasts)
    for rival in (in_turns(forecasts), first_fit(forecasts)):
        earlier = rival.makespan_ns < (1 - band) * chosen.makespan_ns
        assert not (earlier and rival.turnaround < (1 - band) * chosen.turnaround)


@given(forecasts=set_forecasts(5))
def test_the_makespan_is_at_most_5_percent_above_the_exhaustive_best(forecasts: SetForecasts) -> None:
    assert _run(forecasts).makespan_ns <= 1.05 * _exhaustive_best_ns(forecasts)


@pytest.mark.nightly
@few_examples()
@given(forecasts=set_forecasts(6))
def test_the_makespan_of_six_jobs_is_at_most_5_percent_above_the_exhaustive_best(forecasts: SetForecasts) -> None:
    assert _run(forecasts).makespan_ns <= 1.05 * _exhaustive_best_ns(forecasts)


@given(forecasts=set_forecasts(7, owners=3, priorities=2), data=st.data())
def test_a_choice_is_feasible_and_somebody_always_runs(forecasts: SetForecasts, data: st.DataObject) -> None:
    running = 0
    for k in range(len(forecasts.demands)):
        if data.draw(st.booleans()) and forecasts.step_ns(running | 1 << k) is not None:
            running |= 1 << k
    choice = choose_starts(forecasts, running)
    started = sum(1 << k for k, demand in enumerate(forecasts.demands) if demand.job in choice.starts)
    assert not started & running
    assert running | started
    assert forecasts.step_ns(running | started) is not None


@given(forecasts=set_forecasts(6, owners=3, priorities=2))
def test_equal_questions_have_equal_answers(forecasts: SetForecasts) -> None:
    again = SetForecasts(forecasts.demands, forecasts.device)
    assert choose_starts(forecasts, 0) == choose_starts(again, 0)


@given(forecasts=set_forecasts(6, owners=3))
def test_the_first_owners_jobs_are_not_delayed_by_a_later_owners_choice(forecasts: SetForecasts) -> None:
    choice = choose_starts(forecasts, 0)
    first = forecasts.demands[0]
    started = [demand for demand in forecasts.demands if demand.job in choice.starts]
    assert any(demand.owner == first.owner for demand in started)


@given(demand=job_demands(1), jobs=st.integers(2, 6), room=st.floats(1, 4), cores=st.sampled_from([1, 2, 4]))
@example(demand=_SQUEEZED, jobs=4, room=2.0, cores=1)  # the best division of the memory among two is an unequal one
def test_of_equal_jobs_the_first_start(demand: JobDemand, jobs: int, room: float, cores: int) -> None:
    demands = [replace(demand, job=JobId(number)) for number in range(1, jobs + 1)]
    budget_bytes = int(room * demand.trade_offs[0].peak_bytes) + MIB
    device = SharedDevice(
        budget_bytes=budget_bytes, region_bytes=MIB, contention=of_cores(cores, 1), max_slowdown=3.0
    )
    starts = choose_starts(SetForecasts(demands, device), 0).starts
    assert starts == tuple(JobId(number) for number in range(1, len(starts) + 1))


def test_the_first_of_equal_jobs_starts_although_its_plan_is_a_little_slower_than_foretold() -> None:
    demands = [_demand(number, 100) for number in (1, 2, 3)]
    device = SharedDevice(budget_bytes=200 * MIB, region_bytes=MIB, contention=_NO_CONTENTION, max_slowdown=3.0)
    alone_ns = demands[0].alone_ns
    forecasts = SetForecasts(demands, device, {0b011: (1.04 * alone_ns, 1.04 * alone_ns)})
    assert choose_starts(forecasts, 0b001).starts == (JobId(2),)


def test_two_jobs_that_fit_run_side_by_side() -> None:
    choice = _choice([_demand(1, 100), _demand(2, 100)], budget=200)
    assert choice == StartChoice(
        starts=(JobId(1), JobId(2)),
        makespan_ns=1000 * MS,
        antt=1.0,
        ends_ns={JobId(1): 1000 * MS, JobId(2): 1000 * MS},
        waiting_ns=None,
    )


def test_two_jobs_that_would_be_squeezed_to_a_crawl_take_turns() -> None:
    pair = [_demand(1, 100, squeezed=9.0), _demand(2, 100, squeezed=9.0)]
    assert _choice(pair, budget=130).starts == (JobId(1),)


def test_two_jobs_that_are_squeezed_at_little_cost_run_side_by_side() -> None:
    pair = [_demand(1, 100, squeezed=1.1), _demand(2, 100, squeezed=1.1)]
    assert _choice(pair, budget=130).starts == (JobId(1), JobId(2))


def test_jobs_that_only_share_the_arithmetic_take_turns_shortest_first() -> None:
    turns = Contention(points=((1, 1.0), (2, 2.0)))
    jobs = [_demand(1, 10, steps=50), _demand(2, 10, steps=10)]
    assert _choice(jobs, budget=100, contention=turns).starts == (JobId(2),)


def test_a_job_with_a_higher_priority_starts_before_a_shorter_job() -> None:
    jobs = [_demand(1, 100, steps=50, priority=1), _demand(2, 100, steps=10)]
    assert _choice(jobs, budget=130).starts == (JobId(1),)


@pytest.mark.parametrize(("factor", "joins"), [(2.0, False), (1.85, False), (1.7, True)])
def test_a_job_that_has_left_returns_beside_a_higher_one_only_for_a_clear_gain(factor: float, joins: bool) -> None:
    contention = Contention(points=((1, 1.0), (2, factor)))
    jobs = [_demand(1, 100, steps=100, priority=1), replace(_demand(2, 100, steps=10), has_left=True)]
    second = (JobId(2),) * joins
    assert _choice(jobs, budget=200, contention=contention).starts == (JobId(1), *second)
    assert _choice(jobs, budget=200, running=0b01, contention=contention).starts == second


@given(forecasts=set_forecasts(5, owners=2, priorities=3))
def test_a_job_that_returns_beside_a_higher_one_raises_the_throughput_by_a_tenth(forecasts: SetForecasts) -> None:
    demands = [replace(demand, has_left=True) for demand in forecasts.demands]
    forecasts = SetForecasts(demands, forecasts.device)
    choice = choose_starts(forecasts, 0)
    starts = sum(1 << k for k, demand in enumerate(demands) if demand.job in choice.starts)
    for k in members(starts):
        earlier = [demands[other] for other in members(starts) if other < k]
        if any(other.owner == demands[k].owner and other.priority > demands[k].priority for other in earlier):
            assert forecasts.throughput(starts) > 1.1 * forecasts.throughput(starts & ~(1 << k))


def test_no_job_becomes_slower_than_max_slowdown() -> None:
    pair = [_demand(1, 100, squeezed=1.8), _demand(2, 100, squeezed=1.8)]
    assert _choice(pair, budget=130, max_slowdown=3.0).starts == (JobId(1), JobId(2))
    assert _choice(pair, budget=130, max_slowdown=1.5).starts == (JobId(1),)


def test_a_set_that_runs_goes_on_however_slow_it_is_and_no_job_joins_it() -> None:
    jobs = [_demand(1, 100, steps=50), _demand(2, 100), _demand(3, 100)]
    contention = Contention(points=((1, 1.0), (2, 4.0), (3, 6.0)))
    device = SharedDevice(budget_bytes=400 * MIB, region_bytes=MIB, contention=contention, max_slowdown=3.0)
    choice = choose_starts(SetForecasts(jobs, device, running=0b11), 0b11)
    assert choice.starts == ()
    # The first is done after 2 s. Then the second, with half of its work left, and the third run one after the other.
    assert (choice.waiting_ns, choice.ends_ns[JobId(1)], choice.ends_ns[JobId(2)]) == (
        3500 * MS,
        2000 * MS,
        2500 * MS,
    )
    assert choose_starts(SetForecasts(jobs, device), 0).starts == (JobId(1),), "no such set is formed"


def test_a_short_job_of_another_owner_fills_a_gap_that_delays_nobody() -> None:
    jobs = [_demand(1, 100), _demand(2, 150), _demand(3, 50, steps=20, owner=2)]
    assert _choice(jobs, budget=150, running=0b001).starts == (JobId(3),)


def test_a_long_job_of_another_owner_does_not_overtake() -> None:
    jobs = [_demand(1, 100, steps=20), _demand(2, 150), _demand(3, 50, steps=200, owner=2)]
    assert _choice(jobs, budget=150, running=0b001).starts == ()


def test_no_job_starts_if_none_can_run() -> None:
    assert _choice([_demand(1, 100)], budget=50) == StartChoice(
        starts=(), makespan_ns=0.0, antt=0.0, ends_ns={}, waiting_ns=None
    )


@pytest.mark.parametrize(("factor", "starts"), [(1.93, ()), (1.88, (JobId(2),))])
def test_a_long_job_joins_another_only_for_a_clearly_earlier_end_of_both(
    factor: float, starts: tuple[JobId, ...]
) -> None:
    contention = Contention(points=((1, 1.0), (2, factor)))  # all ends 3.5 or 6 % earlier, the first one much later
    jobs = [_demand(1, 100, steps=100), _demand(2, 100, steps=100)]
    assert _choice(jobs, budget=200, running=0b01, contention=contention).starts == starts


def test_jobs_on_a_free_device_run_side_by_side_only_for_a_clearly_earlier_end_of_all() -> None:
    jobs = [_demand(1, 100, steps=100), _demand(2, 100, steps=100)]
    hardly, clearly = (Contention(points=((1, 1.0), (2, factor))) for factor in (1.94, 1.88))
    assert _choice(jobs, budget=200, contention=hardly).starts == (JobId(1),), "3 % earlier, and ANTT 1.94, not 1.5"
    assert _choice(jobs, budget=200, contention=clearly).starts == (JobId(1), JobId(2))


def test_next_job_starts_up_before_the_one_that_runs_leaves() -> None:
    turns = Contention(points=((1, 1.0), (2, 2.0)))
    jobs = [replace(_demand(number, 100), startup_ns=200.0 * MS) for number in (1, 2, 3)]
    begun = [replace(jobs[0], startup_ns=0.0), *jobs[1:]]
    choice = _choice(begun, budget=200, running=0b001, contention=turns)
    assert (choice.starts, choice.soon) == ((), JobId(2))
    assert choice.ends_ns == {JobId(1): 1000 * MS, JobId(2): 2000 * MS, JobId(3): 3000 * MS}, "no time for start-ups"
    narrow = _choice(begun, budget=150, running=0b001, contention=turns)
    assert (narrow.starts, narrow.soon, narrow.ends_ns[JobId(3)]) == ((), None, 3400 * MS), (
        "it does not fit beside it"
    )


def test_a_job_that_is_to_start_soon_starts_when_its_time_has_come() -> None:
    turns = Contention(points=((1, 1.0), (2, 2.0)))
    jobs = [replace(_demand(number, 100), startup_ns=200.0 * MS) for number in (1, 2)]
    device = SharedDevice(budget_bytes=200 * MIB, region_bytes=MIB, contention=turns, max_slowdown=3.0)
    for left, starts in ((46, ()), (45, (JobId(2),)), (10, (JobId(2),))):
        begun = [replace(jobs[0], startup_ns=0.0, steps_left=left), jobs[1]]
        choice = choose_starts(SetForecasts(begun, device), 0b01, soon_ns=250.0 * MS)
        assert choice.starts == starts, f"{left} steps of 10 ms, of which 200 ms are for starting up"
        assert (choice.soon is None) is bool(starts)


def test_small_errors_of_the_estimates_start_no_job() -> None:
    jobs = [_demand(1, 100, squeezed=1.96), _demand(2, 100, squeezed=1.96)]
    assert _choice(jobs, budget=130, running=0b01).starts == ()


def _demand(
    number: int, peak: int, *, squeezed: float | None = None, steps: int = 100, owner: int = 1, priority: int = 0
) -> JobDemand:
    """Return a job of steps of 10 ms that needs `peak` MiB, or half of that at `squeezed` times the time."""
    points = [TradeOff(peak_bytes=peak * MIB, iteration_ns=10 * MS, compute_ns=10 * MS)]
    if squeezed is not None:
        time_ns = int(10 * MS * squeezed)
        points.append(
            TradeOff(peak_bytes=peak // 2 * MIB, iteration_ns=time_ns, compute_ns=10 * MS, stall_ns=time_ns - 10 * MS)
        )
    return JobDemand(
        job=JobId(number), owner=owner, priority=priority, steps=steps, steps_left=steps, trade_offs=tuple(points)
    )


def _choice(
    demands: list[JobDemand],
    *,
    budget: int,
    running: int = 0,
    contention: Contention = _NO_CONTENTION,
    max_slowdown: float = 3.0,
) -> StartChoice:
    device = SharedDevice(
        budget_bytes=budget * MIB, region_bytes=MIB, contention=contention, max_slowdown=max_slowdown
    )
    return choose_starts(SetForecasts(demands, device), running)


def _run(forecasts: SetForecasts) -> ScheduleMoment:
    """Return the end of the schedule in which the choice is made anew whenever a job ends, soon starts included."""
    moment = first_moment(forecasts.demands, 0)
    while not moment.is_over:
        numbers, demands = left_over(forecasts.demands, moment)
        running = sum(1 << at for at, k in enumerate(numbers) if moment.running >> k & 1)
        choice = choose_starts(SetForecasts(demands, forecasts.device), running)
        chosen = sum(1 << k for k in numbers if forecasts.demands[k].job in choice.starts)
        soon = sum(1 << k for k in numbers if forecasts.demands[k].job == choice.soon)
        following = ScheduleTree(forecasts).following(moment, chosen, soon)
        assert following is not None
        moment = following
    return moment


def _exhaustive_best_ns(forecasts: SetForecasts) -> float:
    """Return the least makespan of all schedules that start any set of jobs whenever a job ends."""
    best_ns = float("inf")

    def visit(moment: ScheduleMoment) -> None:
        nonlocal best_ns
        if max(moment.now_ns, moment.makespan_ns) >= best_ns:
            return
        if moment.is_over:
            best_ns = moment.makespan_ns
            return
        waiting = members(moment.waiting)
        for size in range(len(waiting) + 1):
            for jobs in combinations(waiting, size):
                started = start(moment, sum(1 << k for k in jobs))
                following = until_one_leaves(started, forecasts)
                if following is not None:
                    visit(following)

    visit(first_moment(forecasts.demands, 0))
    return best_ns
