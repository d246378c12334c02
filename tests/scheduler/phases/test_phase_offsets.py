"""Check time shifts: by hand, and against judges that visit every nanosecond."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.phases.load_cycle import curve
from indb_tensile.scheduler.phases.phase_offsets import Cycle, Shift, interleave, least_budget, least_start
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.timing.job_runs import Compute
from tests.nightly import some_examples
from tests.scheduler.phases.cycle_strategies import cycles

OVERLAP = Compute.OVERLAP


def test_jobs_are_not_shifted_if_their_peaks_fit() -> None:
    shift = _interleaved((_cycle_with_peak(), _cycle_with_peak()), 80)
    assert shift.start_ns == ((0,), (0,))
    assert (shift.delay_ns, shift.gates, shift.round_ns, shift.peak_bytes) == ((0, 0), (), 70, 80)


def test_second_job_starts_at_the_first_moment_from_which_both_fit() -> None:
    """From 30 ns on, its loads 10, 20, 30 and 40 fit beside the first job's 40, 30, 20 and 10, and so do all later
    loads.
    """
    shift = _interleaved((_cycle_with_peak(), _cycle_with_peak()), 50)
    assert shift.start_ns == ((0,), (30,))
    assert (shift.delay_ns, shift.round_ns, shift.peak_bytes) == ((0, 0), 70, 50)


def test_tighter_budget_delays_every_iteration() -> None:
    """40 bytes fit beside nothing, so each job starts when the other job's 40 are over, 10 ns after its own end."""
    shift = _interleaved((_cycle_with_peak(), _cycle_with_peak()), 45)
    assert shift.start_ns == ((0,), (40,))
    assert (shift.delay_ns, shift.round_ns, shift.peak_bytes) == ((10, 10), 80, 40)


def test_jobs_that_share_compute_take_turns() -> None:
    """60 of 80 ns have two running jobs and take twice as long. The other 20 ns have one."""
    shift = _interleaved((_cycle_with_peak(), _cycle_with_peak()), 45, compute=Compute.TURNS)
    assert shift.round_ns == 60 * 2 + 20
    assert shift.start_ns == ((0,), (30 * 2 + 10,))
    assert shift.delay_ns == (10, 10)


def test_job_that_fits_beside_nothing_gets_the_device_alone() -> None:
    """The jobs are time-multiplexed: while one runs, less than 40 bytes are left."""
    block = Cycle(load_bytes=(40, 40), duration_ns=(10, 20), idle_bytes=0)
    shift = _interleaved((block, block), 79)
    assert shift.start_ns == ((0,), (30,))
    assert (shift.delay_ns, shift.round_ns, shift.peak_bytes) == ((30, 30), 60, 40)


def test_short_job_runs_more_often_than_a_long_job() -> None:
    """The short job fits beside the long job's 10 bytes, but not beside its 40."""
    long = Cycle(load_bytes=(10, 40), duration_ns=(60, 30), idle_bytes=0)
    short = Cycle(load_bytes=(20,), duration_ns=(15,), idle_bytes=0)
    shift = _interleaved((long, short), 50)
    assert [len(starts) for starts in shift.start_ns] == [1, 4]
    assert shift.peak_bytes <= 50


def test_far_shorter_job_is_counted_at_its_peak_instead_of_phased() -> None:
    """34 ns are less than a 32nd of 1,100 ns, so the short job's 45 bytes always count. Of 85 bytes 40 remain: one
    block at a time.
    """
    block = Cycle(load_bytes=(40,), duration_ns=(1100,), idle_bytes=0)
    brief = Cycle(load_bytes=(1, 45), duration_ns=(16, 18), idle_bytes=0)
    shift = _interleaved((brief, block, block), 85)
    assert shift.start_ns == ((0,), (0,), (1100,))
    assert (shift.delay_ns, shift.round_ns, shift.peak_bytes) == ((0, 1100, 1100), 2200, 85)
    assert {(gate.job, gate.after_job) for gate in shift.gates} == {(1, 2), (2, 1)}
    in_turns = _interleaved((brief, block, block), 84)
    assert in_turns.start_ns == ((0,), (34,), (1134,)), "not even one block fits beside the short job"
    longer = Cycle(load_bytes=(1, 45), duration_ns=(16, 20), idle_bytes=0)
    assert isinstance(interleave((longer, block, block), budget_bytes=84), Shift), (
        "a job of 36 ns is phased and may wait"
    )


def test_idle_bytes_always_count() -> None:
    cycle = Cycle(load_bytes=(15, 25, 15), duration_ns=(10, 10, 10), idle_bytes=15)
    assert least_budget((cycle, cycle, cycle)) == 55
    refused = interleave((cycle, cycle, cycle), budget_bytes=54)
    assert isinstance(refused, Infeasible)
    assert (refused.needed_bytes, refused.budget_bytes) == (55, 54)


def test_no_job_needs_no_schedule_and_one_job_never_waits() -> None:
    assert _interleaved((), 0) == Shift(start_ns=(), delay_ns=(), gates=(), round_ns=0, peak_bytes=0)
    assert _interleaved((_cycle_with_peak(),), 40) == Shift(
        start_ns=((0,),), delay_ns=(0,), gates=(), round_ns=70, peak_bytes=40, density=1.0
    )


def test_changed_budget_holds_after_the_running_iterations_end() -> None:
    """Both jobs are 35 ns into an iteration and hold 80 bytes. Within 50 bytes the schedule is the same as from the
    start.
    """
    shift = interleave(
        (_cycle_with_peak(), _cycle_with_peak()), budget_bytes=50, compute=OVERLAP, progress_ns=(35, 35)
    )
    assert isinstance(shift, Shift)
    assert (shift.peak_bytes, shift.round_ns, shift.delay_ns) == (50, 70, (0, 0))


def test_inconsistent_cycle_is_refused() -> None:
    with pytest.raises(InvariantError, match="1 loads, 2 positive durations"):
        Cycle(load_bytes=(1,), duration_ns=(1, 1), idle_bytes=0)
    with pytest.raises(InvariantError, match="positive durations"):
        Cycle(load_bytes=(1, 2), duration_ns=(1, 0), idle_bytes=0)
    with pytest.raises(InvariantError, match="5 bytes between iterations, 4 within"):
        Cycle(load_bytes=(5, 4), duration_ns=(1, 1), idle_bytes=5)


@given(
    cycles(), st.lists(st.tuples(st.integers(-10, 20), cycles()), max_size=3), st.integers(0, 15), st.integers(0, 30)
)
def test_least_start_is_the_first_start_that_fits(
    cycle: Cycle, others: list[tuple[int, Cycle]], from_ns: int, extra: int
) -> None:
    other_jobs = [other for _, other in others]
    budget = cycle.peak_bytes + sum(job.idle_bytes for job in other_jobs) + extra
    together = curve(other_jobs, [(start, job) for job, (start, _) in enumerate(others)])
    start_ns = least_start(cycle, together, from_ns, budget)
    load_bytes = [_load_within(cycle, t) for t in range(cycle.period_ns)]

    def fits(start: int) -> bool:
        beside = (sum(_load_at(job, s, start + t) for s, job in others) for t in range(cycle.period_ns))
        return all(a + b <= budget for a, b in zip(load_bytes, beside, strict=True))

    assert start_ns == next(start for start in range(from_ns, from_ns + 200) if fits(start))


@given(st.lists(cycles(), min_size=1, max_size=4), st.floats(0, 1.1))
def test_total_load_keeps_the_budget_in_every_round(jobs: list[Cycle], fraction: float) -> None:
    budget = _budget(jobs, fraction)
    shift = _interleaved(tuple(jobs), budget)
    starts = [
        (start + k * shift.round_ns, job)
        for k in range(-40, 2)
        for job, job_starts in enumerate(shift.start_ns)
        for start in job_starts
    ]
    for job, cycle in enumerate(jobs):
        starts_of_job = sorted(start for start, j in starts if j == job)
        assert all(b - a >= cycle.period_ns for a, b in pairwise(starts_of_job))
        assert shift.delay_ns[job] == shift.round_ns - len(shift.start_ns[job]) * cycle.period_ns
    total = [
        sum(job.idle_bytes for job in jobs)
        + sum(_load_within(jobs[j], t - s) - jobs[j].idle_bytes for s, j in starts if 0 <= t - s < jobs[j].period_ns)
        for t in range(shift.round_ns)
    ]
    assert max(total) == shift.peak_bytes <= budget


@some_examples()
@given(st.lists(cycles(), min_size=1, max_size=3), st.floats(0, 1.1))
def test_jobs_that_take_turns_lose_no_time_at_gates(jobs: list[Cycle], fraction: float) -> None:
    budget = _budget(jobs, fraction)
    shift = _interleaved(tuple(jobs), budget, compute=Compute.TURNS)
    overlapped = _interleaved(tuple(jobs), budget)
    assert shift == _interleaved(tuple(jobs), budget, compute=Compute.TURNS)
    assert len(shift.gates) == 0 or sum(map(len, shift.start_ns)) <= sum(map(len, overlapped.start_ns))
    assert shift.round_ns == sum(
        len(starts) * cycle.period_ns for starts, cycle in zip(shift.start_ns, jobs, strict=True)
    )


def _interleaved(jobs: tuple[Cycle, ...], budget: int, compute: Compute = OVERLAP) -> Shift:
    shift = interleave(jobs, budget_bytes=budget, compute=compute)
    assert isinstance(shift, Shift)
    return shift


def _budget(jobs: list[Cycle], fraction: float) -> int:
    least, most = least_budget(jobs), sum(job.peak_bytes for job in jobs)
    return least + int((most - least) * fraction)


def _load_within(cycle: Cycle, time_ns: int) -> int:
    ends = accumulate(cycle.duration_ns)
    return next(load_bytes for load_bytes, end in zip(cycle.load_bytes, ends, strict=True) if time_ns < end)


def _load_at(cycle: Cycle, start_ns: int, time_ns: int) -> int:
    return _load_within(cycle, time_ns - start_ns) if 0 <= time_ns - start_ns < cycle.period_ns else cycle.idle_bytes


def _cycle_with_peak() -> Cycle:
    """Return a cycle whose load rises and falls in steps of 10 ns and 10 bytes."""
    return Cycle(load_bytes=(10, 20, 30, 40, 30, 20, 10), duration_ns=(10,) * 7, idle_bytes=0)
