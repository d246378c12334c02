"""Check that the catalog keeps what jobs take besides their iterations, for the kinds that were measured last."""

import pytest

from indb_tensile.catalog import device_overheads
from indb_tensile.scheduler.admission.overheads import MOST_KINDS, KindOverheads, Overheads
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def _kind(name: str, ns: float | None) -> KindOverheads:
    return KindOverheads(kind=name, state_bytes=5, startup_ns=ns, closing_ns=2.0, trained_share=0.25)


def test_the_latest_overheads_of_each_kind_of_device_and_job_are_kept(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        assert device_overheads.load_overheads(connection, "cpu") == Overheads()
        device_overheads.save_overheads(connection, "cpu", (_kind("a", 1.5), _kind("b", None)))
        device_overheads.save_overheads(connection, "cuda:A", (_kind("a", 9.0),))
        device_overheads.save_overheads(connection, "cpu", (_kind("a", 3.5),))
        known = device_overheads.load_overheads(connection, "cpu")
        assert known.kinds == (_kind("b", None), _kind("a", 3.5)), "the latest last"


def test_no_more_kinds_are_kept_than_a_controller_remembers(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        device_overheads.save_overheads(connection, "cpu", (_kind("old", 1.0), _kind("older", 1.0)))
        device_overheads.save_overheads(connection, "cuda:A", (_kind("other", 1.0),))
        newer = tuple(_kind(f"kind {number:02d}", float(number)) for number in range(MOST_KINDS - 1))
        device_overheads.save_overheads(connection, "cpu", newer)
        assert device_overheads.load_overheads(connection, "cpu").kinds == (_kind("older", 1.0), *newer)
        rows = connection.execute("select device_kind, count(*) from tensile.device_overheads group by 1 order by 1")
        assert rows.fetchall() == [("cpu", MOST_KINDS), ("cuda:A", 1)]


def test_forgetting_a_device_forgets_its_overheads(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        device_overheads.save_overheads(connection, "cpu", (_kind("a", 1.0),))
        device_overheads.save_overheads(connection, "cuda:A", (_kind("a", 1.0),))
    with database.connect() as connection:
        assert connection.execute("select tensile.forget_device('cpu')").fetchone() == (1,)
        assert device_overheads.load_overheads(connection, "cpu") == Overheads()
        assert device_overheads.load_overheads(connection, "cuda:A").kinds == (_kind("a", 1.0),)
