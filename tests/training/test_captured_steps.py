"""A job's steps start from predicted latencies, and store descriptions from which the predictor learns."""

import pytest
import torch

from indb_tensile.catalog import predictors
from indb_tensile.catalog.connection import Session
from indb_tensile.catalog.predictors import StoredPredictor
from indb_tensile.device.hardware import PROCESSOR_SPEED, emulated_kind
from indb_tensile.executor.latency.latency_predictor import MeasuredOperator, Predictor, predict_latencies, train
from indb_tensile.scheduler.timing.latency import estimate
from indb_tensile.scheduler.timing.operator_features import read_description
from tests.executor.models import BATCH, make_job
from tests.scheduler.descriptions import elementwise
from worker.captured_steps import CapturedSteps

pytestmark = pytest.mark.postgres


def _predictor() -> Predictor:
    return train(
        [MeasuredOperator(description=elementwise(1 << k % 20), latency_ns=9_000 << k % 20) for k in range(60)],
        PROCESSOR_SPEED,
    )


def _steps(session: Session) -> CapturedSteps:
    made = CapturedSteps(make_job("mlp").steps[:1], BATCH)
    made.look_up(session)
    return made


@pytest.mark.nightly
def test_latencies_are_estimated_then_predicted_by_a_stored_predictor_then_measured(session: Session) -> None:
    steps = _steps(session)
    graph, described = steps.graphs[0], steps.captured[0].descriptions
    assert steps.latency_ns == (estimate(graph, PROCESSOR_SPEED),)
    predictor = _predictor()
    stored = StoredPredictor(model=predictor.to_bytes(), survey=b"", samples=60, history=0)
    session.run(lambda c: predictors.save_predictor(c, emulated_kind(), stored))
    predicted_ns = predict_latencies(graph, described, PROCESSOR_SPEED, predictor)
    assert _steps(session).latency_ns == (predicted_ns,)

    steps = _steps(session)
    assert steps.calibrate(session, 1 << 30) == 0
    assert steps.latency_ns != (predicted_ns,)
    assert _steps(session).latency_ns == steps.latency_ns
    rows = session.run(lambda c: c.execute("select signature, predicted_ns from tensile.op_latency").fetchall())
    assert dict(rows) == {o.signature: ns for o, ns in zip(graph.operators, predicted_ns, strict=True)}


def test_measured_operators_are_described_for_the_predictor(session: Session) -> None:
    torch.manual_seed(0)
    steps = _steps(session)
    steps.calibrate(session, 1 << 30)
    history = session.run(lambda c: predictors.history(c, emulated_kind()))
    described = {read_description(text): ns for text, ns in history}
    descriptions = steps.captured[0].descriptions
    assert described == {
        descriptions[o.signature]: ns for o, ns in zip(steps.graphs[0].operators, steps.latency_ns[0], strict=True)
    }
