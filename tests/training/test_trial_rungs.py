"""Check what a trial of a search is compared by, and when its rungs come."""

import pytest

from indb_tensile.learning.training.earlystop import EarlyStop
from worker.training.trial_rungs import EpochFigures, compared_epochs, finite, published_figures, rung_epochs

VALUES = ((0.5, 3.0), (0.75, 2.0), (0.625, 2.5))  # of the metric and the loss of three epochs


def compared(early_stop: EarlyStop, watched: tuple[float | None, ...]) -> list[float | None]:
    """Return the metric that the trial would be compared by after each epoch."""
    figures, seen = EpochFigures(), []
    for epoch, (value, (metric, loss)) in enumerate(zip(watched, VALUES, strict=True)):
        early_stop = early_stop.observe(epoch, value)
        figures = published_figures(figures, early_stop, epoch, metric=metric, valid_loss=loss)
        assert figures.valid_loss == next(own for known, own in VALUES if known == figures.metric)
        seen.append(figures.metric)
    return seen


def test_a_trial_is_compared_by_the_weights_that_would_be_published() -> None:
    assert compared(EarlyStop(patience=5), (3.0, 2.0, 2.5)) == [0.5, 0.75, 0.75]
    assert compared(EarlyStop(patience=None), (3.0, 2.0, 2.5)) == [0.5, 0.75, 0.625]


def test_a_trial_whose_metric_of_early_stopping_is_not_defined_is_compared_by_its_last_epoch() -> None:
    assert compared(EarlyStop(patience=5, metric="roc_auc"), (None, None, None)) == [0.5, 0.75, 0.625]
    assert compared(EarlyStop(patience=5, metric="roc_auc"), (None, 0.5, None)) == [0.5, 0.75, 0.75]


@pytest.mark.parametrize(("epochs", "ends"), [(9, {0: 1, 1: 3}), (2, {0: 1, 1: 1}), (1, {}), (90, {0: 10, 1: 30})])
def test_rungs_are_at_shares_of_the_epochs_before_the_last(epochs: int, ends: dict[int, int]) -> None:
    assert rung_epochs((1 / 9, 1 / 3, 1.0), epochs) == ends


@pytest.mark.parametrize(
    ("epochs", "patience", "compared"), [(120, None, 120), (120, 24, 48), (9, 5, 9), (10, 5, 10), (500, 1, 2)]
)
def test_rungs_of_a_training_that_may_stop_early_are_shares_of_twice_its_patience(
    epochs: int, patience: int | None, compared: int
) -> None:
    assert compared_epochs(epochs, patience) == compared


def test_a_result_that_is_not_finite_is_not_stored() -> None:
    assert [finite(value) for value in (1.5, float("nan"), float("inf"), None)] == [1.5, None, None, None]
