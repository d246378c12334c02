"""Check that the catalog accepts the invalid jobs of a chaos run, and that each of them fails with its own error."""

import pytest

from indb_tensile.bench.harness.chaos.chaos_rig import SQL
from indb_tensile.catalog import jobs
from indb_tensile.errors import RequestError
from indb_tensile.job import ClaimedJob
from indb_tensile.learning.training.checked_options import CheckedOptions
from tests.catalog.enqueue import register
from tests.conftest import Database

_COUNT = 51  # two of them can be read, and their trainers refuse the architecture

pytestmark = pytest.mark.postgres


def test_invalid_jobs_are_enqueued_and_fail_with_the_errors_that_a_chaos_run_expects(database: Database) -> None:
    with database.connect("alice") as owner, database.connect("tensile_worker") as controller:
        owner.execute(SQL["invalid_jobs"].encode(), {"count": _COUNT})
        worker, readable = register(controller), 0
        while (claimed := jobs.claim_job(controller, worker)) is not None:
            assert not isinstance(claimed, jobs.DeferredJob)
            jobs.fail(controller, claimed.job, claimed.claim, _error(claimed))
            readable += isinstance(claimed, ClaimedJob)
    assert readable == 2
    with database.connect() as admin:
        assert admin.execute(SQL["invalid_jobs_ended"].encode()).fetchall() == [(_COUNT, 0, 0)]
        admin.execute("update tensile.jobs set error_message = 'other' where job_id = 1")
        assert admin.execute(SQL["invalid_jobs_ended"].encode()).fetchall() == [(_COUNT - 1, 1, 0)]


def _error(claimed: ClaimedJob | jobs.UnreadableJob) -> RequestError:
    """Return the error with which the controller, or the job's trainer, ends the job."""
    if isinstance(claimed, jobs.UnreadableJob):
        return claimed.error
    with pytest.raises(RequestError) as caught:
        CheckedOptions.of(claimed.spec)
    return caught.value
