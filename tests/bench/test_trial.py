"""Trials compare bits, and refuse a network that needs more memory than the machine has."""

import pytest
import torch

from indb_tensile.bench.harness.execution.trial import require_memory, same_bits
from indb_tensile.device.hardware import Memory
from indb_tensile.errors import RequestError


def test_values_are_compared_by_their_bits() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert same_bits(nan, nan.clone())
    assert same_bits(torch.tensor(2.0), torch.tensor(2.0))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(1, 2))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.int32))


def test_a_need_beyond_the_machines_memory_is_refused_with_both_figures() -> None:
    memory_bytes = Memory(size_bytes=1000, whose="this machine")
    require_memory("vgg16 at a batch of 8", 1000, lambda: memory_bytes)
    with pytest.raises(
        RequestError, match=r"^vgg16 at a batch of 8: 1001 bytes are needed, and this machine has 1000"
    ):
        require_memory("vgg16 at a batch of 8", 1001, lambda: memory_bytes)
