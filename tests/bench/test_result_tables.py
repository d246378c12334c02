"""The verdicts and tables that are made from rows."""

from indb_tensile.bench.harness.results.result_tables import markdown, verdict
from tests.bench.points import point

CASE = ("model", "link_gb_s")


def test_the_verdict_lists_the_rival_points_not_covered_and_our_nearest_points() -> None:
    rows = [
        point("rival", 1.00, 80),
        point("rival", 1.20, 55),
        point("other", 1.30, 60),
        point("tensile+", 1.05, 60),
        point("tensile+", 1.25, 45),
    ]
    assert list(verdict(rows, CASE)) == [
        "net, link_gb_s 25.0: NOT COVERED: rival at 2 of 2 points: "
        "EOR 1.0000 MSR 0.2000 (ours: EOR 1.0500 within its memory, nothing within its time), "
        "EOR 1.2000 MSR 0.4500 (ours: EOR 1.2500 within its memory, MSR 0.4000 within its time)",
        "net, link_gb_s 25.0: covers other (1 points)",
        "net, link_gb_s 25.0: fastest within 50% of the liveness peak: EOR 1.2500; no rival gets there",
        "net, link_gb_s 25.0: fastest within 70% of the liveness peak: EOR 1.0500; best rival rival 1.2000",
    ]


def test_our_own_plans_in_phases_count_as_ours() -> None:
    rows = [point("rival", 1.2, 45), point("tensile+", 1.3, 45), point("tensile+ in phases", 1.2, 40)]
    assert next(verdict(rows, CASE)) == "net, link_gb_s 25.0: covers rival (1 points)"


def test_the_verdict_reports_a_faster_rival_within_a_budget() -> None:
    rows = [point("rival", 1.2, 45), point("tensile+", 1.3, 45)]
    assert list(verdict(rows, CASE))[1:] == [
        "net, link_gb_s 25.0: NOT FASTEST within 50% of the liveness peak: EOR 1.3000; best rival rival 1.2000",
        "net, link_gb_s 25.0: NOT FASTEST within 70% of the liveness peak: EOR 1.3000; best rival rival 1.2000",
    ]


def test_without_our_own_policy_there_is_no_verdict() -> None:
    assert list(verdict([point("rival", 1.2, 45)], CASE)) == []


def test_a_document_has_each_cases_verdict_and_remarks_below_its_table() -> None:
    more = {"cbr": 0.4, "floor_bytes": 1, "planned_floor_bytes": 1, "planning_ms": 5.0, "vanilla_peak_bytes": 300}
    rows = [point(policy, 1.0, 60, **more) for policy in ("rival", "tensile+")]
    *_, covers, _fastest, remark, end = markdown(
        rows, CASE, lambda case_rows: iter([f"net, link_gb_s 25.0: {len(case_rows)} rows"])
    )
    assert (covers, remark, end) == ("- covers rival (1 points)", "- 2 rows", "")
