"""Check how a budget is divided along the curves of jobs."""

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.policies.budget_divisions import divide_by_curves
from indb_tensile.scheduler.search.candidate import CandidatePlan


def test_budget_division_takes_the_smallest_slowdown_per_byte() -> None:
    """For each byte, the steps of the first curve cost 1 % and 4 %, the step of the second curve costs 2 %. 10 bytes
    of the last step are left over.
    """
    first = (_candidate(100, 1000), _candidate(80, 1200), _candidate(60, 2000))
    second = (_candidate(100, 1000), _candidate(70, 1600))
    assert divide_by_curves((first, second), (1.0, 1.0), 200) == (100, 100)
    assert divide_by_curves((first, second), (1.0, 1.0), 190) == (90, 100)
    assert divide_by_curves((first, second), (1.0, 1.0), 160) == (80, 80)
    assert divide_by_curves((first, second), (1.0, 1.0), 120) == (60, 70), "the curves end there"
    assert divide_by_curves((first, second), (9.0, 1.0), 170) == (100, 70), "the job with priority keeps its memory"


def test_division_skips_a_poor_budget_step() -> None:
    """The next step costs 50 for 1 byte, the step after it 60 for 50 bytes."""
    curve = (_candidate(100, 1000), _candidate(99, 1050), _candidate(50, 1060))
    second = (_candidate(100, 1000), _candidate(50, 1500))
    assert divide_by_curves((curve, second), (1.0, 1.0), 150) == (50, 100)


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 99), st.integers(1001, 9999)), max_size=5), min_size=1, max_size=3),
    st.integers(0, 300),
)
def test_division_uses_the_whole_budget_within_the_curves(steps: list[list[tuple[int, int]]], budget: int) -> None:
    curves = [(_candidate(100, 1000), *(_candidate(p, t) for p, t in sorted(s, reverse=True))) for s in steps]
    caps = divide_by_curves(curves, [1.0] * len(curves), budget)
    assert all(curve[-1].peak_bytes <= cap <= 100 for curve, cap in zip(curves, caps, strict=True))
    least = sum(curve[-1].peak_bytes for curve in curves)
    assert sum(caps) <= max(budget, least)
    assert sum(caps) == min(100 * len(curves), max(budget, least)), "and uses all of it"


def _candidate(peak_bytes: int, iteration_ns: int) -> CandidatePlan:
    return CandidatePlan(order=0, peak_bytes=peak_bytes, iteration_ns=iteration_ns, lane_ns=0, choices=())
