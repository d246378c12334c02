"""Check the history of the devices' memory: who sees it, how it is sampled, and that it grows no further."""

from datetime import datetime

import pytest

from indb_tensile.catalog import plans, retention
from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.job import JobId, WorkerId
from tests.conftest import Database

from .conftest import Connection, value

pytestmark = pytest.mark.postgres

_WORKER = """insert into tensile.workers (host, pid, device, version, lease_s) values ('h', 1, 'emulated', '0', 3600)
             returning worker_id"""
_USE = DeviceUse(
    kind="emulated",
    capacity_bytes=200,
    budget_bytes=100,
    granted_bytes=80,
    used_bytes=50,
    high_water_bytes=60,
    host_bytes=7,
)


def test_a_sample_has_the_device_and_the_jobs_and_the_next_one_comes_two_seconds_later(
    database: Database, alice: Connection, bob: Connection, admin: Connection
) -> None:
    worker = WorkerId(value(admin, _WORKER))
    job = JobId(value(alice, "select tensile_train('flowers', 'iris', target => 'species')"))
    admin.execute(
        """insert into tensile.plans (job_id, attempt, generation, reason, policy, predicted_iteration_ns,
                                      measured_iteration_ns, swapped_bytes, adopted_at)
           values (%s, 1, 1, 'start', 'tensile+', 1, 500000000, 1000, now())""",
        (job,),
    )
    shares = [JobUse(job=job, granted_bytes=30, used_bytes=20, high_water_bytes=25)]
    with database.connect("tensile_worker") as controller:
        plans.record_device(controller, worker, _USE, shares)
        plans.record_device(controller, worker, _USE, shares)
        young = value(admin, "select count(*) from tensile.device_samples")
        admin.execute("delete from tensile.device_samples")
        admin.execute(
            """insert into tensile.device_samples (worker_id, at, budget_bytes, granted_bytes, used_bytes, host_bytes)
               values (%s, now() - interval '2 seconds', 100, 0, 0, 0)""",
            (worker,),
        )
        plans.record_device(controller, worker, _USE, shares)
    whole = "select budget_bytes, granted_bytes, used_bytes, host_bytes from tensile.stat_device_history order by at"
    by_job = """select job_id, model, owner, granted_bytes, used_bytes, copied_bytes_per_s
                  from tensile.stat_device_job_history"""

    assert alice.execute(whole).fetchall() == bob.execute(whole).fetchall() == [(100, 0, 0, 0), (100, 80, 50, 7)]
    assert young == 1
    assert alice.execute(by_job).fetchall() == [(job, "flowers", "alice", 30, 20, 2000)]
    assert bob.execute(by_job).fetchall() == []


def test_older_samples_are_thinned_out_and_peaks_are_kept(admin: Connection) -> None:
    worker = value(admin, _WORKER)
    with admin.transaction():  # in which now() stands still
        admin.execute(
            """insert into tensile.device_samples (worker_id, at, budget_bytes, granted_bytes, used_bytes, host_bytes)
               select %s, now() - make_interval(secs => age), 100, 0,
                      case when age %% 1000 = 3 then 90 else age %% 7 end, 0
                 from generate_series(1, 20000, 2) as age
               union all
               select %s, now() - make_interval(mins => 4320 + 2 * n), 100, 0, 1, 0 from generate_series(1, 50) as n
               union all
               select %s, now() - make_interval(days => day), 100, 0, 1, 0 from generate_series(29, 60) as day""",
            (worker, worker, worker),
        )
        removed = 0
        while count := retention.thin_samples(admin, 4000):
            removed += count
        rows = admin.execute(
            """select case when age <= 600 then 'raw' when age <= 7200 then 'ten seconds'
                           when age <= 172800 then 'minute' when age <= 2592000 then 'ten minutes' end as kind,
                      count(*), max(used_bytes)
                 from (select extract(epoch from now() - at) as age, used_bytes from tensile.device_samples) as s
                group by 1"""
        ).fetchall()
    counts = {kind: (count, most) for kind, count, most in rows}

    assert removed == 10_082 - sum(count for count, _ in counts.values())
    assert counts["raw"] == (300, 90)
    # A span of time at each end may be cut.
    assert counts["ten seconds"] in {(660, 90), (661, 90)}
    assert counts["minute"] in {(213, 90), (214, 90), (215, 90)}
    assert counts["ten minutes"] in {(12, 1), (13, 1)}
    assert set(counts) == {"raw", "ten seconds", "minute", "ten minutes"}


def test_samples_of_an_ended_job_go_with_the_job(database: Database, alice: Connection, admin: Connection) -> None:
    worker = WorkerId(value(admin, _WORKER))
    job = JobId(value(alice, "select tensile_train('flowers', 'iris', target => 'species')"))
    with database.connect("tensile_worker") as controller:
        plans.record_device(
            controller, worker, _USE, [JobUse(job=job, granted_bytes=30, used_bytes=20, high_water_bytes=25)]
        )
    admin.execute("delete from tensile.jobs")

    assert value(admin, "select count(*) from tensile.device_job_samples") == 0
    assert isinstance(value(admin, "select at from tensile.device_samples"), datetime)
