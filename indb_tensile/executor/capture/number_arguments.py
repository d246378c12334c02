"""The arguments of operators that are numbers which change what is computed, but neither its shapes nor its cost.

Steps that differ in nothing but these numbers have equal graphs, signatures and latencies. A search draws them anew
for each trial, so what one trial has captured and measured serves the others.
"""

from collections.abc import Callable
from typing import Any

import torch

from indb_tensile.executor.capture.update_operators import average_, lion_, rmsprop_

_aten = torch.ops.aten

DROPOUT = _aten.native_dropout.default
DROPOUT_BACKWARD = _aten.native_dropout_backward.default
RATE_AT, SCALE_AT = 1, 2  # the position of the probability of a dropout, and of the factor of its gradient

UPDATE_NUMBERS: dict[Callable[..., Any], tuple[str, ...]] = {
    _aten._fused_adam_.default: ("beta1", "beta2", "weight_decay", "eps"),
    _aten._fused_adamw_.default: ("beta1", "beta2", "weight_decay", "eps"),
    _aten._fused_sgd_.default: ("weight_decay", "momentum"),
    _aten._fused_adagrad_.default: ("weight_decay", "eps"),
    rmsprop_: ("alpha", "eps", "weight_decay", "momentum"),
    lion_: ("beta1", "beta2", "weight_decay"),
    average_: ("decay",),
}


def without_numbers(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the same number in place of each number that changes no cost.

    A number of 0 is kept: a weight decay needs scratch memory in some updates, and no weight decay needs none.
    """
    if target is DROPOUT and 0.0 < args[RATE_AT] < 1.0:
        return replaced(args, RATE_AT, 0.5), kwargs
    if target is DROPOUT_BACKWARD and args[SCALE_AT] > 1.0:
        return replaced(args, SCALE_AT, 2.0), kwargs
    names = UPDATE_NUMBERS.get(target, ())
    return args, kwargs | {name: 1.0 for name in names if kwargs.get(name)}


def replaced(args: tuple[Any, ...], position: int, value: Any) -> tuple[Any, ...]:
    """Return the arguments with this value at the position."""
    return (*args[:position], value, *args[position + 1 :])
