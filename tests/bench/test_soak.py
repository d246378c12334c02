"""A short soak test: trainers are killed at random moments while another trainer continues."""

import pytest

from indb_tensile.bench.commands.soak import is_clean, soak


@pytest.mark.nightly
def test_killed_trainers_neither_lose_nor_share_memory_nor_change_a_survivors_results() -> None:
    row = soak(8, at_once=3, survivors=1, seed=1)
    assert is_clean(row), row
    assert row["kills"] == 8
    assert row["kills_while_allocating"] > 0
    assert row["survivor_trainings"] > 0
    assert row["survivor_device_bytes"] > 0, "the training's tensors were not in the device's memory"
