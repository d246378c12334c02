"""Calibration measures every unknown operator within its grant, and leaves the job's state unchanged."""

import sys

import pytest
import torch

from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.calibrate import apply_known, calibrate, unknown_signatures
from tests.executor.conftest import GRANT_BYTES, captured, job_of
from tests.executor.models import DAILY_KINDS


def _workspaces(steps: tuple[CapturedStep, ...], name: str) -> list[int]:
    return [o.workspace_bytes for step in steps for o in step.graph.operators if o.name == name]


@pytest.mark.by_day("cnn", "transformer")
@pytest.mark.parametrize("kind", DAILY_KINDS)
def test_every_unknown_signature_is_measured_once_and_then_known(kind: str) -> None:
    steps = captured(kind)
    unknown = unknown_signatures(steps, {})
    outcome = calibrate(steps, unknown, {}, GRANT_BYTES)
    assert set(outcome.measured) == unknown
    assert outcome.overflow_bytes == 0
    assert unknown_signatures(steps, outcome.measured) == frozenset()
    assert calibrate(steps, frozenset(), outcome.measured, GRANT_BYTES).measured == {}
    assert outcome.graphs == tuple(step.graph for step in outcome.steps)


def test_stored_latencies_give_the_same_graphs_as_measuring() -> None:
    steps = captured("lstm")
    outcome = calibrate(steps, unknown_signatures(steps, {}), {}, GRANT_BYTES)
    assert tuple(s.graph for s in apply_known(job_of("lstm").steps, outcome.measured)) == outcome.graphs


def test_a_second_measurement_gives_the_same_workspaces() -> None:
    steps = captured("cnn")
    unknown = unknown_signatures(steps, {})
    first, second = (calibrate(steps, unknown, {}, GRANT_BYTES) for _ in range(2))
    assert first.graphs == second.graphs


def test_a_workspace_is_the_memory_of_an_operator_beside_its_outputs() -> None:
    steps = captured("cnn")
    outcome = calibrate(steps, unknown_signatures(steps, {}), {}, GRANT_BYTES)
    assert set(_workspaces(outcome.steps, "aten.relu.default")) == {0}
    # Dropout draws its mask as floats and then converts it to booleans.
    training = outcome.graphs[0]
    dropout = next(o for o in training.operators if o.name == "aten.native_dropout.default")
    assert dropout.workspace_bytes == training.tensors[dropout.writes[0]].size_bytes
    assert min(_workspaces(outcome.steps, "aten.convolution.default")) > 0


def test_a_result_of_unknown_size_is_measured_and_stored_under_its_own_signature() -> None:
    training = captured("lstm")[0]
    assert training.opaque == {"mkldnn_rnn_layer_3"}
    (key,) = training.size_signatures().values()
    outcome = calibrate((training,), unknown_signatures((training,), {}), {}, GRANT_BYTES)
    (measured,) = outcome.steps
    assert measured.opaque == frozenset()
    workspace = next(t for t in measured.graph.tensors if t.name == "mkldnn_rnn_layer_3")
    assert outcome.measured[key] == (0, workspace.size_bytes)
    assert workspace.size_bytes % 4096 == 0, "oneDNN rounds its workspace to pages"
    assert measured.graph.signature == training.graph.signature


def test_only_unknown_operators_run() -> None:
    steps = captured("mlp")
    everything = calibrate(steps, unknown_signatures(steps, {}), {}, GRANT_BYTES).measured
    missing = steps[0].graph.operators[-1].signature
    known = {signature: figures for signature, figures in everything.items() if signature != missing}
    assert set(calibrate(steps, frozenset({missing}), known, GRANT_BYTES).measured) == {missing}


def test_an_operator_beyond_the_grant_is_not_run_and_the_shortfall_is_reported() -> None:
    steps = captured("mlp")
    unknown = unknown_signatures(steps, {})
    whole = calibrate(steps, unknown, {}, GRANT_BYTES)
    largest = max(
        o.workspace_bytes + sum(g.tensors[t].size_bytes for t in {*o.reads, *o.writes})
        for g in whole.graphs
        for o in g.operators
    )
    assert calibrate(steps, unknown, {}, largest).overflow_bytes == 0
    short = calibrate(steps, unknown, {}, largest - 10)
    assert short.overflow_bytes == 10
    assert set(short.measured) < unknown


def test_calibration_leaves_the_random_number_generator_unchanged() -> None:
    steps = captured("transformer")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    calibrate(steps, unknown_signatures(steps, {}), {}, GRANT_BYTES)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()


def test_calibration_writes_nothing_to_stderr_and_leaves_it_open(capfd: pytest.CaptureFixture[str]) -> None:
    steps = captured("mlp")
    calibrate(steps, unknown_signatures(steps, {}), {}, GRANT_BYTES)
    sys.stderr.write("heard\n")
    assert capfd.readouterr().err == "heard\n"
