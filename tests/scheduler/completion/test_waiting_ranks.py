"""Check decisions about a rank whose other ranks need time: its jobs end no later than if nothing were known of them.

A simulation of its own judges them: it has the true steps of all jobs, of the rank no less than the others need.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from indb_tensile.scheduler.admission.completion_rule import useful
from indb_tensile.scheduler.completion.choose_starts import BAND, choose_starts
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.completion.demand import JobDemand, TradeOff
from indb_tensile.scheduler.completion.memory_division import MemoryCurve, divide_memory
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, SharedDevice
from indb_tensile.scheduler.completion.start_rules import MARGIN

from .job_demands import MIB, job_demands

_DEVICE = SharedDevice(
    budget_bytes=1, region_bytes=MIB, contention=Contention(points=((1, 1.0), (8, 1.0))), max_slowdown=1_000.0
)


@dataclass(frozen=True)
class Mix:
    """A rank, which is the first job, the single jobs of its device, and the iteration that the other ranks need."""

    demands: tuple[JobDemand, ...]
    others_ns: int
    budget_bytes: int


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    """Draw jobs that need no copies' lanes, so that a step is as long as its plan says."""
    drawn = [draw(job_demands(number + 1, starts_up=False)) for number in range(draw(st.integers(2, 4)))]
    demands = [
        replace(d, trade_offs=tuple(replace(point, out_ns=0, in_ns=0) for point in d.trade_offs)) for d in drawn
    ]
    largest = max(demand.trade_offs[0].peak_bytes for demand in demands)
    return Mix(
        demands=tuple(demands),
        others_ns=int(demands[0].alone_ns * draw(st.floats(0.1, 5))),
        budget_bytes=int(largest * draw(st.floats(1, 2.5))) + MIB,
    )


def waiting_for(demand: JobDemand, others_ns: int) -> JobDemand:
    return replace(demand, trade_offs=useful(point.waiting_for(others_ns) for point in demand.trade_offs))


def makespan_ns(mix: Mix, *, knows: bool) -> float:
    """Return when the last job ends. Whenever a job ends, starts are decided anew, and memory is divided anew."""
    left = {k: demand.steps_left for k, demand in enumerate(mix.demands)}
    running: set[int] = {0}  # ranks are let in first
    now_ns = 0.0
    while left:
        numbers = sorted(left)
        demands = [replace(mix.demands[k], steps_left=left[k]) for k in numbers]
        if knows and 0 in left:
            demands[0] = waiting_for(demands[0], mix.others_ns)
        device = replace(_DEVICE, budget_bytes=mix.budget_bytes)
        mask = sum(1 << place for place, k in enumerate(numbers) if k in running)
        choice = choose_starts(SetForecasts(demands, device, running=mask), mask)
        running |= {k for k, demand in zip(numbers, demands, strict=True) if demand.job in choice.starts}
        together = [demands[numbers.index(k)] for k in sorted(running)]
        steps_ns = dict(zip(sorted(running), _steps_ns(mix, together), strict=True))
        if 0 in steps_ns:
            steps_ns[0] = max(steps_ns[0], mix.others_ns)
        passed_ns = min(left[k] * steps_ns[k] for k in running)
        now_ns += passed_ns
        for k in sorted(running):
            left[k] -= passed_ns / steps_ns[k]
            if left[k] <= 1e-9 * mix.demands[k].steps:
                del left[k]
                running.discard(k)
    return now_ns


def _steps_ns(mix: Mix, demands: Sequence[JobDemand]) -> list[float]:
    """Return the times of the plans that these jobs get, without waits for other ranks."""
    places = divide_memory([MemoryCurve(demand.trade_offs, MIB) for demand in demands], mix.budget_bytes)
    assert places is not None
    points = [demand.trade_offs[place] for demand, place in zip(demands, places, strict=True)]
    return [float(_own_ns(mix, demand, point)) for demand, point in zip(demands, points, strict=True)]


def _own_ns(mix: Mix, demand: JobDemand, point: TradeOff) -> int:
    (own,) = (d for d in mix.demands if d.job == demand.job)
    return min(p.iteration_ns for p in own.trade_offs if p.peak_bytes == point.peak_bytes)


@given(mixes())
def test_jobs_end_no_later_than_if_nothing_were_known_of_the_other_ranks(mix: Mix) -> None:
    """Both decide by the same rule, which takes a schedule that is longer by `BAND` for an earlier mean."""
    knowing_ns, unknowing_ns = (makespan_ns(mix, knows=knows) for knows in (True, False))
    assert knowing_ns <= unknowing_ns * (1 + BAND + MARGIN)


@given(mixes())
def test_demand_of_a_waiting_rank_has_its_plans_and_none_that_is_faster_than_the_others(mix: Mix) -> None:
    (rank, *_) = mix.demands
    waiting = waiting_for(rank, mix.others_ns)
    assert waiting.alone_ns == max(rank.alone_ns, mix.others_ns)
    assert {p.peak_bytes for p in waiting.trade_offs} <= {p.peak_bytes for p in rank.trade_offs}
    assert all(a.iteration_ns < b.iteration_ns for a, b in pairwise(waiting.trade_offs))
    for point in rank.trade_offs:
        for slowdown in (1.0, 1.5, 10.0):
            alone_ns = max(mix.others_ns, point.beside_others_ns(slowdown))
            assert abs(point.waiting_for(mix.others_ns).beside_others_ns(slowdown) - alone_ns) < 1e-3
    assume(mix.others_ns <= rank.alone_ns)
    assert waiting == rank
