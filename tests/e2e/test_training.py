"""Jobs from SQL to a published version, on a real PostgreSQL, with real processes on one small emulated device."""

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from indb_tensile.cluster import Cluster
from tests.conftest import Database, fresh_database
from tests.e2e.conftest import MIB, Service, service_on

pytestmark = pytest.mark.postgres

WIDE = '{"type": "mlp", "hidden": [512, 512, 512], "dropout": 0.2}'
THREE = {"first": "digits", "second": "breast_cancer", "third": "diabetes"}
TOO_MANY = """
select job_id from tensile.jobs
 where phase = 'waiting for memory' and waits_for ~ 'of device memory, held by job .* and job '
   and (select count(*) from tensile.jobs where state = 'running') = 2"""
GAVE_UP = """
select plan_id from tensile.plans
 where job_id = any(%s) and swaps + recomputed > 0 and measured_peak_bytes is not null"""
ENDLESS = 100_000  # epochs: it trains until it is cancelled
BUDGET_BYTES = 24 * MIB  # what the three could not share unplanned


@pytest.fixture(scope="module")
def running(cluster: Cluster, template: str) -> Iterator[Service]:
    """One controller for all who leave its settings alone, with the data sets loaded: it takes seconds to start."""
    with fresh_database(cluster, template) as database, service_on(database) as made:
        made.settings |= {"TENSILE_CAPACITY_BYTES": str(BUDGET_BYTES), "TENSILE_SPARE_TRAINERS": "3"}
        made.start()
        with database.connect("demo") as connection:
            load(connection, "digits", "breast_cancer", "diabetes")
        yield made


@pytest.fixture
def service(running: Service) -> Service:
    """The controller, with nothing to do."""
    running.until(lambda: device_is_free(running), "the device to be free")
    return running


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
    """Enqueue the three in one transaction; they train until they are cancelled."""
    with demo.transaction():
        return [train(demo, model, table, epochs=ENDLESS) for model, table in THREE.items()]


def cancel(demo: psycopg.Connection, job: int) -> None:
    assert demo.execute("select tensile_cancel(%s)", (job,)).fetchone() == (True,)


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


@pytest.fixture(scope="module")
def undisturbed(running: Service) -> str:
    """The weights of a training on digits that nobody disturbs."""
    with running.database.connect("demo") as demo:
        job = train(demo, "undisturbed", "digits", epochs=12)
        assert running.until_ended(job) == ["succeeded"]
    return weights(running, job)


def children(service: Service, name: str) -> list[int]:
    """The process ids of the controller's children of this name."""
    assert service.process is not None
    return [pid for pid, parent, called in _processes() if (parent, called) == (service.process.pid, name)]


def _processes() -> Iterator[tuple[int, int, str]]:
    """Process id, parent's process id and name of whatever runs."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            before, after = (path / "stat").read_text().rsplit(")", 1)
            yield int(path.name), int(after.split()[1]), before.partition("(")[2]


def in_training(service: Service, job: int, epochs: int = 1) -> None:
    """Wait until the job has finished so many epochs and is not over."""
    service.until(
        lambda: (service.value("select epoch from tensile.job_progress where job_id = %s", job) or 0) > epochs,
        f"job {job} to train",
    )
    assert service.state(job) == "running"


def device(service: Service, *columns: str) -> tuple[int, ...] | None:
    """What the catalog says of the device of the worker that runs."""
    return service.connection.execute(
        sql.SQL(
            "select {} from tensile.devices as d join tensile.workers as w using (worker_id)"
            " where w.stopped_at is null order by w.worker_id desc limit 1"
        ).format(sql.SQL(", ").join(sql.Identifier("d", column) for column in columns))
    ).fetchone()


def device_is_free(service: Service) -> bool:
    """The worker's device has nothing granted and nothing in use."""
    return device(service, "granted_bytes", "used_bytes") == (0, 0)


def test_three_jobs_share_a_device_that_could_not_hold_them_unplanned(
    service: Service, demo: psycopg.Connection
) -> None:
    jobs = train_three(demo)
    for job in jobs:
        in_training(service, job)
    assert [service.state(job) for job in jobs] == ["running"] * 3
    service.until(lambda: service.value(GAVE_UP, jobs), "a plan that gives something up to have been measured")
    for job in jobs:
        cancel(demo, job)
    assert service.until_ended(*jobs) == ["cancelled"] * 3
    unplanned = "select max(liveness_peak_bytes) from tensile.plans where job_id = %s"
    assert sum(service.value(unplanned, job) for job in jobs) > BUDGET_BYTES
    measured = service.connection.execute(
        "select predicted_peak_bytes, measured_peak_bytes from tensile.plans"
        " where job_id = any(%s) and measured_peak_bytes is not null",
        (jobs,),
    ).fetchall()
    assert all(peak <= predicted for predicted, peak in measured)
    budget, high_water = device(service, "budget_bytes", "high_water_bytes") or (0, 0)
    assert 0 < high_water <= budget == BUDGET_BYTES
    service.until(lambda: device_is_free(service), "the device to be free")


def test_without_planning_the_same_three_do_not_run_together(database: Database) -> None:
    with service_on(database) as unplanned, database.connect("demo") as demo:
        unplanned.settings |= {"TENSILE_CAPACITY_BYTES": str(BUDGET_BYTES), "TENSILE_POLICY": "liveness"}
        unplanned.start()
        load(demo, "digits", "breast_cancer", "diabetes")
        jobs = train_three(demo)
        third = unplanned.until(lambda: unplanned.value(TOO_MANY), "two to run while one waits for their memory")
        first, second = (job for job in jobs if job != third)
        in_training(unplanned, second)
        cancel(demo, first)
        in_training(unplanned, third)
        assert unplanned.value("select max(swaps) from tensile.plans") == 0


@pytest.mark.parametrize("victim", ["trainer", "controller", "service", "database"])
def test_a_job_survives_a_kill_and_ends_with_the_same_bits(
    service: Service, demo: psycopg.Connection, undisturbed: str, victim: str
) -> None:
    disturbed = train(demo, "disturbed", "digits", epochs=12)
    in_training(service, disturbed)
    match victim:
        case "trainer":
            for trainer in children(service, "tensile trainer"):  # the job's, and the spare one
                os.kill(trainer, signal.SIGKILL)
        case "controller":
            service.kill()
            service.start()
        case "service":
            (process,) = children(service, "tensile service")
            os.kill(process, signal.SIGKILL)
        case "database":
            service.database.cluster.restart("immediate")
            service.reconnect()
    assert service.until_ended(disturbed) == ["succeeded"]
    assert weights(service, disturbed) == undisturbed
    attempts = service.value("select attempt from tensile.jobs where job_id = %s", disturbed)
    assert attempts == (2 if victim in ("trainer", "controller") else 1), (
        "it was not disturbed as it should have been"
    )
    service.until(lambda: device_is_free(service), "the device to be free")


def test_averaged_weights_are_published_and_survive_a_kill_bit_for_bit(
    service: Service, demo: psycopg.Connection
) -> None:
    averaged: dict[str, float] = {"average_decay": 0.99}
    plain, first, second = (
        train(demo, name, "digits", architecture=WIDE, epochs=8, optimizer="rmsprop", momentum=0.9, **more)
        for name, more in (("unaveraged", dict[str, float]()), ("averaged", averaged), ("averaged_too", averaged))
    )
    in_training(service, second)
    for trainer in children(service, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    assert service.until_ended(plain, first, second) == ["succeeded"] * 3
    assert weights(service, first) == weights(service, second) != weights(service, plain)
    accuracy = demo.execute("select value from tensile_evaluate('averaged') where metric = 'accuracy'").fetchone()
    assert accuracy == (service.value("select metric from tensile.model_versions where job_id = %s", first),)


LEFT_OUT = """select tensile_train(%s, 'diabetes', hyperparams => '{"seed": 7}')"""
TRAINED = "select training from tensile.model_versions where job_id = %s"
SETTINGS = "select detail from tensile.job_events where job_id = %s and kind = 'settings' order by event_id limit 1"


def test_a_training_without_settings_is_told_what_was_chosen_and_goes_on_with_it_after_a_kill(
    service: Service, demo: psycopg.Connection
) -> None:
    first, second = (demo.execute(LEFT_OUT, (name,)).fetchone() for name in ("left_out", "left_out_too"))
    assert first is not None
    assert second is not None
    in_training(service, second[0])
    for trainer in children(service, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    assert service.until_ended(first[0], second[0]) == ["succeeded"] * 2
    assert weights(service, first[0]) == weights(service, second[0])

    trained, told = service.value(TRAINED, second[0]), service.value(SETTINGS, second[0])
    assert service.value(TRAINED, first[0]) == trained
    assert trained["chosen"] == ["batch_size", "epochs", "early_stop"] == told["chosen"]
    assert trained["hyperparams"] == told["hyperparams"]
    assert 1 <= trained["best_epoch"] <= trained["epochs_trained"] < trained["hyperparams"]["epochs"]
    assert trained["epochs_trained"] == trained["best_epoch"] + trained["early_stop"]["patience"]
    progress = service.connection.execute(
        "select epoch, epochs from tensile.job_progress where job_id = %s", (second[0],)
    ).fetchone()
    assert progress == (trained["epochs_trained"], trained["hyperparams"]["epochs"])


def test_a_cancelled_job_stops_within_a_heartbeat_and_leaves_nothing(
    service: Service, demo: psycopg.Connection
) -> None:
    job = train(demo, "endless", "digits", epochs=ENDLESS)
    in_training(service, job)
    cancel(demo, job)
    assert service.until_ended(job) == ["cancelled"]
    service.until(lambda: device_is_free(service), "the device to be free")
    assert service.value("select count(*) from tensile.model_versions where job_id = %s", job) == 0


def test_a_job_that_can_never_fit_says_how_much_it_needs(service: Service, demo: psycopg.Connection) -> None:
    job = train(demo, "wide", "digits", architecture='{"type": "mlp", "hidden": [2048, 2048]}')
    assert service.until_ended(job) == ["failed"]
    row = service.connection.execute(
        "select error_sqlstate, error_message, error_hint from tensile.jobs where job_id = %s", (job,)
    ).fetchone()
    assert row is not None
    assert row[0] == "53200"
    assert "needs at least 32.0 MB of device memory, more than the budget of 24.0 MB" in row[1]
    assert "Use a smaller network" in row[2]


def test_a_table_dropped_before_its_turn_fails_the_job_and_no_other(
    service: Service, demo: psycopg.Connection
) -> None:
    load(demo, "iris")
    service.stop()
    lost = train(demo, "lost", "iris")
    kept = train(demo, "kept", "digits")
    demo.execute("drop table iris")
    service.start()
    assert service.until_ended(lost, kept) == ["failed", "succeeded"]
    message = service.value("select error_message from tensile.jobs where job_id = %s", lost)
    assert "iris" in message


def test_a_clean_stop_hands_jobs_back_and_they_go_on_where_they_were(
    service: Service, demo: psycopg.Connection, undisturbed: str
) -> None:
    job = train(demo, "stopped", "digits", epochs=12)
    in_training(service, job)
    assert service.stop() == 0
    assert service.state(job) == "queued"
    service.start()
    assert service.until_ended(job) == ["succeeded"]
    assert weights(service, job) == undisturbed
    assert service.value("select faults + interruptions from tensile.jobs where job_id = %s", job) == 0


def test_a_model_predicts_from_sql_what_it_was_evaluated_with(service: Service, demo: psycopg.Connection) -> None:
    job = train(demo, "digits", "digits", epochs=15)
    assert service.until_ended(job) == ["succeeded"]
    accuracy = demo.execute("select value from tensile_evaluate('digits') where metric = 'accuracy'").fetchone()
    assert accuracy is not None
    assert accuracy[0] == service.value("select metric from tensile.model_versions where job_id = %s", job)
    right = demo.execute(
        "select avg((tensile_predict('digits', d) = d.label)::int)::float8 from (select * from digits limit 50) as d"
    ).fetchone()
    assert right is not None
    assert right[0] > 0.9
