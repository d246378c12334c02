"""The plain PyTorch loop that every captured step must equal, bit for bit."""

import copy
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.overrides import TorchFunctionMode

from indb_tensile.bench.harness.exactness.plain_lion import PlainLion
from indb_tensile.executor.capture.optimizer import AVERAGE, OptimizerSettings, state_name
from tests.executor.models import Job

RATES = (1e-2, 5e-3, 2e-3)


class Eager:
    """Trains with `torch.optim` and `fused=True`, and exports its state under the names that a captured job uses."""

    def __init__(self, job: Job) -> None:
        self.module = copy.deepcopy(job.module)
        self.settings = job.settings
        self.loss = job.loss
        self.passes = job.passes
        self.optimizer = _optimizer(self.module, job.settings)
        decay = job.settings.average_decay
        average = None if decay is None else get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self.averaged = None if average is None else AveragedModel(self.module, multi_avg_fn=average)
        self.steps = 0

    def train(self, x: torch.Tensor, y: torch.Tensor, lr: float) -> torch.Tensor:
        self.module.train()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        loss = self._backward(x, y)
        if self.settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.settings.clip_norm)
        self.optimizer.step()
        if self.averaged is not None:
            self.averaged.update_parameters(self.module)
        self.steps += 1
        return loss

    def _backward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Run forward and backward for each part of the batch. Return the loss of the whole batch."""
        parts = self.passes.parts(len(x))
        losses = []
        for rows in parts:
            part = slice(rows.start, rows.stop)
            # With the cache, a weight that is used twice is cast only once. The captured step casts it twice.
            dtype = self.passes.autocast
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None, cache_enabled=False), _FusedDropout():
                loss: torch.Tensor = self.loss(self.module(x[part]), y[part])
            if len(parts) > 1:
                loss = loss * (len(rows) / len(x))
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return sum(losses[1:], losses[0])

    def evaluate(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        module = self.module if self.averaged is None else self.averaged
        module.eval()
        with torch.no_grad():
            outputs = module(x)
            return self.loss(outputs, y), outputs

    def export(self) -> dict[str, torch.Tensor]:
        state_values = {name: p.detach().clone() for name, p in self.module.named_parameters()}
        state_values |= {name: b.detach().clone() for name, b in self.module.named_buffers()}
        state_values["steps"] = torch.tensor(self.steps)
        if self.settings.counts_steps:
            state_values["optimizer/step"] = torch.tensor(float(self.steps))
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                moments = self.optimizer.state.get(parameter, {})
                for state in (name for name in self.settings.states if name != AVERAGE):
                    state_values[f"optimizer/{state}/{name}"] = moments.get(
                        state, torch.zeros_like(parameter)
                    ).detach()
        for name, average in [] if self.averaged is None else self.averaged.module.named_parameters():
            if average.requires_grad:
                state_values[state_name(AVERAGE, name)] = average.detach().clone()
        return state_values


class _FusedDropout(TorchFunctionMode):
    """Computes dropout with the kernel that a GPU and captured steps use.

    Eager dropout on a CPU rounds its scale to bfloat16.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is nn.functional.dropout:
            x, p, training = (*args, *(kwargs or {}).values())[:3]
            return torch.native_dropout(x, p, training)[0]
        return function(*args, **(kwargs or {}))


def _optimizer(module: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    trained = [
        {"params": [p], "weight_decay": settings.decay_of(name, p.dim())}
        for name, p in module.named_parameters()
        if p.requires_grad
    ]
    if settings.kind == "lion":
        return PlainLion(trained, betas=settings.betas)
    if settings.kind == "sgd":
        return torch.optim.SGD(
            trained,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=settings.nesterov,
            fused=True,
        )
    if settings.kind == "adagrad":
        return torch.optim.Adagrad(trained, eps=settings.eps, weight_decay=settings.weight_decay, fused=True)
    if settings.kind == "rmsprop":
        return torch.optim.RMSprop(
            trained,
            alpha=settings.alpha,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
            centered=settings.centered,
        )
    make = torch.optim.Adam if settings.kind == "adam" else torch.optim.AdamW
    return make(trained, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay, fused=True)
