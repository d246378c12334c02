"""How long a training still takes is said from what its steps and its epochs took so far."""

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
    """A training whose steps and ends of epochs take this long: the time since its start, and where it is then."""
    remaining, at_s = Remaining(work), 0.0
    for epoch in range(work.epochs):
        for step in range(work.steps):
            at_s += step_s[epoch * work.steps + step]
            remaining.stepped(step_s[epoch * work.steps + step])
            yield at_s, remaining, Position(epochs=epoch, steps=step + 1)
        at_s += end_s[epoch]
        remaining.closed(end_s[epoch])
        yield at_s, remaining, Position(epochs=epoch + 1)


def test_nothing_is_said_before_the_first_step() -> None:
    remaining = Remaining(Work(epochs=3, steps=2, valid_batches=1, test_batches=1))
    assert remaining.seconds(Position(epochs=0)) is None


@given(counts, counts, seconds, seconds)
def test_where_every_step_and_every_end_take_the_same_it_is_exact_from_the_first_epoch_on(
    epochs: int, steps: int, step_s: float, end_s: float
) -> None:
    work = Work(epochs=epochs, steps=steps, valid_batches=4, test_batches=0)
    whole_s = epochs * (steps * step_s + end_s)
    for at_s, remaining, position in walk(work, [step_s] * epochs * steps, [end_s] * epochs):
        if position.epochs:
            assert remaining.seconds(position) == pytest.approx(whole_s - at_s, rel=1e-6, abs=1e-6 * whole_s)


@given(counts, counts, seconds)
def test_a_validation_that_was_not_seen_yet_is_foretold_from_the_steps(
    epochs: int, steps: int, step_s: float
) -> None:
    work = Work(epochs=epochs, steps=steps, valid_batches=6, test_batches=2, evaluation_share=0.5)
    _, remaining, position = next(walk(work, [step_s] * epochs * steps, [3 * step_s] * epochs))
    assert remaining.seconds(position) == pytest.approx(step_s * (epochs * steps - 1 + 3 * epochs + 1))


@given(seconds)
def test_a_slow_first_step_is_forgotten_at_the_second(step_s: float) -> None:
    work = Work(epochs=1, steps=10, valid_batches=0, test_batches=0)
    remaining = Remaining(work)
    remaining.stepped(100 * step_s)
    assert remaining.seconds(Position(epochs=0, steps=1)) == pytest.approx(900 * step_s)
    remaining.stepped(step_s)
    assert remaining.seconds(Position(epochs=0, steps=2)) == pytest.approx(8 * step_s)


def test_where_another_job_halves_the_pace_the_rest_is_foretold_at_the_new_pace() -> None:
    work = Work(epochs=1, steps=10_000, valid_batches=0, test_batches=0)
    remaining = Remaining(work)
    for _ in range(2_000):
        remaining.stepped(0.05)
    for _ in range(1_000):
        remaining.stepped(0.1)
    left_s = remaining.seconds(Position(epochs=0, steps=3_000))
    assert left_s == pytest.approx(700, rel=0.05)


@given(counts, counts, st.lists(seconds, min_size=400, max_size=400), st.integers(1, 40))
def test_it_is_never_negative_and_fewer_epochs_never_take_longer(
    epochs: int, steps: int, durations_s: list[float], fewer: int
) -> None:
    work = Work(epochs=epochs, steps=steps, valid_batches=1, test_batches=1)
    for _, remaining, position in walk(work, durations_s, durations_s[:epochs]):
        most_s, least_s = remaining.seconds(position), remaining.seconds(position, epochs=fewer)
        assert most_s is not None
        assert least_s is not None
        assert 0 <= least_s <= most_s


@pytest.mark.parametrize("name", RECORDED)
def test_of_recorded_trainings_the_time_left_was_foretold_within_a_quarter(name: str) -> None:
    """At 25, 50 and 75 % of the time. `publish_s` is from the last end of an epoch to the published version."""
    one = RECORDED[name]
    whole_s = sum(one["step_s"]) + sum(one["end_s"]) + one["publish_s"]
    ratios = []
    shares = [0.25, 0.5, 0.75]
    for at_s, remaining, position in walk(Work(**one["work"]), one["step_s"], one["end_s"]):
        if shares and at_s >= shares[0] * whole_s:
            del shares[0]
            left_s = remaining.seconds(position)
            assert left_s is not None
            ratios.append(left_s / (whole_s - at_s))
    assert 0.8 <= median(ratios) <= 1.25, ratios
