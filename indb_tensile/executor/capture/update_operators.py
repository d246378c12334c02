"""Defines custom operators for updates that torch has no single operator for: RMSprop, and a parameter's average.

They compute what `torch.optim.RMSprop` and `torch.optim.swa_utils` compute for one tensor, call by call, so the
results are equal bit for bit. Each update is one operator, so that its intermediate values are scratch that no plan
moves.
"""

from typing import Any

import torch

_Library: Any = torch.library.Library
_LIBRARY = _Library("tensile", "DEF")  # the declared operators exist as long as this object
_RMSPROP = (
    "(Tensor(a!)[] self, Tensor[] grads, Tensor(b!)[] square_avgs, Tensor(c!)[] grad_avgs, Tensor(d!)[] buffers, *, "
    "{rate} lr, float alpha, float eps, float weight_decay, float momentum) -> ()"
)
_LIBRARY.define(f"rmsprop_{_RMSPROP.format(rate='float')}")
_LIBRARY.define(f"rmsprop_.tensor_lr{_RMSPROP.format(rate='Tensor')}")
_LIBRARY.define("average_(Tensor(a!) self, Tensor parameter, *, float decay, bool is_first_step) -> ()")

Tensors = list[torch.Tensor]


def _rmsprop(
    params: Tensors,
    grads: Tensors,
    square_avgs: Tensors,
    grad_avgs: Tensors,
    buffers: Tensors,
    *,
    lr: float | torch.Tensor,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
) -> None:
    """Compute `_single_tensor_rmsprop` of torch/optim/rmsprop.py; centered only with `grad_avgs`."""
    rate = float(lr) if isinstance(lr, torch.Tensor) and lr.device.type == "cpu" else lr
    for index, param in enumerate(params):
        grad, square_avg = grads[index], square_avgs[index]
        if weight_decay:
            grad = grad.add(param, alpha=weight_decay)
        square_avg.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
        if grad_avgs:
            grad_avgs[index].lerp_(grad, 1 - alpha)
            average = square_avg.addcmul(grad_avgs[index], grad_avgs[index], value=-1).sqrt_()
        else:
            average = square_avg.sqrt()
        average.add_(eps)
        if buffers:
            buffers[index].mul_(momentum).addcdiv_(grad, average)
            _descend(param, rate, buffers[index], None)
        else:
            _descend(param, rate, grad, average)


def _descend(param: torch.Tensor, rate: float | torch.Tensor, along: torch.Tensor, over: torch.Tensor | None) -> None:
    """Subtract the rate times `along`, divided by `over`.

    The rate may be a tensor on a GPU, so that recorded iterations read its present value.
    """
    if isinstance(rate, torch.Tensor):
        param.addcmul_(along if over is None else along / over, -rate)
    elif over is None:
        param.add_(along, alpha=-rate)
    else:
        param.addcdiv_(along, over, value=-rate)


def _average(average: torch.Tensor, parameter: torch.Tensor, *, decay: float, is_first_step: bool) -> None:
    """Update an average. The first average is the parameter itself, as in `AveragedModel.update_parameters`."""
    if is_first_step:
        average.copy_(parameter)
    else:
        average.lerp_(parameter, 1 - decay)


_LIBRARY.impl("rmsprop_", _rmsprop, "CompositeExplicitAutograd")
_LIBRARY.impl("rmsprop_.tensor_lr", _rmsprop, "CompositeExplicitAutograd")
_LIBRARY.impl("average_", _average, "CompositeExplicitAutograd")

rmsprop_ = torch.ops.tensile.rmsprop_.default
average_ = torch.ops.tensile.average_.default
