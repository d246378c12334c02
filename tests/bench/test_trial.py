"""Bits are compared, not numbers; what cannot run here is refused before it is tried."""

import pytest
import torch

from indb_tensile.bench.harness.trial import require_memory, same_bits
from indb_tensile.device.hardware import Memory
from indb_tensile.errors import RequestError


def test_bits_are_compared_and_not_numbers() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert same_bits(nan, nan.clone())
    assert same_bits(torch.tensor(2.0), torch.tensor(2.0))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(1, 2))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.int32))


def test_what_needs_more_memory_than_there_is_is_refused_with_both_figures() -> None:
    most = Memory(size_bytes=1000, whose="this machine")
    require_memory("vgg16 at a batch of 8", 1000, lambda: most)
    with pytest.raises(
        RequestError, match=r"^vgg16 at a batch of 8: 1001 bytes are needed, and this machine has 1000"
    ):
        require_memory("vgg16 at a batch of 8", 1001, lambda: most)
