"""A short soak test: trainers are killed at random moments while another trainer continues."""

import pytest

from indb_tensile.bench.commands.soak import is_clean, soak
from indb_tensile.bench.harness.soak.soak_rounds import is_clean_of_rounds, soak_rounds


@pytest.mark.nightly
def test_killed_trainers_neither_lose_nor_share_memory_nor_change_a_survivors_results() -> None:
    row = soak(8, at_once=3, survivors=1, seed=1)
    assert is_clean(row), row
    assert row["kills"] == 8
    assert row["kills_while_allocating"] > 0
    assert row["survivor_trainings"] > 0
    assert row["survivor_device_bytes"] > 0, "the training's tensors were not in the device's memory"


@pytest.mark.nightly
def test_members_of_rounds_go_on_when_others_are_killed_park_or_leave() -> None:
    row = soak_rounds(3, seed=1)
    assert is_clean_of_rounds(row), row
    assert row["rounds"] == 3
    assert row["kills"] + row["parked"] + row["left_early"] >= 3


@pytest.mark.nightly
def test_members_of_many_rounds_go_on_when_others_are_killed_park_or_leave() -> None:
    row = soak_rounds(60, seed=2)
    assert is_clean_of_rounds(row), row
    assert row["kills_inside_an_iteration"] > 0
