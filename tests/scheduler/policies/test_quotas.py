"""Check divisions of a budget that use no budget curve."""

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.policies.quotas import equal_parts, parts_by_peak

_JOBS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=5)


def test_equal_parts_pass_unused_bytes_to_other_jobs() -> None:
    assert equal_parts((0, 0), (100, 100), 90) == (45, 45)
    assert equal_parts((0, 0, 0), (10, 100, 100), 90) == (10, 40, 40)
    assert equal_parts((70, 0, 0), (100, 100, 100), 90) == (70, 10, 10)


def test_parts_by_peak_are_the_same_share_of_each_peak() -> None:
    assert parts_by_peak((0, 0), (100, 50), 75) == (50, 25)
    assert parts_by_peak((60, 0), (100, 50), 75) == (60, 15)


@given(_JOBS, st.integers(0, 500))
def test_parts_lie_between_least_and_most_and_use_the_whole_budget(jobs: list[tuple[int, int]], budget: int) -> None:
    leasts, mosts = [least for least, _ in jobs], [least + more for least, more in jobs]
    for divide in (equal_parts, parts_by_peak):
        parts = divide(leasts, mosts, budget)
        assert all(a <= part <= b for a, part, b in zip(leasts, parts, mosts, strict=True))
        assert sum(parts) == min(sum(mosts), max(sum(leasts), budget))
