"""Lion as an optimizer of torch's kind, whose updates captured updates must equal."""

from collections.abc import Iterable
from typing import Any

import torch


class PlainLion(torch.optim.Optimizer):
    """Algorithm 2 of Chen and others, "Symbolic Discovery of Optimization Algorithms" (NeurIPS 2023)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters with gradients."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in (own for own in group["params"] if own.grad is not None):
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                values, mean, gradient = (_real(own) for own in (parameter, state["exp_avg"], parameter.grad))
                direction = torch.sign(torch.lerp(mean, gradient, 1 - first))
                if group["weight_decay"]:
                    direction = direction.add(values, alpha=group["weight_decay"])
                values.add_(direction, alpha=-group["lr"])
                mean.lerp_(gradient, 1 - second)
        return None if closure is None else closure()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
