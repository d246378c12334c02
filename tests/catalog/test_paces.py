"""A kind of device keeps the pace that was measured first, for each GPU that it stands for."""

import pytest

from indb_tensile.catalog import paces
from indb_tensile.scheduler.machines import Pace
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def test_the_first_pace_that_was_measured_stays(database: Database) -> None:
    first, second = Pace(here_ns=900, there_ns=3), Pace(here_ns=500, there_ns=3)
    with database.connect("tensile_worker") as connection:
        assert paces.load_pace(connection, "cpu", "a6000") is None
        paces.save_pace(connection, "cpu", "a6000", first)
        paces.save_pace(connection, "cpu", "a6000", second)
        paces.save_pace(connection, "cpu", "h200", second)
        assert paces.load_pace(connection, "cpu", "a6000") == first
        assert paces.load_pace(connection, "cpu", "h200") == second
        assert paces.load_pace(connection, "another", "a6000") is None
