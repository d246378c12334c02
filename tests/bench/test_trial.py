"""Bits are compared, not numbers."""

import torch

from indb_tensile.bench.trial import same_bits


def test_bits_are_compared_and_not_numbers() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert same_bits(nan, nan.clone())
    assert same_bits(torch.tensor(2.0), torch.tensor(2.0))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(1, 2))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
