"""Check the factors by which jobs slow each other down."""

from hypothesis import example, given
from hypothesis import strategies as st

from indb_tensile.scheduler.completion.contention import Contention

_FACTORS = st.lists(st.floats(0.5, 8.0), min_size=3, max_size=3)


@given(_FACTORS, _FACTORS, st.integers(1, 20), st.floats(0.1, 10.0))
@example([1.0, 8.0, 2.0], [1.0, 8.0, 2.0], 8, 1.0)
def test_no_job_is_faster_beside_more_jobs(
    long_factors: list[float], short_factors: list[float], jobs: int, steps: float
) -> None:
    """Also beyond the largest number that was measured, and where a measured factor is below an earlier one."""
    numbers = (1, 2, 4, 8)
    contention = Contention(
        points=tuple(zip(numbers, (1.0, *long_factors), strict=True)),
        short_points=tuple(zip(numbers, (1.0, *short_factors), strict=True)),
        short_ns=1_000_000,
    )
    step_ns = steps * contention.short_ns
    assert 1 <= contention.slowdown(jobs, step_ns) <= contention.slowdown(jobs + 1, step_ns) * (1 + 1e-12)
