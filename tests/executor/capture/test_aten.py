"""Operators are called with little overhead, and deterministically where they need a request for it."""

from collections.abc import Iterator

import pytest
import torch

from indb_tensile.executor.capture.aten import entry_point


@torch.library.custom_op("tensile_test::attention_backward", mutates_args=())
def _attention_backward(x: torch.Tensor) -> torch.Tensor:
    return x.new_tensor(torch.is_deterministic_algorithms_warn_only_enabled())


@torch.library.custom_op("tensile_test::attention", mutates_args=())
def _attention(x: torch.Tensor) -> torch.Tensor:
    return x.new_tensor(torch.is_deterministic_algorithms_warn_only_enabled())


@pytest.fixture
def deterministic_with_warnings() -> Iterator[None]:
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.mark.usefixtures("deterministic_with_warnings")
def test_only_the_backward_of_attention_is_called_in_its_deterministic_form() -> None:
    operators = torch.ops.tensile_test
    x = torch.zeros(1)
    warned = [
        bool(entry_point(operator)(x))
        for operator in (operators.attention_backward.default, operators.attention.default)
    ]
    assert warned == [False, True]
    assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_without_deterministic_algorithms_an_operator_is_called_directly() -> None:
    target = torch.ops.tensile_test.attention_backward.default
    assert entry_point(target) is target._op
    assert entry_point(len) is len
