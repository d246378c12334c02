"""Defines custom operators for updates that torch has no single operator for: RMSprop, Lion, a parameter's average.

They compute what `torch.optim.RMSprop` and `torch.optim.swa_utils` compute for one tensor, call by call, so the
results are equal bit for bit. Torch has no Lion, which is Algorithm 2 of Chen and others, "Symbolic Discovery of
Optimization Algorithms" (NeurIPS 2023). Each update is one operator, so that its intermediate values are scratch that
no plan moves.
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
_LION = (
    "(Tensor(a!)[] self, Tensor[] grads, Tensor(b!)[] exp_avgs, *, {rate} lr, float beta1, float beta2, "
    "float weight_decay) -> ()"
)
_LIBRARY.define(f"lion_{_LION.format(rate='float')}")
_LIBRARY.define(f"lion_.tensor_lr{_LION.format(rate='Tensor')}")
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
    rate = _rate(lr)
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


def _lion(
    params: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    *,
    lr: float | torch.Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
) -> None:
    """Move each number by the rate in the direction of its mean gradient's sign, and decay it."""
    rate = _rate(lr)
    for index, param in enumerate(params):
        grad, exp_avg = grads[index], exp_avgs[index]
        direction = exp_avg.lerp(grad, 1 - beta1).sign_()
        if weight_decay:
            direction.add_(param, alpha=weight_decay)
        _descend(param, rate, direction, None)
        exp_avg.lerp_(grad, 1 - beta2)


def _rate(lr: float | torch.Tensor) -> float | torch.Tensor:
    """Return the rate as a number, if reading it waits for no device."""
    return float(lr) if isinstance(lr, torch.Tensor) and lr.device.type == "cpu" else lr


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
_LIBRARY.impl("lion_", _lion, "CompositeExplicitAutograd")
_LIBRARY.impl("lion_.tensor_lr", _lion, "CompositeExplicitAutograd")
_LIBRARY.impl("average_", _average, "CompositeExplicitAutograd")

rmsprop_ = torch.ops.tensile.rmsprop_.default
lion_ = torch.ops.tensile.lion_.default
average_ = torch.ops.tensile.average_.default
