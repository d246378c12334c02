"""Jobs from SQL to a published version, on a real PostgreSQL, with real processes on one small emulated device."""

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.e2e.conftest import MIB, Service

pytestmark = pytest.mark.postgres

WIDE = '{"type": "mlp", "hidden": [512, 512, 512], "dropout": 0.2}'
# Model, table and epochs: long enough that each is still training when the last one starts.
THREE = (("first", "digits", 60), ("second", "breast_cancer", 160), ("third", "diabetes", 160))
THREE_SETTINGS = {"TENSILE_CAPACITY_BYTES": str(24 * MIB), "TENSILE_SPARE_TRAINERS": "3"}


@pytest.fixture
def demo(service: Service) -> Iterator[psycopg.Connection]:
    """A session of an ordinary user."""
    with service.database.connect("demo") as connection:
        yield connection


def train(
    demo: psycopg.Connection, model: str, table: str, *, architecture: str = WIDE, **hyperparams: object
) -> int:
    settings = {"epochs": 3, "batch_size": 128, "seed": 7} | hyperparams
    row = demo.execute(
        "select tensile_train(%s, %s::regclass, architecture => %s, hyperparams => %s)",
        (model, table, architecture, json.dumps(settings)),
    ).fetchone()
    assert row is not None
    return int(row[0])


def load(demo: psycopg.Connection, *names: str) -> None:
    for name in names:
        demo.execute("select tensile_load_dataset(%s)", (name,))


def train_three(demo: psycopg.Connection) -> list[int]:
    """Enqueue the three in one transaction."""
    load(demo, *(table for _, table, _ in THREE))
    with demo.transaction():
        return [train(demo, model, table, epochs=epochs) for model, table, epochs in THREE]


def weights(service: Service, job: int) -> str:
    """A digest of the published weights of a job; there must be exactly one version."""
    rows = service.connection.execute(
        "select chunk from tensile.artifacts join tensile.model_versions using (version_id)"
        " where model_versions.job_id = %s order by chunk_no",
        (job,),
    ).fetchall()
    versions = service.value("select count(*) from tensile.model_versions where job_id = %s", job)
    assert versions == 1
    return hashlib.sha256(b"".join(row[0] for row in rows)).hexdigest()


def trainer_of(service: Service, job: int) -> int:
    """The process id of the trainer that runs this job, from its connection to the database."""
    name = f"tensile trainer {job}"
    service.until(
        lambda: service.value("select 1 from pg_stat_activity where application_name = %s", name),
        f"{name} to connect",
    )
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(status.parent.name)
        if _is_trainer(pid) and _serves(pid, service, job):
            return pid
    raise AssertionError(f"no trainer of job {job}")


def _is_trainer(pid: int) -> bool:
    try:
        return "indb_tensile.worker.trainer" in Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _serves(pid: int, service: Service, job: int) -> bool:
    """The slot of the ledger says which process holds it; one job runs in these tests, so any slot will do."""
    del job
    assert service.process is not None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    parent = int(stat[stat.rindex(")") + 2 :].split()[1])
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    return parent == service.process.pid and str(service.directory).encode() in environment and _uses_cpu(stat)


def _uses_cpu(stat: str) -> bool:
    fields = stat[stat.rindex(")") + 2 :].split()
    return int(fields[11]) + int(fields[12]) > 0


def in_training(service: Service, job: int, epochs: int = 1) -> None:
    """Wait until the job has finished so many epochs and is not over."""
    service.until(
        lambda: (service.value("select epoch from tensile.job_progress where job_id = %s", job) or 0) > epochs,
        f"job {job} to train",
    )
    assert service.state(job) == "running"


def device_is_free(service: Service) -> bool:
    """The worker's device has nothing granted and nothing in use."""
    row = service.connection.execute(
        "select d.granted_bytes, d.used_bytes from tensile.devices as d join tensile.workers as w using (worker_id)"
        " where w.stopped_at is null order by w.worker_id desc limit 1"
    ).fetchone()
    return row is not None and tuple(row) == (0, 0)


def test_three_jobs_share_a_device_that_could_not_hold_them_unplanned(
    service: Service, demo: psycopg.Connection
) -> None:
    service.settings |= THREE_SETTINGS
    service.start()
    jobs = train_three(demo)
    together = "select count(*) from tensile.jobs where state = 'running'"
    service.until(lambda: service.value(together) == 3, "all three to run at once")
    service.until(lambda: service.value("select host_bytes > 0 from tensile.devices"), "something to be swapped out")
    assert service.until_ended(*jobs) == ["succeeded"] * 3
    plans = service.connection.execute(
        "select job_id, max(liveness_peak_bytes), max(swaps), min(predicted_peak_bytes)"
        " from tensile.plans group by job_id"
    ).fetchall()
    assert all(swaps > 0 for _, _, swaps, _ in plans)
    assert sum(liveness for _, liveness, _, _ in plans) > 24 * MIB
    measured = service.connection.execute(
        "select predicted_peak_bytes, measured_peak_bytes from tensile.plans where measured_peak_bytes is not null"
    ).fetchall()
    assert measured
    assert all(peak <= predicted for predicted, peak in measured)
    budget, high_water = service.connection.execute(
        "select budget_bytes, high_water_bytes from tensile.devices"
    ).fetchone() or (0, 0)
    assert 0 < high_water <= budget == 24 * MIB
    service.until(lambda: device_is_free(service), "the device to be free")


def test_without_planning_the_same_three_do_not_run_together(service: Service, demo: psycopg.Connection) -> None:
    service.settings |= THREE_SETTINGS | {"TENSILE_POLICY": "liveness"}
    service.start()
    jobs = train_three(demo)
    most = 0
    ended = "select count(*) from tensile.jobs where state in ('succeeded', 'failed', 'cancelled')"

    def all_ended() -> bool:
        nonlocal most
        most = max(most, service.value("select count(*) from tensile.jobs where state = 'running'"))
        return bool(service.value(ended) == 3)

    service.until(all_ended, "all three to end")
    assert [service.state(job) for job in jobs] == ["succeeded"] * 3
    assert most < 3
    assert service.value("select max(swaps) from tensile.plans") == 0


@pytest.mark.parametrize("victim", ["trainer", "controller", "service", "database"])
def test_a_job_survives_a_kill_and_ends_with_the_same_bits(
    service: Service, demo: psycopg.Connection, victim: str
) -> None:
    service.start()
    load(demo, "digits")
    undisturbed = train(demo, "undisturbed", "digits", epochs=12)
    assert service.until_ended(undisturbed) == ["succeeded"]
    disturbed = train(demo, "disturbed", "digits", epochs=12)
    in_training(service, disturbed)
    match victim:
        case "trainer":
            os.kill(trainer_of(service, disturbed), signal.SIGKILL)
        case "controller":
            service.kill()
            service.start()
        case "service":
            os.kill(_service_pid(service), signal.SIGKILL)
        case "database":
            service.database.cluster.restart("immediate")
            service.reconnect()
    assert service.until_ended(disturbed) == ["succeeded"]
    assert weights(service, disturbed) == weights(service, undisturbed)
    service.until(lambda: device_is_free(service), "the device to be free")


def _service_pid(service: Service) -> int:
    assert service.process is not None
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if "indb_tensile.worker.service" not in path.read_text():
                continue
            stat = (path.parent / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat[stat.rindex(")") + 2 :].split()[1]) == service.process.pid:
            return int(path.parent.name)
    raise AssertionError("the controller has no service")


def test_a_cancelled_job_stops_within_a_heartbeat_and_leaves_nothing(
    service: Service, demo: psycopg.Connection
) -> None:
    service.start()
    load(demo, "digits")
    job = train(demo, "endless", "digits", epochs=100_000)
    in_training(service, job)
    assert demo.execute("select tensile_cancel(%s)", (job,)).fetchone() == (True,)
    assert service.until_ended(job) == ["cancelled"]
    service.until(lambda: device_is_free(service), "the device to be free")
    assert service.value("select count(*) from tensile.model_versions") == 0


def test_a_job_that_can_never_fit_says_how_much_it_needs(service: Service, demo: psycopg.Connection) -> None:
    service.settings |= {"TENSILE_CAPACITY_BYTES": str(2 * MIB)}
    service.start()
    load(demo, "digits")
    job = train(demo, "wide", "digits", architecture='{"type": "mlp", "hidden": [1024, 1024]}')
    assert service.until_ended(job) == ["failed"]
    row = service.connection.execute(
        "select error_sqlstate, error_message, error_hint from tensile.jobs where job_id = %s", (job,)
    ).fetchone()
    assert row is not None
    assert row[0] == "53200"
    assert "needs at least 17.0 MB of device memory, more than the budget of 2.0 MB" in row[1]
    assert "batch_size" in row[2]


def test_a_table_dropped_before_its_turn_fails_the_job_and_no_other(
    service: Service, demo: psycopg.Connection
) -> None:
    service.start()
    load(demo, "digits", "iris")
    service.stop()
    lost = train(demo, "lost", "iris")
    kept = train(demo, "kept", "digits")
    demo.execute("drop table iris")
    service.start()
    assert service.until_ended(lost, kept) == ["failed", "succeeded"]
    message = service.value("select error_message from tensile.jobs where job_id = %s", lost)
    assert "iris" in message


def test_a_clean_stop_hands_jobs_back_and_they_go_on_where_they_were(
    service: Service, demo: psycopg.Connection
) -> None:
    service.start()
    load(demo, "digits")
    undisturbed = train(demo, "undisturbed", "digits", epochs=12)
    assert service.until_ended(undisturbed) == ["succeeded"]
    job = train(demo, "stopped", "digits", epochs=12)
    in_training(service, job)
    assert service.stop() == 0
    assert service.state(job) == "queued"
    service.start()
    assert service.until_ended(job) == ["succeeded"]
    assert weights(service, job) == weights(service, undisturbed)
    assert service.value("select attempt from tensile.jobs where job_id = %s", job) == 1


def test_a_model_predicts_from_sql_what_it_was_evaluated_with(service: Service, demo: psycopg.Connection) -> None:
    service.start()
    load(demo, "digits", "diabetes")
    assert service.until_ended(train(demo, "digits", "digits", epochs=15)) == ["succeeded"]
    accuracy = demo.execute("select value from tensile_evaluate('digits') where metric = 'accuracy'").fetchone()
    assert accuracy is not None
    assert accuracy[0] == service.value("select metric from tensile.model_versions")
    right = demo.execute(
        "select avg((tensile_predict('digits', d) = d.label)::int)::float8 from (select * from digits limit 50) as d"
    ).fetchone()
    assert right is not None
    assert right[0] > 0.9
