"""In which form of float32 a GPU computes, and that what is remembered of it is remembered by that form."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from indb_tensile.executor.capture.passes import PRECISIONS
from indb_tensile.executor.run.precision import FORMS, settle_precision, with_precision
from indb_tensile.request.hyperparam_rules import HYPERPARAMS
from tests.executor.models import make_job

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


def test_torchs_own_mixture_is_the_default_and_each_of_the_others_is_one_form() -> None:
    fresh = _flags()
    found = {}
    with flags_put_back():
        for precision in FORMS:
            settle_precision(precision, GPU)
            found[precision] = _flags()
    assert found == {
        "torch": (True, False),
        "float32": (False, False),
        "tf32": (True, True),
        "bfloat16": (True, False),
    }
    assert fresh == found["torch"] == found[HYPERPARAMS["precision"]["default"]]


def test_whatever_may_be_asked_for_is_known_to_the_capture_and_to_a_gpu() -> None:
    assert set(HYPERPARAMS["precision"]["values"]) == set(PRECISIONS) == set(FORMS)


@pytest.mark.parametrize("precision", FORMS)
def test_a_processor_computes_as_it_did_and_its_signatures_are_the_same_for_all(precision: str) -> None:
    step = make_job("mlp").steps[0]
    with flags_put_back():
        before = _flags()
        settle_precision(precision, PROCESSOR)
        assert _flags() == before
    assert with_precision(step, precision, PROCESSOR) is step


def test_signatures_on_a_gpu_name_the_form_unless_it_is_torchs_own() -> None:
    step = make_job("mlp").steps[0]
    made = {precision: with_precision(step, precision, GPU) for precision in FORMS}
    assert made["torch"] is made["bfloat16"] is step
    seen = {(one.graph.signature, *sorted(one.signatures)) for one in made.values()}
    assert len(seen) == 3
    for one in made.values():
        assert [o.signature for o in one.graph.operators] == [s.kernel.signature for s in one.steps]
        assert set(one.descriptions) == {o.signature for o in one.graph.operators}
    assert made["float32"].signatures.isdisjoint(made["tf32"].signatures)
