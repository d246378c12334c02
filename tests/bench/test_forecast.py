"""Executed plans have the forecast peaks to the byte, and stay within their budgets."""

from indb_tensile.bench.commands.forecast import BUDGETS, measure
from indb_tensile.bench.harness.execution.device_rig import RunTarget
from tests.bench.subjects import tiny


def test_each_budget_has_a_row_with_the_forecast_peak_measured_to_the_byte() -> None:
    rows = list(measure(tiny(), RunTarget(), rounds=1, iterations=1))
    assert len(rows) == len(BUDGETS)
    assert all(row["measured_peak_bytes"] == row["peak_bytes"] for row in rows)
    for share, row in zip(BUDGETS, rows, strict=True):
        room_bytes = row["liveness_peak_bytes"] - row["floor_bytes"]
        assert row["peak_bytes"] <= row["floor_bytes"] + round(share * room_bytes)
    assert all(row["foretold_ms"] > 0 and row["measured_ms"] > 0 and row["simulated_ratio"] > 0 for row in rows)
    assert all(row["first_ratio"] > 0 for row in rows)
