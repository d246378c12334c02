"""An operator that outgrows its planned workspace is measured again, and no bit of the training changes."""

from typing import Any

import pytest

from tests.device.preloaded import ask

OPERATOR = "tensile_tests.growing.default"
AS_PLANNED = {"unplanned": 0, "refused": 0, "planned": 1}


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return ask("tests.executor.run.correction_process")


@pytest.mark.nightly
def test_operator_that_grows_is_measured_again_and_has_planned_addresses_afterwards(
    answers: dict[str, Any],
) -> None:
    assert answers["grows"] == {
        "before": AS_PLANNED,
        "excess before": [],
        "grown": {"unplanned": 16, "refused": 0, "planned": 1},
        "corrected": [[OPERATOR, 64_068, 192_260]],
        "unexplained": 0,
        "after": AS_PLANNED,
        "excess after": [],
        "bits": True,
    }


@pytest.mark.nightly
def test_memory_that_is_refused_beside_a_full_block_counts_until_its_operator_ends(answers: dict[str, Any]) -> None:
    assert answers["grows_without_room"] == {
        "grown": {"unplanned": 0, "refused": 16, "planned": 1},
        "excess": [[OPERATOR, 64_068, 257_536]],
        "corrected": [192_260],
        "bits": True,
    }


def test_excess_that_depends_on_the_data_enlarges_the_workspace_when_it_comes_again(answers: dict[str, Any]) -> None:
    assert answers["depends_on_data"] == {
        "first": 2,
        "corrected first": [],
        "unexplained": 1,
        "second": 2,
        "corrected second": [[OPERATOR, 64_068, 193_536]],
        "after": AS_PLANNED,
        "bits": True,
    }


def test_other_sizes_than_listed_are_placed_in_the_rest_of_the_workspace(answers: dict[str, Any]) -> None:
    assert answers["changes_sizes"] == {"in the workspace's rest": AS_PLANNED, "excess": 0, "bits": True}


def test_other_sizes_in_a_workspace_that_is_large_enough_need_only_other_addresses(answers: dict[str, Any]) -> None:
    assert answers["changes_every_size"] == {
        "first": 4,
        "corrected": [],
        "unexplained": 0,
        "after": AS_PLANNED,
        "bits": True,
    }


def test_workspace_that_is_smaller_than_the_recorded_allocations_is_found(answers: dict[str, Any]) -> None:
    assert answers["outgrown"] == {"none": 0, "found": [[OPERATOR, 0, 64_068]]}
