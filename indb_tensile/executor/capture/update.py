"""Records the optimizer's part of a step: clipping, the step counter, one update per parameter, averages.

Each call is the one that `torch.optim` with `fused=True` (RMSprop: without, as it has no fused form) and
`torch.nn.utils.clip_grad_norm_` make for a single tensor, so the results are equal bit for bit. Torch has no Lion,
which is that of `update_operators.py`. Complex parameters are updated as pairs of real numbers, as in `torch.optim`.
"""

from collections import Counter
from typing import Any, Protocol

import torch

from indb_tensile.executor.capture.optimizer import AVERAGE, OptimizerSettings, state_name
from indb_tensile.executor.capture.record import Recorder, Runtime, StorageKey
from indb_tensile.executor.capture.storage_layout import STEP_NAME
from indb_tensile.executor.capture.update_operators import average_, lion_, rmsprop_
from indb_tensile.scheduler.graph import Stage

_aten = torch.ops.aten


class DividedUpdate(Protocol):
    """What the devices exchange in an update of which each makes a part."""

    def norms(self, own: list[torch.Tensor]) -> torch.Tensor:
        """Record the exchange of the gradients' norms. Return those of all devices, in the order of parameters."""
        ...

    def hand_out(self) -> None:
        """Record that all devices get the updated parameters."""
        ...


def record_update(
    recorder: Recorder,
    settings: OptimizerSettings,
    gradients: dict[str, torch.Tensor],
    divided: DividedUpdate | None = None,
) -> None:
    """Record an update in place of every parameter with a gradient, which may be `divided` among several devices."""
    ready = {name: like_parameter(recorder, name, gradient) for name, gradient in gradients.items()}
    if settings.clip_norm is not None:
        ready = _clipped(recorder, settings.clip_norm, ready, divided)
    if settings.counts_steps:
        recorder.call(Stage.OPTIMIZER, _aten.add_.Tensor, recorder.fake(STEP_NAME), 1)
    for name, gradient in ready.items():
        _RECORDED[settings.kind](recorder, settings, name, gradient)
    if divided is not None:
        divided.hand_out()
    if settings.average_decay is not None:
        _record_averages(recorder, settings.average_decay)


class Gradients:
    """The gradients that the parts of a batch have added to each parameter so far.

    Parts add up in place, as in eager.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._totals: dict[str, torch.Tensor] = {}
        self._holders: Counter[StorageKey] = Counter()

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._totals[name]

    def __contains__(self, name: str) -> bool:
        return name in self._totals

    def put(self, name: str, gradient: torch.Tensor) -> None:
        """Set the gradient of the parameter."""
        if name in self._totals:
            self._holders[self._recorder.key_of(self._totals[name])] -= 1
        self._totals[name] = gradient
        self._holders[self._recorder.key_of(gradient)] += 1

    def add(self, name: str, gradient: torch.Tensor) -> None:
        """Add a part's gradient to the parameter's gradient.

        The addition is not in place if the storage also holds another parameter's gradient.
        """
        total = self._totals.get(name)
        if total is None:
            self.put(name, like_parameter(self._recorder, name, gradient))
        elif self._holders[self._recorder.key_of(total)] > 1:
            self.put(name, self._recorder.call(Stage.BACKWARD, _aten.add.Tensor, total, gradient))
        else:
            _write(self._recorder, Stage.BACKWARD, _aten.add_.Tensor, total, gradient)


def like_parameter(recorder: Recorder, name: str, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient in its parameter's memory order, which fused updates require.

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


def _clipped(
    recorder: Recorder,
    clip_norm: float,
    gradients: dict[str, torch.Tensor],
    divided: DividedUpdate | None,
) -> dict[str, torch.Tensor]:
    def call(target: Any, *args: Any, **kwargs: Any) -> Any:
        return recorder.call(Stage.OPTIMIZER, target, *args, **kwargs)

    norms = [call(_aten.linalg_vector_norm.default, gradient, 2.0) for gradient in gradients.values()]
    together = call(_aten.stack.default, norms) if divided is None else divided.norms(norms)
    total = call(_aten.linalg_vector_norm.default, together, 2.0)
    inverse = call(_aten.reciprocal.default, call(_aten.add.Tensor, total, 1e-6))
    scale = call(_aten.clamp.default, call(_aten.mul.Tensor, inverse, clip_norm), None, 1.0)
    shared = sharing(recorder, gradients)
    return {
        name: call(_aten.mul.Tensor, gradient, scale)
        if name in shared
        else _write(recorder, Stage.OPTIMIZER, _aten.mul_.Tensor, gradient, scale)
        for name, gradient in gradients.items()
    }


def sharing(recorder: Recorder, gradients: dict[str, torch.Tensor]) -> set[str]:
    """Return the gradients whose storage holds another gradient too. A change in place would change them twice."""
    owners: dict[int, list[str]] = {}
    for name, gradient in gradients.items():
        owners.setdefault(recorder.key_of(gradient), []).append(name)
    return {name for names in owners.values() if len(names) > 1 for name in names}


def _tensors(recorder: Recorder, settings: OptimizerSettings, name: str, gradient: torch.Tensor) -> dict[str, Any]:
    """Return the parameter, its gradient and its state by name, complex tensors as pairs of real numbers."""
    state_tensors = {state: recorder.fake(state_name(state, name)) for state in settings.states if state != AVERAGE}
    tensors = {"parameter": recorder.fake(name), "gradient": gradient} | state_tensors
    if not gradient.is_complex():
        return tensors
    return {
        key: recorder.call(Stage.OPTIMIZER, _aten.view_as_real.default, tensor, name=f"real/{key}/{name}")
        for key, tensor in tensors.items()
    }


def _record_adam(recorder: Recorder, settings: OptimizerSettings, name: str, gradient: torch.Tensor) -> None:
    tensors = _tensors(recorder, settings, name, gradient)
    parameter, mean, square = (tensors[key] for key in ("parameter", "exp_avg", "exp_avg_sq"))
    target = _aten._fused_adam_.default if settings.kind == "adam" else _aten._fused_adamw_.default
    recorder.call(
        Stage.OPTIMIZER,
        target,
        [parameter],
        [tensors["gradient"]],
        [mean],
        [square],
        [],
        [recorder.fake(STEP_NAME)],
        mutates=(parameter, mean, square),
        lr=Runtime.LEARNING_RATE,
        beta1=settings.betas[0],
        beta2=settings.betas[1],
        weight_decay=settings.decay_of(name, recorder.fake(name).dim()),
        eps=settings.eps,
        amsgrad=False,
        maximize=False,
    )


def _record_sgd(recorder: Recorder, settings: OptimizerSettings, name: str, gradient: torch.Tensor) -> None:
    tensors = _tensors(recorder, settings, name, gradient)
    buffers = [tensors["momentum_buffer"]] if settings.momentum else []
    recorder.call(
        Stage.OPTIMIZER,
        _aten._fused_sgd_.default,
        [tensors["parameter"]],
        [tensors["gradient"]],
        buffers,
        mutates=(tensors["parameter"], *buffers),
        weight_decay=settings.decay_of(name, recorder.fake(name).dim()),
        momentum=settings.momentum,
        lr=Runtime.LEARNING_RATE,
        dampening=0.0,
        nesterov=settings.nesterov,
        maximize=False,
        # The first momentum is the gradient itself; 0 * momentum + gradient would lose the sign of a zero.
        is_first_step=Runtime.IS_FIRST if buffers else False,
    )


def _record_adagrad(recorder: Recorder, settings: OptimizerSettings, name: str, gradient: torch.Tensor) -> None:
    tensors = _tensors(recorder, settings, name, gradient)
    recorder.call(
        Stage.OPTIMIZER,
        _aten._fused_adagrad_.default,
        [tensors["parameter"]],
        [tensors["gradient"]],
        [tensors["sum"]],
        [recorder.fake(STEP_NAME)],
        mutates=(tensors["parameter"], tensors["sum"]),
        lr=Runtime.LEARNING_RATE,
        lr_decay=0.0,
        weight_decay=settings.decay_of(name, recorder.fake(name).dim()),
        eps=settings.eps,
        maximize=False,
    )


def _record_rmsprop(recorder: Recorder, settings: OptimizerSettings, name: str, gradient: torch.Tensor) -> None:
    tensors = _tensors(recorder, settings, name, gradient)
    means = [tensors["grad_avg"]] if settings.centered else []
    buffers = [tensors["momentum_buffer"]] if settings.momentum else []
    recorder.call(
        Stage.OPTIMIZER,
        rmsprop_,
        [tensors["parameter"]],
        [tensors["gradient"]],
        [tensors["square_avg"]],
        means,
        buffers,
        mutates=(tensors["parameter"], tensors["square_avg"], *means, *buffers),
        lr=Runtime.LEARNING_RATE,
        alpha=settings.alpha,
        eps=settings.eps,
        weight_decay=settings.decay_of(name, recorder.fake(name).dim()),
        momentum=settings.momentum,
    )


def _record_lion(recorder: Recorder, settings: OptimizerSettings, name: str, gradient: torch.Tensor) -> None:
    tensors = _tensors(recorder, settings, name, gradient)
    recorder.call(
        Stage.OPTIMIZER,
        lion_,
        [tensors["parameter"]],
        [tensors["gradient"]],
        [tensors["exp_avg"]],
        mutates=(tensors["parameter"], tensors["exp_avg"]),
        lr=Runtime.LEARNING_RATE,
        beta1=settings.betas[0],
        beta2=settings.betas[1],
        weight_decay=settings.decay_of(name, recorder.fake(name).dim()),
    )


_RECORDED = {
    "sgd": _record_sgd,
    "adam": _record_adam,
    "adamw": _record_adam,
    "adagrad": _record_adagrad,
    "rmsprop": _record_rmsprop,
    "lion": _record_lion,
}


def _record_averages(recorder: Recorder, decay: float) -> None:
    """Record the moving averages of all trained parameters, computed after the update."""
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
