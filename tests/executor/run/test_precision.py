"""Each precision sets its float32 flags on a GPU, and measurements are stored under that precision."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from indb_tensile.executor.capture.passes import PRECISIONS
from indb_tensile.executor.run.precision import FORMS, settle_precision, with_precision
from indb_tensile.request.hyperparam_rules import HYPERPARAMS
from tests.executor.conftest import captured

GPU = torch.device("cuda")
PROCESSOR = torch.device("cpu")


@contextmanager
def flags_put_back() -> Iterator[None]:
    before = _flags()
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def _flags() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


def test_the_default_is_torchs_own_mixture_and_every_other_precision_is_one_form() -> None:
    fresh = _flags()
    flags = {}
    with flags_put_back():
        for precision in FORMS:
            settle_precision(precision, GPU)
            flags[precision] = _flags()
    assert flags == {
        "torch": (True, False),
        "float32": (False, False),
        "tf32": (True, True),
        "bfloat16": (True, False),
    }
    assert fresh == flags["torch"] == flags[HYPERPARAMS["precision"]["default"]]


def test_capture_and_gpu_know_every_precision_that_a_job_may_request() -> None:
    assert set(HYPERPARAMS["precision"]["values"]) == set(PRECISIONS) == set(FORMS)


@pytest.mark.parametrize("precision", FORMS)
def test_a_precision_changes_neither_results_nor_signatures_on_a_processor(precision: str) -> None:
    step = captured("mlp")[0]
    with flags_put_back():
        before = _flags()
        settle_precision(precision, PROCESSOR)
        assert _flags() == before
    assert with_precision(step, precision, PROCESSOR) is step


def test_signatures_on_a_gpu_name_the_precision_unless_it_is_torchs_own() -> None:
    step = captured("mlp")[0]
    made = {precision: with_precision(step, precision, GPU) for precision in FORMS}
    assert made["torch"] is made["bfloat16"] is step
    signatures = {(step.graph.signature, *sorted(step.signatures)) for step in made.values()}
    assert len(signatures) == 3
    for step in made.values():
        assert [o.signature for o in step.graph.operators] == [s.kernel.signature for s in step.steps]
        assert set(step.descriptions) == {o.signature for o in step.graph.operators}
    assert made["float32"].signatures.isdisjoint(made["tf32"].signatures)
