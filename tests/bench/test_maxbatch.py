"""The largest batch within a budget: how it is found, simulated and executed."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from indb_tensile.bench.commands.maxbatch import largest, measure, verdict
from indb_tensile.bench.harness.batch_trials import (
    BatchResult,
    EmulatedExecutor,
    ExecutedBatches,
    InterpolatedBatches,
    SimulatedBatches,
    eager_step,
)
from indb_tensile.bench.harness.cases import BenchmarkCase
from indb_tensile.bench.harness.networks import missing_library
from indb_tensile.bench.harness.trial import ADAM
from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.capture import capture_training
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.timing.machines import REFERENCE


def _upto(most: int) -> Callable[[int], BatchResult | None]:
    return lambda rows: BatchResult(rows=rows, peak_bytes=rows, iteration_ns=rows) if rows <= most else None


@given(st.integers(0, 12), st.integers(1, 40))
def test_the_largest_is_found_wherever_it_is(most: int, at_least: int) -> None:
    found = largest(_upto(most), lambda _: True, at_least)
    assert (found.rows if found is not None else 0) == (most if most >= at_least else 0)


def test_what_cannot_fit_is_not_tried() -> None:
    tried: list[int] = []

    def attempt(rows: int) -> BatchResult | None:
        tried.append(rows)
        return _upto(1000)(rows)

    found = largest(attempt, lambda rows: rows <= 5)
    assert found is not None
    assert found.rows == 5
    assert max(tried) == 5


def _squeezenet() -> BenchmarkCase:
    case = BenchmarkCase.of("squeezenet", 2, 32, emulated=True)
    if missing_library(case.network) is not None:
        pytest.skip("torchvision is not installed: it is in the extra `bench`")
    return case


@cache
def _graph(rows: int) -> StepGraph:
    """Narrow layers over many positions: a batch's values are worth more than the weights."""
    with torch.device("meta"):
        module = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(6)), nn.Flatten())
        x, y = torch.empty(rows, 64, 8), torch.empty(rows, dtype=torch.int64)
    return capture_training(module, functional.cross_entropy, x, y, ADAM).graph


def test_simulated_eager_fits_what_liveness_needs_and_ours_more() -> None:
    budget_bytes = liveness_peak(_graph(12))
    whatever, half = measure({"model": "narrow"}, InterpolatedBatches(_graph, REFERENCE, budget_bytes), [0.0, 0.5])
    assert (half["eager_batch"], half["eager_peak_bytes"]) == (12, budget_bytes)
    assert 12 < half["batch"] <= whatever["batch"]
    assert half["ratio"] == round(half["batch"] / 12, 3)
    assert half["peak_bytes"] <= budget_bytes
    assert half["samples_per_s"] >= 0.5 * half["eager_samples_per_s"]


def test_executed_a_batch_that_eager_cannot_train_runs_within_the_budget() -> None:
    case = _squeezenet()
    budget_bytes = eager_step(case).peak_bytes
    device = ExecutedBatches(EmulatedExecutor(case, REFERENCE), budget_bytes, 2)
    eager, ours = device.eager(2), device.confirmed(4)
    assert eager is not None
    assert ours is not None
    assert eager.peak_bytes == budget_bytes
    assert ours.peak_bytes <= budget_bytes
    assert device.may_fit(4)
    assert not device.may_fit(100_000)


def test_a_budget_that_not_even_one_row_meets_is_refused() -> None:
    with pytest.raises(RequestError, match="narrow does not fit its budget of 1000 bytes with one row"):
        next(measure({"model": "narrow", "budget_bytes": 1000}, SimulatedBatches.of(_graph, REFERENCE, 1000), [0.0]))


def test_the_verdict_is_on_half_of_the_networks_at_the_most_three() -> None:
    rows = [
        {"model": name, "ratio": ratio, "samples_per_s": 5.0, "eager_samples_per_s": 10.0}
        for name, ratio in (("a", 3.0), ("a", 2.0), ("b", 2.7), ("c", 2.8))
    ]
    assert (
        verdict(rows)
        == "2.8 times eager's batch on 2 of 3 networks: a 3.00 (50% of its samples/s), c 2.80 (50% of its samples/s)"
    )
    assert verdict(rows[1:3]) == "NOT REACHED: 2.8 times eager's batch on 0 of 2 networks: none"
