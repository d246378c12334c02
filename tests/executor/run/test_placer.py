"""Under every sort of plan each tensor lies at its planned address from the first iteration on; bits are eager's."""

from typing import Any

import pytest

from tests.device.preloaded import ask


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return ask("tests.executor.run.placer_process")


def test_everything_lies_where_it_was_planned_and_changes_no_bit(seen: dict[str, Any]) -> None:
    kinds = {name.split()[0] for name in seen["trained"]}
    assert kinds == {"mlp", "cnn", "transformer", "lstm"}
    as_planned = {
        "bits": True,
        "planned": True,
        "unplanned": 0,
        "elsewhere than planned": [],
        "more than accounted for": 0,
    }
    assert {name: found for name, found in seen["trained"].items() if found != as_planned} == {
        f"{kind} closed": {"used_bytes": 0} for kind in kinds
    }


def test_where_the_block_finds_no_room_tensors_are_in_ordinary_memory(seen: dict[str, Any]) -> None:
    assert seen["crowded"] == {"bits": True, "planned": 0, "unplanned": 0, "used_bytes": 0}
    assert "tensors are in ordinary memory" in seen["stderr"]


def test_a_plan_is_followed_within_the_regions_that_its_placement_takes(seen: dict[str, Any]) -> None:
    assert seen["granted"] == {
        "enough": {"planned": True, "refused or unplanned": 0},
        "less": {"planned": False, "refused or unplanned": 0},
    }


def test_operators_without_a_script_are_served_without_a_planned_address(seen: dict[str, Any]) -> None:
    found = seen["without_scripts"]
    assert found.pop("unplanned") > 0
    assert found.pop("planned") > 0, "the state's tensors are brought in without an operator"
    assert found == {"bits": True, "used_bytes": 0}
