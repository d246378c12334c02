"""List schedules that share what they have found are the same as each list alone."""

from itertools import product

from hypothesis import given

from indb_tensile.scheduler.completion.foretell import (
    ScheduleTree,
    first_moment,
    start,
    until_one_leaves,
)
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, members
from indb_tensile.scheduler.completion.start_lists import FollowedList, JoinRule, StartLists
from indb_tensile.scheduler.completion.start_rules import OvertakingRule, job_orders, raises_throughput

from .job_demands import first_fit, in_turns, set_forecasts


def _fits(forecasts: SetForecasts, present: int, job: int) -> bool:
    return forecasts.step_ns(present | job) is not None


def _fits_unplanned(forecasts: SetForecasts, present: int, job: int) -> bool:
    return _fits(forecasts, present, job) and forecasts.fit_unplanned(present | job)


@given(forecasts=set_forecasts(6, owners=2, priorities=2))
def test_a_list_is_the_same_whichever_lists_were_followed_before(forecasts: SetForecasts) -> None:
    moment = first_moment(forecasts.demands, 0)
    shared = StartLists(ScheduleTree(forecasts), OvertakingRule(forecasts).may_join)
    rules = (_fits, raises_throughput, _fits_unplanned)
    for width, order, rule in product((6, 1, 2, 3), job_orders(forecasts.demands), rules):
        expected = _followed_alone(forecasts, order, rule, width)
        assert _outcome(shared.follow(moment, order, rule, width)) == expected


@given(forecasts=set_forecasts(5))
def test_taking_turns_and_first_fit_are_lists(forecasts: SetForecasts) -> None:
    moment, order = first_moment(forecasts.demands, 0), job_orders(forecasts.demands)[0]
    lists = StartLists(ScheduleTree(forecasts))
    for rival, width in ((in_turns(forecasts), 1), (first_fit(forecasts), len(order))):
        followed = lists.follow(moment, order, _fits_unplanned, width)
        assert followed is not None
        assert followed.end.ends_ns == rival.ends_ns


@given(forecasts=set_forecasts(6))
def test_turns_with_soon_starts_end_no_later_than_turns_where_start_ups_need_no_processor(
    forecasts: SetForecasts,
) -> None:
    moment, lists = first_moment(forecasts.demands, 0), StartLists(ScheduleTree(forecasts))
    for order in job_orders(forecasts.demands):
        turns = lists.follow(moment, order, _fits, 1)
        soon = lists.follow(moment, order, _fits, 1, soon=True)
        assert turns is not None
        assert soon is not None
        pairs = zip(soon.end.ends_ns, turns.end.ends_ns, strict=True)
        assert all(early <= late * (1 + 1e-9) for early, late in pairs)
        if soon.soon:
            first = until_one_leaves(start(moment, soon.starts), forecasts)
            assert first is not None
            startup_ns = max(forecasts.demands[k].startup_ns for k in members(soon.soon))
            assert soon.soon_ns == max(0.0, first.now_ns - startup_ns)


def _followed_alone(
    forecasts: SetForecasts, order: tuple[int, ...], joins: JoinRule, width: int
) -> tuple[int, float, tuple[float, ...]] | None:
    """Follow one list, and keep nothing."""
    rule, moment, first = OvertakingRule(forecasts), first_moment(forecasts.demands, 0), None
    while not moment.is_over:
        jobs = 0
        for k in order:
            present = moment.running | jobs
            if not moment.waiting >> k & 1 or present.bit_count() >= width:
                continue
            if (not present or joins(forecasts, present, 1 << k)) and rule.may_start(moment, jobs | 1 << k):
                jobs |= 1 << k
        first = jobs if first is None else first
        following = until_one_leaves(start(moment, jobs), forecasts)
        if following is None:
            return None
        moment = following
    return _outcome(FollowedList(first or 0, 0, 0.0, moment))


def _outcome(followed: FollowedList | None) -> tuple[int, float, tuple[float, ...]] | None:
    return None if followed is None else (followed.starts, followed.end.makespan_ns, followed.end.ends_ns)
