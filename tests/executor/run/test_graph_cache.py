"""Iterations that are recorded and launched as one change no bit, and whatever cannot be recorded runs without."""

from typing import Any

import pytest

from tests.device.preloaded import ask


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return ask("tests.executor.run.repeats_process")


def test_recorded_iterations_give_eagers_bits_under_every_sort_of_plan_and_any_learning_rate(
    seen: dict[str, Any],
) -> None:
    recorded = {"bits": True, "launched": True, "recorded": 3, "peak": 0}  # once for each of the three steps
    plans = ("liveness", "vanilla", "swaps", "orders", "carried", "orders carried")
    assert seen["trained"] == {f"{kind} {plan}": recorded for kind in ("mlp", "cnn") for plan in plans}


def test_an_iteration_that_is_timed_runs_operator_by_operator(seen: dict[str, Any]) -> None:
    assert seen["sampled"] == {"launched": 6, "samples": 4, "iteration_ns": 2_500_000, "peak": True}


def test_a_state_that_is_loaded_goes_on_by_the_graph_after_its_very_first_iteration(seen: dict[str, Any]) -> None:
    assert seen["started_again"] == {"same": True, "launched": 4 + 5, "closed": [True]}


def test_where_recording_breaks_off_training_goes_on_as_if_it_had_not_been_tried(seen: dict[str, Any]) -> None:
    places = ("copy in 3", "copy out 1", "move 6", "end 0")
    broken_off = {"bits": True, "launched": 0, "recorded": 1, "used_bytes": 0}
    assert seen["failing"] == dict.fromkeys(places, broken_off)


def test_plans_that_cannot_be_recorded_are_followed_and_the_log_says_once_why(seen: dict[str, Any]) -> None:
    whole, rest = "training step for 8 rows", ("evaluation step for 8 rows", "training step for 3 rows")
    said = {
        "nowhere": ((whole, *rest), "its tensors are not at planned addresses"),
        "no scripts": ((whole,), "its memory is not at planned addresses"),  # the others come too rarely to tell
    }
    assert seen["refused"] == {
        name: {
            "bits": True,
            "recorded": 0,
            "said": [f"the {step} runs operator by operator, not as a CUDA graph: {reason}" for step in steps],
        }
        for name, (steps, reason) in said.items()
    }


def test_a_graph_that_joins_copies_and_is_slower_for_it_is_given_up(seen: dict[str, Any]) -> None:
    reason = "waiting for copies into the next iteration makes it slower: 2.5 ms instead of 0"
    assert seen["slower"] == {
        "bits": True,
        "launched": 5,
        "said": [
            "the training step for 8 rows runs as a CUDA graph of 21 operators",
            f"the training step for 8 rows runs operator by operator, not as a CUDA graph: {reason}",
        ],
    }


def test_what_broke_the_device_while_it_was_recorded_ends_the_attempt(seen: dict[str, Any]) -> None:
    assert seen["lost"].endswith("or one before it: an illegal address")
