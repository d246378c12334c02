"""Check that an owner who floods the queue does not delay the job of another owner, with a real controller."""

import psycopg
import pytest

from tests.e2e.conftest import MIB, Service
from tests.e2e.trainings import load, train

pytestmark = pytest.mark.postgres

_FLOOD = 10_000


@pytest.mark.nightly  # tests/sql/test_fair_order.py checks the order of claims by day
def test_job_of_a_second_owner_starts_next_behind_10000_jobs_of_another(service: Service) -> None:
    service.settings |= {"TENSILE_CAPACITY_BYTES": str(24 * MIB), "TENSILE_SPARE_TRAINERS": "2"}
    database = service.database
    with database.connect("admin") as admin, database.connect("demo") as demo, database.connect("bob") as bob:
        admin.execute("select tensile_set_quota('demo', jobs_queued => %s)", (2 * _FLOOD,))
        service.start()
        load(demo, "diabetes")
        load(bob, "breast_cancer")
        first = train(demo, "flood", "diabetes", epochs=2)
        demo.execute(
            "insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec, priority)"
            " select j.model_name, j.relation_oid, j.relation_schema, j.relation_name, j.spec, 1000"
            " from tensile.jobs as j, generate_series(2, %s) where j.job_id = %s",
            (_FLOOD, first),
        )
        service.until(lambda: service.value("select 1 from tensile.job_progress"), "a job of the flood to train")
        own_job = train(bob, "own", "breast_cancer", epochs=2)
        service.until(lambda: _has_started(service, own_job), "the second owner's job to train")
        assert _claims_between(service, own_job) <= 1  # a claim that was under way
        assert service.until_ended(own_job) == ["succeeded"]
        assert service.value("select count(*) from tensile.jobs where state = 'queued'") > _FLOOD // 2
        _cancel_all(demo)
        service.until(lambda: service.value("select count(*) = 0 from tensile.device_jobs"), "the device to be free")
        used = "select owner, device_seconds > 0, byte_seconds > 0, jobs_ended > 0 from tensile.stat_usage"
        assert sorted(service.connection.execute(used).fetchall()) == [
            ("bob", True, True, True),
            ("demo", True, True, True),
        ]


def _has_started(service: Service, job: int) -> bool:
    """Return whether the job has made its first step. So short a job may end before its progress is seen."""
    progress = service.value("select step > 0 or epoch > 1 from tensile.job_progress where job_id = %s", job)
    return bool(progress) or service.state(job) == "succeeded"


def _claims_between(service: Service, own_job: int) -> int:
    """Return how many jobs of the flood were first claimed while this job was in the queue."""
    return int(
        service.value(
            "select count(*) from tensile.jobs as j join tensile.jobs as own on own.job_id = %s"
            " where j.owner_oid <> own.owner_oid"
            " and j.started_at > own.enqueued_at and j.started_at < own.started_at",
            own_job,
        )
    )


def _cancel_all(demo: psycopg.Connection) -> None:
    demo.execute("update tensile.jobs set cancel_requested = true where finished_at is null")
