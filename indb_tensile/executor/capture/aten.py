"""What this package needs of torch that torch does not document, beside tracing: storages' identity, operators."""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def storage_key(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage, fake or real, for as long as it lives."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - data_ptr() is 0 for fakes and storages away


def fake_strided(
    mode: FakeTensorMode,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """A fake tensor alone in its storage: what `torch.empty_strided` gives under the mode, at a tenth of its cost."""
    return FakeTensor(mode, torch.empty_strided(shape, stride, dtype=dtype, device="meta"), device)


def is_operator(target: object) -> bool:
    """Whether a call's target is one overload of an ATen or custom operator."""
    return isinstance(target, torch._ops.OpOverload)  # noqa: SLF001 - the class has no public name


def entry_point(target: Callable[..., Any]) -> Callable[..., Any]:
    """The fastest way to call an operator: past the Python object that describes it.

    Under deterministic algorithms attention's gradients are asked for as it has to be asked for them.
    """
    if not isinstance(target, torch._ops.OpOverload):  # noqa: SLF001
        return target
    call: Callable[..., Any] = target._op  # noqa: SLF001 - what its __call__ calls
    name = target._opname  # noqa: SLF001
    strict = torch.are_deterministic_algorithms_enabled() and "attention" in name and name.endswith("_backward")
    return _strictly(call) if strict else call


def _strictly(call: Callable[..., Any]) -> Callable[..., Any]:
    """Who takes a warning for what has no deterministic form is given none of what has one, attention's gradients.

    So it is in `_scaled_dot_product_{flash,efficient}_attention_backward` of torch 2.11 to 2.13
    (aten/src/ATen/native/transformers/cuda/attention_backward.cu).
    """

    def called(*args: Any, **kwargs: Any) -> Any:
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(mode=True)
        try:
            return call(*args, **kwargs)
        finally:
            torch.use_deterministic_algorithms(mode=True, warn_only=warn_only)

    return called
