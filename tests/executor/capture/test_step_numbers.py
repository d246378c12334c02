"""A step with the numbers of another training is the step that this training would capture."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from indb_tensile.bench.harness.exactness.network_kinds import KINDS, NetworkKind
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_evaluation, capture_training
from indb_tensile.executor.capture.step_numbers import StepNumbers, is_changeable, with_numbers
from indb_tensile.executor.capture.stored_capture import is_storable

_OPTIMIZERS = {
    "sgd": {"momentum": 0.9, "weight_decay": 0.1},
    "adam": {"betas": (0.8, 0.9), "weight_decay": 0.1},
    "adamw": {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1, "decays_all": False, "average_decay": 0.9},
    "adagrad": {"eps": 1e-6, "weight_decay": 0.1},
    "rmsprop": {"alpha": 0.9, "momentum": 0.9, "centered": True, "weight_decay": 0.1},
    "lion": {"betas": (0.8, 0.9), "weight_decay": 0.1},
}
_BATCH = torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64)


def _network(first: float, second: float) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 5), nn.Dropout(first), nn.Linear(5, 5), nn.Dropout(second), nn.Linear(5, 5), nn.Dropout(first)
    )


def _calls(step: CapturedStep) -> list[Any]:
    calls = (operator.kernel for operator in step.steps)
    return [(call.target, call.args, call.kwargs, call.signature, call.description) for call in calls]


def _captured(module: nn.Module, optimizer: OptimizerSettings) -> tuple[CapturedStep, StepNumbers]:
    step = capture_training(module, nn.CrossEntropyLoss(), *_BATCH, optimizer)
    return step, StepNumbers.of(module, optimizer)


@pytest.mark.by_day("sgd", "adamw", "lion")
@pytest.mark.parametrize("kind", _OPTIMIZERS)
def test_a_step_with_other_numbers_is_the_step_that_is_captured_with_them(kind: str) -> None:
    optimizer = OptimizerSettings(kind=kind, **_OPTIMIZERS[kind])  # type: ignore[arg-type]
    other = replace(optimizer, weight_decay=0.3, eps=1e-5 if optimizer.counts_steps else optimizer.eps)
    stored, old = _captured(_network(0.2, 0.4), optimizer)
    wanted, new = _captured(_network(0.37, 0.1), other)
    assert (old.rates, new.rates) == ((0.2, 0.4), (0.37, 0.1))
    neutral = with_numbers(stored, old, old.neutral)
    changed = with_numbers(neutral, new.neutral, new)
    assert (changed.graph, _calls(changed)) == (wanted.graph, _calls(wanted))
    assert _calls(stored) != _calls(wanted)


def test_probabilities_of_other_layers_are_left_as_they_are() -> None:
    attention = nn.MultiheadAttention(6, 2, dropout=0.2)
    optimizer = OptimizerSettings()
    assert StepNumbers.of(nn.ModuleList([attention, nn.Dropout(0.2), nn.Dropout(0.3)]), optimizer).rates == (0.3,)
    assert StepNumbers.of(nn.Sequential(nn.Dropout(0.0), nn.Dropout(1.0)), optimizer).rates == ()


def test_layers_of_other_packages_keep_their_probabilities() -> None:
    class Foreign(nn.Module):
        pass

    assert StepNumbers.of(nn.Sequential(nn.Dropout(0.2), Foreign()), OptimizerSettings()).rates == ()


def test_a_step_whose_gradient_has_another_factor_is_not_storable() -> None:
    step, _ = _captured(_network(0.2, 0.4), OptimizerSettings())
    assert is_changeable(step)
    operators = [
        replace(operator, kernel=replace(operator.kernel, args=(*operator.kernel.args[:2], 7.5)))
        if str(operator.kernel.target) == "aten.native_dropout_backward.default"
        else operator
        for operator in step.steps
    ]
    assert not is_storable((replace(step, steps=tuple(operators)),))


def _with_other_rates(kind: NetworkKind) -> tuple[nn.Module, nn.Module]:
    module, other = kind.build(), kind.build()
    rates = StepNumbers.of(module, kind.settings).rates
    for layer in other.modules():
        if type(layer) is nn.Dropout and layer.p in rates:
            layer.p = 0.61 + 0.01 * rates.index(layer.p)
    return module, other


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in KINDS if not name.startswith("pretrained")])
def test_every_kind_of_network_takes_the_numbers_of_another_training(name: str) -> None:
    kind = KINDS[name]
    module, other_module = _with_other_rates(kind)
    other_settings = replace(kind.settings, weight_decay=0.3 if kind.settings.weight_decay else 0.0)
    batch = kind.x(kind.rows), kind.y(kind.rows)
    old, new = StepNumbers.of(module, kind.settings), StepNumbers.of(other_module, other_settings)
    stored = capture_training(module, kind.loss, *batch, kind.settings, kind.passes)
    wanted = capture_training(other_module, kind.loss, *batch, other_settings, kind.passes)
    changed = with_numbers(with_numbers(stored, old, old.neutral), new.neutral, new)
    assert (changed.graph, _calls(changed)) == (wanted.graph, _calls(wanted))


@pytest.mark.nightly
def test_an_evaluation_step_has_no_numbers() -> None:
    module, optimizer = _network(0.2, 0.4), OptimizerSettings(average_decay=0.9)
    step = capture_evaluation(module, nn.CrossEntropyLoss(), *_BATCH, optimizer)
    new = StepNumbers.of(_network(0.5, 0.6), replace(optimizer, average_decay=0.5))
    assert with_numbers(step, StepNumbers.of(module, optimizer), new) == step
