"""Operators are called as fast as torch lets one, and as strictly as it has to be asked."""

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
def settled() -> Iterator[None]:
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.mark.usefixtures("settled")
def test_attentions_gradients_are_asked_for_in_their_deterministic_form_and_nothing_else_is() -> None:
    operators = torch.ops.tensile_test
    x = torch.zeros(1)
    warned = [
        bool(entry_point(operator)(x))
        for operator in (operators.attention_backward.default, operators.attention.default)
    ]
    assert warned == [False, True]
    assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_where_nobody_asks_for_bits_an_operator_is_called_past_what_describes_it() -> None:
    target = torch.ops.tensile_test.attention_backward.default
    assert entry_point(target) is target._op
    assert entry_point(len) is len
