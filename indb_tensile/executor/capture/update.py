"""The optimizer's part of a captured step: clipping, the step counter, one update per parameter, averages.

Each call is the one that `torch.optim` with `fused=True` (RMSprop, which has no such thing: without) and
`torch.nn.utils.clip_grad_norm_` make for a single tensor, so the results are equal bit for bit. Complex parameters
are updated as pairs of real numbers, as `torch.optim` does.
"""

from collections import Counter
from typing import Any

import torch

from indb_tensile.executor.capture.optimizer import AVERAGE, OptimizerSettings, state_name
from indb_tensile.executor.capture.record import Recorder, Runtime, StorageKey
from indb_tensile.executor.capture.storage_layout import STEP_NAME
from indb_tensile.executor.capture.update_operators import average_, rmsprop_
from indb_tensile.scheduler.graph import Stage

_aten = torch.ops.aten


def record_update(recorder: Recorder, settings: OptimizerSettings, gradients: dict[str, torch.Tensor]) -> None:
    """Record how every parameter with a gradient is updated in place."""
    ready = {name: _like_parameter(recorder, name, gradient) for name, gradient in gradients.items()}
    if settings.clip_norm is not None:
        ready = _clipped(recorder, settings.clip_norm, ready)
    if settings.counts_steps:
        recorder.call(Stage.OPTIMIZER, _aten.add_.Tensor, recorder.fake(STEP_NAME), 1)
    for name, gradient in ready.items():
        _RECORDED[settings.kind](recorder, settings, name, gradient)
    if settings.average_decay is not None:
        _record_averages(recorder, settings.average_decay)


class Gradients:
    """What the parts of a batch have given each parameter so far; parts add up in place, as eager's do."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._totals: dict[str, torch.Tensor] = {}
        self._holders: Counter[StorageKey] = Counter()

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._totals[name]

    def put(self, name: str, gradient: torch.Tensor) -> None:
        """The parameter's gradient is this one from now on."""
        if name in self._totals:
            self._holders[self._recorder.key_of(self._totals[name])] -= 1
        self._totals[name] = gradient
        self._holders[self._recorder.key_of(gradient)] += 1

    def add(self, name: str, gradient: torch.Tensor) -> None:
        """Add a part's gradient to what the parts before gave this parameter; not in place where others hold it."""
        total = self._totals.get(name)
        if total is None:
            self.put(name, _like_parameter(self._recorder, name, gradient))
        elif self._holders[self._recorder.key_of(total)] > 1:
            self.put(name, self._recorder.call(Stage.BACKWARD, _aten.add.Tensor, total, gradient))
        else:
            _write(self._recorder, Stage.BACKWARD, _aten.add_.Tensor, total, gradient)


def _like_parameter(recorder: Recorder, name: str, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient in its parameter's memory order, which fused updates take for granted.

    Eager's gradient accumulation copies such gradients too.
    """
    parameter = recorder.fake(name)
    if gradient.stride() == parameter.stride() and gradient.dtype == parameter.dtype:
        return gradient
    ordered: torch.Tensor = recorder.call(
        Stage.BACKWARD,
        _aten.empty_strided.default,
        list(parameter.shape),
        list(parameter.stride()),
        dtype=parameter.dtype,
        device=parameter.device,
        name=f"grad_{name}",
    )
    return _write(recorder, Stage.BACKWARD, _aten.copy_.default, ordered, gradient)


def _write(recorder: Recorder, stage: Stage, target: Any, into: torch.Tensor, *args: Any) -> torch.Tensor:
    recorder.call(stage, target, into, *args)
    return into


def _clipped(recorder: Recorder, clip_norm: float, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    def call(target: Any, *args: Any, **kwargs: Any) -> Any:
        return recorder.call(Stage.OPTIMIZER, target, *args, **kwargs)

    norms = [call(_aten.linalg_vector_norm.default, gradient, 2.0) for gradient in gradients.values()]
    total = call(_aten.linalg_vector_norm.default, call(_aten.stack.default, norms), 2.0)
    inverse = call(_aten.reciprocal.default, call(_aten.add.Tensor, total, 1e-6))
    scale = call(_aten.clamp.default, call(_aten.mul.Tensor, inverse, clip_norm), None, 1.0)
    shared = _shared(recorder, gradients)
    return {
        name: call(_aten.mul.Tensor, gradient, scale)
        if name in shared
        else _write(recorder, Stage.OPTIMIZER, _aten.mul_.Tensor, gradient, scale)
        for name, gradient in gradients.items()
    }


def _shared(recorder: Recorder, gradients: dict[str, torch.Tensor]) -> set[str]:
    """Gradients whose storage holds another gradient too: scaled in place they would be scaled twice."""
    owners: dict[int, list[str]] = {}
    for name, gradient in gradients.items():
        owners.setdefault(recorder.key_of(gradient), []).append(name)
    return {name for names in owners.values() if len(names) > 1 for name in names}


def _tensors(recorder: Recorder, settings: OptimizerSettings, name: str, gradient: torch.Tensor) -> dict[str, Any]:
    """The parameter, its gradient and its state by name, complex ones as pairs of real numbers."""
    own = {state: recorder.fake(state_name(state, name)) for state in settings.states if state != AVERAGE}
    found = {"parameter": recorder.fake(name), "gradient": gradient} | own
    if not gradient.is_complex():
        return found
    return {
        key: recorder.call(Stage.OPTIMIZER, _aten.view_as_real.default, tensor, name=f"real/{key}/{name}")
        for key, tensor in found.items()
    }


def _record_adam(recorder: Recorder, settings: OptimizerSettings, name: str, gradient: torch.Tensor) -> None:
    found = _tensors(recorder, settings, name, gradient)
    parameter, mean, square = (found[key] for key in ("parameter", "exp_avg", "exp_avg_sq"))
    target = _aten._fused_adam_.default if settings.kind == "adam" else _aten._fused_adamw_.default
    recorder.call(
        Stage.OPTIMIZER,
        target,
        [parameter],
        [found["gradient"]],
        [mean],
        [square],
        [],
        [recorder.fake(STEP_NAME)],
        mutates=(parameter, mean, square),
        lr=Runtime.LEARNING_RATE,
        beta1=settings.betas[0],
        beta2=settings.betas[1],
        weight_decay=settings.weight_decay,
        eps=settings.eps,
        amsgrad=False,
        maximize=False,
    )


def _record_sgd(recorder: Recorder, settings: OptimizerSettings, name: str, gradient: torch.Tensor) -> None:
    found = _tensors(recorder, settings, name, gradient)
    buffers = [found["momentum_buffer"]] if settings.momentum else []
    recorder.call(
        Stage.OPTIMIZER,
        _aten._fused_sgd_.default,
        [found["parameter"]],
        [found["gradient"]],
        buffers,
        mutates=(found["parameter"], *buffers),
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        lr=Runtime.LEARNING_RATE,
        dampening=0.0,
        nesterov=settings.nesterov,
        maximize=False,
        # The first momentum is the gradient itself; 0 * momentum + gradient would lose the sign of a zero.
        is_first_step=Runtime.IS_FIRST if buffers else False,
    )


def _record_adagrad(recorder: Recorder, settings: OptimizerSettings, name: str, gradient: torch.Tensor) -> None:
    found = _tensors(recorder, settings, name, gradient)
    recorder.call(
        Stage.OPTIMIZER,
        _aten._fused_adagrad_.default,
        [found["parameter"]],
        [found["gradient"]],
        [found["sum"]],
        [recorder.fake(STEP_NAME)],
        mutates=(found["parameter"], found["sum"]),
        lr=Runtime.LEARNING_RATE,
        lr_decay=0.0,
        weight_decay=settings.weight_decay,
        eps=settings.eps,
        maximize=False,
    )


def _record_rmsprop(recorder: Recorder, settings: OptimizerSettings, name: str, gradient: torch.Tensor) -> None:
    found = _tensors(recorder, settings, name, gradient)
    means = [found["grad_avg"]] if settings.centered else []
    buffers = [found["momentum_buffer"]] if settings.momentum else []
    recorder.call(
        Stage.OPTIMIZER,
        rmsprop_,
        [found["parameter"]],
        [found["gradient"]],
        [found["square_avg"]],
        means,
        buffers,
        mutates=(found["parameter"], found["square_avg"], *means, *buffers),
        lr=Runtime.LEARNING_RATE,
        alpha=settings.alpha,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
    )


_RECORDED = {
    "sgd": _record_sgd,
    "adam": _record_adam,
    "adamw": _record_adam,
    "adagrad": _record_adagrad,
    "rmsprop": _record_rmsprop,
}


def _record_averages(recorder: Recorder, decay: float) -> None:
    """The moving averages of all trained parameters, computed after the update."""
    prefix = state_name(AVERAGE, "")
    for average in [name for name in recorder.values if name.startswith(prefix)]:
        recorder.call(
            Stage.OPTIMIZER,
            average_,
            recorder.fake(average),
            recorder.fake(average.removeprefix(prefix)),
            decay=decay,
            is_first_step=Runtime.IS_FIRST,
        )
