"""A short soak: trainers killed at random moments beside one that trains on."""

import pytest

from indb_tensile.bench.commands.soak import is_clean, soak


@pytest.mark.nightly
def test_nothing_is_lost_shared_or_changed_where_trainers_are_killed() -> None:
    row = soak(8, at_once=3, survivors=1, seed=1)
    assert is_clean(row), row
    assert row["kills"] == 8
    assert row["kills_while_allocating"] > 0
    assert row["survivor_trainings"] > 0
    assert row["survivor_device_bytes"] > 0, "the training's tensors were not in the device's memory"
