"""Check jobs whose operators need more memory than was planned: they are planned anew, and no bit changes."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import Database
from tests.e2e.conftest import Service, service_on
from tests.e2e.trainings import load, train, weights
from tests.native.cuda_double import ROOT

pytestmark = pytest.mark.postgres

CONTROLLER = (
    "import sys\n"
    "from indb_tensile.worker import controller\n"
    "controller.TRAINER = 'tests.e2e.growing_trainer'\n"
    "sys.exit(controller.main())\n"
)
REASONS = "select array_agg(reason order by generation) from tensile.stat_plan where job_id = %s"
EVENTS = "select count(*) from tensile.job_events where job_id = %s and kind = 'memory_corrected'"


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    with service_on(database) as service:
        service.command = ["-c", CONTROLLER]
        service.settings["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        yield service


@pytest.mark.nightly
def test_job_whose_operator_grows_is_planned_anew_and_publishes_the_same_bits(service: Service) -> None:
    service.start()
    with service.database.connect("demo") as demo:
        load(demo, "digits")
        undisturbed = train(demo, "undisturbed", "digits", epochs=6)
        assert service.until_ended(undisturbed) == ["succeeded"]
        assert service.stop() == 0
        service.settings |= {"GROWS_AFTER": "60", "GROWS_TO": "20"}
        service.start()
        grown = train(demo, "grown", "digits", epochs=6)
        assert service.until_ended(grown) == ["succeeded"]
        next_one = train(demo, "next_one", "digits", epochs=3)
        assert service.until_ended(next_one) == ["succeeded"]
    assert service.stop() == 0
    assert service.value(REASONS, undisturbed) == ["start"]
    reasons = service.value(REASONS, grown)
    assert (reasons[0], set(reasons[1:])) == ("start", {"memory"})  # once for full batches, and for the last ones
    assert service.value("select attempt from tensile.jobs where job_id = %s", grown) == 1
    assert service.value(EVENTS, grown) == len(reasons) - 1
    assert service.value(EVENTS, next_one) == 0
    assert weights(service, grown) == weights(service, undisturbed)
    assert service.value(REASONS, next_one) == ["start"], "the next job is planned with the stored workspace"


@pytest.mark.nightly
def test_job_that_outgrows_the_whole_device_fails_with_its_operator_and_both_sizes(service: Service) -> None:
    service.settings |= {"GROWS_AFTER": "60", "GROWS_TO": "2", "GROWS_FIRST": "600000"}
    service.start()
    with service.database.connect("demo") as demo:
        load(demo, "digits")
        job = train(demo, "outgrown", "digits", epochs=50)
        assert service.until_ended(job) == ["failed"]
    columns = "attempt, error_sqlstate, error_message, error_detail, error_hint"
    row = service.connection.execute(
        f"select {columns} from tensile.jobs where job_id = %s".encode(), (job,)
    ).fetchone()
    assert row is not None
    attempt, sqlstate, message, detail, hint = row
    assert (attempt, sqlstate) == (1, "53200")
    assert "more than the budget of 64.0 MB" in message
    assert "operator tensile_tests.growing.default needs a workspace of" in detail
    assert "62.6 kB were planned for it" in detail
    assert "smaller batch_size" in hint
