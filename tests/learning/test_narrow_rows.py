"""Rows whose tokens take two bytes have the numbers of rows in single precision, and train to the same bits."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn

from indb_tensile.bench.harness.exactness.embedded_networks import encoded_texts, narrow_texts, text_builders
from indb_tensile.bench.harness.trainings.text_epochs import text_epochs
from indb_tensile.learning.batches import shuffling
from indb_tensile.learning.batches.batch_order import batches
from indb_tensile.learning.encoding.narrow_rows import MOST_TOKENS, NarrowForm, token_numbers, widened
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.training.prepared_training import Prepared
from tests.learning.test_length_buckets import prepared

single = st.floats(width=32, allow_nan=False)


@given(st.data(), st.integers(0, 5), st.integers(1, 6), st.integers(1, 4))
def test_narrow_rows_have_the_bits_of_rows_in_single_precision(
    data: st.DataObject, numbers: int, tokens: int, rows: int
) -> None:
    form = NarrowForm(numbers=numbers, tokens=tokens)
    dense = data.draw(arrays.arrays(np.float32, (rows, numbers), elements=single))
    own = data.draw(arrays.arrays(np.int64, (rows, tokens), elements=st.integers(0, MOST_TOKENS - 1)))
    whole = np.hstack([dense, own.astype(np.float32)])
    packed = form.pack(whole)
    assert packed.shape == (rows, form.width)
    assert form.unpacked(packed).tobytes() == whole.tobytes()
    wide, narrow = widened(torch.from_numpy(packed), numbers)
    assert wide.numpy().tobytes() == dense.tobytes()
    assert (token_numbers(narrow, [MOST_TOKENS]).numpy() == own).all()


def test_tokens_that_two_bytes_do_not_hold_stay_in_single_precision() -> None:
    layout = {"vocabularies": [MOST_TOKENS, 300], "lengths": [8, 4]}
    assert NarrowForm.of(layout, 14) == NarrowForm(numbers=2, tokens=12)
    assert NarrowForm.of(layout | {"vocabularies": [300, MOST_TOKENS + 1]}, 14) is None
    assert NarrowForm.of(layout | {"images": [1, 8, 8]}, 78) is None
    assert NarrowForm.of({"numbers": 2, "categories": []}, 2) is None


def trained(ready: Prepared) -> dict[str, bytes]:
    """Train by captured steps, and return the weights."""
    with text_epochs(ready) as training:
        training.train()
        training.train()
        training.finish()
    return {name: value.numpy().tobytes() for name, value in ready.module.state_dict().items()}


def gradients(module: nn.Module, x: torch.Tensor) -> list[bytes]:
    """Return the outputs of a training pass with seed 0, and the gradients of all weights."""
    module.zero_grad()
    torch.manual_seed(0)
    outputs = module.train()(x)
    outputs.square().mean().backward()
    return [outputs.detach().numpy().tobytes(), *(own.grad.numpy().tobytes() for own in learned(module))]


def learned(module: nn.Module) -> list[Any]:
    return [own for own in module.parameters() if own.grad is not None]


@pytest.mark.parametrize("encoder", ["pooling", "convolution", "transformer"])
def test_narrow_rows_have_the_gradients_of_rows_in_single_precision(encoder: str) -> None:
    torch.manual_seed(1)
    module = text_builders(3)[f"text_{encoder}"]()
    torch.manual_seed(2)
    wide = encoded_texts(9)
    torch.manual_seed(2)
    narrow = narrow_texts(9)
    assert narrow.dtype is torch.int16
    for rows in (9, 1):  # the stride of a single row may be odd
        assert gradients(module, narrow[:rows]) == gradients(module, wide[:rows])
    assert len(learned(module)) > 5


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "encoder", "most"),
    [
        *product(["wide_and_deep"], ["pooling", "convolution", "transformer"], [None, 3]),
        ("ft_transformer", "transformer", 3),
        ("tabm", "pooling", None),
    ],
)
def test_captured_steps_train_on_narrow_rows_to_the_bits_of_single_precision(
    kind: str, encoder: str, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hyperparams: dict[str, Any] = {"epochs": 2, "batch_size": 16, "length_buckets": most}
    options: dict[str, Any] = {
        "architecture": {"type": kind, "text_encoder": encoder},
        "hyperparams": {name: value for name, value in hyperparams.items() if value is not None},
    }
    narrow = prepared(**options)
    monkeypatch.setattr(Preprocessor, "narrow_form", None)
    wide = prepared(**options)
    assert (narrow.train.x.dtype, wide.train.x.dtype) == (torch.int16, torch.float32)
    assert narrow.train.x.nbytes < 0.6 * wide.train.x.nbytes
    assert trained(narrow) == trained(wide)


def test_an_epoch_of_narrow_rows_has_the_batches_of_rows_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffling, "WINDOW_BYTES", 2000)
    monkeypatch.setattr(shuffling, "SHUFFLED_BLOCK_BYTES", 200)
    narrow = prepared()
    monkeypatch.setattr(Preprocessor, "narrow_form", None)
    wide = prepared()
    first, second = (list(batches(own.train, 0, own.settings, own.buckets)) for own in (narrow, wide))
    assert all(torch.equal(left, right) for left, right in zip(first, second, strict=True))
