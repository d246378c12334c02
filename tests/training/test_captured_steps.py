"""A job's steps start from predicted latencies, and store descriptions from which the predictor learns."""

from typing import cast

import pytest
import torch

from indb_tensile.catalog import plans, predictors
from indb_tensile.catalog.connection import Session
from indb_tensile.catalog.predictors import StoredPredictor
from indb_tensile.device.hardware import PROCESSOR_SPEED, emulated_kind
from indb_tensile.errors import InvariantError
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.executor.latency.latency_predictor import MeasuredOperator, Predictor, predict_latencies, train
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.scheduler.timing.latency import estimate
from indb_tensile.scheduler.timing.network_times import GangNetwork
from indb_tensile.scheduler.timing.operator_features import read_description
from tests.executor.conftest import DEFAULTS, job_of
from tests.executor.models import BATCH, make_job
from tests.executor.ranks.rank_threads import on_ranks
from tests.scheduler.descriptions import elementwise
from tests.scheduler.timing.networks import network_of
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
    session.run(lambda c: predictors.save_predictor(c, emulated_kind(1), stored))
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
    history = session.run(lambda c: predictors.history(c, emulated_kind(1)))
    described = {read_description(text): ns for text, ns in history}
    descriptions = steps.captured[0].descriptions
    assert described == {
        descriptions[o.signature]: ns for o, ns in zip(steps.graphs[0].operators, steps.latency_ns[0], strict=True)
    }


@pytest.mark.parametrize("reduce", Reduce)
def test_rank_knows_the_time_of_the_network_at_first_and_then_that_of_its_trainings(
    session: Session, reduce: Reduce
) -> None:
    job = job_of("mlp", 0, DEFAULTS, Passes(micro_batch_size=BATCH // 2))
    share, network = RankShare(rank=0, ranks=2, reduce=reduce), network_of(2, message_ns=10**9)
    step = capture_training(job.module, job.loss, *job.batches[0], job.settings, job.passes, share)

    def steps(network: GangNetwork) -> CapturedSteps:
        made = CapturedSteps((step,), BATCH, share=share, network=network)
        made.look_up(session)
        return made

    def exchange_ns(steps: CapturedSteps) -> list[int]:
        operators = zip(steps.graphs[0].operators, steps.latency_ns[0], strict=True)
        return [ns for operator, ns in operators if operator.awaits is not None]

    first = steps(network)
    assert min(exchange_ns(first)) >= 10**9, "before anything was measured"
    assert first.calibrate(session, 1 << 30) == 0
    assert min(exchange_ns(first)) >= 10**9, "operators were measured without the other rank"
    assert min(exchange_ns(steps(network))) >= 10**9, "as another job finds it"
    trained_ns = [7_000] * len(first.graphs[0].operators)
    session.run(lambda c: plans.record_latencies(c, first.kind, first.measurements(trained_ns, samples=3)))
    assert set(exchange_ns(steps(network))) == {7_000}, "as such a training has measured it"
    assert (first.foretells_exchanges, steps(network).foretells_exchanges) == (True, False)
    elsewhere = network_of(2, message_ns=10**9, host="there")
    assert min(exchange_ns(steps(elsewhere))) >= 10**9, "which says nothing of another network"
    assert steps(elsewhere).foretells_exchanges


def test_ranks_foretell_exchanges_as_they_have_rehearsed_them() -> None:
    job = job_of("mlp", 0, DEFAULTS, Passes(micro_batch_size=BATCH // 2))
    slow = network_of(2, message_ns=10**8)
    shares = [RankShare(rank=rank, ranks=2) for rank in range(2)]
    captured = [
        capture_training(job.module, job.loss, *job.batches[0], job.settings, job.passes, share) for share in shares
    ]

    def run(rank: int, group: RankGroup) -> tuple[int, int]:
        steps = CapturedSteps((captured[rank],), BATCH, share=shares[rank], network=slow)
        before_ns = steps.totals_ns[0]
        steps.rehearse(group)
        return before_ns, steps.totals_ns[0]

    for before_ns, after_ns in on_ranks(2, run):
        assert after_ns < before_ns / 2, "messages between threads take far less than 100 ms"
    alone = CapturedSteps((captured[0],), BATCH)
    with pytest.raises(InvariantError, match="a training on one device has no exchanges to rehearse"):
        alone.rehearse(cast(RankGroup, None))
