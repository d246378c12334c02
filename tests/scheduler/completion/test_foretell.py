"""Foretold schedules whose jobs start up before their first step and close after their last one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
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

from .job_demands import MIB, MS, first_fit, in_turns, set_forecasts

_NO_CONTENTION = Contention(points=((1, 1.0), (8, 1.0)))


@given(forecasts=set_forecasts(5, starts_up=False))
def test_without_start_times_each_job_advances_at_its_speed_in_the_whole_set(
    forecasts: SetForecasts,
) -> None:
    running = _runnable(forecasts)
    moment = first_moment(forecasts.demands, running)
    times = forecasts.step_ns(running)
    assert times is not None
    passed_ns = min(moment.steps_left[k] * ns for k, ns in zip(members(running), times, strict=True))
    following = until_one_leaves(moment, forecasts)
    assert following is not None
    assert following.now_ns == passed_ns
    for k, ns in zip(members(running), times, strict=True):
        done = moment.steps_left[k] - following.steps_left[k]
        assert done * ns == pytest.approx(passed_ns)
        assert bool(following.running >> k & 1) is (following.steps_left[k] > 0)


@given(forecasts=set_forecasts(5))
def test_no_job_is_done_before_it_has_started_up_done_its_steps_alone_and_closed(forecasts: SetForecasts) -> None:
    for end in (in_turns(forecasts), first_fit(forecasts), _side_by_side(forecasts)):
        for k, ns in enumerate(end.ends_ns):
            demand = forecasts.demands[k]
            least_ns = demand.startup_ns + demand.steps_left * demand.alone_ns + demand.closing_ns
            assert ns >= least_ns * (1 - 1e-6) or not ns


@given(forecasts=set_forecasts(5), later_ns=st.floats(1, 1e10))
def test_if_all_jobs_start_up_for_longer_all_end_later_by_as_much(forecasts: SetForecasts, later_ns: float) -> None:
    later = [replace(demand, startup_ns=demand.startup_ns + later_ns) for demand in forecasts.demands]
    jobs = _runnable(forecasts)
    ends = _side_by_side(forecasts, jobs).ends_ns
    later_ends = _side_by_side(SetForecasts(later, forecasts.device), jobs).ends_ns
    assert later_ends == pytest.approx([ns + later_ns if ns else 0.0 for ns in ends], rel=1e-6)


@given(forecasts=set_forecasts(5), later_ns=st.floats(1, 1e10), data=st.data())
def test_a_job_that_closes_for_longer_ends_later_by_as_much_and_no_other_job_does(
    forecasts: SetForecasts, later_ns: float, data: st.DataObject
) -> None:
    running = _runnable(forecasts)
    slow = data.draw(st.sampled_from(members(running)))
    demands = list(forecasts.demands)
    demands[slow] = replace(demands[slow], closing_ns=demands[slow].closing_ns + later_ns)
    ends = list(_side_by_side(forecasts).ends_ns)
    later_ends = list(_side_by_side(SetForecasts(demands, forecasts.device), running).ends_ns)
    assert later_ends.pop(slow) == pytest.approx(ends.pop(slow) + later_ns, rel=1e-6)
    assert later_ends == ends


def test_a_job_that_starts_up_slows_no_other_job_down() -> None:
    turns = Contention(points=((1, 1.0), (2, 2.0)))
    forecasts = _forecasts([_demand(1, 10), _demand(2, 10, startup=50)], contention=turns)
    moment = until_one_leaves(first_moment(forecasts.demands, 0b11), forecasts)
    assert moment is not None
    # Alone for 50 ms, then side by side: the first has 50 ms of work left, and needs 100 ms for it.
    assert (moment.running, moment.now_ns) == (0b10, 150 * MS)
    assert moment.steps_left[1] == pytest.approx(5)


def test_a_job_that_closes_slows_no_other_job_down() -> None:
    turns = Contention(points=((1, 1.0), (2, 2.0)))
    forecasts = _forecasts([_demand(1, 5, closing=500), _demand(2, 10)], contention=turns)
    moment = until_one_leaves(first_moment(forecasts.demands, 0b11), forecasts)
    assert moment is not None
    # Side by side until the first has done its 5 steps. It is done 500 ms later, and the second trains alone.
    assert (moment.running, moment.now_ns, moment.ends_ns) == (0b10, 100 * MS, (600 * MS, 0.0))
    end = until_one_leaves(moment, forecasts)
    assert end is not None
    assert (end.now_ns, end.ends_ns, end.makespan_ns) == (150 * MS, (600 * MS, 150 * MS), 600 * MS)


def test_on_processors_jobs_that_start_up_close_and_compute_slow_each_other_down_alike() -> None:
    turns = Contention(points=((1, 1.0), (2, 2.0), (4, 4.0)))
    demands = [_demand(1, 10), _demand(2, 10, startup=50)]
    forecasts = SetForecasts(demands, replace(_forecasts(demands, contention=turns).device, prepares_jobs=True))
    moment = until_one_leaves(first_moment(demands, 0b11), forecasts)
    assert moment is not None
    # Both do half of their work in any time: 50 ms of each in the first 100 ms, and 50 ms in the following 100 ms.
    assert (moment.running, moment.now_ns) == (0b10, 200 * MS)
    assert moment.steps_left[1] == pytest.approx(5)
    before = replace(forecasts.device, closing_ns=(60.0 * MS,))  # a job that has left before
    moment = until_one_leaves(first_moment(demands, 0b01), SetForecasts(demands, before))
    assert moment is not None
    assert moment.now_ns == pytest.approx(130 * MS), "30 ms of work in the first 60 ms"


def test_on_processors_jobs_that_leave_together_close_for_as_much_longer_as_they_and_the_next_ones_are_more() -> None:
    turns = Contention(points=((1, 1.0), (2, 2.0), (4, 4.0)))
    demands = [_demand(k, 10, closing=30) for k in (1, 2, 3)]
    forecasts = SetForecasts(demands, replace(_forecasts(demands, contention=turns).device, prepares_jobs=True))
    moment = until_one_leaves(first_moment(demands, 0b011), forecasts)
    assert moment is not None
    assert moment.ends_ns == pytest.approx((290 * MS, 290 * MS, 0.0)), "the third may start up meanwhile"
    end = until_one_leaves(start(moment, 0b100), forecasts)
    assert end is not None
    assert end.now_ns == pytest.approx((290 + 70) * MS), "a third of its speed for 90 ms"
    alone = until_one_leaves(first_moment(demands[:2], 0b11), SetForecasts(demands[:2], forecasts.device))
    assert alone is not None
    assert alone.ends_ns == pytest.approx((260 * MS, 260 * MS)), "nobody waits"
    replaced = until_one_leaves(first_moment(demands, 0b011), forecasts, soon=0b010)
    assert replaced is not None
    assert replaced.ends_ns == pytest.approx((290 * MS, 290 * MS, 0.0)), "in place of one of both"
    replaced = until_one_leaves(first_moment(demands, 0b001), forecasts, soon=0b110)
    assert replaced is not None
    assert replaced.ends_ns[0] == pytest.approx(130 * MS), "nobody else starts"


@given(factor=st.floats(1, 3), threads=st.integers(1, 8), startup=st.integers(1, 2_000), on_device=st.booleans())
def test_start_up_of_a_job_that_starts_soon_ends_with_the_last_step_of_the_one_before(
    factor: float, threads: int, startup: int, on_device: bool
) -> None:
    demands = [_demand(1, 1_000), _demand(2, 1_000, startup=startup)]
    contention = Contention(points=((1, 1.0), (2, factor)), processors=threads)
    device = replace(_forecasts(demands, contention=contention).device, prepares_jobs=on_device)
    moment = ScheduleTree(SetForecasts(demands, device)).following(first_moment(demands, 0b01), 0, soon=0b10)
    assert moment is not None
    assert (moment.running, moment.waiting) == (0b10, 0)
    assert moment.startup_ns[1] == pytest.approx(0, abs=1)
    assert moment.steps_left[1] == pytest.approx(1_000)


def test_an_edge_uses_one_of_the_processors_that_a_step_uses() -> None:
    demands = [_demand(1, 10, closing=30), _demand(2, 10, startup=50), _demand(3, 10, startup=50)]
    device = replace(_forecasts(demands, contention=of_cores(2, 2)).device, prepares_jobs=True)
    closing = replace(device, closing_ns=(60.0 * MS,))  # of a job that has left before
    moment = until_one_leaves(first_moment(demands, 0b001), SetForecasts(demands, closing))
    assert moment is not None
    assert moment.now_ns == pytest.approx(130 * MS), "on one of two processors for 60 ms"
    assert moment.ends_ns[0] == pytest.approx(160 * MS), "and then closes while the second may start up"
    moment = until_one_leaves(first_moment(demands, 0b011), SetForecasts(demands, device))
    assert moment is not None
    # The second starts up in 50 ms, as alone. Then both train, the first of which has 75 ms of work left.
    assert moment.running == 0b010
    assert moment.now_ns == pytest.approx(200 * MS)
    assert moment.ends_ns[0] == pytest.approx(245 * MS), "beside the steps of the second, and the third may start up"
    moment = until_one_leaves(first_moment(demands, 0b110), SetForecasts(demands, device))
    assert moment is not None
    assert moment.now_ns == pytest.approx(250 * MS), "they start up together in 50 ms, on a processor each"


@given(forecasts=set_forecasts(5))
def test_jobs_in_turns_end_no_earlier_where_start_ups_and_closings_compute(forecasts: SetForecasts) -> None:
    slower = SetForecasts(forecasts.demands, replace(forecasts.device, prepares_jobs=True))
    pairs = zip(in_turns(slower).ends_ns, in_turns(forecasts).ends_ns, strict=True)
    assert all(late >= early * (1 - 1e-9) for late, early in pairs)


@given(forecasts=set_forecasts(6, starts_up=True))
def test_start_ups_get_no_more_of_the_device_than_their_share(forecasts: SetForecasts) -> None:
    shared = SetForecasts(forecasts.demands, replace(forecasts.device, prepares_jobs=True))
    moment = first_moment(forecasts.demands, _runnable(shared))
    following = until_one_leaves(moment, shared)
    assert following is not None
    share = 1 / forecasts.device.contention.edge_slowdown(0, moment.running.bit_count())
    pairs = zip(moment.startup_ns, following.startup_ns, strict=True)
    assert all(early - late <= following.now_ns * share * (1 + 1e-6) for early, late in pairs)


def test_the_next_job_starts_up_while_the_one_before_closes() -> None:
    whole = TradeOff(peak_bytes=100 * MIB, iteration_ns=10 * MS, compute_ns=10 * MS)
    demands = [replace(_demand(k, 10, startup=50, closing=30), trade_offs=(whole,)) for k in (1, 2, 3)]
    end = in_turns(SetForecasts(demands, replace(_forecasts(demands).device, budget_bytes=100 * MIB)))
    assert end.ends_ns == (180 * MS, 330 * MS, 480 * MS)
    assert end.turnaround == pytest.approx(1 + 330 / 180 + 480 / 180)


def test_a_job_keeps_its_memory_while_it_starts_up() -> None:
    squeezed = TradeOff(peak_bytes=50 * MIB, iteration_ns=20 * MS, compute_ns=10 * MS, stall_ns=10 * MS)
    whole = TradeOff(peak_bytes=100 * MIB, iteration_ns=10 * MS, compute_ns=10 * MS)
    demands = [replace(_demand(k, 10), trade_offs=(whole, squeezed)) for k in (1, 2)]
    device = replace(_forecasts(demands).device, budget_bytes=100 * MIB)
    assert SetForecasts(demands, device).part_step_ns(0b11, 0b01) == (20 * MS,)


def test_a_known_time_of_a_set_corrects_its_parts_by_the_same_ratio() -> None:
    demands = [_demand(1, 10), _demand(2, 10)]
    device = _forecasts(demands, contention=Contention(points=((1, 1.0), (2, 2.0)))).device
    forecasts = SetForecasts(demands, device, {0b11: (30.0 * MS, 20.0 * MS)})
    assert forecasts.part_step_ns(0b11, 0b11) == (30 * MS, 20 * MS)
    assert forecasts.part_step_ns(0b11, 0b01) == (15 * MS,)
    assert forecasts.part_step_ns(0b11, 0b10) == (10 * MS,)
    assert forecasts.part_step_ns(0b11, 0) == ()


def test_short_jobs_that_start_up_for_long_run_in_a_wider_set_than_those_that_start_at_once() -> None:
    quick = _choose([_demand(k, 50) for k in range(1, 9)])
    assert len(quick.starts) == 2, "two cores are used by two jobs, and the others wait for less than beside them"
    slow = _choose([_demand(k, 50, startup=200, closing=100) for k in range(1, 9)])
    assert len(slow.starts) > 2
    assert slow.makespan_ns < 4 * (500 + 200 + 100) * MS, "four waves of two"


def test_a_job_may_be_slower_by_as_much_as_its_start_and_its_end_are_not_slowed_down() -> None:
    contention = Contention(points=((1, 1.0), (2, 4.0)))
    at_once = _forecasts([_demand(1, 10), _demand(2, 10)], contention=contention, max_slowdown=3.0)
    assert at_once.step_ns(0b11) is None, "four times as slow"
    # 400 ms of steps and 100 ms besides are less than three times 100 ms of steps and 100 ms besides.
    short = [_demand(k, 10, startup=50, closing=50) for k in (1, 2)]
    assert _forecasts(short, contention=contention, max_slowdown=3.0).step_ns(0b11) == (40 * MS, 40 * MS)


def test_long_jobs_run_in_a_narrow_set_although_they_start_up() -> None:
    assert len(_choose([_demand(k, 5_000, startup=200, closing=100) for k in range(1, 9)]).starts) == 2


@pytest.mark.parametrize(("startup_ns", "closing_ns"), [(-1.0, 0.0), (0.0, float("inf")), (float("nan"), 0.0)])
def test_start_times_without_meaning_are_refused(startup_ns: float, closing_ns: float) -> None:
    with pytest.raises(InvariantError, match="job 1: it starts up for"):
        replace(_demand(1, 10), startup_ns=startup_ns, closing_ns=closing_ns)


def _choose(demands: list[JobDemand]) -> StartChoice:
    return choose_starts(_forecasts(demands, contention=of_cores(2, 1)), 0)


def _demand(number: int, steps: int, *, startup: int = 0, closing: int = 0) -> JobDemand:
    """Return a job of steps of 10 ms. The other times are in milliseconds."""
    point = TradeOff(peak_bytes=10 * MIB, iteration_ns=10 * MS, compute_ns=10 * MS)
    return JobDemand(
        job=JobId(number),
        owner=1,
        priority=0,
        steps=steps,
        steps_left=steps,
        trade_offs=(point,),
        startup_ns=startup * MS,
        closing_ns=closing * MS,
    )


def _forecasts(
    demands: list[JobDemand], *, contention: Contention = _NO_CONTENTION, max_slowdown: float = 9.0
) -> SetForecasts:
    device = SharedDevice(budget_bytes=1000 * MIB, region_bytes=MIB, contention=contention, max_slowdown=max_slowdown)
    return SetForecasts(demands, device)


def _runnable(forecasts: SetForecasts) -> int:
    """Return a set that can run: as many of the jobs as fit, in order."""
    running = 0
    for k in range(len(forecasts.demands)):
        if forecasts.step_ns(running | 1 << k) is not None:
            running |= 1 << k
    return running


def _side_by_side(forecasts: SetForecasts, jobs: int | None = None) -> ScheduleMoment:
    """Return the moment at which all jobs of a set are done that start now. The other jobs go on waiting."""
    moment = start(first_moment(forecasts.demands, 0), _runnable(forecasts) if jobs is None else jobs)
    while moment.running:
        following = until_one_leaves(moment, forecasts)
        assert following is not None
        moment = following
    return moment
