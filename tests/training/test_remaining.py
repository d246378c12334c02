"""The remaining time of a training is predicted from the durations of its steps and epochs so far."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.training.remaining import Position, Remaining, Work

RECORDED = json.loads(Path(__file__).with_name("recorded_progress.json").read_text())
seconds = st.floats(1e-4, 1e3)
counts = st.integers(1, 20)


def walk(work: Work, step_s: list[float], end_s: list[float]) -> Iterator[tuple[float, Remaining, Position]]:
    """Yield the time since the start, the prediction and the position after each step and epoch of a training."""
    remaining, at_s = Remaining(work), 0.0
    for epoch in range(work.epochs):
        for step in range(work.steps):
            at_s += step_s[epoch * work.steps + step]
            remaining.stepped(step_s[epoch * work.steps + step])
            yield at_s, remaining, Position(epochs=epoch, steps=step + 1)
        at_s += end_s[epoch]
        remaining.closed(end_s[epoch])
        yield at_s, remaining, Position(epochs=epoch + 1)


def test_without_a_step_there_is_no_prediction() -> None:
    remaining = Remaining(Work(epochs=3, steps=2, valid_batches=1, test_batches=1))
    assert remaining.seconds(Position(epochs=0)) is None


@given(counts, counts, seconds, seconds)
def test_with_equal_steps_and_epochs_the_prediction_is_exact_after_the_first_epoch(
    epochs: int, steps: int, step_s: float, end_s: float
) -> None:
    work = Work(epochs=epochs, steps=steps, valid_batches=4, test_batches=0)
    whole_s = epochs * (steps * step_s + end_s)
    for at_s, remaining, position in walk(work, [step_s] * epochs * steps, [end_s] * epochs):
        if position.epochs:
            assert remaining.seconds(position) == pytest.approx(whole_s - at_s, rel=1e-6, abs=1e-6 * whole_s)


@given(counts, counts, seconds)
def test_a_validation_not_yet_measured_is_predicted_from_the_steps(epochs: int, steps: int, step_s: float) -> None:
    work = Work(epochs=epochs, steps=steps, valid_batches=6, test_batches=2, evaluation_share=0.5)
    _, remaining, position = next(walk(work, [step_s] * epochs * steps, [3 * step_s] * epochs))
    assert remaining.seconds(position) == pytest.approx(step_s * (epochs * steps - 1 + 3 * epochs + 1))


@given(seconds)
def test_a_slow_first_step_is_ignored_from_the_second_step_on(step_s: float) -> None:
    work = Work(epochs=1, steps=10, valid_batches=0, test_batches=0)
    remaining = Remaining(work)
    remaining.stepped(100 * step_s)
    assert remaining.seconds(Position(epochs=0, steps=1)) == pytest.approx(900 * step_s)
    remaining.stepped(step_s)
    assert remaining.seconds(Position(epochs=0, steps=2)) == pytest.approx(8 * step_s)


def test_after_another_job_halves_the_pace_the_prediction_follows_the_new_pace() -> None:
    work = Work(epochs=1, steps=10_000, valid_batches=0, test_batches=0)
    remaining = Remaining(work)
    for _ in range(2_000):
        remaining.stepped(0.05)
    for _ in range(1_000):
        remaining.stepped(0.1)
    left_s = remaining.seconds(Position(epochs=0, steps=3_000))
    assert left_s == pytest.approx(700, rel=0.05)


@given(counts, counts, st.lists(seconds, min_size=400, max_size=400), st.integers(1, 40))
def test_the_prediction_is_never_negative_and_fewer_epochs_never_take_longer(
    epochs: int, steps: int, durations_s: list[float], fewer: int
) -> None:
    work = Work(epochs=epochs, steps=steps, valid_batches=1, test_batches=1)
    for _, remaining, position in walk(work, durations_s, durations_s[:epochs]):
        most_s, least_s = remaining.seconds(position), remaining.seconds(position, epochs=fewer)
        assert most_s is not None
        assert least_s is not None
        assert 0 <= least_s <= most_s


@pytest.mark.parametrize("name", RECORDED)
def test_the_remaining_time_of_recorded_trainings_is_predicted_within_a_quarter(name: str) -> None:
    """Predict at 25, 50 and 75 % of the time.

    `publish_s` lasts from the last epoch's end to the published version.
    """
    recorded = RECORDED[name]
    whole_s = sum(recorded["step_s"]) + sum(recorded["end_s"]) + recorded["publish_s"]
    ratios = []
    shares = [0.25, 0.5, 0.75]
    for at_s, remaining, position in walk(Work(**recorded["work"]), recorded["step_s"], recorded["end_s"]):
        if shares and at_s >= shares[0] * whole_s:
            del shares[0]
            left_s = remaining.seconds(position)
            assert left_s is not None
            ratios.append(left_s / (whole_s - at_s))
    assert 0.8 <= median(ratios) <= 1.25, ratios
