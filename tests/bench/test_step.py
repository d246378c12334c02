"""A planned step is measured beside PyTorch's own methods. The verdict names the fastest at each peak."""

from dataclasses import replace
from typing import Any

import pytest

from indb_tensile.bench.commands.step import StepFinding, StepOptions, measure, verdict
from indb_tensile.bench.harness.comparisons.turns import TurnLimits
from indb_tensile.bench.harness.execution.cases import BenchmarkCase
from tests.bench.libraries import skip_without_library
from tests.bench.subjects import Tiny

OPTIONS = StepOptions(segments=(2,), activations=(), budgets=(0.7,), pace=TurnLimits(rounds=1, duels=1, turn_s=0.0))


def test_every_method_has_a_row_and_results_are_eagers_bit_for_bit() -> None:
    eager, saved, *planned = rows = measure(Tiny(), OPTIONS)
    assert [row["method"] for row in (eager, saved, planned[0])] == [
        "eager",
        "save_on_cpu, emulated link",
        "tensile+, no saving",
    ]
    assert all(row["exact"] and row["buffers_exact"] for row in rows)
    assert all(row["step_ms"] > 0 and row["samples_per_s"] > 0 for row in rows)
    # Eager keeps its batch to the end.
    assert 0.9 < planned[0]["peak_allocated_bytes"] / eager["peak_allocated_bytes"] <= 1.0
    assert planned[-1]["peak_allocated_bytes"] <= round(0.7 * eager["peak_allocated_bytes"])
    assert {row["link_bytes_per_s"] for row in rows} == {eager["link_bytes_per_s"]}


def test_a_known_networks_segments_are_rivals_with_exact_results() -> None:
    case = BenchmarkCase.of("squeezenet", 2, 32, emulated=True)
    skip_without_library(case.network)
    rows = {row["method"]: row for row in measure(case, replace(OPTIONS, budgets=()))}
    assert rows["checkpoint 2"]["exact"]


def _row(
    method: str,
    peak_mb: float,
    eor: float,
    *,
    exact: bool = True,
    buffers_exact: bool = True,
    launch_share: float = 0.1,
) -> dict[str, Any]:
    return {
        "model": "m",
        "method": method,
        "peak_allocated_bytes": round(peak_mb * (1 << 20)),
        "eor": eor,
        "exact": exact,
        "buffers_exact": buffers_exact,
        "launch_share": launch_share,
    }


EAGER = _row("eager", 10, 1.0)
CHECKPOINT = _row("checkpoint 2", 8, 1.3)
UNCONSTRAINED = _row("tensile+, no saving", 10, 0.99)
AS_FAST_AS_EAGER = StepFinding(
    "m without swaps and recomputation: takes 0.990 of eager's time; the limit is 1.00 (computation dominates)", True
)


def test_the_verdict_expects_our_plan_to_be_the_fastest_at_each_peak() -> None:
    assert list(verdict([EAGER, CHECKPOINT, UNCONSTRAINED, _row("tensile+, 8.0 MB", 8, 1.2)])) == [
        AS_FAST_AS_EAGER,
        StepFinding("m at 8.0 MB: as fast, EOR 1.200; checkpoint 2 1.300", True),
    ]
    slower = [_row("tensile+, 8.0 MB", 8, 1.4), _row("tensile+, 8.5 MB", 8.5, 1.1)]
    assert list(verdict([EAGER, CHECKPOINT, UNCONSTRAINED, *slower])) == [
        AS_FAST_AS_EAGER,
        StepFinding("m at 8.0 MB: NOT FASTEST, EOR 1.400; checkpoint 2 1.300", False),
    ]
    assert list(verdict([EAGER, CHECKPOINT, UNCONSTRAINED])) == [
        AS_FAST_AS_EAGER,
        StepFinding("m at 8.0 MB: NOT FASTEST, EOR none; checkpoint 2 1.300", False),
    ]


def test_a_method_that_changes_results_is_no_rival() -> None:
    inexact = _row("activation_memory_budget 0.5, inductor", 8, 0.5, exact=False)
    assert list(verdict([EAGER, inexact, UNCONSTRAINED])) == [
        AS_FAST_AS_EAGER,
        StepFinding(
            "m at 8.0 MB: EOR none; activation_memory_budget 0.5, inductor 0.500, which changes results", True
        ),
    ]


@pytest.mark.parametrize(
    ("exact", "buffers_exact", "differing"), [(False, False, "parameters"), (True, False, "buffers")]
)
def test_the_verdict_fails_if_a_plan_of_ours_changes_results(
    exact: bool, buffers_exact: bool, differing: str
) -> None:
    changed = _row("tensile+, 8.0 MB", 8, 1.2, exact=exact, buffers_exact=buffers_exact)
    assert list(verdict([EAGER, CHECKPOINT, UNCONSTRAINED, changed])) == [
        StepFinding(f"m: tensile+, 8.0 MB is NOT EXACT: its {differing} differ from eager's", False),
        AS_FAST_AS_EAGER,
        StepFinding("m at 8.0 MB: as fast, EOR 1.200; checkpoint 2 1.300", True),
    ]


@pytest.mark.parametrize(
    ("launch_share", "eor", "message", "passed"),
    [
        (0.1, 1.01, "TOO SLOW, takes 1.010 of eager's time; the limit is 1.00 (computation dominates)", False),
        (0.6, 1.01, "takes 1.010 of eager's time; the limit is 1.05 (launches dominate)", True),
        (0.6, 1.06, "TOO SLOW, takes 1.060 of eager's time; the limit is 1.05 (launches dominate)", False),
    ],
)
def test_the_limit_on_the_unconstrained_step_is_higher_if_launches_dominate(
    launch_share: float, eor: float, message: str, passed: bool
) -> None:
    eager = _row("eager", 10, 1.0, launch_share=launch_share)
    assert list(verdict([eager, _row("tensile+, no saving", 10, eor)])) == [
        StepFinding(f"m without swaps and recomputation: {message}", passed)
    ]
