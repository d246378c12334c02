"""Recorded iterations change no bit. An iteration that cannot be recorded runs operator by operator."""

from typing import Any

import pytest

from tests.device.preloaded import ask

PROCESS = "tests.executor.run.graph_cache_process"
DAILY_KIND, NIGHTLY_KIND = "mlp", "cnn"


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return ask(PROCESS, DAILY_KIND)


def test_recorded_iterations_give_eagers_bits_under_every_kind_of_plan_and_learning_rate(
    answers: dict[str, Any],
) -> None:
    require_equal_bits(answers, DAILY_KIND)


@pytest.mark.nightly
def test_recorded_iterations_of_convolutions_give_eagers_bits_too() -> None:
    require_equal_bits(ask(PROCESS, NIGHTLY_KIND), NIGHTLY_KIND)


def require_equal_bits(answers: dict[str, Any], kind: str) -> None:
    recorded = {"bits": True, "launched": True, "recorded": 3, "peak": 0}  # once for each of the three steps
    plans = ("liveness", "vanilla", "swaps", "orders", "carried", "orders carried")
    assert answers["trained"] == {f"{kind} {plan}": recorded for plan in plans}


def test_a_timed_iteration_runs_operator_by_operator(answers: dict[str, Any]) -> None:
    assert answers["sampled"] == {"launched": 6, "samples": 4, "iteration_ns": 2_500_000, "peak": True}


def test_a_loaded_state_continues_with_the_same_graph(answers: dict[str, Any]) -> None:
    assert answers["started_again"] == {"same": True, "launched": 4 + 5, "closed": [True]}


def test_training_continues_unchanged_after_a_failed_recording(answers: dict[str, Any]) -> None:
    places = ("copy in 3", "copy out 1", "move 6", "end 0")
    broken_off = {"bits": True, "launched": 0, "recorded": 1, "used_bytes": 0}
    assert answers["failing"] == dict.fromkeys(places, broken_off)


def test_plans_that_cannot_be_recorded_are_followed_and_the_reason_is_logged_once(answers: dict[str, Any]) -> None:
    full, rest = "training step for 8 rows", ("evaluation step for 8 rows", "training step for 3 rows")
    reasons = {
        "nowhere": ((full, *rest), "its tensors are not at planned addresses"),
        # The other steps run too rarely to log a reason.
        "no scripts": ((full,), "its memory is not at planned addresses"),
    }
    assert answers["refused"] == {
        name: {
            "bits": True,
            "recorded": 0,
            "log lines": [f"the {step} runs operator by operator, not as a CUDA graph: {reason}" for step in steps],
        }
        for name, (steps, reason) in reasons.items()
    }


def test_a_graph_that_is_slower_because_it_waits_for_copies_is_discarded(answers: dict[str, Any]) -> None:
    reason = "waiting for copies into the next iteration makes it slower: 2.5 ms instead of 0"
    assert answers["slower"] == {
        "bits": True,
        "launched": 5,
        "log lines": [
            "the training step for 8 rows runs as a CUDA graph of 20 operators",
            f"the training step for 8 rows runs operator by operator, not as a CUDA graph: {reason}",
        ],
    }


def test_a_device_fault_during_a_recording_ends_the_attempt(answers: dict[str, Any]) -> None:
    assert answers["lost"].endswith("or one before it: an illegal address")
