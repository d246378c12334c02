"""A running job makes way for a waiting one only if that is worth its cost, and noise changes no shift."""

from dataclasses import replace

from hypothesis import assume, example, given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.completion.demand import JobDemand, TradeOff
from indb_tensile.scheduler.completion.fair_shares import FairShare, fair_ends_ns
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, SharedDevice, SlowSet
from indb_tensile.scheduler.completion.shifts import DeviceShift, ShiftQuestion, choose_shift

from .job_demands import MIB, MS

_TURNS = Contention(points=((1, 1.0), (2, 2.0)))


def _demand(number: int, seconds: float, *, owner: int = 1, priority: int = 0, kind: str = "") -> JobDemand:
    """Return a job of steps of 10 ms that needs the whole device."""
    point = TradeOff(peak_bytes=100 * MIB, iteration_ns=10 * MS, compute_ns=10 * MS)
    steps = seconds * 100
    return JobDemand(
        job=JobId(number),
        owner=owner,
        priority=priority,
        steps=steps,
        steps_left=steps,
        trade_offs=(point,),
        kind=kind,
    )


def _question(
    demands: list[JobDemand],
    *,
    running: int,
    change_s: float = 0.1,
    movable: int | None = None,
    overdue: int = 0,
    fair_ends_s: list[float] | None = None,
    budget: int = 100,
    contention: Contention = _TURNS,
    slow_sets: tuple[SlowSet, ...] = (),
) -> ShiftQuestion:
    """Return a question whose order is that of the fair schedule unless `fair_ends_s` says otherwise."""
    device = SharedDevice(
        budget_bytes=budget * MIB, region_bytes=MIB, contention=contention, max_slowdown=3.0, slow_sets=slow_sets
    )
    shares = [
        FairShare(
            job=d.job,
            owner=d.owner,
            weight=1.0,
            priority=d.priority,
            left_ns=d.steps_left * d.trade_offs[0].iteration_ns,
        )
        for d in demands
    ]
    by_job = fair_ends_ns(shares)
    ends_ns = [s * 1000 * MS for s in fair_ends_s] if fair_ends_s else [by_job[d.job] for d in demands]
    order = sorted(
        range(len(demands)), key=lambda k: (-demands[k].priority, not overdue >> k & 1, ends_ns[k], demands[k].job)
    )
    return ShiftQuestion(
        forecasts=SetForecasts(demands, device),
        order=tuple(order),
        fair_ends_ns=tuple(ends_ns),
        change_ns=(change_s * 1000 * MS,) * len(demands),
        running=running,
        movable=running if movable is None else movable,
        overdue=overdue,
    )


def test_a_long_job_makes_way_for_a_short_one() -> None:
    assert choose_shift(_question([_demand(1, 100), _demand(2, 5)], running=0b01)) == DeviceShift(
        leaving=0b01, first=1
    )


def test_a_short_job_does_not_make_way_for_a_long_one() -> None:
    assert choose_shift(_question([_demand(1, 5), _demand(2, 100)], running=0b01)) is None


def test_a_job_with_little_left_does_not_make_way_because_the_change_costs_more() -> None:
    jobs = [_demand(1, 3), _demand(2, 1)]
    assert choose_shift(_question(jobs, running=0b01)) == DeviceShift(leaving=0b01, first=1)
    assert choose_shift(_question(jobs, running=0b01, change_s=2.0)) is None


def test_a_job_stays_for_its_quantum() -> None:
    assert choose_shift(_question([_demand(1, 100), _demand(2, 5)], running=0b01, movable=0)) is None


def test_jobs_that_fit_beside_each_other_stay() -> None:
    side_by_side = Contention(points=((1, 1.0), (8, 1.0)))
    jobs = [_demand(1, 100), _demand(2, 5)]
    assert choose_shift(_question(jobs, running=0b01, budget=200, contention=side_by_side)) is None


def test_only_as_many_jobs_make_way_as_have_to() -> None:
    side_by_side = Contention(points=((1, 1.0), (8, 1.0)))
    jobs = [_demand(1, 100), _demand(2, 200), _demand(3, 2)]
    chosen = choose_shift(_question(jobs, running=0b011, budget=200, contention=side_by_side))
    assert chosen == DeviceShift(leaving=0b010, first=2)


def test_no_job_makes_way_if_all_jobs_would_end_much_later() -> None:
    side_by_side = Contention(points=((1, 1.0), (8, 1.0)))
    jobs = [_demand(1, 100), _demand(2, 200), _demand(3, 20)]
    assert choose_shift(_question(jobs, running=0b011, budget=200, contention=side_by_side)) is None


def test_an_overdue_first_step_makes_a_shorter_job_leave() -> None:
    jobs = [_demand(1, 50), _demand(2, 500)]
    assert choose_shift(_question(jobs, running=0b01)) is None
    assert choose_shift(_question(jobs, running=0b01, overdue=0b10)) == DeviceShift(leaving=0b01, first=1)


def test_an_overdue_first_step_makes_a_higher_job_of_its_owner_leave_only_if_it_keeps_its_place() -> None:
    jobs = [_demand(1, 50, priority=1), _demand(2, 500)]
    question = replace(_question(jobs, running=0b01, overdue=0b10), order=(1, 0))
    assert choose_shift(question) is None
    assert choose_shift(replace(question, kept=0b10)) == DeviceShift(leaving=0b01, first=1)


def test_a_job_that_would_end_later_than_with_fair_shares_passes_a_shorter_job_of_another_owner() -> None:
    jobs = [_demand(1, 50, owner=1), _demand(2, 60, owner=2)]
    late = _question(jobs, running=0b01, fair_ends_s=[100.0, 61.0])
    assert choose_shift(late) == DeviceShift(leaving=0b01, first=1)
    one_owner = _question([_demand(1, 50), _demand(2, 60)], running=0b01, fair_ends_s=[100.0, 61.0])
    assert choose_shift(one_owner) is None


def test_of_two_jobs_that_are_equally_late_neither_precedes_the_other() -> None:
    jobs = [_demand(1, 60, owner=1), _demand(2, 50, owner=2)]
    question = _question(jobs, running=0b01, fair_ends_s=[-100.0, -102.0])
    assert not question.precedes(0, 1)
    assert not question.precedes(1, 0)
    assert _question(jobs, running=0b01, fair_ends_s=[-100.0, -110.0]).precedes(1, 0)


def test_no_job_makes_way_for_one_of_a_lower_priority() -> None:
    jobs = [_demand(1, 100, priority=1), _demand(2, 5)]
    assert choose_shift(_question(jobs, running=0b01)) is None


def test_a_set_that_was_slower_than_foretold_is_foretold_as_it_was_measured() -> None:
    ideal = Contention(points=((1, 1.0), (8, 1.0)))
    jobs = [_demand(1, 10, kind="b"), _demand(2, 10, kind="a")]
    slow = SlowSet(kinds=("a", "b"), slowdowns=(2.0, 4.0))
    question = _question(jobs, running=0b01, budget=200, contention=ideal, slow_sets=(slow,))
    device = replace(question.forecasts.device, max_slowdown=5.0)
    assert SetForecasts(jobs, device).step_ns(0b11) == (40 * MS, 20 * MS)
    assert SetForecasts(jobs, device).step_ns(0b01) == (10 * MS,)


_SECONDS = st.floats(1.0, 1000.0)


@given(seconds=st.lists(_SECONDS, min_size=2, max_size=6), data=st.data())
def test_noise_of_a_few_per_cent_never_brings_a_job_back_that_made_way(
    seconds: list[float], data: st.DataObject
) -> None:
    demands = [_demand(k, s) for k, s in enumerate(seconds, start=1)]
    chosen = choose_shift(_question(demands, running=0b1))
    assume(chosen is not None)
    assert chosen is not None
    for _ in range(5):
        noisy = [_noisy(d, data.draw(st.floats(0.97, 1.03))) for d in demands]
        again = choose_shift(_question(noisy, running=1 << chosen.first))
        assert again is None or again.first != 0


@given(seconds=st.lists(_SECONDS, min_size=2, max_size=6), change_s=st.floats(0.01, 10.0))
def test_a_shift_of_one_owner_shortens_the_mean_completion_of_turns_and_costs_only_the_change(
    seconds: list[float], change_s: float
) -> None:
    demands = [_demand(k, s) for k, s in enumerate(seconds, start=1)]
    chosen = choose_shift(_question(demands, running=0b1, change_s=change_s))
    if chosen is None:
        return
    others = sorted(seconds[1:])
    stays = _sum_of_ends([seconds[0], *others])
    shortest_first = _sum_of_ends(sorted(seconds)) + len(seconds) * change_s
    assert shortest_first < stays
    assert seconds[chosen.first] + change_s < seconds[0]


@given(seconds=st.lists(_SECONDS, min_size=2, max_size=6))
@example(seconds=[426.0, 145.0, 425.0, 425.0, 425.0])  # the near ties come before the running job in fair order
def test_the_shortest_job_always_passes_one_that_is_much_longer(seconds: list[float]) -> None:
    demands = [_demand(k, s) for k, s in enumerate(seconds, start=1)]
    assume(seconds[0] > 2 * min(seconds) + 1)
    assert choose_shift(_question(demands, running=0b1)) is not None


def _noisy(demand: JobDemand, factor: float) -> JobDemand:
    point = demand.trade_offs[0]
    ns = round(point.iteration_ns * factor)
    return replace(demand, trade_offs=(replace(point, iteration_ns=ns, compute_ns=ns),))


def _sum_of_ends(seconds: list[float]) -> float:
    total = now = 0.0
    for s in seconds:
        now += s
        total += now
    return total
