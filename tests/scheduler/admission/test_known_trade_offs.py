"""The trade-offs of kinds of jobs are remembered, and scaled to the latencies of a later job."""

from dataclasses import replace

from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.known_trade_offs import MOST_KINDS, KnownTradeOffs, Points
from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.workload import Workload

POINTS = (TradeOff(peak_bytes=100, iteration_ns=10, compute_ns=10),)


def job(signature: str, latency_ns: int = 10) -> Workload:
    operator = Operator(name="op", signature="op", stage=Stage.FORWARD, reads=(), writes=(TensorId(0),))
    tensor = Tensor(id=TensorId(0), name="t", size_bytes=1, role=Role.ACTIVATION)
    graph = StepGraph(tensors=(tensor,), operators=(operator,), signature=signature)
    return Workload(job=JobId(1), graphs=(graph,), latency_ns=((latency_ns,),))


def scaled(points: Points, ratio: float) -> Points:
    return tuple(replace(point, compute_ns=round(point.compute_ns * ratio)) for point in points)


def test_a_job_of_a_known_kind_has_its_trade_offs_for_its_own_latencies() -> None:
    known = KnownTradeOffs().with_those_of(job("a"), POINTS)
    assert known.of(job("a", latency_ns=30), scaled)[0].compute_ns == 30
    assert known.of(job("b"), scaled) == ()


def test_later_trade_offs_of_a_kind_replace_the_earlier_ones() -> None:
    later = (replace(POINTS[0], compute_ns=20),)
    known = KnownTradeOffs().with_those_of(job("a"), POINTS).with_those_of(job("a", latency_ns=20), later)
    assert len(known.kinds) == 1
    assert known.of(job("a", latency_ns=20), scaled) == later


def test_the_kind_that_was_computed_first_is_forgotten() -> None:
    known = KnownTradeOffs()
    for number in range(MOST_KINDS + 1):
        known = known.with_those_of(job(f"kind {number}"), POINTS)
    assert len(known.kinds) == MOST_KINDS
    assert known.of(job("kind 0"), scaled) == ()
    assert known.of(job(f"kind {MOST_KINDS}"), scaled) == POINTS


def test_a_job_with_a_limit_or_without_signatures_teaches_nothing() -> None:
    for taught in (replace(job("a"), limit_bytes=50), job("")):
        assert KnownTradeOffs().with_those_of(taught, POINTS).kinds == ()
    known = KnownTradeOffs().with_those_of(job("a"), POINTS)
    assert known.of(replace(job("a"), limit_bytes=50), scaled) == ()
