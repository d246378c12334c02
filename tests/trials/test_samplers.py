"""Test that a trial's values depend on the trials before it only, and that TPE finds better ones than chance."""

from statistics import median
from typing import Any

import pytest

from indb_tensile.request.search_rules import dimensions
from indb_tensile.trials.samplers import TrialSampler
from indb_tensile.trials.trial_order import Stage, StageResult

SPACE: dict[str, Any] = {
    "hyperparams": {
        "learning_rate": {"range": [1e-5, 1], "log": True},
        "batch_size": {"range": [16, 256], "step": 16},
    },
    "architecture": {"choices": [{"type": "auto"}, {"type": "mlp", "dropout": {"range": [0, 0.5]}}]},
}


def loss(picks: dict[str, Any]) -> float:
    return float(abs(picks["learning_rate"] - 0.01) + abs(picks["batch_size"] - 64) / 100 + picks["architecture"])


def drawn(kind: str, seed: int, trials: int = 20) -> list[dict[str, Any]]:
    sampler = TrialSampler(space=SPACE, kind=kind, seed=seed)
    picked: dict[int, dict[str, Any]] = {}
    results: dict[Stage, StageResult] = {}
    for number in range(1, trials + 1):
        picked[number] = sampler.draw(number, dict(picked), results)
        results[number, 0] = StageResult(score=-loss(picked[number]), complete=number % 2 == 0)
        if number % 7 == 0:
            results[number, 0] = StageResult(score=None, complete=True)
    return [picked[number] for number in sorted(picked)]


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_values_are_within_the_space_and_the_same_each_time(kind: str) -> None:
    trials = drawn(kind, seed=3)
    assert trials == drawn(kind, seed=3)
    assert trials != drawn(kind, seed=4)
    known = {dimension.name: dimension for dimension in dimensions(SPACE)}
    for picks in trials:
        assert ("architecture[1].dropout" in picks) == (picks["architecture"] == 1)
        assert picks["batch_size"] % 16 == 0
        for name, pick in picks.items():
            own = known[name]
            assert pick in range(len(own.choices)) if own.choices is not None else own.low <= pick <= own.high


def test_tpe_learns_from_the_trials_before() -> None:
    best = {kind: median(min(map(loss, drawn(kind, seed, 30))) for seed in range(5)) for kind in ("tpe", "random")}
    assert best["tpe"] < best["random"]


def test_a_running_trial_is_no_obstacle_and_a_grid_takes_its_points_in_order() -> None:
    sampler = TrialSampler(space=SPACE, kind="tpe", seed=0)
    first = sampler.draw(1, {}, {})
    assert sampler.draw(2, {1: first}, {}).keys() >= {"learning_rate", "batch_size"}
    space = {"hyperparams": {"batch_size": {"choices": [16, 32]}, "seed": {"choices": [1, 2]}}}
    points = TrialSampler(space=space, kind="grid", seed=0)
    assert [points.draw(number, {}, {}) for number in (1, 2, 3)] == [
        {"batch_size": 0, "seed": 0},
        {"batch_size": 0, "seed": 1},
        {"batch_size": 1, "seed": 0},
    ]
