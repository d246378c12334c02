"""Each tensor is at its planned address from the first iteration on, under every kind of plan, with eager's bits."""

from typing import Any

import pytest

from tests.device.preloaded import ask

DAILY_KINDS = ("cnn",)
PROCESS = "tests.executor.run.placer_process"


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return ask(PROCESS, *DAILY_KINDS)


def test_every_tensor_is_at_its_planned_address_and_no_bit_changes(answers: dict[str, Any]) -> None:
    require_planned_addresses(answers, DAILY_KINDS)


@pytest.mark.nightly
def test_every_tensor_of_other_models_is_at_its_planned_address_and_no_bit_changes() -> None:
    kinds = ("mlp", "transformer")
    require_planned_addresses(ask(PROCESS, *kinds), kinds)


def require_planned_addresses(answers: dict[str, Any], kinds: tuple[str, ...]) -> None:
    assert {name.split()[0] for name in answers["trained"]} == set(kinds)
    as_planned = {
        "bits": True,
        "planned": True,
        "unplanned": 0,
        "elsewhere than planned": [],
        "more than accounted for": 0,
    }
    assert {name: result for name, result in answers["trained"].items() if result != as_planned} == {
        f"{kind} closed": {"used_bytes": 0} for kind in kinds
    }


def test_tensors_are_in_ordinary_memory_if_the_arena_has_no_room_for_the_block(answers: dict[str, Any]) -> None:
    assert answers["crowded"] == {
        "bits": True,
        "unplaced": True,
        "planned": 0,
        "unplanned": 0,
        "used_bytes": 0,
    }
    assert "tensors are in ordinary memory" in answers["stderr"]


def test_a_plan_is_followed_in_exactly_the_regions_of_its_placement(answers: dict[str, Any]) -> None:
    assert answers["granted"] == {
        "enough": {"planned": True, "refused or unplanned": 0},
        "less": {"planned": False, "refused or unplanned": 0},
    }


def test_operators_without_a_script_are_served_without_a_planned_address(answers: dict[str, Any]) -> None:
    counts = answers["without_scripts"]
    assert counts.pop("unplanned") > 0
    assert counts.pop("planned") > 0, "loading the state's tensors needs no operator"
    assert counts == {"bits": True, "unplaced": False, "used_bytes": 0}
