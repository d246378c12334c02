"""Rows, curves and verdicts of the benchmarks of policies."""

from typing import Any

import pytest

from indb_tensile.bench.residual import residual
from indb_tensile.bench.rows import (
    Case,
    Trial,
    best_eor,
    best_msr,
    covered,
    known_policies,
    make_case,
    stamped,
    sweep,
    total,
    verdict,
)
from indb_tensile.errors import MissingError
from indb_tensile.scheduler.machines import REFERENCE
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.score import score
from indb_tensile.scheduler.simulate import Compute

CASE = ("model", "link_gb_s")
REQUIRED = {
    *("model", "policy", "link_gb_s", "vanilla_peak_bytes", "liveness_peak_bytes", "floor_bytes", "peak_bytes"),
    *("msr_vanilla", "msr_liveness", "iteration_us", "eor", "planning_ms", "faults"),
}


def _row(policy: str, eor: float, peak: int, **more: Any) -> dict[str, Any]:
    """A point of a network whose liveness peak is 100."""
    return {
        "model": "net",
        "link_gb_s": 25.0,
        "policy": policy,
        "eor": eor,
        "peak_bytes": peak,
        "liveness_peak_bytes": 100,
        "msr_liveness": 1 - peak / 100,
        "msr_vanilla": 1 - peak / 300,
        "faults": [],
        **more,
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
def test_a_point_is_covered_by_one_no_worse_in_both(ours: tuple[float, int], expected: bool) -> None:
    assert covered(_row("rival", 1.05, 60), [_row("tensile+", *ours)]) is expected


def test_two_points_do_not_cover_what_neither_covers() -> None:
    assert not covered(_row("rival", 1.05, 60), [_row("tensile+", 1.0, 90), _row("tensile+", 2.0, 20)])


def test_a_broken_plan_covers_nothing_and_counts_for_nothing() -> None:
    broken = _row("tensile+", 1.0, 10, faults=["wrong"])
    assert not covered(_row("rival", 1.05, 60), [broken])
    assert best_msr([broken], 1.1) is None
    assert best_eor([broken], 50) is None


def test_the_best_saving_and_time_are_those_within_the_limit() -> None:
    rows = [_row("p", 1.0, 90), _row("p", 1.10, 60), _row("p", 1.11, 40)]
    assert best_msr(rows, 1.10) == 0.4
    assert best_msr(rows, 1.10, "vanilla") == 0.8
    assert best_msr(rows, 0.9) is None
    assert best_eor(rows, 60) == 1.10
    assert best_eor(rows, 39) is None


def test_the_verdict_names_what_is_not_covered_and_how_close_we_come() -> None:
    rows = [
        _row("rival", 1.00, 80),
        _row("rival", 1.20, 55),
        _row("other", 1.30, 60),
        _row("tensile+", 1.05, 60),
        _row("tensile+", 1.25, 45),
    ]
    assert list(verdict(rows, CASE)) == [
        "net, link_gb_s 25.0: NOT COVERED: rival at 2 of 2 points: "
        "EOR 1.0000 MSR 0.2000 (ours: EOR 1.0500 within its memory, nothing within its time), "
        "EOR 1.2000 MSR 0.4500 (ours: EOR 1.2500 within its memory, MSR 0.4000 within its time)",
        "net, link_gb_s 25.0: covers other (1 points)",
        "net, link_gb_s 25.0: fastest within 50% of the liveness peak: EOR 1.2500; no rival gets there",
        "net, link_gb_s 25.0: fastest within 70% of the liveness peak: EOR 1.0500; best rival rival 1.2000",
    ]


def test_our_own_plans_in_phases_are_ours() -> None:
    rows = [_row("rival", 1.2, 45), _row("tensile+", 1.3, 45), _row("tensile+ in phases", 1.2, 40)]
    assert next(verdict(rows, CASE)) == "net, link_gb_s 25.0: covers rival (1 points)"


def test_the_verdict_says_who_is_faster_within_a_budget() -> None:
    rows = [_row("rival", 1.2, 45), _row("tensile+", 1.3, 45)]
    assert list(verdict(rows, CASE))[1:] == [
        "net, link_gb_s 25.0: NOT FASTEST within 50% of the liveness peak: EOR 1.3000; best rival rival 1.2000",
        "net, link_gb_s 25.0: NOT FASTEST within 70% of the liveness peak: EOR 1.3000; best rival rival 1.2000",
    ]


def test_without_our_own_policy_there_is_no_verdict() -> None:
    assert list(verdict([_row("rival", 1.2, 45)], CASE)) == []


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case([residual(60)], REFERENCE, 25.0, labels={"model": "net"})


def test_a_plan_that_came_before_has_no_row(case: Case) -> None:
    trial = Trial(case, "liveness")
    asked = [case.liveness_peak_bytes, case.floor_bytes, 0]
    rows = [row for budget_bytes in asked for row in trial.ask(budget_bytes)]
    assert [row["budget_bytes"] for row in rows] == asked[:1]


def test_rows_have_what_is_promised_and_hold_no_fault(case: Case) -> None:
    rows = list(sweep(case, ("autoswap", "liveness", "vanilla"), budgets=3, refine=1))
    assert {row["policy"] for row in rows} == {"autoswap", "liveness", "vanilla"}
    for row in rows:
        assert set(row) >= REQUIRED
        assert row["faults"] == []
    assert '"date": "' in stamped(rows[0])
    assert '"host": "' in stamped(rows[0])


def test_our_own_policy_is_asked_last_and_for_each_peak_that_a_rival_reached(case: Case) -> None:
    rows = list(sweep(case, ("tensile+", "vanilla", "liveness", "autoswap"), budgets=2, refine=0))
    policies = [row["policy"] for row in rows]
    assert policies == sorted(policies, key=lambda name: (name == "tensile+", name))
    ours = [row for row in rows if row["policy"] == "tensile+"]
    peaks = {row["peak_bytes"] for row in rows if row["policy"] != "tensile+" and not covered(row, ours)}
    assert peaks <= {row["budget_bytes"] for row in ours} | {row["peak_bytes"] for row in ours}


def test_budgets_close_in_on_the_least_memory_at_an_overhead(case: Case) -> None:
    trial = Trial(case, "autoswap")
    for budget_bytes in (case.liveness_peak_bytes, case.floor_bytes):
        list(trial.ask(budget_bytes))
    before = best_msr(trial.rows, 1.10)
    list(trial.least_memory(1.10, 6))
    after = best_msr(trial.rows, 1.10)
    assert before is not None
    assert after is not None
    assert after > before


def test_several_jobs_add_up_and_their_overhead_is_the_devices() -> None:
    graphs = [residual(60), residual(200)]
    pair = make_case(graphs, REFERENCE, 25.0, labels={"model": "two"}, compute=Compute.TURNS)
    plans = POLICIES["autoswap"](pair.workloads, budget_bytes=pair.floor_bytes * 2, link=pair.link)
    scores = score(pair.workloads, plans, pair.link, compute=Compute.TURNS)
    row = total(scores)
    assert row["peak_bytes"] == scores[0].peak_bytes + scores[1].peak_bytes
    assert row["iteration_us"] == sum(one.forecast.iteration_ns for one in scores) / 1000
    before, after = (
        sum(one.baseline.compute_ns / ns for one, ns in zip(scores, times, strict=True))
        for times in ([s.baseline.iteration_ns for s in scores], [s.forecast.iteration_ns for s in scores])
    )
    assert row["eor"] == round(before / after, 6)
    assert row["eor"] >= 0.999, "a device that is always busy cannot be overtaken"
    assert row["eor_worst"] == round(max(one.eor for one in scores), 6)
    assert row["msr_liveness"] == pytest.approx(1 - row["peak_bytes"] / pair.liveness_peak_bytes, abs=1e-6)
    assert set(row) == {*total(scores[:1]), "eor_worst"}


def test_only_known_policies_are_compared_and_all_by_default() -> None:
    assert known_policies(()) == tuple(POLICIES)
    assert known_policies(("vanilla",)) == ("vanilla",)
    with pytest.raises(MissingError, match="there is no policy 'luck'"):
        known_policies(("luck",))
