"""Draws the values of the next trial from the results of the trials before it.

Optuna's samplers draw them: TPE (Bergstra et al., Algorithms for Hyper-Parameter Optimization, 2011), or uniformly at
random. A grid takes its points in order. Each trial has a seed of its own and a study that is built anew from the
results, so its values depend on nothing else.
"""

import zlib
from collections.abc import Mapping
from itertools import islice
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState, create_trial

from indb_tensile.request.search_rules import Dimension, dimensions, grid, resolve
from indb_tensile.trials.trial_order import Stage, StageResult, TrialNumber

optuna.logging.set_verbosity(optuna.logging.ERROR)

_MOST_STUDIED = 300  # most trials before this one from which TPE learns: the time of a draw grows with them
Picks = dict[str, Any]  # by the name of a dimension: the place of a choice, or a number of a range


class TrialSampler:
    """Draws trials from a space (request/search_rules.py). `kind` is "tpe", "random" or "grid"."""

    def __init__(self, *, space: Mapping[str, Any], kind: str, seed: int) -> None:
        self._space = dict(space)
        self._kind = kind
        self._seed = seed
        self._grid = grid(self._space)
        self._points: list[Picks] = []  # of the grid, as far as trials were drawn: each point takes time to compute

    def draw(
        self, number: TrialNumber, picked: Mapping[TrialNumber, Picks], results: Mapping[Stage, StageResult]
    ) -> Picks:
        """Return the picks of a trial. `picked` has those of earlier trials, and `results` what they have reached."""
        if self._kind == "grid":
            self._points.extend(islice(self._grid, max(number - len(self._points), 0)))
            return self._points[number - 1]
        study = optuna.create_study(direction="maximize", sampler=self._sampler(number))
        known, reached = self._distributions(), _by_trial(results)
        for trial, picks in sorted(picked.items())[-_MOST_STUDIED:]:
            study.add_trial(_frozen(picks, known, reached.get(trial, {})))
        asked = study.ask()
        picks = {}

        def pick(dimension: Dimension) -> Any:
            picks[dimension.name] = _suggest(asked, dimension)
            return picks[dimension.name]

        resolve(self._space, pick)
        return picks

    def _sampler(self, number: TrialNumber) -> optuna.samplers.BaseSampler:
        seed = zlib.crc32(f"{self._seed} {number}".encode())
        if self._kind == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    def _distributions(self) -> dict[str, BaseDistribution]:
        return {dimension.name: _distribution(dimension) for dimension in dimensions(self._space)}


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices is not None:
        return CategoricalDistribution(range(len(dimension.choices)))
    if dimension.integer:
        low, high, step = int(dimension.low), int(dimension.high), int(dimension.step or 1)
        return IntDistribution(low, high, log=dimension.log, step=step)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step)


def _suggest(trial: optuna.Trial, dimension: Dimension) -> Any:
    distribution = _distribution(dimension)
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(dimension.name, distribution.choices)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(
            dimension.name, distribution.low, distribution.high, log=distribution.log, step=distribution.step
        )
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(
        dimension.name, distribution.low, distribution.high, log=distribution.log, step=distribution.step
    )


def _by_trial(results: Mapping[Stage, StageResult]) -> dict[TrialNumber, dict[int, StageResult]]:
    """Return the results of each trial by rung, in the order of the rungs."""
    reached: dict[TrialNumber, dict[int, StageResult]] = {}
    for trial, rung in sorted(results):
        reached.setdefault(trial, {})[rung] = results[trial, rung]
    return reached


def _frozen(picks: Picks, known: Mapping[str, BaseDistribution], own: Mapping[int, StageResult]) -> FrozenTrial:
    """Return a trial with its results by rung as Optuna records it.

    A trial that waits at a rung counts as one that was stopped there.
    """
    last = own[max(own)] if own else None
    scores = {rung: result.score for rung, result in own.items() if result.score is not None}
    if last is None:
        state = TrialState.RUNNING
    elif last.score is None:
        state = TrialState.FAIL
    else:
        state = TrialState.COMPLETE if last.complete else TrialState.PRUNED
    return create_trial(
        state=state,
        params=picks,
        distributions={name: known[name] for name in picks},
        intermediate_values=scores,
        value=last.score if last is not None and state is TrialState.COMPLETE else None,
    )
