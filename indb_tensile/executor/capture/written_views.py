"""Makes in-place writes through views exact while a step is traced, and refuses those that cannot be.

A write through a view is traced as a new value of the tensor behind it. If the view is one that `expand` returned,
torch computes this value as the old one plus the sum of the differences. That rounds, and it counts an element as
often as it is repeated (aten/src/ATen/FunctionalInverses.cpp of torch 2.11 to 2.13). So an expansion that repeats
nothing is traced as a plain view. A write through a view that repeats elements is refused: torch's manual asks to
clone such a view before it is written. So is a write through windows (`unfold`) that overlap or leave elements out,
because torch would add up the elements that are in several windows and set those in none to zero.

Some operators give their new value in the order of its dimensions, whatever the order of the view in memory. Through
a view with another order, as `transpose` returns, the new value of the tensor behind it would then have other strides
than in eager mode, and a later sum over it another order. So `masked_fill_` is traced on the view in its order in
memory, and the other operators of this kind are refused there.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.aten import storage_key

_EXPANSIONS = frozenset({torch.Tensor.expand, torch.Tensor.expand_as, torch.Tensor.broadcast_to, torch.broadcast_to})
_MAY_REPEAT = _EXPANSIONS | {
    torch.broadcast_tensors,
    torch.meshgrid,
    torch.as_strided,
    torch.Tensor.as_strided,
    torch.Tensor.unfold,
}

# Methods that write in place, and whose traced value is contiguous (found by tracing each on a transposed view).
_GIVES_CONTIGUOUS = frozenset(
    getattr(torch.Tensor, name)
    for name in (
        *("addbmm_", "addmm_", "baddbmm_", "bernoulli_", "cumprod_", "cumsum_", "index_add_", "index_copy_"),
        *("index_reduce_", "masked_fill_", "masked_scatter_", "renorm_", "scatter_", "scatter_add_"),
        *("scatter_reduce_", "tril_", "triu_"),
    )
)


class WrittenViews(TorchFunctionMode):
    """The mode in which the user's code runs while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self._inexact: dict[int, torch.Tensor] = {}  # views not to be written, kept so that no identity is reused

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first: Any = args[0] if args else None
        written: Any = kwargs.get("out", first)
        is_inexact = id(written) in self._inexact
        version = written._version if is_inexact else 0  # noqa: SLF001 - torch counts the writes of a tensor there
        if function in _GIVES_CONTIGUOUS and _is_permuted(first):
            result = _written_in_memory_order(function, *args, **kwargs)
        else:
            result = function(*args, **kwargs)
        if is_inexact and written._version != version:  # noqa: SLF001
            raise _refusal(written)
        if function in _EXPANSIONS and isinstance(first, torch.Tensor):
            result = _plain_view(first, result)
        if id(first) in self._inexact:
            self._keep(view for view in _tensors(result) if storage_key(view) == storage_key(first))
        if function in _MAY_REPEAT:
            leaves_out = function is torch.Tensor.unfold and result.numel() != first.numel()
            self._keep(view for view in _tensors(result) if leaves_out or _repeats(view))
        return result

    def _keep(self, views: Iterable[torch.Tensor]) -> None:
        self._inexact.update((id(view), view) for view in views)


def _plain_view(x: torch.Tensor, expanded: torch.Tensor) -> torch.Tensor:
    """Return the expanded tensor, as a view that `expand` did not make if it repeats no element."""
    for _ in range(expanded.dim() - x.dim()):
        x = x.unsqueeze(0)
    if x.shape != expanded.shape:
        return expanded
    plain: torch.Tensor = torch.ops.aten.alias.default(x)
    return plain


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    parts = result if isinstance(result, list | tuple) else (result,)
    return (part for part in parts if isinstance(part, torch.Tensor))


def _repeats(view: torch.Tensor) -> bool:
    """Return whether two elements of the view are one element in memory."""
    reach = 0
    for stride, size in sorted(zip(view.stride(), view.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _is_permuted(view: torch.Tensor) -> bool:
    """Return whether the order of the dimensions is not that of the elements in memory."""
    strides = [stride for stride, size in zip(view.stride(), view.shape, strict=True) if size > 1]
    return strides != sorted(strides, reverse=True)


def _written_in_memory_order(
    function: Callable[..., Any], view: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Return the view after the write of `masked_fill_`, or raise RequestError for any other function."""
    if function is not torch.Tensor.masked_fill_:
        raise _order_refusal(view, function.__name__)
    order = sorted(range(view.dim()), key=view.stride, reverse=True)
    mask, value = (args[place] if len(args) > place else kwargs[name] for place, name in enumerate(("mask", "value")))
    view.permute(order).masked_fill_(mask.expand(view.shape).permute(order), value)
    return view


def _order_refusal(view: torch.Tensor, name: str) -> RequestError:
    shape, stride = tuple(view.shape), tuple(view.stride())
    return RequestError(
        f"the model or its loss writes in place by {name} to a tensor of shape {shape} whose elements are in another "
        "order in memory",
        detail=f"Its strides are {stride}. Functions like transpose and permute return such views.",
        hint=f"Use {name.removesuffix('_')}, which returns a new tensor, or write to a contiguous tensor.",
    )


def _refusal(view: torch.Tensor) -> RequestError:
    shape = tuple(view.shape)
    return RequestError(
        f"the model or its loss writes in place to a view of shape {shape} that repeats elements or leaves some out",
        detail="Functions like expand, broadcast_to and unfold return such views, and so do slices of these views.",
        hint="Clone the view before you write to it, as x.expand(4, -1).clone() does, or write to x itself.",
    )
