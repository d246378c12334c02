"""A planned step is measured beside PyTorch's own methods. The verdict names the fastest at each peak."""

from dataclasses import replace
from typing import Any

import pytest

from indb_tensile.bench.commands.step import StepOptions, measure, verdict
from indb_tensile.bench.harness.cases import BenchmarkCase
from indb_tensile.bench.harness.turns import TurnLimits
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
    method: str, peak_mb: float, eor: float, *, exact: bool = True, starting_share: float = 0.1
) -> dict[str, Any]:
    return {
        "model": "m",
        "method": method,
        "peak_allocated_bytes": round(peak_mb * (1 << 20)),
        "eor": eor,
        "exact": exact,
        "starting_share": starting_share,
    }


EAGER = _row("eager", 10, 1.0)
CHECKPOINT = _row("checkpoint 2", 8, 1.3)
UNSAVING = _row("tensile+, no saving", 10, 0.99)


def test_the_verdict_expects_our_plan_to_be_the_fastest_at_each_peak() -> None:
    assert list(verdict([EAGER, CHECKPOINT, UNSAVING, _row("tensile+, 8.0 MB", 8, 1.2)])) == [
        "m without saving: reaches 0.990 of eager's time, of 1.00 (computation dominates)",
        "m at 8.0 MB: covers checkpoint 2, EOR 1.200 of 1.300",
    ]
    slower = [_row("tensile+, 8.0 MB", 8, 1.4), _row("tensile+, 8.5 MB", 8.5, 1.1)]
    assert list(verdict([EAGER, CHECKPOINT, UNSAVING, *slower]))[1] == (
        "m at 8.0 MB: NOT FASTEST, EOR 1.4; checkpoint 2 1.300"
    )
    assert list(verdict([EAGER, CHECKPOINT, UNSAVING]))[1] == "m at 8.0 MB: NOT FASTEST, EOR None; checkpoint 2 1.300"


def test_a_method_that_changes_results_is_no_rival() -> None:
    wrong = _row("activation_memory_budget 0.5, inductor", 8, 0.5, exact=False)
    assert list(verdict([EAGER, wrong, UNSAVING]))[1] == (
        "m at 8.0 MB: activation_memory_budget 0.5, inductor changes results; EOR 0.500, ours None"
    )


@pytest.mark.parametrize(
    ("starting_share", "eor", "message"),
    [
        (0.1, 1.01, "NOT REACHED: 1.010 of eager's time, of 1.00 (computation dominates)"),
        (0.6, 1.01, "reaches 1.010 of eager's time, of 1.05 (starting dominates)"),
        (0.6, 1.06, "NOT REACHED: 1.060 of eager's time, of 1.05 (starting dominates)"),
    ],
)
def test_the_bound_without_saving_is_higher_if_starting_operators_dominates(
    starting_share: float, eor: float, message: str
) -> None:
    eager = _row("eager", 10, 1.0, starting_share=starting_share)
    assert list(verdict([eager, _row("tensile+, no saving", 10, eor)])) == [f"m without saving: {message}"]
