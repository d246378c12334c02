"""Check jobs from SQL to the published version, with real processes on a small emulated device."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import Database
from tests.e2e.conftest import BUDGET_BYTES, UNDISTURBED_EPOCHS, Service, service_on
from tests.e2e.trainings import (
    WIDE,
    check_killed_without_fault,
    child_pids,
    device_columns,
    device_is_free,
    load,
    train,
    wait_until_training,
    weights,
)
from tests.nightly import nightly_unless

pytestmark = pytest.mark.postgres


THREE = {"first": "digits", "second": "breast_cancer", "third": "diabetes"}

WAITING_JOB = """
select job_id from tensile.jobs
 where phase = 'waiting for memory' and waits_for ~ 'of device memory, held by job .* and job '
   and (select count(*) from tensile.jobs where state = 'running') = 2"""

SWAPPING_PLAN = """
select plan_id from tensile.plans
 where job_id = any(%s) and swaps + recomputed > 0 and measured_peak_bytes is not null"""

ENDLESS_EPOCHS = 100_000  # a job with so many epochs trains until it is cancelled


@pytest.fixture
def service(running: Service) -> Service:
    """The session's controller, with a free device."""
    running.until(lambda: device_is_free(running), "the device to be free")
    return running


@pytest.fixture
def demo(service: Service) -> Iterator[psycopg.Connection]:
    """A session of an ordinary user."""
    with service.database.connect("demo") as connection:
        yield connection


def train_three(demo: psycopg.Connection) -> list[int]:
    """Enqueue the three jobs in one transaction. They train until they are cancelled."""
    with demo.transaction():
        return [train(demo, model, table, epochs=ENDLESS_EPOCHS) for model, table in THREE.items()]


def cancel(demo: psycopg.Connection, job: int) -> None:
    assert demo.execute("select tensile_cancel(%s)", (job,)).fetchone() == (True,)


def test_three_jobs_share_a_device_that_is_too_small_without_planning(
    service: Service, demo: psycopg.Connection
) -> None:
    jobs = train_three(demo)
    for job in jobs:
        wait_until_training(service, job)
    assert [service.state(job) for job in jobs] == ["running"] * 3
    service.until(lambda: service.value(SWAPPING_PLAN, jobs), "a plan that swaps or recomputes to be measured")
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
    budget, high_water = device_columns(service, "budget_bytes", "high_water_bytes") or (0, 0)
    assert 0 < high_water <= budget == BUDGET_BYTES
    service.until(lambda: device_is_free(service), "the device to be free")


@pytest.mark.nightly
def test_three_jobs_do_not_run_together_without_planning(database: Database) -> None:
    with service_on(database) as unplanned, database.connect("demo") as demo:
        unplanned.settings |= {"TENSILE_CAPACITY_BYTES": str(BUDGET_BYTES), "TENSILE_POLICY": "liveness"}
        unplanned.start()
        load(demo, "digits", "breast_cancer", "diabetes")
        jobs = train_three(demo)
        third = unplanned.until(
            lambda: unplanned.value(WAITING_JOB), "two jobs to run while one waits for their memory"
        )
        first, second = (job for job in jobs if job != third)
        wait_until_training(unplanned, second)
        cancel(demo, first)
        wait_until_training(unplanned, third)
        assert unplanned.value("select max(swaps) from tensile.plans") == 0


# By day tests/controller/test_controller_process.py kills controllers, with trainers that need no torch.
@pytest.mark.by_day("trainer")
@pytest.mark.parametrize(
    "victim",
    nightly_unless(
        lambda victim: victim in ("trainer", "database"), ["trainer", "controller", "service", "database"]
    ),
)
def test_job_survives_a_kill_and_publishes_the_same_bits(
    service: Service, demo: psycopg.Connection, undisturbed: int, victim: str
) -> None:
    disturbed = train(demo, "disturbed", "digits", epochs=UNDISTURBED_EPOCHS)
    wait_until_training(service, disturbed)
    match victim:
        case "trainer":
            for trainer in child_pids(service, "tensile trainer"):  # the job's trainer and the spare trainer
                os.kill(trainer, signal.SIGKILL)
        case "controller":
            service.kill()
            service.start()
        case "service":
            (process,) = child_pids(service, "tensile service")
            os.kill(process, signal.SIGKILL)
        case "database":
            service.database.cluster.restart("immediate")
            service.reconnect()
    assert service.until_ended(disturbed) == ["succeeded"]
    assert weights(service, disturbed) == weights(service, undisturbed)
    attempts = service.value("select attempt from tensile.jobs where job_id = %s", disturbed)
    assert attempts == (2 if victim in ("trainer", "controller") else 1), "the kill did not disturb the job"
    service.until(lambda: device_is_free(service), "the device to be free")


@pytest.mark.nightly
def test_averaged_weights_survive_a_kill_bit_for_bit(service: Service, demo: psycopg.Connection) -> None:
    averaged: dict[str, float] = {"average_decay": 0.99}
    plain, first, second = (
        train(demo, name, "digits", architecture=WIDE, epochs=8, optimizer="rmsprop", momentum=0.9, **options)
        for name, options in (("unaveraged", dict[str, float]()), ("averaged", averaged), ("averaged_too", averaged))
    )
    wait_until_training(service, second)
    for trainer in child_pids(service, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    assert service.until_ended(plain, first, second) == ["succeeded"] * 3
    assert weights(service, first) == weights(service, second) != weights(service, plain)
    accuracy = demo.execute("select value from tensile_evaluate('averaged') where metric = 'accuracy'").fetchone()
    assert accuracy == (service.value("select metric from tensile.model_versions where job_id = %s", first),)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "plateau", "decay": 0.5, "decay_patience": 0, "warmup": 0.1, "label_smoothing": 0.1},
        {"schedule": "one_cycle", "loss": "focal", "optimizer": "lion", "weight_decay_of": "weights"},
        {"schedule": "cosine", "ensemble": 3, "optimizer": "sgd"},
    ],
    ids=["plateau", "one_cycle", "ensemble"],
)
def test_schedule_and_loss_survive_a_kill_bit_for_bit(
    service: Service, demo: psycopg.Connection, options: dict[str, Any]
) -> None:
    schedule = options["schedule"]
    first, second = (
        train(demo, f"{schedule}_{place}", "digits", epochs=12, learning_rate=0.001, **options)
        for place in ("first", "second")
    )
    wait_until_training(service, second)
    for trainer in child_pids(service, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    assert service.until_ended(first, second) == ["succeeded"] * 2
    assert weights(service, first) == weights(service, second)
    check_killed_without_fault(service, second)
    trained = service.value(TRAINED, second)["hyperparams"]
    assert {name: trained[name] for name in options} == options


TRAIN_WITH_DEFAULTS = """select tensile_train(%s, 'diabetes', hyperparams => '{"seed": 7}')"""

TRAINED = "select training from tensile.model_versions where job_id = %s"

SETTINGS = "select detail from tensile.job_events where job_id = %s and kind = 'settings' order by event_id limit 1"


@pytest.mark.nightly  # early stopping ends the training after many epochs
def test_training_without_settings_keeps_its_derived_settings_after_a_kill(
    service: Service, demo: psycopg.Connection
) -> None:
    first, second = (demo.execute(TRAIN_WITH_DEFAULTS, (name,)).fetchone() for name in ("left_out", "left_out_too"))
    assert first is not None
    assert second is not None
    wait_until_training(service, second[0])
    for trainer in child_pids(service, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    assert service.until_ended(first[0], second[0]) == ["succeeded"] * 2
    assert weights(service, first[0]) == weights(service, second[0])

    trained, settings_event = service.value(TRAINED, second[0]), service.value(SETTINGS, second[0])
    assert service.value(TRAINED, first[0]) == trained
    assert trained["chosen"] == ["batch_size", "epochs", "early_stop", "ensemble"] == settings_event["chosen"]
    assert trained["hyperparams"] == settings_event["hyperparams"]
    assert 1 <= trained["best_epoch"] <= trained["epochs_trained"] < trained["hyperparams"]["epochs"]
    assert trained["epochs_trained"] == trained["best_epoch"] + trained["early_stop"]["patience"]
    progress = service.connection.execute(
        "select epoch, epochs from tensile.job_progress where job_id = %s", (second[0],)
    ).fetchone()
    assert progress == (trained["epochs_trained"], trained["hyperparams"]["epochs"])


def test_process_from_which_trainers_and_service_are_forked_has_one_thread(service: Service) -> None:
    """A lock that another thread holds at the fork is held for ever in the forked process."""
    (fork_server,) = child_pids(service, "tensile forks")
    assert len(list(Path(f"/proc/{fork_server}/task").iterdir())) == 1


def test_cancelled_job_leaves_no_memory_and_no_version(service: Service, demo: psycopg.Connection) -> None:
    job = train(demo, "endless", "digits", epochs=ENDLESS_EPOCHS)
    wait_until_training(service, job)
    cancel(demo, job)
    assert service.until_ended(job) == ["cancelled"]
    service.until(lambda: device_is_free(service), "the device to be free")
    assert service.value("select count(*) from tensile.model_versions where job_id = %s", job) == 0


def test_job_that_can_never_fit_fails_with_the_memory_that_it_needs(
    service: Service, demo: psycopg.Connection
) -> None:
    job = train(demo, "wide", "digits", architecture='{"type": "mlp", "hidden": [2048, 2048]}')
    assert service.until_ended(job) == ["failed"]
    row = service.connection.execute(
        "select error_sqlstate, error_message, error_hint from tensile.jobs where job_id = %s", (job,)
    ).fetchone()
    assert row is not None
    assert row[0] == "53200"
    assert "needs at least 32.0 MB of device memory, more than the budget of 24.0 MB" in row[1]
    assert "Use a smaller network" in row[2]


# By day tests/training/test_divergence.py checks the weights that are refused.
@pytest.mark.nightly
def test_training_that_diverges_fails_at_the_end_of_its_epoch(service: Service, demo: psycopg.Connection) -> None:
    job = train(demo, "wild", "diabetes", optimizer="sgd", learning_rate=100, epochs=ENDLESS_EPOCHS)

    assert service.until_ended(job) == ["failed"]
    message = service.value("select error_message from tensile.jobs where job_id = %s", job)
    assert message == "the training diverged: after epoch 1 the weights are not finite"


def test_dropped_table_fails_its_own_job_only(service: Service, demo: psycopg.Connection) -> None:
    load(demo, "iris")
    with demo.transaction():  # no controller sees the job before the table is gone
        lost_job = train(demo, "of_lost_table", "iris")
        kept_job = train(demo, "kept", "digits")
        demo.execute("drop table iris")
    assert service.until_ended(lost_job, kept_job) == ["failed", "succeeded"]
    message = service.value("select error_message from tensile.jobs where job_id = %s", lost_job)
    assert "iris" in message


# By day tests/controller/test_controller_process.py stops a controller, with trainers that need no torch.
@pytest.mark.nightly
def test_stop_requeues_jobs_and_they_continue_from_their_checkpoints(
    service: Service, demo: psycopg.Connection, undisturbed: int
) -> None:
    job = train(demo, "stopped", "digits", epochs=UNDISTURBED_EPOCHS)
    wait_until_training(service, job)
    assert service.stop() == 0
    assert service.state(job) == "queued"
    service.start()
    assert service.until_ended(job) == ["succeeded"]
    assert weights(service, job) == weights(service, undisturbed)
    assert service.value("select faults + interruptions from tensile.jobs where job_id = %s", job) == 0


@pytest.mark.nightly
def test_evaluation_from_sql_equals_the_published_metric(service: Service, demo: psycopg.Connection) -> None:
    job = train(demo, "digits", "digits", epochs=6)
    assert service.until_ended(job) == ["succeeded"]
    accuracy = demo.execute("select value from tensile_evaluate('digits') where metric = 'accuracy'").fetchone()
    assert accuracy is not None
    assert accuracy[0] == service.value("select metric from tensile.model_versions where job_id = %s", job)
    hit_rate = demo.execute(
        "select avg((tensile_predict('digits', d) = d.label)::int)::float8 from (select * from digits limit 50) as d"
    ).fetchone()
    assert hit_rate is not None
    assert hit_rate[0] > 0.9
