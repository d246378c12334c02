"""A kind of device keeps the pace that was measured first, for each GPU that it stands for."""

import pytest

from indb_tensile.catalog import device_speed
from indb_tensile.scheduler.timing.machines import StepTimes
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def test_the_first_pace_that_was_measured_stays(database: Database) -> None:
    first, second = StepTimes(here_ns=900, there_ns=3), StepTimes(here_ns=500, there_ns=3)
    with database.connect("tensile_worker") as connection:
        assert device_speed.load_pace(connection, "cpu", "a6000") is None
        device_speed.save_pace(connection, "cpu", "a6000", first)
        device_speed.save_pace(connection, "cpu", "a6000", second)
        device_speed.save_pace(connection, "cpu", "h200", second)
        assert device_speed.load_pace(connection, "cpu", "a6000") == first
        assert device_speed.load_pace(connection, "cpu", "h200") == second
        assert device_speed.load_pace(connection, "another", "a6000") is None
