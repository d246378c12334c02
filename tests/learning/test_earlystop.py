"""Early stopping ends training before the last epoch if the metric no longer improves."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.networks import training_length
from indb_tensile.learning.training.earlystop import EarlyStop


def run(state: EarlyStop, *values: float | None) -> EarlyStop:
    for epoch, value in enumerate(values):
        state = state.observe(epoch, value)
    return state


def test_training_stops_once_the_patience_is_used_up() -> None:
    start = EarlyStop.parse({"patience": 2}, Task.CLASSIFICATION, 50)
    assert not run(start, 1.0, 0.5, 0.6).stopped
    ended = run(start, 1.0, 0.5, 0.6, 0.5)
    assert ended.stopped
    assert (ended.best, ended.best_epoch) == (0.5, 1)


def test_a_gain_below_the_threshold_is_no_improvement() -> None:
    start = EarlyStop.parse({"patience": 2, "min_delta": 0.1}, Task.CLASSIFICATION, 50)
    assert run(start, 1.0, 0.95, 0.91).stopped
    assert not run(start, 1.0, 0.95, 0.8).stopped


def test_the_direction_of_improvement_is_the_metrics() -> None:
    start = EarlyStop.parse({"patience": 1, "metric": "r2"}, Task.REGRESSION, 50)
    assert run(start, -0.5, 0.1).best_epoch == 1
    assert run(start, 0.1, -0.5).stopped


def test_a_value_that_is_not_finite_is_no_improvement() -> None:
    start = EarlyStop.parse({"patience": 1}, Task.REGRESSION, 50)
    assert run(start, float("nan")).stopped
    assert run(start, 1.0, float("-inf")).best == 1.0


def test_an_undefined_metric_never_stops_training() -> None:
    state = run(EarlyStop.parse({"patience": 1, "metric": "roc_auc"}, Task.CLASSIFICATION, 50), *[None] * 100)
    assert (state.stopped, state.best, state.best_epoch) == (False, None, -1)
    assert run(state, 0.5, None, None, 0.4).stopped


def test_without_a_request_the_best_value_is_recorded_and_training_never_stops() -> None:
    state = run(EarlyStop.parse(None, Task.REGRESSION, 50), 1.0, *[2.0] * 1000)
    assert (state.stopped, state.best, state.best_epoch) == (False, 1.0, 0)


def test_early_stopping_can_be_switched_off_and_its_patience_depends_on_the_epochs() -> None:
    assert EarlyStop.parse({"on": False}, Task.REGRESSION, 50).patience is None
    for epochs in (10, 1000):
        assert EarlyStop.parse({}, Task.REGRESSION, epochs).patience == training_length.patience(epochs)
        assert EarlyStop.parse({"patience": 3}, Task.REGRESSION, epochs).patience == 3


@pytest.mark.parametrize("options", [None, {}, {"on": False}, {"patience": 3, "min_delta": 0.5, "metric": "rmse"}])
def test_stored_options_give_the_same_settings_for_other_epochs(options: dict[str, Any] | None) -> None:
    state = EarlyStop.parse(options, Task.REGRESSION, 50)
    assert EarlyStop.parse(json.loads(json.dumps(state.to_request())), Task.REGRESSION, 10_000) == state


def test_early_stopping_resumes_from_a_checkpoint() -> None:
    state = run(EarlyStop.parse({"patience": 3}, Task.REGRESSION, 50), 1.0, 2.0)
    again = EarlyStop.from_json(json.loads(json.dumps(state.to_json())))
    assert again == state
    assert again.observe(2, 2.0).observe(3, 2.0).stopped


def test_wrong_options_are_refused() -> None:
    for options, fault in (
        ({"patience": 0}, '"patience" is 0'),
        ({"wait": 3}, 'unknown parameter "wait"'),
        ({"metric": "r2"}, 'unknown metric "r2"'),
        ({"on": "no"}, '"on" is "no"'),
        ({"on": False, "patience": 3}, '"patience" means nothing with "on" false'),
    ):
        with pytest.raises(RequestError, match=fault):
            EarlyStop.parse(options, Task.CLASSIFICATION, 50)


@given(st.lists(st.floats(0, 10), max_size=30), st.integers(1, 8))
def test_the_earliest_end_is_the_epoch_of_the_stop_if_no_later_value_improves(
    values: list[float], patience: int
) -> None:
    state, epochs = EarlyStop(patience=patience), 0
    for value in values:
        if state.stopped:
            break
        state, epochs = state.observe(epochs, value), epochs + 1
    earliest_end = state.earliest_end(epochs)
    while not state.stopped:
        state, epochs = state.observe(epochs, 11.0), epochs + 1
    assert earliest_end == epochs


def test_without_patience_there_is_no_earliest_end() -> None:
    assert EarlyStop(patience=None).earliest_end(3) is None
