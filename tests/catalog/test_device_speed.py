"""Check that the catalog keeps the first measured pace of a kind of device, for each GPU that it emulates."""

import pytest

from indb_tensile.catalog import device_speed
from indb_tensile.scheduler.timing.machines import StepTimes
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def test_first_measured_pace_of_a_device_is_kept(database: Database) -> None:
    first, second = StepTimes(here_ns=900, there_ns=3), StepTimes(here_ns=500, there_ns=3)
    with database.connect("tensile_worker") as connection:
        assert device_speed.load_pace(connection, "cpu", "a6000") is None
        device_speed.save_pace(connection, "cpu", "a6000", first)
        device_speed.save_pace(connection, "cpu", "a6000", second)
        device_speed.save_pace(connection, "cpu", "h200", second)
        assert device_speed.load_pace(connection, "cpu", "a6000") == first
        assert device_speed.load_pace(connection, "cpu", "h200") == second
        assert device_speed.load_pace(connection, "another", "a6000") is None
