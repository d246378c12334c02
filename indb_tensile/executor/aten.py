"""What this package needs of torch that torch does not document, beside tracing: storages' identity, operators."""

from collections.abc import Callable
from typing import Any

import torch


def storage_key(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage, fake or real, for as long as it lives."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - data_ptr() is 0 for fakes and storages away


def is_operator(target: object) -> bool:
    """Whether a call's target is one overload of an ATen or custom operator."""
    return isinstance(target, torch._ops.OpOverload)  # noqa: SLF001 - the class has no public name


def entry_point(target: Callable[..., Any]) -> Callable[..., Any]:
    """The fastest way to call an operator: past the Python object that describes it."""
    if isinstance(target, torch._ops.OpOverload):  # noqa: SLF001
        return target._op  # noqa: SLF001 - what its __call__ calls
    return target
