"""Check what the catalog stores about operators, plans and devices."""

from dataclasses import replace

import pytest

from indb_tensile.catalog import jobs, plans
from indb_tensile.catalog.plans import DeviceUse, JobUse, OpMeasurement, PlanRecord
from indb_tensile.errors import LostClaimError
from indb_tensile.job import ClaimToken, JobId
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


def test_latencies_are_stored_by_operator_and_kind_of_device(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        plans.record_latencies(connection, "gpu", [_op("a", 100, 5), _op("b", 200, 0)])
        plans.record_latencies(connection, "cpu", [_op("a", 9000, 7)])
        assert plans.known_latencies(connection, "gpu", ["a", "b", "c", "a"]) == {"a": (100, 5), "b": (200, 0)}
        assert plans.known_latencies(connection, "cpu", ["a", "b"]) == {"a": (9000, 7)}
        assert plans.known_latencies(connection, "cpu", []) == {}


def test_latency_moves_towards_new_measurements_and_the_workspace_only_grows(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        plans.record_latencies(connection, "gpu", [_op("a", 100, 5)])
        plans.record_latencies(connection, "gpu", [_op("a", 200, 4)])
        assert plans.known_latencies(connection, "gpu", ["a"]) == {"a": (125, 5)}
        for _ in range(60):
            plans.record_latencies(connection, "gpu", [_op("a", 1_000_000, 9)])
        latency_ns, workspace_bytes = plans.known_latencies(connection, "gpu", ["a"])["a"]
        assert abs(latency_ns - 1_000_000) <= 2
        assert workspace_bytes == 9


def test_workspace_that_turned_out_larger_is_stored_once_and_changes_no_latency(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        plans.record_latencies(connection, "gpu", [_op("a", 100, 5), _op("b", 100, 50)])
        rows = [_op("a", 7, 8), _op("b", 7, 8), _op("c", 7, 8)]
        assert plans.raise_workspaces(connection, "gpu", rows) == {"a", "c"}
        assert plans.raise_workspaces(connection, "gpu", rows) == frozenset()
        plans.record_latencies(connection, "gpu", [_op("a", 100, 5)])  # by a job that was planned before
        stored = plans.known_latencies(connection, "gpu", ["a", "b", "c"])
        assert stored == {"a": (100, 8), "b": (100, 50), "c": (7, 8)}


def test_measurements_of_one_operator_in_one_report_count_once(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        plans.record_latencies(connection, "gpu", [_op("a", 100, 5), _op("a", 300, 6)])
        plans.record_latencies(connection, "gpu", [])
        assert plans.known_latencies(connection, "gpu", ["a"]) == {"a": (300, 6)}


def test_plan_is_recorded_adopted_and_measured(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        claimed = claim(connection, register(connection))
        record = PlanRecord(
            generation=1,
            reason="start",
            policy="tensile",
            predicted_peak_bytes=80,
            swaps=2,
            swapped_bytes=64,
            recomputed=7,
        )
        plans.record_plan(connection, claimed.job, claimed.claim, record, {"swaps": []})
        plans.record_plan(connection, claimed.job, claimed.claim, record, {"swaps": []})
        plans.plan_adopted(connection, claimed.job, claimed.claim, 1)
        for peak_bytes, iteration_ns in ((80, 10), (70, 12)):
            plans.plan_measured(
                connection,
                claimed.job,
                claimed.claim,
                1,
                peak_bytes=peak_bytes,
                iteration_ns=iteration_ns,
                stall_ns=1,
                weight=0.5,
            )
        plans.plan_foreseen(connection, claimed.job, claimed.claim, 1, iteration_ns=11, stall_ns=3)
        rows = alice.execute(
            "select attempt, generation, reason, predicted_peak_bytes, measured_peak_bytes, measured_iteration_ns,"
            " measured_stall_ns, predicted_iteration_ns, predicted_stall_ns, swaps, recomputed, plan,"
            " adopted_at is not null from tensile.plans"
        ).fetchall()
        assert rows == [(1, 1, "start", 80, 80, 11, 1, 11, 3, 2, 7, {"swaps": []}, True)]


def test_the_jobs_beside_a_job_are_recorded_until_they_change(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        claimed = claim(connection, register(connection))
        job, token = claimed.job, claimed.claim
        plans.set_measured(connection, job, token, 9.0, weight=0.5)  # before any set: no row
        plans.record_set(connection, job, token, (), 1.0, 1.0)
        plans.record_set(connection, job, token, (JobId(8), JobId(9)), 2.5, 0.7)
        plans.set_measured(connection, job, token, 2.0, weight=0.5)
        plans.set_measured(connection, job, token, 3.0, weight=0.5)
        shown = alice.execute(
            "select beside, stp_foretold, speed_foretold, stp_measured, ended_at is null from tensile.stat_sharing"
        ).fetchall()
        assert sorted(shown) == [([], 1.0, 1.0, None, False), ([8, 9], 2.5, 0.7, 2.5, True)]
        with pytest.raises(LostClaimError):
            plans.record_set(connection, job, ClaimToken(token + 1), (), 1.0, 1.0)
        plans.end_set(connection, job, ClaimToken(token + 1))
        present = "select count(*) from tensile.stat_sharing where ended_at is null"
        assert alice.execute(present).fetchone() == (1,), "another claim ends nothing"
        plans.end_set(connection, job, token)
        plans.end_set(connection, job, token)
        assert alice.execute(present).fetchone() == (0,)


def test_nobody_sees_beside_whom_anothers_job_runs(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        enqueue(alice)
        claimed = claim(connection, register(connection))
        plans.record_set(connection, claimed.job, claimed.claim, (JobId(8),), 1.0, 0.5)
        assert bob.execute("select count(*) from tensile.stat_sharing").fetchone() == (0,)
        assert bob.execute("select count(*) from tensile.job_sets").fetchone() == (0,)


def test_second_attempt_starts_with_generation_1(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        worker = register(connection)
        record = PlanRecord(generation=1, reason="start", policy="tensile")
        stale = claim(connection, worker)
        plans.record_plan(connection, stale.job, stale.claim, record)
        jobs.leave(connection, worker)
        jobs.rescue(connection)
        with database.connect() as postgres:
            postgres.execute("update tensile.jobs set not_before = null")
        fresh = claim(connection, register(connection))
        plans.record_plan(connection, fresh.job, fresh.claim, record)
        assert alice.execute("select attempt from tensile.plans order by 1").fetchall() == [(1,), (2,)]
        with pytest.raises(LostClaimError):
            plans.record_plan(connection, stale.job, stale.claim, record)
        with pytest.raises(LostClaimError):
            plans.plan_adopted(connection, stale.job, stale.claim, 1)


def test_graph_is_stored_once(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        plans.record_graph(connection, "g", {"ops": 3})
        plans.record_graph(connection, "g", {"ops": 4})
        assert connection.execute("select signature, summary from tensile.graphs").fetchall() == [("g", {"ops": 3})]


def test_device_use_is_replaced_and_ended_jobs_are_removed(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        first, second = enqueue(alice), enqueue(alice)
        worker = register(connection)
        plans.record_device(connection, worker, _device_use(90), [_job_use(first, 90), _job_use(second, 10)])
        plans.record_device(connection, worker, _device_use(50), [_job_use(second, 5)])
        rows = connection.execute("select used_bytes, high_water_bytes from tensile.devices").fetchall()
        assert rows == [(50, 90)]
        rows = connection.execute("select job_id, used_bytes, high_water_bytes from tensile.device_jobs").fetchall()
        assert rows == [(second, 5, 10)]
        plans.record_device(connection, worker, _device_use(0))
        assert connection.execute("select from tensile.device_jobs").fetchall() == []


def test_load_of_a_gpu_is_shown_and_null_when_the_driver_reports_none(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        worker = register(connection)
        query = "select host_bytes, busy_percent, memory_busy_percent, outside_bytes from tensile.stat_device"
        use = replace(_device_use(90), host_bytes=7, busy_percent=80, memory_busy_percent=25, outside_bytes=44)
        plans.record_device(connection, worker, use)
        connection.commit()
        assert alice.execute(query).fetchall() == [(7, 80, 25, 44)]
        plans.record_device(connection, worker, _device_use(90))
        connection.commit()
        assert alice.execute(query).fetchall() == [(0, None, None, None)]


def _op(signature: str, latency_ns: int, workspace_bytes: int) -> OpMeasurement:
    return OpMeasurement(
        signature=signature, name="aten.mm", latency_ns=latency_ns, workspace_bytes=workspace_bytes, predicted_ns=50
    )


def _device_use(used_bytes: int) -> DeviceUse:
    return DeviceUse(
        kind="gpu",
        capacity_bytes=100,
        budget_bytes=100,
        granted_bytes=100,
        used_bytes=used_bytes,
        high_water_bytes=used_bytes,
        host_bytes=0,
    )


def _job_use(job: JobId, used_bytes: int) -> JobUse:
    return JobUse(job=job, granted_bytes=100, used_bytes=used_bytes, high_water_bytes=used_bytes)
