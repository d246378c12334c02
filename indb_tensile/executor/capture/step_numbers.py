"""Puts the numbers of one training into a step that was captured with the numbers of another one.

The numbers are those of `number_arguments.py`: probabilities of dropout layers and settings of the optimizer. A step
contains them as arguments of its calls; everything else of the step is the same for all values. So a stored capture
serves every training that differs in nothing else, and computes what its own capture would compute.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from indb_tensile.executor.capture.number_arguments import (
    DROPOUT,
    DROPOUT_BACKWARD,
    RATE_AT,
    SCALE_AT,
    UPDATE_NUMBERS,
    replaced,
)
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.record import Call, Ref
from indb_tensile.executor.capture.step_capture import CapturedStep, Step

_REAL = "real/parameter/"  # the name of a complex parameter as pairs of real numbers (update.py)

_SETTINGS: dict[str, Callable[[OptimizerSettings], float | None]] = {
    "beta1": lambda settings: settings.betas[0],
    "beta2": lambda settings: settings.betas[1],
    "alpha": lambda settings: settings.alpha,
    "eps": lambda settings: settings.eps,
    "momentum": lambda settings: settings.momentum,
    "decay": lambda settings: settings.average_decay,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """The numbers of one training. `rates` are the distinct probabilities of its dropouts, in the layers' order."""

    rates: tuple[float, ...]
    optimizer: OptimizerSettings

    @classmethod
    def of(cls, module: nn.Module, optimizer: OptimizerSettings) -> "StepNumbers":
        """Return the numbers that a capture of this module can be given later.

        A dropout counts if its probability is in no other option of any layer, so that it can be told in the step.
        """
        layers = list(module.modules())
        own = (nn.__name__, __name__.partition(".")[0])
        if not all(type(layer).__module__.startswith(own) for layer in layers):
            return cls(rates=(), optimizer=optimizer)  # layers of other packages may call dropout as a function
        rates = tuple(dict.fromkeys(float(layer.p) for layer in layers if type(layer) is nn.Dropout))
        others = {rate for layer in layers if type(layer) is not nn.Dropout for rate in _other_rates(layer)}
        changeable = tuple(rate for rate in rates if 0.0 < rate < 1.0 and rate not in others)
        told_apart = len({_scale(rate) for rate in {*rates, *others} - {1.0}}) == len({*rates, *others} - {1.0})
        return cls(rates=changeable if told_apart else (), optimizer=optimizer)

    @property
    def neutral(self) -> "StepNumbers":
        """The numbers under which a step is stored: those of the optimizer do not matter there."""
        return replace(self, rates=tuple(1.0 / (2 + position) for position in range(len(self.rates))))


def with_numbers(step: CapturedStep, old: StepNumbers, new: StepNumbers) -> CapturedStep:
    """Return the step, which was captured with the numbers `old`, with the numbers `new`."""
    rates = dict(zip(old.rates, new.rates, strict=True))
    scales = {_scale(rate): _scale(own) for rate, own in rates.items()}
    steps = tuple(_with_numbers(operator, rates, scales, new.optimizer, step) for operator in step.steps)
    return replace(step, steps=steps)


def is_changeable(step: CapturedStep) -> bool:
    """Return whether each factor of a dropout's gradient is one that follows from a probability in the step."""
    calls = [operator.kernel for operator in step.steps]
    rates = {call.args[RATE_AT] for call in calls if call.target is DROPOUT}
    known = {_scale(rate) for rate in rates if rate < 1.0} | {0.0, 1.0}
    return all(call.args[SCALE_AT] in known for call in calls if call.target is DROPOUT_BACKWARD)


def _scale(rate: float) -> float:
    """Return the factor of a dropout's gradient, as torch computes it (derivatives.yaml, native_dropout)."""
    return 1.0 / (1.0 - rate)


def _other_rates(layer: nn.Module) -> Iterator[float]:
    """Yield the options of a layer that may be probabilities of its own dropout, as attention has one."""
    for name, value in vars(layer).items():
        if isinstance(value, float) and (name == "p" or "drop" in name):
            yield value


def _with_numbers(
    operator: Step,
    rates: Mapping[float, float],
    scales: Mapping[float, float],
    optimizer: OptimizerSettings,
    step: CapturedStep,
) -> Step:
    call = operator.kernel
    if call.target is DROPOUT:
        changed = _at(call, RATE_AT, rates)
    elif call.target is DROPOUT_BACKWARD:
        changed = _at(call, SCALE_AT, scales)
    elif names := UPDATE_NUMBERS.get(call.target):
        values = {name: _setting(name, call, optimizer, step) for name in names}
        changed = replace(call, kwargs=call.kwargs | values)
    else:
        return operator
    return replace(operator, kernel=changed)


def _at(call: Call, position: int, values: Mapping[float, float]) -> Call:
    value = call.args[position]
    return replace(call, args=replaced(call.args, position, values.get(value, value)))


def _setting(name: str, call: Call, optimizer: OptimizerSettings, step: CapturedStep) -> Any:
    if name != "weight_decay":
        return _SETTINGS[name](optimizer)
    first = call.args[0][0]
    assert isinstance(first, Ref)
    parameter = first.name.removeprefix(_REAL)
    return optimizer.decay_of(parameter, len(step.values[parameter].shape))
