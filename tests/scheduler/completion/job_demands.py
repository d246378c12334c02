"""Random job demands and devices for the tests of foretold completion, and two rivals that need no foresight."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.completion.contention import of_cores
from indb_tensile.scheduler.completion.demand import JobDemand, TradeOff
from indb_tensile.scheduler.completion.foretell import ScheduleMoment, first_moment, start, until_one_leaves
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, SharedDevice, members

MIB = 1 << 20
MS = 1_000_000
_LEAST_STEPS = 1e-9  # a job that closes still counts as work that is not done


@st.composite
def job_demands(
    draw: st.DrawFn, number: int, *, owners: int = 1, priorities: int = 1, starts_up: bool = True
) -> JobDemand:
    """Return a demand whose plans cost little time, or a multiple of the time without plans, for less memory.

    With `starts_up` some jobs start up and close for a while.
    """
    peak_bytes = draw(st.integers(50, 200)) * MIB
    compute_ns = draw(st.integers(1, 100)) * MS
    upload_ns = draw(st.integers(0, compute_ns // 3))
    points = [TradeOff(peak_bytes=peak_bytes, iteration_ns=compute_ns + upload_ns, compute_ns=compute_ns)]
    steep = draw(st.sampled_from([0.02, 0.2, 1.0, 4.0]))
    for part in (0.8, 0.6, 0.4)[: draw(st.integers(0, 3))]:
        stall_ns = points[-1].stall_ns + 1 + int(steep * compute_ns * draw(st.floats(0.1, 1)))
        copied_ns = draw(st.integers(0, compute_ns))
        points.append(
            TradeOff(
                peak_bytes=int(peak_bytes * part),
                iteration_ns=compute_ns + upload_ns + stall_ns,
                compute_ns=compute_ns,
                stall_ns=stall_ns,
                out_ns=copied_ns,
                in_ns=copied_ns,
            )
        )
    steps = draw(st.integers(1, 1000))
    most_ns = draw(st.sampled_from([0, 0, 100, 3000])) * MS if starts_up else 0
    return JobDemand(
        job=JobId(number),
        owner=draw(st.integers(1, owners)),
        priority=draw(st.integers(1, priorities)),
        steps=steps,
        steps_left=steps * draw(st.sampled_from([1.0, 1.0, 0.5, 0.01])),
        trade_offs=tuple(points),
        startup_ns=most_ns * draw(st.floats(0, 1)) if most_ns else 0.0,
        closing_ns=most_ns * draw(st.sampled_from([0.0, 0.1, 1.0])) if most_ns else 0.0,
    )


@st.composite
def set_forecasts(
    draw: st.DrawFn, most: int, *, owners: int = 1, priorities: int = 1, starts_up: bool = True
) -> SetForecasts:
    """Return the forecasts of 1 to `most` jobs, each of which can run alone with all the memory it can use."""
    count = draw(st.integers(1, most))
    demands = [
        draw(job_demands(k + 1, owners=owners, priorities=priorities, starts_up=starts_up)) for k in range(count)
    ]
    largest = max(demand.trade_offs[0].peak_bytes for demand in demands)
    device = SharedDevice(
        budget_bytes=int(largest * draw(st.floats(1, 3))) + MIB,
        region_bytes=MIB,
        contention=of_cores(draw(st.sampled_from([1, 2, 4])), 1),
        max_slowdown=draw(st.sampled_from([1.5, 3.0])),
    )
    return SetForecasts(demands, device)


def in_turns(forecasts: SetForecasts) -> ScheduleMoment:
    """Return the end of the schedule that runs one job after the other."""
    return _listed(forecasts, lambda running, job: False)


def first_fit(forecasts: SetForecasts) -> ScheduleMoment:
    """Return the end of the schedule that runs as many jobs without plans as fit, in order."""
    return _listed(
        forecasts, lambda running, job: forecasts.fit_unplanned(running | job) and _runs(forecasts, running | job)
    )


def _listed(forecasts: SetForecasts, joins: Callable[[int, int], bool]) -> ScheduleMoment:
    moment = first_moment(forecasts.demands, 0)
    while not moment.is_over:
        chosen = 0
        for k in members(moment.waiting):
            running = moment.running | chosen
            if not running or joins(running, 1 << k):
                chosen |= 1 << k
        following = until_one_leaves(start(moment, chosen), forecasts)
        assert following is not None
        moment = following
    return moment


def _runs(forecasts: SetForecasts, jobs: int) -> bool:
    return forecasts.step_ns(jobs) is not None


def left_over(demands: Sequence[JobDemand], moment: ScheduleMoment) -> tuple[list[int], list[JobDemand]]:
    """Return the numbers of the jobs that are not done, and their demands with what is left of them."""
    numbers = list(members(moment.running | moment.waiting))
    return numbers, [
        replace(
            demands[k],
            startup_ns=moment.startup_ns[k],
            steps_left=max(_LEAST_STEPS, moment.steps_left[k]),
        )
        for k in numbers
    ]
