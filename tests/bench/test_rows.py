"""The rows, curves and verdicts of the planning benchmarks."""

import pytest

from indb_tensile.bench.harness.networks.residual import residual
from indb_tensile.bench.harness.results.rows import (
    PlanningCase,
    PolicyTrial,
    best_eor,
    best_msr,
    budgets_of,
    covered,
    known_policies,
    make_case,
    stamped,
    sweep,
    timed,
    total,
)
from indb_tensile.errors import MissingError
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.score import score
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.timing.machines import REFERENCE
from tests.bench.points import point

REQUIRED = {
    *("model", "policy", "link_gb_s", "vanilla_peak_bytes", "liveness_peak_bytes", "floor_bytes", "peak_bytes"),
    *("msr_vanilla", "msr_liveness", "iteration_us", "eor", "planning_ms", "faults"),
}


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ((1.05, 60), True),
        ((1.04, 59), True),
        ((1.06, 60), False),
        ((1.05, 61), False),
    ],
)
def test_a_point_is_covered_by_a_point_no_worse_in_time_and_memory(ours: tuple[float, int], expected: bool) -> None:
    assert covered(point("rival", 1.05, 60), [point("tensile+", *ours)]) is expected


def test_two_points_together_cover_only_what_either_covers() -> None:
    assert not covered(point("rival", 1.05, 60), [point("tensile+", 1.0, 90), point("tensile+", 2.0, 20)])


def test_an_invalid_plan_covers_nothing_and_is_not_counted() -> None:
    broken = point("tensile+", 1.0, 10, faults=["wrong"])
    assert not covered(point("rival", 1.05, 60), [broken])
    assert best_msr([broken], 1.1) is None
    assert best_eor([broken], 50) is None


def test_the_best_saving_and_time_are_the_best_within_the_limit() -> None:
    rows = [point("p", 1.0, 90), point("p", 1.10, 60), point("p", 1.11, 40)]
    assert best_msr(rows, 1.10) == 0.4
    assert best_msr(rows, 1.10, "vanilla") == 0.8
    assert best_msr(rows, 0.9) is None
    assert best_eor(rows, 60) == 1.10
    assert best_eor(rows, 39) is None


@pytest.fixture(scope="module")
def case() -> PlanningCase:
    return make_case([residual(15)], REFERENCE, 25.0, labels={"model": "net"})


@pytest.mark.nightly
def test_a_plan_that_was_found_before_has_no_point(case: PlanningCase) -> None:
    trial = PolicyTrial(case, "liveness")
    budgets = [case.liveness_peak_bytes, case.floor_bytes, 0]
    rows = [row for budget_bytes in budgets for row in trial.ask(budget_bytes)]
    assert [row["budget_bytes"] for row in rows] == budgets[:1]


@pytest.mark.nightly
def test_rows_have_the_required_fields_and_no_fault(case: PlanningCase) -> None:
    rows = list(sweep(case, ("capuchin", "liveness", "vanilla"), budgets=2, refine=1))
    assert {row["policy"] for row in rows} == {"capuchin", "liveness", "vanilla"}
    for row in rows:
        assert set(row) >= REQUIRED
        assert row["faults"] == []
    assert '"date": "' in stamped(rows[0])
    assert '"host": "' in stamped(rows[0])


@pytest.mark.nightly
def test_our_own_policy_is_planned_last_and_at_each_peak_of_a_rival(case: PlanningCase) -> None:
    rows = list(sweep(case, ("tensile+", "vanilla", "liveness", "capuchin"), budgets=2, refine=0))
    policies = [row["policy"] for row in rows]
    assert policies == sorted(policies, key=lambda name: (name == "tensile+", name))
    ours = [row for row in rows if row["policy"] == "tensile+"]
    peaks = {row["peak_bytes"] for row in rows if row["policy"] != "tensile+" and not covered(row, ours)}
    assert peaks <= {row["budget_bytes"] for row in ours} | {row["peak_bytes"] for row in ours}


@pytest.mark.nightly
def test_the_search_reduces_the_memory_at_an_overhead(case: PlanningCase) -> None:
    trial = PolicyTrial(case, "capuchin")
    for budget_bytes in (case.liveness_peak_bytes, case.floor_bytes):
        list(trial.ask(budget_bytes))
    before = best_msr(trial.rows, 1.10)
    list(trial.least_memory(1.10, 6))
    after = best_msr(trial.rows, 1.10)
    assert before is not None
    assert after is not None
    assert after > before


def test_several_jobs_add_up_and_their_overhead_is_the_devices() -> None:
    graphs = [residual(60), residual(100)]
    pair = make_case(graphs, REFERENCE, 25.0, labels={"model": "two"}, compute=Compute.TURNS)
    plans = POLICIES["autoswap"].plan(pair.workloads, budget_bytes=pair.floor_bytes * 2, link=pair.link)
    scores = score(pair.workloads, plans, pair.link, compute=Compute.TURNS)
    row = total(scores)
    assert row["peak_bytes"] == scores[0].peak_bytes + scores[1].peak_bytes
    assert row["iteration_us"] == sum(job.forecast.iteration_ns for job in scores) / 1000
    before, after = (
        sum(job.baseline.compute_ns / ns for job, ns in zip(scores, times, strict=True))
        for times in ([s.baseline.iteration_ns for s in scores], [s.forecast.iteration_ns for s in scores])
    )
    assert row["eor"] == round(before / after, 6)
    assert row["eor"] >= 0.999, "no plan is faster than a device that is always busy"
    assert row["eor_worst"] == round(max(job.eor for job in scores), 6)
    assert row["msr_liveness"] == pytest.approx(1 - row["peak_bytes"] / pair.liveness_peak_bytes, abs=1e-6)
    assert set(row) == {*total(scores[:1]), "eor_worst"}


def test_only_known_policies_are_compared_and_all_by_default() -> None:
    assert known_policies(()) == tuple(POLICIES)
    assert known_policies(("vanilla",)) == ("vanilla",)
    with pytest.raises(MissingError, match="there is no policy 'luck'"):
        known_policies(("luck",))


def test_equal_jobs_are_planned_once_by_policies_that_plan_each_job_alone() -> None:
    """The plan of one job is reused for any number of equal jobs, with its planning time."""
    graph = residual(25)
    single, triple = (make_case([graph] * jobs, REFERENCE, 25.0, labels={}) for jobs in (1, 3))
    for policy in ("autoswap", "capuchin"):
        budget_bytes = (single.floor_bytes + single.liveness_peak_bytes) // 2
        (plans,), planning_ms = timed(single, policy, budget_bytes)
        assert timed(triple, policy, 3 * budget_bytes) == ((plans,) * 3, planning_ms)
        assert (
            POLICIES[policy].plan(triple.workloads, budget_bytes=3 * budget_bytes, link=triple.link) == (plans,) * 3
        )


def test_equal_jobs_have_the_same_share_of_every_budget() -> None:
    graph = residual(25)
    single, triple = (make_case([graph] * jobs, REFERENCE, 25.0, labels={}) for jobs in (1, 3))
    assert budgets_of(triple, 7) == tuple(3 * budget_bytes for budget_bytes in budgets_of(single, 7))
