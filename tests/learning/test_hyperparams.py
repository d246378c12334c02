"""Hyper-parameters are parsed and checked, and the learning rate is a function of the step."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import RequestError
from indb_tensile.learning.networks.hyperparams import TrainingSettings, learning_rate
from indb_tensile.learning.networks.training_length import batch_size, epochs
from indb_tensile.request.hyperparam_rules import HYPERPARAMS


def parsed(rows: int = 100, **options: Any) -> TrainingSettings:
    return TrainingSettings.parse(options, rows)


def test_without_options_every_hyperparameter_has_its_default() -> None:
    settings = parsed()
    assert (settings.epochs, settings.batch_size, settings.optimizer) == (epochs(7), batch_size(100), "adamw")
    assert (settings.learning_rate, settings.weight_decay, settings.clip_norm) == (2e-3, 1e-2, None)
    assert settings.betas == (0.9, 0.999)


def test_a_default_may_depend_on_the_optimizer() -> None:
    settings = parsed(optimizer="sgd", nesterov=True)
    assert (settings.learning_rate, settings.momentum, settings.weight_decay) == (0.05, 0.9, 0.0)
    settings = parsed(optimizer="adagrad")
    assert (settings.learning_rate, settings.eps, settings.weight_decay) == (0.01, 1e-10, 0.0)
    settings = parsed(optimizer="lion", weight_decay_of="weights")
    assert (settings.learning_rate, settings.betas, settings.weight_decay) == (3e-4, (0.9, 0.99), 0.1)
    settings = parsed(optimizer="rmsprop")
    assert (settings.learning_rate, settings.momentum, settings.alpha, settings.eps) == (0.001, 0.0, 0.99, 1e-8)


@pytest.mark.parametrize(
    ("options", "fault", "hint"),
    [
        ({"lr": 1}, 'unknown parameter "lr"', "learning_rate"),
        ({"epochs": 0}, '"epochs" is 0', "at least 1"),
        ({"epochs": 2.5}, '"epochs" is 2.5', "an integer"),
        ({"epochs": True}, '"epochs" is true', "an integer"),
        ({"micro_batch_size": 0}, '"micro_batch_size" is 0', "at least 1"),
        ({"precision": "float16"}, '"precision" is "float16"', "torch, float32, tf32, bfloat16"),
        ({"optimizer": "lyon"}, '"optimizer" is "lyon"', "sgd, adam, adamw, adagrad, rmsprop, lion"),
        ({"optimizer": "lion", "eps": 1e-4}, '"eps" means nothing with optimizer lion', "adagrad or rmsprop"),
        (
            {"optimizer": "sgd", "weight_decay_of": "weights"},
            '"weight_decay_of" needs a weight decay',
            "adamw or lion",
        ),
        (
            {"weight_decay": 0, "weight_decay_of": "weights"},
            '"weight_decay_of" needs a weight decay',
            "adamw or lion",
        ),
        ({"learning_rate": 0}, '"learning_rate" is 0', "above 0"),
        ({"learning_rate": float("nan")}, '"learning_rate" is NaN', "a number"),
        ({"betas": [0.9]}, r'"betas" is \[0.9\]', "of length 2"),
        ({"betas": [0.9, 1.0]}, '"betas" is', "below 1"),
        ({"nesterov": 1, "optimizer": "sgd"}, '"nesterov" is 1', "true or false"),
        ({"momentum": 0.5}, '"momentum" means nothing with optimizer adamw', "sgd"),
        ({"decay": 0.5}, '"decay" means nothing with schedule cosine', "step"),
        ({"decay_at": [0.5], "schedule": "plateau"}, '"decay_at" means nothing with schedule plateau', "step"),
        ({"decay_patience": 3}, '"decay_patience" means nothing with schedule cosine', "plateau"),
        ({"schedule": "linear"}, '"schedule" is "linear"', "constant, cosine, step, one_cycle, plateau"),
        ({"optimizer": "adam", "momentum": 0.9}, '"momentum" means nothing with optimizer adam', "sgd or rmsprop"),
        ({"optimizer": "adagrad", "betas": [0.9, 0.99]}, '"betas" means nothing with optimizer adagrad', "adam"),
        ({"optimizer": "sgd", "eps": 1e-4}, '"eps" means nothing with optimizer sgd', "adagrad or rmsprop"),
        ({"alpha": 0.9}, '"alpha" means nothing with optimizer adamw', "rmsprop"),
        ({"eps": float("nan")}, '"eps" is NaN', "a number above 0"),
        ({"weight_decay": float("inf")}, '"weight_decay" is Infinity', "at most 100"),
        ({"loss": "hubert"}, '"loss" is "hubert"', "cross_entropy, focal, mse, mae, huber, poisson, quantile"),
        ({"gamma": 2, "loss": "mse"}, '"gamma" means nothing with loss mse', "focal"),
        ({"quantile": 1, "loss": "quantile"}, '"quantile" is 1', "below 1"),
        ({"average_decay": 1}, '"average_decay" is 1', "below 1"),
        ({"optimizer": "sgd", "nesterov": True, "momentum": 0}, "needs a momentum above 0", "momentum"),
    ],
)
def test_a_wrong_hyperparameter_is_refused_with_the_allowed_values(
    options: dict[str, Any], fault: str, hint: str
) -> None:
    with pytest.raises(RequestError, match=fault) as caught:
        parsed(**options)
    assert hint in caught.value.hint


def test_null_means_the_default() -> None:
    assert parsed(momentum=None, epochs=None, batch_size=None) == parsed()


def test_requested_epochs_and_batch_sizes_do_not_depend_on_the_rows() -> None:
    for rows in (2, 10**7):
        settings = parsed(rows, epochs=7, batch_size=9)
        assert (settings.epochs, settings.batch_size) == (7, 9)
    assert parsed(10_000, batch_size=100).epochs == epochs(100), "the default epochs follow the requested batch size"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "sgd", "nesterov": True},
        {"schedule": "step", "clip_norm": 1},
        {"optimizer": "adagrad"},
        {"optimizer": "rmsprop", "centered": True, "average_decay": 0.9},
        {"schedule": "plateau", "epochs": 100},
        {"schedule": "one_cycle"},
        {"optimizer": "lion", "weight_decay_of": "weights"},
        {"label_smoothing": 0.1},
        {"loss": "focal"},
        {"loss": "quantile", "quantile": 0.9},
    ],
)
def test_stored_settings_are_parsed_to_equal_settings_for_other_rows(options: dict[str, Any]) -> None:
    settings = parsed(100, **options)
    assert parsed(10**6, **json.loads(json.dumps(settings.to_hyperparams()))) == settings


def test_the_table_of_hyperparameters_is_plain_data() -> None:
    assert json.loads(json.dumps(HYPERPARAMS)) == HYPERPARAMS


@given(st.sampled_from(HYPERPARAMS["schedule"]["values"]), st.floats(0, 0.5), st.integers(1, 500))
def test_the_rate_rises_during_warmup_and_never_again(schedule: str, warmup: float, total: int) -> None:
    settings = parsed(schedule=schedule, warmup=warmup, learning_rate=0.5)
    rates = [learning_rate(settings, step, total) for step in range(total)]
    top = rates.index(max(rates))
    assert all(0 < rate <= 0.5 for rate in rates)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_each_schedule_has_its_shape() -> None:
    def rates(**options: Any) -> list[float]:
        settings = parsed(learning_rate=1.0, **options)
        return [round(learning_rate(settings, step, 8), 6) for step in range(8)]

    assert rates(schedule="constant") == [1.0] * 8
    assert rates(schedule="step") == [1.0] * 4 + [0.1] * 2 + [0.01] * 2
    assert rates(schedule="cosine")[::4] == [1.0, 0.5]
    assert rates(schedule="constant", warmup=0.5) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("warmup", "total"), [(0.3, 10), (0.3, 97), (0.15, 10), (0.5, 3), (0.25, 1000)])
def test_one_cycle_has_the_rates_of_torch(warmup: float, total: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, total_steps=total, pct_start=warmup, cycle_momentum=False
    )
    settings = parsed(schedule="one_cycle", warmup=warmup, learning_rate=0.1)
    for step in range(total):
        assert learning_rate(settings, step, total) == pytest.approx(cycle.get_last_lr()[0])
        optimizer.step()
        if step < total - 1:
            cycle.step()


def test_a_plateau_lowers_the_rate_as_often_as_the_loss_has_stalled() -> None:
    settings = parsed(schedule="plateau", learning_rate=1.0, decay=0.5, warmup=0.25)
    rates = [learning_rate(settings, step, 8, reductions=step // 4) for step in range(8)]
    assert rates == [0.5, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    assert (parsed(schedule="plateau", epochs=100).decay_patience, parsed().decay_patience) == (5, None)
