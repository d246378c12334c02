"""The outlook of a live worker of this host is read back, and no role but the worker's reads it."""

from dataclasses import replace

import psycopg
import pytest

from indb_tensile.catalog import outlooks
from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.outlook import Outlook
from indb_tensile.scheduler.completion.contention import of_cores
from indb_tensile.scheduler.completion.demand import JobDemand, TradeOff
from indb_tensile.scheduler.completion.set_forecasts import SharedDevice
from tests.catalog.enqueue import register
from tests.conftest import Database

pytestmark = pytest.mark.postgres

_JOB = JobDemand(
    job=JobId(1),
    owner=1 << 31,
    priority=-3,
    steps=100.5,
    steps_left=7.25,
    trade_offs=(
        TradeOff(peak_bytes=1 << 40, iteration_ns=1000, compute_ns=900),
        TradeOff(peak_bytes=1 << 39, iteration_ns=2000, compute_ns=900, stall_ns=1000, out_ns=5, in_ns=6),
    ),
)
_DEVICE = SharedDevice(budget_bytes=1 << 41, region_bytes=1 << 20, contention=of_cores(4, 2), max_slowdown=3.0)


def test_outlook_is_read_back_while_its_worker_lives(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        worker = register(connection)
        host = connection.execute("select host from tensile.workers").fetchone()
        assert host is not None
        assert outlooks.load_outlook(connection, host[0]) is None
        for outlook in (
            Outlook(device=_DEVICE, running=(), waiting=()),
            Outlook(device=_DEVICE, running=(_JOB,), waiting=(_JOB, _JOB)),
        ):
            outlooks.record_outlook(connection, worker, outlook)
            assert outlooks.load_outlook(connection, host[0]) == outlook
        assert outlooks.load_outlook(connection, "elsewhere") is None
        connection.execute("update tensile.device_outlooks set outlook = outlook #- '{device,contention,processors}'")
        older = outlooks.load_outlook(connection, host[0])
        assert older is not None
        assert older.device.contention == replace(_DEVICE.contention, processors=1), "of a version without them"
        connection.execute("update tensile.device_outlooks set outlook = outlook - 'device'")
        assert outlooks.load_outlook(connection, host[0]) is None
        connection.execute("update tensile.workers set stopped_at = now()")
        assert outlooks.load_outlook(connection, host[0]) is None


@pytest.mark.parametrize("role", ["demo", "monitor", "admin", "tensile_reader"])
def test_no_other_role_reads_outlooks(database: Database, role: str) -> None:
    with database.connect(role) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("select from tensile.device_outlooks")
