"""The trade-offs of a job: what admission foretells sets of jobs from."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.trade_offs import trade_offs
from indb_tensile.scheduler.workload import Workload
from tests.nightly import some_examples
from tests.scheduler.strategies import links, several_workloads


@some_examples()
@given(several_workloads(), links(), st.integers(0, 1_000_000))
def test_jobs_with_equal_graphs_share_cached_trade_offs(
    jobs: tuple[Workload, ...], link: Link, longer_ns: int
) -> None:
    cache = PlanCache()
    for job in jobs:
        points = trade_offs(job, link=link, cache=cache)
        assert points == trade_offs(job, link=link)
        twin = replace(job, job=JobId(job.job + 1000))
        assert trade_offs(twin, link=link, cache=cache) is points
        slower = replace(twin, latency_ns=tuple(tuple(ns + longer_ns for ns in row) for row in twin.latency_ns))
        assert trade_offs(slower, link=link, cache=cache) == trade_offs(slower, link=link)
        limited = replace(twin, limit_bytes=points[-1].peak_bytes)
        assert trade_offs(limited, link=link, cache=cache) == trade_offs(limited, link=link)
        elsewhere = replace(link, out_bytes_per_s=2 * link.out_bytes_per_s)
        assert trade_offs(twin, link=elsewhere, cache=cache) == trade_offs(twin, link=elsewhere)
