"""The largest batch within a budget is found, in simulation and in execution."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from indb_tensile.bench.commands.maxbatch import largest, measure, verdict
from indb_tensile.bench.harness.comparisons.batch_trials import (
    BatchResult,
    EmulatedExecutor,
    ExecutedBatches,
    InterpolatedBatches,
    SimulatedBatches,
    eager_step,
)
from indb_tensile.bench.harness.execution.cases import BenchmarkCase
from indb_tensile.bench.harness.execution.trial import ADAM
from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.timing.machines import REFERENCE
from tests.bench.libraries import skip_without_library


def _results_up_to(largest_rows: int) -> Callable[[int], BatchResult | None]:
    return lambda rows: BatchResult(rows=rows, peak_bytes=rows, iteration_ns=rows) if rows <= largest_rows else None


@given(st.integers(0, 12), st.integers(1, 40))
def test_the_largest_batch_is_found_at_any_size(largest_rows: int, at_least: int) -> None:
    result = largest(_results_up_to(largest_rows), lambda _: True, at_least)
    assert (result.rows if result is not None else 0) == (largest_rows if largest_rows >= at_least else 0)


def test_a_batch_that_cannot_fit_is_not_tried() -> None:
    tried: list[int] = []

    def attempt(rows: int) -> BatchResult | None:
        tried.append(rows)
        return _results_up_to(1000)(rows)

    result = largest(attempt, lambda rows: rows <= 5)
    assert result is not None
    assert result.rows == 5
    assert max(tried) == 5


def _squeezenet() -> BenchmarkCase:
    case = BenchmarkCase.of("squeezenet", 2, 32, emulated=True)
    skip_without_library(case.network)
    return case


@cache
def _graph(rows: int) -> StepGraph:
    """Return narrow layers over many positions, whose activations need more memory than the weights."""
    with torch.device("meta"):
        module = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(6)), nn.Flatten())
        x, y = torch.empty(rows, 64, 8), torch.empty(rows, dtype=torch.int64)
    return capture_training(module, functional.cross_entropy, x, y, ADAM).graph


@pytest.mark.nightly
def test_the_simulated_largest_batch_of_eager_is_liveness_and_ours_is_larger() -> None:
    budget_bytes = liveness_peak(_graph(12))
    unbounded, half = measure({"model": "narrow"}, InterpolatedBatches(_graph, REFERENCE, budget_bytes), [0.0, 0.5])
    assert (half["eager_batch"], half["eager_peak_bytes"]) == (12, budget_bytes)
    assert 12 < half["batch"] <= unbounded["batch"]
    assert half["ratio"] == round(half["batch"] / 12, 3)
    assert half["peak_bytes"] <= budget_bytes
    assert half["samples_per_s"] >= 0.5 * half["eager_samples_per_s"]


def test_a_batch_that_eager_cannot_train_is_executed_within_the_budget() -> None:
    case = _squeezenet()
    budget_bytes = eager_step(case).peak_bytes
    device = ExecutedBatches(EmulatedExecutor(case, REFERENCE), budget_bytes, 2)
    eager, planned = device.eager(2), device.confirmed(4)
    assert eager is not None
    assert planned is not None
    assert eager.peak_bytes == budget_bytes
    assert planned.peak_bytes <= budget_bytes
    assert device.may_fit(4)
    assert not device.may_fit(100_000)


def test_a_budget_below_the_need_of_one_row_is_refused() -> None:
    with pytest.raises(RequestError, match="narrow does not fit its budget of 1000 bytes with one row"):
        next(measure({"model": "narrow", "budget_bytes": 1000}, SimulatedBatches.of(_graph, REFERENCE, 1000), [0.0]))


def test_the_verdict_counts_half_of_the_networks_but_at_most_three() -> None:
    rows = [
        {"model": name, "ratio": ratio, "samples_per_s": 5.0, "eager_samples_per_s": 10.0}
        for name, ratio in (("a", 3.0), ("a", 2.0), ("b", 2.7), ("c", 2.8))
    ]
    assert (
        verdict(rows)
        == "2.8 times eager's batch on 2 of 3 networks: a 3.00 (50% of its samples/s), c 2.80 (50% of its samples/s)"
    )
    assert verdict(rows[1:3]) == "NOT REACHED: 2.8 times eager's batch on 0 of 2 networks: none"
