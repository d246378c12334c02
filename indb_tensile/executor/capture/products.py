"""Products of a tensor's elements with torch's own gradient, built from operators that can be captured.

Torch's gradient depends on the values: if no element is zero, it divides the product by each element; if an element
is zero, it multiplies all other elements. Tracing sees no values and would always multiply, which gives other last
bits. So both gradients are computed here, and the values select one (prod_backward in
torch/csrc/autograd/FunctionsManual.cpp of torch 2.11 to 2.13).
"""

from typing import Any

import torch

_aten = torch.ops.aten


def product(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Compute aten::prod, the product of all elements."""
    return _apply(x, None, False, dtype)


def product_along(
    x: torch.Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Compute aten::prod.dim_int, the products along a dimension."""
    return _apply(x, dim, keepdim, dtype)


def _apply(*arguments: Any) -> torch.Tensor:
    result: torch.Tensor = _Product.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


class _Product(torch.autograd.Function):
    """The autograd function of both products. `dim` is None for the product of all elements."""

    @staticmethod
    def forward(
        context: Any, x: torch.Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None
    ) -> torch.Tensor:
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - this is the operator's own gradient
            result: torch.Tensor = (
                _aten.prod.default(x, dtype=dtype)
                if dim is None
                else _aten.prod.dim_int(x, dim, keepdim, dtype=dtype)
            )
        context.save_for_backward(x, result)
        context.dim, context.keepdim = dim, keepdim
        return result

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Return the gradient of `x` in the type of the product. Autograd casts it to the type of `x`."""
        (gradient,) = gradients
        x, result = context.saved_tensors
        x = x.to(gradient.dtype)
        if x.dim() == 0:
            return gradient * (result / x).conj(), None, None, None
        zeros = x == 0
        if context.dim is None:
            count = zeros.sum()
            others = _others(gradient, x.contiguous().view(-1), 0).view_as(x)
            others = torch.where(count > 1, torch.zeros_like(x, memory_format=torch.contiguous_format), others)
        else:
            if not context.keepdim:
                gradient, result = gradient.unsqueeze(context.dim), result.unsqueeze(context.dim)
            count = zeros.sum(context.dim, keepdim=True).sum()
            others = _others(gradient, x, context.dim)
        return torch.where(count == 0, gradient * (result / x).conj(), others), None, None, None


def _others(gradient: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the gradient times the product of all other elements along `dim`: those before times those after."""
    size = x.shape[dim]
    if size <= 1:
        return gradient.expand_as(x)
    ones = torch.ones_like(x.narrow(dim, 0, 1), dtype=gradient.dtype, memory_format=torch.contiguous_format)
    before = torch.cat([ones, x.narrow(dim, 0, size - 1)], dim).cumprod(dim)
    after = torch.cat([ones, x.narrow(dim, 1, size - 1).flip(dim)], dim).cumprod(dim).flip(dim)
    return gradient * (before * after).conj()
