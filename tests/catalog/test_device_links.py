"""Check that a controller's measurements of its link replace older ones, and that a view shows them."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from indb_tensile.catalog.device_links import save_links
from indb_tensile.scheduler.link import CopyDirection, CopyMeasurement, Link
from tests.conftest import Database
from tests.controller.waiting import until

pytestmark = pytest.mark.postgres

WAITING = "select from pg_locks where not granted and pid = %s"
MEASURED = tuple(
    CopyMeasurement(way=way, beside=beside, size_bytes=1_000, latency_ns=9_000, copy_ns=4_000 if beside else 2_000)
    for way in CopyDirection
    for beside in (False, True)
)


def test_view_shows_the_last_measurement_and_the_configured_rate(database: Database) -> None:
    link = Link(out_bytes_per_s=600_000_000, in_bytes_per_s=500_000_000)
    with database.connect("tensile_worker") as connection, database.connect("alice") as alice:
        save_links(connection, "here", "cpu", MEASURED, link)
        save_links(connection, "here", "cpu", MEASURED[:2], link)
        save_links(connection, "there", "cpu", MEASURED[2:], None)
        rows = alice.execute(
            """select host, way, beside, size_bytes, latency_us, copy_us, mb_per_s, emulated_mb_per_s,
                      measured_at > now() - interval '1 minute'
                 from tensile.stat_link order by host, way, beside"""
        ).fetchall()
    assert rows == [
        ("here", "out", False, 1000, 9, 2, 500, 600, True),
        ("here", "out", True, 1000, 9, 4, 250, 600, True),
        ("there", "in", False, 1000, 9, 2, 500, None, True),
        ("there", "in", True, 1000, 9, 4, 250, None, True),
    ]


def test_two_controllers_of_a_machine_that_start_together_both_store_their_measurements(database: Database) -> None:
    with (
        database.connect("tensile_worker") as first,
        database.connect("tensile_worker") as second,
        ThreadPoolExecutor(1) as thread,
    ):
        with first.transaction():
            save_links(first, "here", "cpu", MEASURED[:2], None)
            stored = thread.submit(save_links, second, "here", "cpu", MEASURED, None)
            until(lambda: first.execute(WAITING, (second.info.backend_pid,)).rowcount)
        stored.result(timeout=60)
        rows = second.execute("select way, beside from tensile.device_links order by way, beside").fetchall()
    assert rows == [("out", False), ("out", True), ("in", False), ("in", True)]
