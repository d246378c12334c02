"""Trains a subject by PyTorch alone, with its own optimizers. Every captured step must equal this bit for bit."""

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from indb_tensile.bench.harness.exactness.plain_lion import PlainLion
from indb_tensile.bench.harness.execution.trial import RATE, TrainingSubject
from indb_tensile.executor.capture.optimizer import AVERAGE, OptimizerSettings, state_name


def train_plainly(subject: TrainingSubject, iterations: int, place: torch.device) -> dict[str, torch.Tensor]:
    """Train for `iterations` iterations. Returns parameters, buffers and averages under the names that `State` uses.

    The subject's module is left as it is.
    """
    settings = subject.settings
    module = deepcopy(subject.module).to(place)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(settings, module)
    averaged = _averaged(module, settings)
    x, y = subject.x.to(place), subject.y.to(place)
    for iteration in range(iterations):
        for group in optimizer.param_groups:
            group["lr"] = subject.rate(iteration)
        optimizer.zero_grad()
        for loss in _losses(subject, module, x, y):
            loss.backward()  # type: ignore[no-untyped-call]
        if settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(trained, settings.clip_norm)
        optimizer.step()
        if averaged is not None:
            averaged.update_parameters(module)
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if averaged is not None:
        tensors += [(state_name(AVERAGE, name), tensor) for name, tensor in averaged.module.named_parameters()]
    return {name: tensor.detach().cpu() for name, tensor in tensors}


def make_optimizer(settings: OptimizerSettings, module: nn.Module) -> torch.optim.Optimizer:
    """Return torch's optimizer of the module's parameters, whose updates captured updates must equal."""
    decay = settings.weight_decay
    parameters = [
        {"params": [parameter], "weight_decay": settings.decay_of(name, parameter.dim())}
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    ]
    match settings.kind:
        case "sgd":
            momentum, nesterov = settings.momentum, settings.nesterov
            return torch.optim.SGD(
                parameters, lr=RATE, momentum=momentum, nesterov=nesterov, weight_decay=decay, fused=True
            )
        case "adagrad":
            return torch.optim.Adagrad(parameters, lr=RATE, eps=settings.eps, weight_decay=decay, fused=True)
        case "rmsprop":
            return torch.optim.RMSprop(
                parameters,
                lr=RATE,
                alpha=settings.alpha,
                eps=settings.eps,
                weight_decay=decay,
                momentum=settings.momentum,
                centered=settings.centered,
            )
        case "lion":
            return PlainLion(parameters, lr=RATE, betas=settings.betas, weight_decay=decay)
        case kind:
            make = torch.optim.Adam if kind == "adam" else torch.optim.AdamW
            return make(parameters, lr=RATE, betas=settings.betas, eps=settings.eps, weight_decay=decay, fused=True)


def _averaged(module: nn.Module, settings: OptimizerSettings) -> AveragedModel | None:
    if settings.average_decay is None:
        return None
    average = get_ema_multi_avg_fn(settings.average_decay)  # type: ignore[no-untyped-call]
    return AveragedModel(module, multi_avg_fn=average)


def _losses(subject: TrainingSubject, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the loss of each micro-batch, weighted by its share of the batch's rows."""
    dtype = subject.passes.autocast
    parts = subject.passes.parts(len(x))
    for rows in parts:
        part = slice(rows.start, rows.stop)
        # With autocast's cache a weight that is used twice is cast once; the captured step casts it at each use.
        with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False):
            loss = subject.loss(module(x[part]), y[part])
        yield loss if len(parts) == 1 else loss * (len(rows) / len(x))
