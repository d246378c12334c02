"""Check how the use of a device is divided among the jobs on it."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.catalog.plans import JobUse
from indb_tensile.catalog.usage import JobUsage
from indb_tensile.controller.usage_meter import UsageMeter
from indb_tensile.job import JobId

_BUDGET_BYTES = 100


def test_job_alone_uses_the_whole_device() -> None:
    meter = UsageMeter()
    meter.measure(5.0, _BUDGET_BYTES, [_share(1, 10)])
    meter.measure(7.0, _BUDGET_BYTES, [_share(1, 10)])
    assert meter.pending == (JobUsage(job=JobId(1), device_s=2.0, byte_s=20.0, running_s=2.0),)


def test_larger_share_of_compute_and_memory_counts() -> None:
    meter = UsageMeter()
    meter.measure(0.0, _BUDGET_BYTES, [])
    meter.measure(1.0, _BUDGET_BYTES, [_share(1, 75), _share(2, 25), _share(3, 0)])
    assert meter.pending == (
        JobUsage(job=JobId(1), device_s=0.75, byte_s=75.0, running_s=1.0),
        JobUsage(job=JobId(2), device_s=0.5, byte_s=25.0, running_s=1.0),
        JobUsage(job=JobId(3), device_s=0.0, byte_s=0.0, running_s=0.0, waiting_s=1.0),
    )


def test_memory_that_is_lent_until_others_need_it_is_not_charged() -> None:
    meter = UsageMeter()
    meter.measure(0.0, _BUDGET_BYTES, [])
    meter.measure(1.0, _BUDGET_BYTES, [replace(_share(1, 75), lent_bytes=15), _share(2, 25)])
    assert [(usage.device_s, usage.byte_s) for usage in meter.pending] == [(0.6, 60.0), (0.5, 25.0)]


def test_use_is_kept_until_it_is_stored() -> None:
    meter = UsageMeter()
    meter.measure(0.0, _BUDGET_BYTES, [])
    meter.measure(1.0, _BUDGET_BYTES, [_share(1, 10)])
    meter.measure(2.0, _BUDGET_BYTES, [_share(2, 10)])
    assert [(usage.job, usage.device_s) for usage in meter.pending] == [(1, 1.0), (2, 1.0)]
    meter.clear()
    assert meter.pending == ()
    meter.measure(3.0, _BUDGET_BYTES, [])
    assert meter.pending == ()


def test_work_done_is_counted_as_time_alone_while_the_speed_is_known() -> None:
    meter = UsageMeter()
    meter.measure(0.0, _BUDGET_BYTES, [])
    meter.measure(1.0, _BUDGET_BYTES, [_share(1, 10)])
    meter.measure(3.0, _BUDGET_BYTES, [_share(1, 10, speed=0.5)])
    (usage,) = meter.pending
    assert (usage.running_s, usage.measured_s, usage.alone_s) == (3.0, 2.0, 1.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 10), st.lists(st.integers(0, 2 * _BUDGET_BYTES), max_size=6)),
        min_size=1,
        max_size=20,
    )
)
def test_no_job_uses_more_than_its_time_and_compute_is_never_left_out(spans: list[tuple[int, list[int]]]) -> None:
    meter, now_s, busy_s = UsageMeter(), 0.0, 0.0
    meter.measure(now_s, _BUDGET_BYTES, [])
    for span_s, grants in spans:
        now_s += span_s
        busy_s += span_s if any(grants) else 0.0
        meter.measure(now_s, _BUDGET_BYTES, [_share(number, grant) for number, grant in enumerate(grants)])
    for usage in meter.pending:
        assert 0.0 <= usage.device_s <= usage.running_s + 1e-9
        assert (usage.device_s > 0.0) == (usage.running_s > 0.0)
        assert usage.running_s + usage.waiting_s <= now_s + 1e-9
    assert sum(usage.device_s for usage in meter.pending) >= busy_s - 1e-6


def _share(job: int, granted_bytes: int, *, speed: float | None = None) -> JobUse:
    return JobUse(job=JobId(job), granted_bytes=granted_bytes, used_bytes=0, high_water_bytes=0, speed=speed)
