"""Uses of torch's undocumented interfaces outside tracing: the identity of storages, and operators."""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def storage_key(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage, fake or real. The identity is valid while the storage lives."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - data_ptr() is 0 for fakes and storages away


def fake_strided(
    mode: FakeTensorMode,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Return a fake tensor that alone occupies its storage.

    The result equals that of `torch.empty_strided` under the mode, at a tenth of the cost.
    """
    return FakeTensor(mode, torch.empty_strided(shape, stride, dtype=dtype, device="meta"), device)


def is_operator(target: object) -> bool:
    """Return whether a call's target is one overload of an ATen or custom operator."""
    return isinstance(target, torch._ops.OpOverload)  # noqa: SLF001 - the class has no public name


def entry_point(target: Callable[..., Any]) -> Callable[..., Any]:
    """Return the fastest way to call an operator, which bypasses the Python object that describes the operator.

    While deterministic algorithms are enabled, the gradients of attention are wrapped by `_strictly`.
    """
    if not isinstance(target, torch._ops.OpOverload):  # noqa: SLF001
        return target
    call: Callable[..., Any] = target._op  # noqa: SLF001 - the function that its __call__ calls
    name = target._opname  # noqa: SLF001
    strict = torch.are_deterministic_algorithms_enabled() and "attention" in name and name.endswith("_backward")
    return _without_warn_only(call) if strict else call


def _without_warn_only(call: Callable[..., Any]) -> Callable[..., Any]:
    """Turn off warn-only mode during the call, so that the deterministic form of the operator is used.

    The gradients of attention have a deterministic form, but the operator does not choose that form while torch only
    warns of nondeterministic operators. See `_scaled_dot_product_{flash,efficient}_attention_backward` of torch 2.11
    to 2.13 (aten/src/ATen/native/transformers/cuda/attention_backward.cu).
    """

    def call_deterministically(*args: Any, **kwargs: Any) -> Any:
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(mode=True)
        try:
            return call(*args, **kwargs)
        finally:
            torch.use_deterministic_algorithms(mode=True, warn_only=warn_only)

    return call_deterministically
