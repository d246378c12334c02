"""Check operator latencies: the roofline estimate, the correction by measurements, and the drift."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.timing.latency import DeviceSpeed, correct, drift, estimate

SPEED = DeviceSpeed(flops_per_s=10**9, bytes_per_s=10**9, launch_ns=7)


def test_operator_takes_the_longer_of_arithmetic_and_traffic() -> None:
    tensors = tuple(Tensor(id=TensorId(i), name="t", size_bytes=100, role=Role.PARAMETER) for i in range(2))
    first, second = (t.id for t in tensors)
    graph = StepGraph(
        tensors=tensors,
        operators=(
            _operator((first,), (second,), flops=50),  # 200 bytes
            _operator((first,), (first,), flops=300),
            _operator((), (), flops=0),
        ),
    )
    assert estimate(graph, SPEED) == (207, 307, 7)


def test_correction_moves_towards_the_measurement_by_its_weight() -> None:
    assert correct((100, 100), (200, 0), 0.25) == (125, 75)
    assert correct((100,), (200,), 1.0) == (200,)
    assert correct((100,), (200,), 0.0) == (100,)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1), st.floats(0, 1))
def test_correction_lies_between_old_and_measured_latency(pairs: list[tuple[int, int]], weight: float) -> None:
    old, measured = zip(*pairs, strict=True)
    for o, m, c in zip(old, measured, correct(old, measured, weight), strict=True):
        assert min(o, m) <= c <= max(o, m)


def test_drift_is_the_relative_change_of_the_sum() -> None:
    assert drift((100, 100), (150, 100)) == 0.25
    assert drift((100, 100), (50, 100)) == 0.25
    assert drift((100, 50), (50, 100)) == 0.0
    assert drift((0,), (0,)) == 0.0
    assert math.isinf(drift((0,), (1,)))


def test_senseless_values_are_refused() -> None:
    with pytest.raises(InvariantError, match="1 measurements for 2 operators"):
        correct((1, 2), (1,), 0.5)
    with pytest.raises(InvariantError, match=r"weight is 1\.5"):
        correct((1,), (1,), 1.5)
    with pytest.raises(InvariantError, match="rates must be positive"):
        DeviceSpeed(flops_per_s=0, bytes_per_s=1, launch_ns=0)


def _operator(reads: tuple[TensorId, ...], writes: tuple[TensorId, ...], *, flops: int) -> Operator:
    return Operator(name="op", signature="op", stage=Stage.FORWARD, reads=reads, writes=writes, flops=flops)
