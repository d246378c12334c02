"""Check that skipping a dropout's random numbers leaves the generator where the dropout leaves it."""

import pytest
import torch

from indb_tensile.executor.capture.skipped_numbers import dropout_words, skip_words


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1,), (623,), (7, 89), (2, 3, 700), (200_000,)])
def test_generator_goes_on_as_after_the_dropout(shape: tuple[int, ...], rate: float) -> None:
    torch.manual_seed(1)
    torch.rand(5)
    before = torch.get_rng_state()
    torch.ops.aten.native_dropout.default(torch.ones(shape), rate, True)
    expected = torch.rand(2000)
    torch.set_rng_state(before)
    words = dropout_words(torch.Size(shape).numel())
    assert words is not None
    skip_words(words)
    assert torch.equal(torch.rand(2000), expected)


def test_asking_for_the_number_of_words_draws_none() -> None:
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert dropout_words(10) != dropout_words(0) or dropout_words(10) in (1, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_skipped_for_no_words() -> None:
    before = torch.get_rng_state()
    skip_words(0)
    assert torch.equal(torch.get_rng_state(), before)
