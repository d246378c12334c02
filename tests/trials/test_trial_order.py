"""Test which trials of a search are trained, and that time, machines and restarts decide nothing."""

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indb_tensile.trials.trial_order import Decided, Stage, StageResult, TrialRules, replay

SHARES = (1 / 9, 1 / 3, 1.0)


def rules(prune: str = "asha", trials: int = 9, parallel: int = 3, factor: int = 3) -> TrialRules:
    shares = (1.0,) if prune == "none" else SHARES
    return TrialRules(trials=trials, parallel=parallel, prune=prune, factor=factor, shares=shares)


def outcome_of(
    own: TrialRules, seed: int, *, faults: float = 0.0, stops: float = 0.0
) -> Callable[[Stage], StageResult]:
    """Return results that depend on the stage only: better numbers are better, with some noise."""

    def outcome(stage: Stage) -> StageResult:
        number, rung = stage
        chance = random.Random(seed * 100_000 + number * 100 + rung)
        if chance.random() < faults:
            return StageResult(score=None, complete=True)
        complete = rung == own.top or chance.random() < stops
        return StageResult(score=round(number + 3 * chance.random()), tie_break=chance.random(), complete=complete)

    return outcome


def search(own: TrialRules, outcome: Callable[[Stage], StageResult], seed: int) -> tuple[Decided, int]:
    """Train stages in an order that the seed decides. Returns the end of the search, and the most stages at once."""
    order = random.Random(seed)
    known: dict[Stage, StageResult] = {}
    most = 0
    while not (decided := replay(own, known.get)).over:
        active = [stage for stage in decided.stages if stage not in known]
        most = max(most, len(active))
        ended = order.choice(active)
        known[ended] = outcome(ended)
    return decided, most


@given(
    prune=st.sampled_from(["asha", "halving", "none"]),
    trials=st.integers(1, 20),
    parallel=st.integers(1, 6),
    factor=st.integers(2, 4),
    seed=st.integers(0, 50),
    faults=st.sampled_from([0.0, 0.3]),
    stops=st.sampled_from([0.0, 0.3]),
)
@example(
    prune="asha", trials=1, parallel=1, factor=2, seed=20, faults=0.3, stops=0.0
)  # it fails after the first rung
def test_the_order_in_which_stages_end_decides_nothing(
    prune: str, trials: int, parallel: int, factor: int, seed: int, faults: float, stops: float
) -> None:
    own = rules(prune, trials, parallel, factor)
    outcome = outcome_of(own, seed, faults=faults, stops=stops)
    decided, most = search(own, outcome, 1)
    assert most <= parallel
    assert search(own, outcome, 2)[0] == decided

    results = {stage: outcome(stage) for stage in decided.stages}
    assert len(results) == len(decided.stages)
    assert {number for number, rung in results if rung == 0} == set(range(1, trials + 1))
    for number, rung in results:
        if rung:
            before = results[number, rung - 1]
            assert before.score is not None
            assert not before.complete
    ended = {number: own.rank for (number, _), own in results.items() if own.complete and own.score is not None}
    assert (decided.best is None) == (not ended)
    if decided.best is None:  # only if every trial is lost, some after stages that had a score
        last = {number: results[number, rung] for number, rung in sorted(results)}
        assert all(result.score is None for result in last.values())
    else:
        assert ended[decided.best] == max(ended.values())


@given(
    prune=st.sampled_from(["asha", "halving"]),
    trials=st.integers(1, 20),
    parallel=st.integers(1, 6),
    factor=st.integers(2, 4),
    seed=st.integers(0, 50),
    faults=st.sampled_from([0.0, 0.3]),
    stops=st.sampled_from([0.0, 0.3]),
)
def test_a_trial_that_is_lost_never_trains_further(
    prune: str, trials: int, parallel: int, factor: int, seed: int, faults: float, stops: float
) -> None:
    own = rules(prune, trials, parallel, factor)
    outcome = outcome_of(own, seed, faults=faults, stops=stops)
    known: dict[Stage, StageResult] = {}
    lost: dict[int, int] = {}  # the rung at which each was lost
    while not (decided := replay(own, known.get)).over:
        for number in decided.lost:
            lost.setdefault(number, max(rung for other, rung in decided.stages if other == number))
        ended = next(stage for stage in decided.stages if stage not in known)
        known[ended] = outcome(ended)
    assert {number: max(rung for other, rung in decided.stages if other == number) for number in lost} == lost
    assert set(lost) <= set(decided.lost)
    assert decided.best not in decided.lost


def test_a_trial_is_lost_once_a_better_one_is_trained_to_its_end_and_too_many_are_before_it() -> None:
    own = rules(trials=6, parallel=1)
    scores = (9, 1, 2, 8, 7)
    known = {(number, 0): StageResult(score=float(score)) for number, score in enumerate(scores, 1)}
    assert replay(own, known.get).lost == (), "no trial is trained to its end yet"
    known |= {(1, 1): StageResult(score=9.0, complete=True)}
    # At most two of six go on from the first rung: trial 1, and trial 4 or the last one.
    assert replay(own, known.get).lost == (2, 3, 5)


def test_asha_lets_a_trial_go_on_as_soon_as_it_is_among_the_best_third() -> None:
    own = rules(parallel=1)
    scores = (1, 2, 9, 3, 4, 8, 5, 6, 7)

    def outcome(stage: Stage) -> StageResult:
        return StageResult(score=scores[stage[0] - 1], complete=stage[1] == own.top)

    decided, _ = search(own, outcome, 0)
    # Trial 3 is the best of three, trial 6 is among the best two of six, and trial 9 among the best three of nine.
    assert decided.stages == (
        *((number, 0) for number in (1, 2, 3)),
        (3, 1),
        *((number, 0) for number in (4, 5, 6)),
        (6, 1),
        *((number, 0) for number in (7, 8, 9)),
        (9, 1),
        (3, 2),
    )
    assert decided.best == 3


def test_halving_compares_all_trials_before_any_goes_on() -> None:
    own = rules("halving", parallel=2)
    outcome = outcome_of(own, 0)
    stages = search(own, outcome, 0)[0].stages
    assert [rung for _, rung in stages] == [0] * 9 + [1] * 3 + [2]


@pytest.mark.parametrize("prune", ["asha", "halving"])
def test_a_search_of_few_trials_still_trains_one_to_its_end(prune: str) -> None:
    own = rules(prune, trials=2)
    decided, _ = search(own, outcome_of(own, 3), 0)
    assert [rung for _, rung in decided.stages] == [0, 0, 1, 2]


def test_a_trial_that_stops_early_counts_at_the_later_rungs_and_takes_a_place_there() -> None:
    own = rules(parallel=1, trials=3)

    def outcome(stage: Stage) -> StageResult:
        return StageResult(score=float(-stage[0]), complete=stage[0] == 1)

    decided, _ = search(own, outcome, 0)
    assert decided == Decided(stages=((1, 0), (2, 0), (3, 0)), over=True, best=1, lost=(2, 3))


def test_once_the_time_is_over_only_one_trial_goes_on_if_none_is_trained_to_its_end() -> None:
    own = rules(trials=9, parallel=2)
    known = {(number, 0): StageResult(score=float(number)) for number in (1, 2)}
    begun = set(known)
    closing = replay(own, known.get, may_begin=begun.__contains__)
    assert closing == Decided(stages=((1, 0), (2, 0), (2, 1)), over=False, best=None)
    known |= {(2, 1): StageResult(score=2.0, complete=True)}
    assert replay(own, known.get, may_begin=begun.__contains__) == Decided(
        stages=((1, 0), (2, 0), (2, 1)), over=True, best=2
    )


def test_a_trial_begins_once_and_sees_only_results_that_came_before_it() -> None:
    own = rules("none", trials=4, parallel=2)
    seen: list[tuple[int, set[Stage]]] = []
    known = {(number, 0): StageResult(score=1.0, complete=True) for number in (1, 2, 3, 4)}
    replay(own, known.get, lambda number, results: seen.append((number, set(results))))
    assert seen == [(1, set()), (2, set()), (3, {(1, 0)}), (4, {(1, 0), (2, 0)})]
