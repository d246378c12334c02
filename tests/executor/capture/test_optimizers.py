"""Captured, planned and resumed jobs with other optimizers than Adam, or averages, have the bits of plain PyTorch."""

import copy
from typing import Any

import pytest
import torch

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.optimizer import OptimizerSettings, state_name
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.memory.peak import LIVENESS
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared
from tests.executor.driving import drive, state_bits
from tests.executor.eager import Eager
from tests.executor.eager_bits import assert_every_plan_gives_eagers_bits
from tests.executor.plans import random_plan
from tests.nightly import nightly_unless

SETTINGS = {
    "adagrad": OptimizerSettings(kind="adagrad", eps=1e-10),
    "adagrad, all options": OptimizerSettings(kind="adagrad", eps=1e-3, weight_decay=0.1, clip_norm=0.3),
    "rmsprop": OptimizerSettings(kind="rmsprop"),
    "rmsprop, momentum": OptimizerSettings(kind="rmsprop", momentum=0.9, alpha=0.9, weight_decay=0.1),
    "rmsprop, centered": OptimizerSettings(kind="rmsprop", centered=True, eps=1e-3),
    "rmsprop, all options": OptimizerSettings(
        kind="rmsprop", momentum=0.5, centered=True, alpha=0.8, weight_decay=0.01, clip_norm=0.5
    ),
    "lion": OptimizerSettings(kind="lion", betas=(0.9, 0.99)),
    "lion, all options": OptimizerSettings(
        kind="lion", betas=(0.8, 0.95), weight_decay=0.1, decays_all=False, clip_norm=0.3, average_decay=0.9
    ),
    "adamw, weights decay": OptimizerSettings(kind="adamw", weight_decay=0.3, decays_all=False),
    "adamw, averaged": OptimizerSettings(kind="adamw", average_decay=0.9),
    "rmsprop, averaged": OptimizerSettings(kind="rmsprop", momentum=0.9, average_decay=0.999),
}


@pytest.mark.by_day("adamw, averaged", "lion, all options")
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", nightly_unless(lambda kind: kind == "constant", ["wide", "cnn", "constant", "tied"]))
def test_every_plan_gives_the_bits_of_torchs_own_optimizer(kind: str, name: str) -> None:
    job, steps = prepared(kind, settings=SETTINGS[name])
    assert_every_plan_gives_eagers_bits(job, steps)


# In the day a small model with every optimizer, and one with running statistics with the optimizer of most states.
RESUMED = [(kind, name) for kind in ("constant", "cnn") for name in SETTINGS]


@pytest.mark.by_day("constant-adamw, averaged", "constant-rmsprop, momentum", "constant-lion, all options")
@pytest.mark.parametrize(
    ("kind", "name"), nightly_unless(lambda case: case[0] == "constant" or case[1] == "adamw, averaged", RESUMED)
)
def test_a_job_resumes_from_its_checkpoint_with_equal_bits(kind: str, name: str) -> None:
    job, steps = prepared(kind, settings=SETTINGS[name])
    eager = Eager(job)
    drive(eager, job, 2)
    first = job.state()
    runner = Runner(MemoryDevice(), first, steps)
    runner.adopt((LIVENESS,) * 3, 1)
    drive(runner, job, 1)
    second, saved, random = job.state(), first.export(), torch.get_rng_state()
    second.load(saved)
    torch.set_rng_state(random)
    runner = Runner(MemoryDevice(), second, steps)
    runner.adopt(tuple(random_plan(step.graph, 3, share=1.0) for step in steps), 1)
    for index, (x, y) in enumerate(job.batches):
        runner.train(x, y, (1e-2, 5e-3, 2e-3)[index])
    assert state_bits(second.export()) == state_bits(eager.export())


def test_lion_moves_each_number_by_the_rate_and_decays_only_weights() -> None:
    job, steps = prepared("mlp", settings=OptimizerSettings(kind="lion", weight_decay=0.5, decays_all=False))
    before = {name: tensor.clone() for name, tensor in job.module.state_dict().items()}
    state = job.state()
    runner = Runner(MemoryDevice(), state, steps)
    runner.adopt((LIVENESS,) * 3, 1)
    runner.train(*job.batches[0], 0.25)
    for name, after in state.export().items():
        if name in before:
            decayed = before[name] * (0.875 if name.endswith("weight") else 1.0)
            moved = (after - decayed).abs()
            assert torch.allclose(moved[moved > 1e-6], torch.tensor(0.25), atol=1e-6), name
            assert (moved > 1e-6).any(), name


@pytest.mark.parametrize(
    ("parameter", "dimensions", "decays"),
    [
        ("layers.0.weight", 2, True),
        ("layers.0.bias", 1, False),
        ("norm.weight", 1, False),
        ("heads.bias", 3, False),
        ("hidden.0.input_scale", 2, False),
        ("lstm.bias_ih_l0", 1, False),
    ],
)
def test_biases_norms_and_scales_are_left_out_of_weight_decay(parameter: str, dimensions: int, decays: bool) -> None:
    some = OptimizerSettings(kind="adamw", weight_decay=0.1, decays_all=False)
    assert some.decay_of(parameter, dimensions) == (0.1 if decays else 0.0)
    assert OptimizerSettings(kind="adamw", weight_decay=0.1).decay_of(parameter, dimensions) == 0.1


@pytest.mark.nightly
def test_evaluation_uses_the_averages_and_training_the_parameters() -> None:
    plain, plain_steps = prepared("cnn", settings=OptimizerSettings(kind="adamw"))
    averaged, averaged_steps = prepared("cnn", settings=SETTINGS["adamw, averaged"])
    results: list[Any] = []
    for job, steps in ((plain, plain_steps), (averaged, averaged_steps)):
        state = job.state()
        runner = Runner(MemoryDevice(), state, steps)
        runner.adopt((LIVENESS,) * 3, 1)
        drive(runner, job)
        results.append((state.export(), runner.evaluate(*job.held_out)[1]))
    (plain_values, outputs), (averaged_values, averaged_outputs) = results
    assert state_bits(plain_values) == state_bits({name: averaged_values[name] for name in plain_values}), (
        "averages change no training"
    )
    module = copy.deepcopy(averaged.module).eval()
    names = dict(module.named_parameters())
    weights = {
        name: averaged_values[state_name("average", name) if name in names else name] for name in module.state_dict()
    }
    module.load_state_dict(weights)
    with torch.no_grad():
        assert torch.equal(module(averaged.held_out[0]), averaged_outputs)
    assert not torch.equal(outputs, averaged_outputs)


@pytest.mark.parametrize(
    ("options", "fault", "hint"),
    [
        ({"eps": float("nan")}, "eps nan is not a finite number", "at least 0"),
        ({"weight_decay": float("inf")}, "weight_decay inf is not a finite number", "at least 0"),
        ({"kind": "adam", "momentum": 0.9}, "momentum 0.9 means nothing with optimizer adam", "sgd or rmsprop"),
        ({"kind": "sgd", "centered": True}, "centered True means nothing with optimizer sgd", "rmsprop"),
        ({"kind": "rmsprop", "alpha": float("nan")}, r"alpha nan is outside \[0, 1\)", "below 1"),
        ({"average_decay": 1.0}, r"average_decay 1.0 is outside \[0, 1\)", "below 1"),
        ({"betas": (0.9, float("nan"))}, r"betas\[1\] nan is outside", "below 1"),
        ({"kind": "lyon"}, "optimizer 'lyon' is unknown", "adagrad, rmsprop, lion"),
        ({"kind": "lion", "momentum": 0.9}, "momentum 0.9 means nothing with optimizer lion", "sgd or rmsprop"),
    ],
)
def test_invalid_settings_are_refused_with_the_way_out(options: dict[str, Any], fault: str, hint: str) -> None:
    with pytest.raises(RequestError, match=fault) as caught:
        OptimizerSettings(**options)
    assert hint in caught.value.hint
