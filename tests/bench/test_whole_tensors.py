"""Check the program of whole tensors: no plan is below it, and it is higher than the bound that counts fractions."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.bench.commands.bound import main
from indb_tensile.bench.harness.planning.whole_tensors import program_bound
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Role
from indb_tensile.scheduler.judges.peak_bound import bound_bytes, covers
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, liveness_peak, peak
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import plan_jobs
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.workload import Workload
from tests.nightly import few_examples
from tests.scheduler.access_rows import graph_from_rows
from tests.scheduler.strategies import graphs, latencies, links

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # 1 ns a byte
NEVER = Link(out_bytes_per_s=10**3, in_bytes_per_s=10**3)  # 1 ms a byte
A = Role.ACTIVATION
_LIMIT_S = 60


def _program(
    rows: tuple[tuple[int, Role, str], ...], latency_ns: tuple[int, ...], link: Link, more_ns: int = 0
) -> int:
    bound = program_bound(graph_from_rows(*rows), latency_ns, link, sum(latency_ns) + more_ns, limit_s=_LIMIT_S)
    assert bound.optimal
    return bound.least_bytes


def test_a_tensor_that_the_lanes_carry_in_part_stays_whole() -> None:
    """Of 40 bytes 15 can be copied each way beside the operators, which frees nothing."""
    rows = ((40, A, "w...r"), (30, A, "..w.."))
    latency_ns = (100, 15, 100, 15, 100)
    assert bound_bytes(graph_from_rows(*rows), latency_ns, LINK, sum(latency_ns)) == 55
    assert _program(rows, latency_ns, LINK) in (69, 70)


def test_a_tensor_that_the_lanes_carry_whole_is_away() -> None:
    rows = ((40, A, "w...r"), (30, A, "..w.."))
    assert _program(rows, (100, 40, 100, 40, 100), LINK) in (39, 40), "the largest working set"
    assert _program(rows, (100, 15, 100, 15, 100), LINK, 45) in (69, 70), "50 ns of waiting are needed"
    assert _program(rows, (100, 15, 100, 15, 100), LINK, 50) in (39, 40)


def test_a_rerun_takes_its_time_and_its_sources_on_the_device() -> None:
    """b is made again from a in 50 ns. a is gone by then and takes 30 ns more."""
    rows = ((40, A, "wr...."), (40, A, ".w...r"), (60, A, "..wr.."))
    latency_ns = (30, 50, 10, 10, 10, 10)
    assert _program(rows, latency_ns, NEVER, 49) in (99, 100)
    assert _program(rows, latency_ns, NEVER, 80) in (79, 80), "a and b are both held while b is made first"


def test_without_accesses_to_tensors_the_bound_is_nothing() -> None:
    graph = graph_from_rows((40, A, "."))
    for each in (graph, replace(graph, tensors=())):
        assert program_bound(each, (10,), NEVER, 20, limit_s=_LIMIT_S).least_bytes == 0


@few_examples()
@given(data=st.data())
def test_no_plan_of_any_policy_is_below_the_program(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    latency_ns, link = data.draw(latencies(graph)), data.draw(links())
    workload = Workload(job=JobId(1), graphs=(graph,), latency_ns=(latency_ns,))
    budget_bytes = data.draw(st.integers(floor(graph), liveness_peak(graph)))
    policy = data.draw(st.sampled_from(sorted(POLICIES)))
    planned = plan_jobs((workload,), budget_bytes=budget_bytes, link=link, policy=policy)
    if isinstance(planned, Infeasible) or not covers(graph, planned[0].plans[0]):
        return
    plan = planned[0].plans[0]
    (forecast,) = simulate([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link)
    bound = program_bound(graph, latency_ns, link, forecast.iteration_ns, limit_s=_LIMIT_S)
    assert bound.least_bytes <= peak(graph, plan)


@pytest.mark.nightly
def test_plans_of_a_u_net_of_one_level_are_the_best_and_the_bound_is_loose(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--levels", "1", "--program", str(_LIMIT_S), "--overheads", "1.02", "1.05", "1.1", "1.15", "--json"])
    assert ended.value.code == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["model"], row["overhead"]) for row in rows] == [
        ("unet of 1", overhead) for overhead in (1.02, 1.05, 1.1, 1.15)
    ]
    for row in rows:
        assert row["program_solved"]
        assert row["program_bytes"] <= row["plan_bytes"] <= 1.003 * row["program_bytes"]
        assert row["bound_bytes"] < 0.85 * row["program_bytes"]
