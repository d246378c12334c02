"""Check the counters that never fall: what adds to them, who sees them, and that nobody lowers them."""

from typing import Any

import psycopg
import pytest

from indb_tensile.catalog.usage import JobUsage, add_totals, record_usage
from indb_tensile.job import JobId
from tests.catalog.enqueue import enqueue
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def totals(connection: psycopg.Connection) -> dict[tuple[str, str], float]:
    """Return the counters that this role sees."""
    rows = connection.execute("select name, label, value from tensile.totals").fetchall()
    return {(name, label): value for name, label, value in rows}


def used_s(connection: psycopg.Connection) -> Any:
    """Return the device-seconds in total, as /metrics adds them up."""
    row = connection.execute(
        """select sum(u.device_s) from (select k.device_s from tensile.usage as k
                                        union all select d.device_s from tensile.deleted_usage as d) as u"""
    ).fetchone()
    return row and row[0]


def test_copies_waits_and_interruptions_are_counted_and_the_counters_never_fall(database: Database) -> None:
    with (
        database.connect() as admin,
        database.connect("alice") as alice,
        database.connect("monitor") as monitor,
        database.connect("tensile_worker") as worker,
    ):
        training, parked, reading = (JobId(enqueue(alice, name)) for name in ("trains", "waits", "reads"))
        admin.execute(
            """insert into tensile.workers (host, pid, device, version, lease_s)
               values ('h', 1, 'emulated', '0', 3600);
               update tensile.jobs set state = 'running', claim = 1,
                      worker_id = (select worker_id from tensile.workers),
                      phase = (array['training', 'parked', 'reading'])[job_id]::tensile.job_phase;
               insert into tensile.plans (job_id, attempt, generation, reason, policy, predicted_iteration_ns,
                                          measured_iteration_ns, measured_stall_ns, swapped_bytes, adopted_at)
               select j, 1, 1, 'start', 'tensile', 1, 500000000, 100000000, 1000, now()
                 from unnest(array[1, 3]) as j"""
        )
        record_usage(
            worker,
            [
                JobUsage(job=training, device_s=2.0, byte_s=20.0, running_s=10.0),
                JobUsage(job=parked, device_s=0.0, byte_s=0.0, running_s=0.0, waiting_s=3.0),
                JobUsage(job=reading, device_s=0.0, byte_s=0.0, running_s=0.0, waiting_s=4.0),
            ],
        )
        admin.execute(
            """insert into tensile.job_events (job_id, kind, detail)
               select 1, 'interrupted', jsonb_build_object('counts', c) from unnest(array[true, false, false]) as c"""
        )
        add_totals(worker, {("predicted_rows", ""): 7.0, ("prediction_s", ""): -1.0})
        before = totals(monitor)
        used_before_s = used_s(monitor), used_s(alice)
        admin.execute("delete from tensile.job_events; update tensile.usage set day = day - 1000")
        for _ in range(2):
            admin.execute("select tensile.vacuum_step()")
        rows_left = admin.execute("select count(*) from tensile.usage").fetchone()

        assert before == {
            ("swapped_bytes", "out"): 20_000.0,
            ("swapped_bytes", "in"): 20_000.0,
            ("stall_s", "copies"): pytest.approx(2.0),
            ("stall_s", "turns"): 3.0,
            ("interruptions", "job"): 1.0,
            ("interruptions", "other"): 2.0,
            ("predicted_rows", ""): 7.0,
        }
        assert totals(monitor) == before
        assert totals(alice) == {}
        assert rows_left == (0,)
        assert (used_s(monitor), used_s(alice)) == used_before_s == (2.0, 2.0)


def test_no_role_lowers_a_counter(database: Database) -> None:
    for role in ("alice", "monitor", "admin", "tensile_worker"):
        with database.connect(role) as connection:
            for table in ("tensile.totals", "tensile.deleted_usage"):
                for statement in (f"delete from {table}", f"truncate {table}"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(statement.encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("update tensile.totals set value = 0")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("insert into tensile.totals values ('predicted_rows', '', 1)")
            if role != "tensile_worker":
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("select tensile.add_totals(array['x'], array[''], array[1.0])")
