"""The workload of any batch is interpolated from the captured workloads of two batches."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional

from indb_tensile.bench.harness.comparisons.interpolated_workload import InterpolatedWorkload
from indb_tensile.bench.harness.execution.trial import ADAM, workload
from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.scheduler.workload import Workload


@cache
def _captured(rows: int) -> Workload:
    with torch.device("meta"):
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
        module(torch.empty(2, 3, 6, 6))
        x, y = torch.empty(rows, 3, 6, 6), torch.empty(rows, dtype=torch.int64)
    step = capture_training(module, functional.cross_entropy, x, y, ADAM)
    return workload(step, tuple(10 * k + rows for k in range(len(step.graph.operators))))


@pytest.mark.nightly
def test_an_interpolated_batch_equals_the_captured_batch() -> None:
    interpolated, captured = InterpolatedWorkload(_captured, 8, 16)(30), _captured(30)
    (graph,), (other,) = interpolated.graphs, captured.graphs
    assert graph.tensors == other.tensors
    assert interpolated.latency_ns == captured.latency_ns
    assert [replace(op, signature="") for op in graph.operators] == [
        replace(op, signature="") for op in other.operators
    ]


def test_two_batches_with_different_operators_are_refused() -> None:
    def works(rows: int) -> Workload:
        work = _captured(rows)
        (graph,), (latency_ns,) = work.graphs, work.latency_ns
        fewer = replace(graph, operators=graph.operators[:-1])
        return work if rows < 16 else replace(work, graphs=(fewer,), latency_ns=(latency_ns[:-1],))

    with pytest.raises(RequestError, match="steps of 8 and 16 rows have other operators"):
        InterpolatedWorkload(works, 8, 16)(9)
