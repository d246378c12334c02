"""Check what a cut network does: a link that answers nothing and sends no reset, between ranks or to the database."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from indb_tensile.bench.harness.chaos.chaos_forwarder import Forwarder
from tests.e2e.conftest import MIB, Service
from tests.e2e.network_namespaces import OtherNamespace, other_namespace, why_impossible
from tests.e2e.test_several_devices import alone, check_clean, end, ranks, train, wait_until_all_train
from tests.e2e.trainings import load, weights

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

PORT = 6543
ALIVE = "select count(*) from tensile.stat_workers where alive"
READY = "select count(*) from tensile.workers where stopped_at is null and holdup is null"


@pytest.fixture
def there() -> Iterator[OtherNamespace]:
    """A second namespace; the test skips where this machine has none."""
    if reason := why_impossible():
        pytest.skip(reason)
    with other_namespace() as namespace:
        yield namespace


@pytest.fixture
def far(service: Service, there: OtherNamespace) -> Iterator[subprocess.Popen[bytes]]:
    """A controller in the other namespace, beside that of `service` in this one, and the table digits."""
    service.settings |= {
        "TENSILE_ANSWER_S": "60",
        "TENSILE_LEASE_S": "4",
        "TENSILE_SHARING": "any_price",
        "TENSILE_RANK_TIMEOUT_S": "5",
        "TENSILE_MAX_JOBS": "1",  # so that the other controller takes the second job
    }
    service.settings["TENSILE_RANK_ADDRESS"] = there.ranks.here
    service.start()
    dsn = service.database.dsn("tensile_worker")
    server = conninfo_to_dict(dsn)
    socket = Path(str(server["host"])) / f".s.PGSQL.{server.get('port', 5432)}"
    with closing(Forwarder((there.database.here, PORT), socket)):
        process = _start_far(service, there, make_conninfo(dsn, host=there.database.here, port=PORT))
        try:
            service.until(lambda: service.value(ALIVE) == 2, "both controllers to be alive")
            with service.database.connect("demo") as demo:
                load(demo, "digits")
            service.until(lambda: service.value(READY) == 2, "both controllers to have a trainer")
            yield process
        finally:
            there.database.mend()
            there.ranks.mend()
            end(process)


def _start_far(service: Service, there: OtherNamespace, dsn: str) -> subprocess.Popen[bytes]:
    settings = {
        "TENSILE_DSN": dsn,
        "TENSILE_RANK_ADDRESS": there.ranks.there,
        "TENSILE_CAPACITY_BYTES": str(48 * MIB),
        "TENSILE_SERVICE_DIRECTORY": "",
        "TENSILE_MAX_JOBS": "8",
    }
    with service.log.open("a") as log:
        return subprocess.Popen(
            there.command(sys.executable, *service.command),
            env=os.environ | service.settings | settings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def worker_of(service: Service, process: subprocess.Popen[bytes]) -> int:
    worker = service.value("select max(worker_id) from tensile.workers where pid = %s", process.pid)
    assert worker is not None
    return int(worker)


def check_wrote_nothing_after_its_lease(service: Service, worker: int) -> None:
    """Check that the worker has neither a job nor an event after the moment at which others declared it dead."""
    late = (
        "select count(*) from tensile.job_events as e join tensile.workers as w on w.worker_id = %s"
        " where e.at > w.stopped_at and e.kind <> 'interrupted' and e.detail ->> 'worker' = w.worker_id::text"
        " and e.detail ->> 'from' is distinct from 'queued' and e.kind <> 'queued'"
    )
    assert service.value(late, worker) == 0
    assert service.value("select count(*) from tensile.jobs where worker_id = %s", worker) == 0


def test_gang_goes_on_after_a_machine_was_cut_off_with_the_same_bits(
    service: Service, far: subprocess.Popen[bytes], there: OtherNamespace
) -> None:
    job = train(service, "gang", 2, epochs=40)
    wait_until_all_train(service, job)
    cut_off = worker_of(service, far)
    claim = service.value("select claim from tensile.jobs where job_id = %s", job)
    there.database.cut()
    there.ranks.cut()
    service.until(lambda: service.state(job) == "queued", "the training to go back to the queue")
    service.until(lambda: service.value(ALIVE) == 1, "the other controller's lease to end")
    assert ranks(service, job) == []
    there.database.mend()
    there.ranks.mend()
    service.until(lambda: service.value(ALIVE) == 2, "the other controller to return")
    assert service.until_ended(job) == ["succeeded"]
    assert service.value("select claim from tensile.jobs where job_id = %s", job) > claim
    check_wrote_nothing_after_its_lease(service, cut_off)
    assert weights(service, job) == alone(service, 2, epochs=40)
    check_clean(service)


def test_gang_goes_on_after_the_link_between_its_ranks_was_cut_with_the_same_bits(
    service: Service, far: subprocess.Popen[bytes], there: OtherNamespace
) -> None:
    """The database is reachable from both sides meanwhile, so only the ranks can notice the cut."""
    job = train(service, "gang", 2, epochs=40)
    wait_until_all_train(service, job)
    there.ranks.cut()
    service.until(lambda: service.state(job) == "queued", "the training to go back to the queue")
    assert service.value(ALIVE) == 2
    there.ranks.mend()
    assert service.until_ended(job) == ["succeeded"]
    resumed = "select count(*) from tensile.job_events where job_id = %s and kind = 'resumed'"
    assert service.value(resumed, job) > 0, "it began again from the start"
    assert weights(service, job) == alone(service, 2, epochs=40)
    check_clean(service)


def test_controller_that_was_cut_off_from_the_database_writes_nothing_after_its_lease(
    service: Service, far: subprocess.Popen[bytes], there: OtherNamespace
) -> None:
    """The other controller trains its jobs from their last checkpoints on."""
    cut_off = worker_of(service, far)
    taken = [train(service, f"model {number}", 1, micro_batch_size=48, epochs=200) for number in range(2)]
    of_far = "select job_id from tensile.jobs where worker_id = %s and state = 'running'"
    service.until(lambda: service.value(of_far, cut_off), "the other controller to train a job")
    there.database.cut()
    service.until(lambda: service.value(of_far, cut_off) is None, "its jobs to leave the controller")
    there.database.mend()
    service.until(lambda: service.value(ALIVE) == 2, "the other controller to return")
    assert worker_of(service, far) > cut_off
    assert service.until_ended(*taken) == ["succeeded"] * 2
    check_wrote_nothing_after_its_lease(service, cut_off)
    versions = "select count(*) from tensile.model_versions where job_id = any (%s)"
    assert service.value(versions, taken) == 2
    assert len({weights(service, model) for model in taken}) == 1
