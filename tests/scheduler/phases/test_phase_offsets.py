"""Time shifts: by hand, and against judges that go through time nanosecond by nanosecond."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.phases.load_cycle import curve
from indb_tensile.scheduler.phases.phase_offsets import Cycle, Shift, interleave, least_budget, least_start
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.timing.simulate import Compute

OVERLAP = Compute.OVERLAP


@st.composite
def cycles(draw: st.DrawFn) -> Cycle:
    """A short iteration of any shape."""
    held = draw(st.lists(st.integers(0, 12), min_size=1, max_size=7))
    duration = draw(st.lists(st.integers(1, 4), min_size=len(held), max_size=len(held)))
    idle = draw(st.integers(0, min(held)))
    return Cycle(load_bytes=tuple(held), duration_ns=tuple(duration), idle_bytes=idle)


def test_without_a_tight_budget_nobody_is_shifted() -> None:
    shift = _interleaved((_hill(), _hill()), 80)
    assert shift.start_ns == ((0,), (0,))
    assert (shift.delay_ns, shift.gates, shift.round_ns, shift.peak_bytes) == ((0, 0), (), 70, 80)


def test_the_second_job_starts_as_soon_as_both_fit_from_then_on() -> None:
    """Its 10, 20, 30, 40 fit beside 40, 30, 20, 10 of the first job, from 30 ns on, and later they meet as well."""
    shift = _interleaved((_hill(), _hill()), 50)
    assert shift.start_ns == ((0,), (30,))
    assert (shift.delay_ns, shift.round_ns, shift.peak_bytes) == ((0, 0), 70, 50)


def test_under_a_tighter_budget_every_iteration_waits() -> None:
    """40 bytes fit beside nothing: each job starts when the other's 40 are over, 10 ns after its own end."""
    shift = _interleaved((_hill(), _hill()), 45)
    assert shift.start_ns == ((0,), (40,))
    assert (shift.delay_ns, shift.round_ns, shift.peak_bytes) == ((10, 10), 80, 40)


def test_two_jobs_that_run_at_once_take_turns() -> None:
    """60 of 80 ns with both take twice as long on the clock, 20 with one do not."""
    shift = _interleaved((_hill(), _hill()), 45, compute=Compute.TURNS)
    assert shift.round_ns == 60 * 2 + 20
    assert shift.start_ns == ((0,), (30 * 2 + 10,))
    assert shift.delay_ns == (10, 10)


def test_a_job_that_fits_beside_nothing_gets_the_device_for_itself() -> None:
    """Time-multiplexing: nothing is left of 40 bytes when either runs."""
    block = Cycle(load_bytes=(40, 40), duration_ns=(10, 20), idle_bytes=0)
    shift = _interleaved((block, block), 79)
    assert shift.start_ns == ((0,), (30,))
    assert (shift.delay_ns, shift.round_ns, shift.peak_bytes) == ((30, 30), 60, 40)


def test_a_short_job_runs_more_often_than_a_long_one() -> None:
    """Beside 10 bytes the short one fits, beside 40 it does not."""
    long = Cycle(load_bytes=(10, 40), duration_ns=(60, 30), idle_bytes=0)
    short = Cycle(load_bytes=(20,), duration_ns=(15,), idle_bytes=0)
    shift = _interleaved((long, short), 50)
    assert [len(starts) for starts in shift.start_ns] == [1, 4]
    assert shift.peak_bytes <= 50


def test_a_job_far_shorter_than_another_is_not_phased_but_counted_at_its_peak() -> None:
    """34 ns are less than a 32nd of 1,100: 45 bytes are always counted, and 85 leave 40, one block at a time."""
    block = Cycle(load_bytes=(40,), duration_ns=(1100,), idle_bytes=0)
    brief = Cycle(load_bytes=(1, 45), duration_ns=(16, 18), idle_bytes=0)
    shift = _interleaved((brief, block, block), 85)
    assert shift.start_ns == ((0,), (0,), (1100,))
    assert (shift.delay_ns, shift.round_ns, shift.peak_bytes) == ((0, 1100, 1100), 2200, 85)
    assert {(gate.job, gate.after_job) for gate in shift.gates} == {(1, 2), (2, 1)}
    in_turns = _interleaved((brief, block, block), 84)
    assert in_turns.start_ns == ((0,), (34,), (1134,)), "not even one block fits beside it"
    longer = Cycle(load_bytes=(1, 45), duration_ns=(16, 20), idle_bytes=0)
    assert isinstance(interleave((longer, block, block), budget_bytes=84), Shift), "one that is phased may wait"


def test_what_jobs_keep_between_iterations_counts_all_the_time() -> None:
    keeps = Cycle(load_bytes=(15, 25, 15), duration_ns=(10, 10, 10), idle_bytes=15)
    assert least_budget((keeps, keeps, keeps)) == 55
    refused = interleave((keeps, keeps, keeps), budget_bytes=54)
    assert isinstance(refused, Infeasible)
    assert (refused.needed_bytes, refused.budget_bytes) == (55, 54)


def test_no_job_needs_no_schedule_and_one_job_runs_through() -> None:
    assert _interleaved((), 0) == Shift(start_ns=(), delay_ns=(), gates=(), round_ns=0, peak_bytes=0)
    assert _interleaved((_hill(),), 40) == Shift(
        start_ns=((0,),), delay_ns=(0,), gates=(), round_ns=70, peak_bytes=40, density=1.0
    )


def test_a_budget_that_changes_while_jobs_run_lets_them_end_and_holds_from_then_on() -> None:
    """Both are 35 ns into an iteration, 80 bytes; under 50 the schedule is the same as from a standing start."""
    shift = interleave((_hill(), _hill()), budget_bytes=50, compute=OVERLAP, progress_ns=(35, 35))
    assert isinstance(shift, Shift)
    assert (shift.peak_bytes, shift.round_ns, shift.delay_ns) == (50, 70, (0, 0))


def test_a_cycle_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(InvariantError, match="1 loads, 2 positive durations"):
        Cycle(load_bytes=(1,), duration_ns=(1, 1), idle_bytes=0)
    with pytest.raises(InvariantError, match="positive durations"):
        Cycle(load_bytes=(1, 2), duration_ns=(1, 0), idle_bytes=0)
    with pytest.raises(InvariantError, match="5 bytes between iterations, 4 within"):
        Cycle(load_bytes=(5, 4), duration_ns=(1, 1), idle_bytes=5)


@given(
    cycles(), st.lists(st.tuples(st.integers(-10, 20), cycles()), max_size=3), st.integers(0, 15), st.integers(0, 30)
)
def test_the_least_start_is_the_first_one_at_which_it_fits(
    own: Cycle, others: list[tuple[int, Cycle]], from_ns: int, extra: int
) -> None:
    jobs = [other for _, other in others]
    budget = own.peak_bytes + sum(job.idle_bytes for job in jobs) + extra
    together = curve(jobs, [(start, job) for job, (start, _) in enumerate(others)])
    found = least_start(own, together, from_ns, budget)
    held = [_held_at(own, t) for t in range(own.period_ns)]

    def fits(start: int) -> bool:
        beside = (sum(_of(job, s, start + t) for s, job in others) for t in range(own.period_ns))
        return all(a + b <= budget for a, b in zip(held, beside, strict=True))

    assert found == next(start for start in range(from_ns, from_ns + 200) if fits(start))


@given(st.lists(cycles(), min_size=1, max_size=4), st.floats(0, 1.1))
def test_the_loads_together_keep_to_the_budget_round_after_round(jobs: list[Cycle], fraction: float) -> None:
    budget = _budget(jobs, fraction)
    shift = _interleaved(tuple(jobs), budget)
    starts = [
        (start + k * shift.round_ns, job)
        for k in range(-40, 2)
        for job, found in enumerate(shift.start_ns)
        for start in found
    ]
    for job, own in enumerate(jobs):
        mine = sorted(start for start, j in starts if j == job)
        assert all(b - a >= own.period_ns for a, b in pairwise(mine))
        assert shift.delay_ns[job] == shift.round_ns - len(shift.start_ns[job]) * own.period_ns
    total = [
        sum(job.idle_bytes for job in jobs)
        + sum(_held_at(jobs[j], t - s) - jobs[j].idle_bytes for s, j in starts if 0 <= t - s < jobs[j].period_ns)
        for t in range(shift.round_ns)
    ]
    assert max(total) == shift.peak_bytes <= budget


@given(st.lists(cycles(), min_size=1, max_size=3), st.floats(0, 1.1))
def test_jobs_that_take_turns_lose_nothing_by_waiting_for_each_other(jobs: list[Cycle], fraction: float) -> None:
    budget = _budget(jobs, fraction)
    shift = _interleaved(tuple(jobs), budget, compute=Compute.TURNS)
    overlapped = _interleaved(tuple(jobs), budget)
    assert shift == _interleaved(tuple(jobs), budget, compute=Compute.TURNS)
    assert len(shift.gates) == 0 or sum(map(len, shift.start_ns)) <= sum(map(len, overlapped.start_ns))
    assert shift.round_ns == sum(
        len(starts) * own.period_ns for starts, own in zip(shift.start_ns, jobs, strict=True)
    )


def _interleaved(jobs: tuple[Cycle, ...], budget: int, compute: Compute = OVERLAP) -> Shift:
    shift = interleave(jobs, budget_bytes=budget, compute=compute)
    assert isinstance(shift, Shift)
    return shift


def _budget(jobs: list[Cycle], fraction: float) -> int:
    least, most = least_budget(jobs), sum(job.peak_bytes for job in jobs)
    return least + int((most - least) * fraction)


def _held_at(own: Cycle, time_ns: int) -> int:
    ends = accumulate(own.duration_ns)
    return next(held for held, end in zip(own.load_bytes, ends, strict=True) if time_ns < end)


def _of(own: Cycle, start_ns: int, time_ns: int) -> int:
    return _held_at(own, time_ns - start_ns) if 0 <= time_ns - start_ns < own.period_ns else own.idle_bytes


def _hill() -> Cycle:
    """Forward and back in steps of 10 ns and 10 bytes."""
    return Cycle(load_bytes=(10, 20, 30, 40, 30, 20, 10), duration_ns=(10,) * 7, idle_bytes=0)
