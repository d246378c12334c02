"""The fair schedule divides the device between owners at every moment, and does exactly the work that it is told."""

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.completion.fair_shares import FairShare, advance, fair_ends_ns

_WORK = st.floats(10.0, 1e12)


def _share(number: int, left_ns: float, *, owner: int = 1, weight: float = 1.0, priority: int = 0) -> FairShare:
    return FairShare(job=JobId(number), owner=owner, weight=weight, priority=priority, left_ns=left_ns)


@st.composite
def shares(draw: st.DrawFn) -> list[FairShare]:
    """Return jobs of up to three owners, whose weights are 1, 2 and 3."""
    owners = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    return [
        _share(number, draw(_WORK), owner=owner, weight=owner, priority=draw(st.integers(0, 1)))
        for number, owner in enumerate(owners, start=1)
    ]


def test_equal_owners_divide_the_device_equally_however_many_jobs_they_have() -> None:
    left_ns, ends_ns = advance([_share(1, 1e6), _share(2, 1e6), _share(3, 1e6, owner=2)], 4e5)
    assert left_ns == {1: 9e5, 2: 9e5, 3: 8e5}
    assert ends_ns == {}


def test_an_owner_with_twice_the_weight_gets_twice_the_share() -> None:
    left_ns, _ = advance([_share(1, 1e6), _share(2, 1e6, owner=2, weight=2.0)], 3e5)
    assert left_ns == {1: 9e5, 2: 8e5}


def test_an_owners_higher_priority_comes_first_and_takes_nothing_from_other_owners() -> None:
    jobs = [_share(1, 1e6, priority=1), _share(2, 1e6), _share(3, 4e6, owner=2)]
    assert fair_ends_ns(jobs) == {1: 2e6, 2: 4e6, 3: 6e6}


def test_a_short_job_ends_early_although_a_long_one_came_first() -> None:
    assert fair_ends_ns([_share(1, 1e9), _share(2, 1e6)]) == {2: 2e6, 1: 1.001e9}


@given(jobs=shares(), part=st.floats(0.0, 1.0))
def test_the_work_that_is_left_and_the_work_that_was_done_are_all_the_work(
    jobs: list[FairShare], part: float
) -> None:
    total_ns = sum(job.left_ns for job in jobs)
    left_ns, ends_ns = advance(jobs, part * total_ns)
    assert abs(sum(left_ns.values()) + part * total_ns - total_ns) <= 1e-6 * total_ns + len(jobs)
    assert all(left_ns[job] == 0 for job in ends_ns)


@given(jobs=shares(), part=st.floats(0.0, 0.9))
def test_the_order_of_ends_stays_while_no_job_comes_or_goes(jobs: list[FairShare], part: float) -> None:
    before = fair_ends_ns(jobs)
    work_ns = part * min(before.values())
    left_ns, _ = advance(jobs, work_ns)
    later = fair_ends_ns([_share_with(job, left_ns[job.job]) for job in jobs])
    for job, end_ns in later.items():
        assert abs(end_ns + work_ns - before[job]) <= 1e-6 * before[job] + 10 * len(jobs)


def _share_with(job: FairShare, left_ns: float) -> FairShare:
    return _share(job.job, left_ns, owner=job.owner, weight=job.weight, priority=job.priority)


@given(jobs=shares(), part=st.floats(0.0, 1.2))
def test_fair_schedule_is_that_of_a_simulation_from_end_to_end(jobs: list[FairShare], part: float) -> None:
    total_ns = sum(job.left_ns for job in jobs)
    left_ns, ends_ns = advance(jobs, part * total_ns)
    expected_left_ns, expected_ends_ns = _simulated(jobs, part * total_ns)
    tolerance_ns = 1e-6 * total_ns + 10 * len(jobs)
    for job in jobs:
        assert abs(left_ns[job.job] - expected_left_ns[job.job]) <= tolerance_ns
        assert abs(ends_ns.get(job.job, total_ns) - expected_ends_ns.get(job.job, total_ns)) <= tolerance_ns


def _simulated(jobs: list[FairShare], work_ns: float) -> tuple[dict[JobId, float], dict[JobId, float]]:
    """Advance the fair schedule from each end of a job to the next, with the share of each job computed anew."""
    left_ns = {job.job: job.left_ns for job in jobs}
    ends_ns: dict[JobId, float] = {}
    passed_ns = 0.0
    while passed_ns < work_ns and (present := [job for job in jobs if left_ns[job.job]]):
        highest = {o: max(job.priority for job in present if job.owner == o) for o in {job.owner for job in present}}
        served = [job for job in present if job.priority == highest[job.owner]]
        weights = {job.owner: job.weight for job in present}
        parts = {
            job.job: job.weight / sum(weights.values()) / sum(other.owner == job.owner for other in served)
            for job in served
        }
        step_ns = min(work_ns - passed_ns, *(left_ns[job] / share for job, share in parts.items()))
        passed_ns += step_ns
        for job, share in parts.items():
            left_ns[job] -= step_ns * share
            if left_ns[job] <= 1.0:
                left_ns[job] = 0.0
                ends_ns[job] = passed_ns
    return left_ns, ends_ns
