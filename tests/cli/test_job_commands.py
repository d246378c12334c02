"""Check the commands that list, show, wait for, watch, cancel and enqueue jobs, and their exit codes."""

import json
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import jobs as catalog
from indb_tensile.catalog import models, plans
from indb_tensile.catalog.jobs import Progress
from indb_tensile.errors import DataError
from indb_tensile.job import JobId
from tests.catalog.enqueue import claim, enqueue, publication, register
from tests.cli.conftest import Tensile, until
from tests.conftest import Database

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


@pytest.fixture
def worker(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """A connection as the worker's role, which writes the states of jobs."""
    with database.connect("tensile_worker") as connection:
        yield connection


def queue(database: Database, *names: str) -> list[JobId]:
    """Enqueue one job of `demo` for each model."""
    with database.connect("demo") as connection:
        return [enqueue(connection, name) for name in names]


def succeed(worker: psycopg.Connection[Any], job: JobId) -> None:
    """Claim the next job, which must be this job, and publish a version for it."""
    claimed = claim(worker, register(worker))
    assert claimed.job == job
    models.publish_version(worker, claimed, publication())


def fail(worker: psycopg.Connection[Any], job: JobId, message: str) -> None:
    """Claim the next job, which must be this job, and fail it with this error."""
    claimed = claim(worker, register(worker))
    assert claimed.job == job
    catalog.fail(worker, job, claimed.claim, DataError(message, hint="do otherwise"))


def test_jobs_are_listed_newest_first_and_filtered(demo: Tensile, database: Database) -> None:
    first, second, third = queue(database, "a", "b", "a")
    assert demo("cancel", str(second)).code == 0
    listed = [json.loads(line) for line in demo("jobs", "--json").out.splitlines()]
    assert [(row["job_id"], row["model"], row["state"]) for row in listed] == [
        (third, "a", "queued"), (second, "b", "cancelled"), (first, "a", "queued")]  # fmt: skip
    assert listed[0]["note"] == "waits for a controller: none is alive"

    def numbers(*options: str) -> list[int]:
        return [json.loads(line)["job_id"] for line in demo("jobs", "--json", *options).out.splitlines()]

    assert numbers("--model", "a") == [third, first]
    assert numbers("--state", "cancelled") == [second]
    assert numbers("--limit", "1") == [third]
    assert numbers("--state", "failed") == []


def test_empty_list_prints_a_message_on_stderr(demo: Tensile) -> None:
    done = demo("jobs")
    assert (done.code, done.out, done.err) == (0, "", "no job yet: select tensile_train('model', 'table')\n")


def test_jobs_of_another_user_are_invisible(demo: Tensile, database: Database) -> None:
    with database.connect("alice") as alice:
        alices_job = enqueue(alice, "hers")
    assert demo("jobs", "--json").out == ""
    for command in ("job", "wait", "watch"):
        done = demo(command, str(alices_job))
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"tensile: job {alices_job} does not exist or belongs to another role\n  hint: ")
    assert demo("cancel", str(alices_job)).err.startswith(f"tensile: there is no job {alices_job}\n")


def test_job_shows_its_error_and_hint(demo: Tensile, database: Database, worker: psycopg.Connection[Any]) -> None:
    (job,) = queue(database, "m")
    fail(worker, job, "the table is [bold]empty[/]")
    job_row = json.loads(demo("job", str(job), "--json").out)
    assert (job_row["state"], job_row["error"], job_row["error_hint"]) == (
        "failed",
        "the table is [bold]empty[/]",
        "do otherwise",
    )
    assert "error        the table is [bold]empty[/]\n" in demo("job", str(job)).out


def test_job_shows_its_data_report(demo: Tensile, database: Database, worker: psycopg.Connection[Any]) -> None:
    (job,) = queue(database, "m")
    read = {"section": "rows", "subject": None, "fact": "read", "value": "9", "warning": None}
    key = {"section": "columns", "subject": "id", "fact": "counts up", "value": "yes", "warning": "it is\ta [b]key"}
    assert json.loads(demo("job", str(job), "--json").out)["data_report"] == []
    claimed = claim(worker, register(worker))
    catalog.save_report(worker, job, claimed.claim, [read, key])
    assert json.loads(demo("job", str(job), "--json").out)["data_report"] == [read, key]
    lines = demo("job", str(job)).out.splitlines()
    assert [line.split() for line in lines[-4:-1]] == [
        ["section", "subject", "fact", "value"],
        ["rows", "read", "9"],
        ["columns", "id", "counts", "up", "yes"],
    ]
    assert lines[-1] == "warning: id: it is a [b]key"


def test_metrics_shows_every_epoch_and_a_chart_of_both_losses(
    demo: Tensile, database: Database, worker: psycopg.Connection[Any]
) -> None:
    (job,) = queue(database, "m")
    assert demo("metrics", str(job)).err == f"job {job} has finished no epoch yet\n"
    claimed = claim(worker, register(worker))
    for epoch, loss in ((1, 2.0), (2, 1.0)):
        figures = {"loss": loss, "valid_loss": loss + 1, "learning_rate": 0.5, "r2": loss / 4}
        progress = Progress(epoch=epoch, epochs=2, step=1, steps=1, figures=figures)
        catalog.report_progress(worker, job, claimed.claim, progress)
    assert [json.loads(line) for line in demo("metrics", str(job), "--json").out.splitlines()] == [
        {"epoch": 1, "loss": 2.0, "valid_loss": 3.0, "learning_rate": 0.5, "metrics": {"r2": 0.5}},
        {"epoch": 2, "loss": 1.0, "valid_loss": 2.0, "learning_rate": 0.5, "metrics": {"r2": 0.25}},
    ]
    lines = demo("metrics", str(job)).out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["epoch", "loss", "valid", "loss", "r2"],
        ["1", "2", "3", "0.5"],
        ["2", "1", "2", "0.25"],
    ]
    assert lines[-1].split() == ["•", "loss", "○", "valid_loss"]
    assert demo("metrics", str(job), "--chart", "r2").out.splitlines()[-1].split() == ["•", "r2"]
    wrong = demo("metrics", str(job), "--chart", "f1")
    assert (wrong.code, wrong.err) == (2, f"tensile: job {job} has no metric f1\n  hint: its metrics are r2\n")
    assert " ".join(demo("metrics", str(job), "--by-label").err.split()) == (
        f"job {job} has no metrics by label: it has published no version, one that predicts one number, or a "
        "forecast, whose metrics by step are those of tensile_forecast_metrics"
    )
    version = models.publish_version(worker, claimed, publication())
    report = {"rows": [["red", 3, {"f1": 0.5, "roc_auc": 0.75}], ["tall", 9, {"f1": 1.0}]]}
    models.add_figure(worker, version, "label_metrics", report)
    assert [json.loads(line) for line in demo("metrics", str(job), "--by-label", "--json").out.splitlines()] == [
        {"name": "red", "rows": 3, "f1": 0.5, "roc_auc": 0.75},
        {"name": "tall", "rows": 9, "f1": 1.0, "roc_auc": None},
    ]
    models.add_figure(worker, version, "baseline", {"metrics": {publication().metric_name: 0.25}})
    assert demo("metrics", str(job)).out.splitlines()[-1].endswith("of gradient boosting, the baseline: 0.25")
    assert demo("metrics", "999").code == 2


def test_wait_ends_with_code_0_if_all_jobs_succeeded(
    demo: Tensile, database: Database, worker: psycopg.Connection[Any]
) -> None:
    first, second = queue(database, "a", "b")
    succeed(worker, first)
    succeed(worker, second)
    done = demo("wait", str(second), str(first), "--json")
    assert done.code == 0
    assert [json.loads(line) for line in done.out.splitlines()] == [
        {"job_id": second, "model": "b", "state": "succeeded", "metric_name": "r2", "metric": 0.5, "error": None},
        {"job_id": first, "model": "a", "state": "succeeded", "metric_name": "r2", "metric": 0.5, "error": None},
    ]


def test_wait_ends_with_code_1_if_a_job_failed_or_was_cancelled(
    demo: Tensile, database: Database, worker: psycopg.Connection[Any]
) -> None:
    first, second = queue(database, "a", "b")
    fail(worker, first, "no rows")
    demo("cancel", str(second))
    done = demo("wait", str(first), str(second))
    assert done.code == 1
    assert "no rows" in done.out


def test_wait_ends_with_code_7_after_its_timeout_and_shows_the_states(demo: Tensile, database: Database) -> None:
    (job,) = queue(database, "a")
    done = demo("wait", str(job), "--timeout", "0.1", "--json")
    assert done.code == 7
    assert json.loads(done.out)["state"] == "queued"
    assert done.err == f"after 0.1 s these jobs have not ended: {job}\n"


def test_paused_job_is_listed_as_paused_until_it_is_resumed(demo: Tensile, database: Database) -> None:
    (job,) = queue(database, "a")
    assert demo("pause", str(job)).err == f"job {job} is paused\n"
    (row,) = [json.loads(line) for line in demo("jobs", "--json").out.splitlines()]
    assert (row["state"], row["phase"]) == ("queued", "paused")
    assert row["note"] == f"waits for its resumption: select tensile_resume({job});"
    assert "paused" in demo("jobs").out
    twice = demo("pause", str(job))
    assert twice.code != 0
    assert twice.err.splitlines()[0] == f"tensile: job {job} is paused already"
    resumed = demo("resume", str(job), "--json")
    assert json.loads(resumed.out) == {"job_id": job, "paused": False, "state": "queued"}
    assert json.loads(demo("jobs", "--json").out)["phase"] is None


def test_failed_job_is_enqueued_again_with_another_priority(demo: Tensile, database: Database) -> None:
    with database.connect("demo") as connection:
        connection.execute("create table r as select i as x, i % 3 as y from generate_series(1, 60) as i")
        connection.execute("grant select on r to tensile_reader")
    (first,) = [json.loads(line)["job_id"] for line in demo("train", "m", "r", "--json").out.splitlines()]
    later = json.loads(demo("train", "n", "r", "--depends-on", str(first), "--json").out)["job_id"]
    assert json.loads(demo("priority", str(later), "-5", "--json").out) == {"job_id": later, "priority": -5}
    demo("cancel", str(first))
    done = demo("retry", str(first), str(later), "--json")
    assert [json.loads(line) for line in done.out.splitlines()] == [
        {"job_id": later + 1, "retry_of": first},
        {"job_id": later + 2, "retry_of": later},
    ]
    rows = [json.loads(line) for line in demo("queue", "--json").out.splitlines()]
    assert [(row["job_id"], row["priority"]) for row in rows] == [(later + 1, 0), (later + 2, -5)]
    refused = demo("retry", str(first))
    assert (refused.code, refused.err.splitlines()[0]) == (
        2,
        f"tensile: job {first} is repeated by job {later + 1} already",
    )


def test_cancel_prints_the_outcome_of_each_job(
    demo: Tensile, database: Database, worker: psycopg.Connection[Any]
) -> None:
    done_job, running, queued = queue(database, "a", "b", "c")
    succeed(worker, done_job)
    claim(worker, register(worker))
    done = demo("cancel", str(done_job), str(running), str(queued))
    assert done.code == 0
    assert done.err.splitlines() == [
        f"job {done_job} had ended already: succeeded",
        f"job {running} is being stopped",
        f"job {queued} is cancelled",
    ]
    second_cancel = demo("cancel", str(queued), "--json")
    assert json.loads(second_cancel.out) == {"job_id": queued, "cancelled": False, "state": "cancelled"}


def test_watch_prints_changes_until_all_jobs_have_ended(
    demo: Tensile, database: Database, worker: psycopg.Connection[Any]
) -> None:
    (job,) = queue(database, "digits")
    with demo.start("watch", str(job), "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["waits_for"] == "a controller: none is alive"
        claimed = claim(worker, register(worker))
        assert json.loads(process.stdout.readline())["state"] == "starting"
        catalog.start_running(worker, job, claimed.claim)
        assert json.loads(process.stdout.readline())["phase"] == "training"
        demo("cancel", str(job))
        catalog.cancelled(worker, job, claimed.claim)
        last = json.loads(process.stdout.readlines()[-1])
    assert (process.returncode, last["state"]) == (1, "cancelled")


@pytest.mark.nightly
def test_watch_says_how_well_jobs_run_side_by_side(
    demo: Tensile, database: Database, worker: psycopg.Connection[Any]
) -> None:
    jobs = queue(database, "one", "two")
    at = register(worker)
    for job in jobs:
        claimed = claim(worker, at)
        catalog.start_running(worker, job, claimed.claim)
        beside = [JobId(other) for other in jobs if other != job]
        plans.record_set(worker, JobId(job), claimed.claim, beside, 1.5, 0.75)
    with demo.start("watch", *map(str, jobs)) as process:
        assert process.stderr is not None
        text = f"jobs {jobs[0]} and {jobs[1]} side by side: throughput foretold 1.50, in turns 1\n"
        assert text in [process.stderr.readline() for _ in range(3)]
        demo("cancel", *map(str, jobs))
        process.send_signal(signal.SIGINT)


@pytest.mark.nightly
def test_watch_without_ids_watches_all_jobs_that_have_not_ended(demo: Tensile, database: Database) -> None:
    assert demo("watch").err == "no job is queued or running\n"
    first, second = queue(database, "a", "b")
    demo("cancel", str(first))
    with demo.start("watch") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith(f"job {second}  b")
        assert "queued: waits for a controller: none is alive" in line
        demo("cancel", str(second))
        assert "cancelled" in process.stderr.read()
    assert process.returncode == 1


@pytest.mark.nightly
def test_interrupted_watch_says_that_the_jobs_continue(demo: Tensile, database: Database) -> None:
    (job,) = queue(database, "a")
    for command in ("watch", "wait"):
        with demo.start(command, str(job)) as process:
            assert process.stderr is not None
            with database.connect() as admin:
                until(lambda: _is_watched(admin), "the command to look at its job")
                process.send_signal(signal.SIGINT)
                log = process.stderr.read()
                # Otherwise the next command would be interrupted while Python starts, on account of this session.
                until(lambda: not _is_watched(admin), "the command's session to end")
        assert process.returncode == 130
        assert "Traceback" not in log
        assert log.splitlines()[-1] == (
            f"interrupted: the jobs continue. To watch them: tensile watch {job}; to stop them: tensile cancel {job}"
        )
    assert json.loads(demo("job", str(job), "--json").out)["state"] == "queued"


def test_watch_reconnects_after_a_lost_connection(demo: Tensile, database: Database) -> None:
    (job,) = queue(database, "a")
    with demo.start("watch", str(job), "--json") as process, database.connect() as admin:
        assert process.stdout is not None
        process.stdout.readline()
        row = admin.execute(
            """select count(pg_terminate_backend(pid)) from pg_stat_activity
                where datname = current_database() and application_name = 'tensile'"""
        ).fetchone()
        assert row == (1,)
        demo("cancel", str(job))
        assert json.loads(process.stdout.readlines()[-1])["state"] == "cancelled"
    assert process.returncode == 1


def test_training_is_enqueued_with_the_given_options(demo: Tensile, database: Database) -> None:
    with database.connect("demo") as connection:
        connection.execute(
            """create table t (id bigint primary key, a real, b real, y text);
               insert into t select i, i, i % 3, chr(65 + i % 2) from generate_series(1, 50) as i;
               grant select on t to tensile_reader"""
        )
    done = demo(
        "train", "m", "t", "--target", "y", "--hyperparams", '{"epochs": 2, "batch_size": 10}', "--exclude", "b",
        "--priority", "3", "--memory-limit", "200MB", "--early-stop", '{"patience": 5}', "--max-runtime", "2 hours",
        "--deploy", "always", "--not-before", "2099-01-31 22:00+00", "--snapshot", "--json")  # fmt: skip
    assert done.code == 0, done.err
    assert done.err.startswith("notice: ")
    job = json.loads(done.out)["job_id"]
    with database.connect("demo") as connection:
        row = connection.execute(
            "select priority, spec, not_before = '2099-01-31 22:00+00' from tensile.jobs where job_id = %s", (job,)
        ).fetchone()
    assert row is not None
    priority, spec, is_postponed = row
    assert (priority, spec["snapshot"], is_postponed) == (3, True, True)
    assert (spec["target"], spec["deploy"], spec["early_stop"]["patience"]) == ("y", "always", 5)
    assert (spec["hyperparams"]["epochs"], spec["hyperparams"]["batch_size"]) == (2, 10)
    assert (spec["memory_limit_bytes"], spec["max_runtime_s"]) == (200 * 1024 * 1024, 7200)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m", "nosuch"], 'relation "nosuch" does not exist'),
        (["m", "t", "--target", "z"], 'column "z" of relation "public.t" does not exist'),
        (["m", "t", "--hyperparams", '{"epochs": '], "--hyperparams is not JSON: Expecting value at character 12"),
        (["m", "t", "--target", "y", "--hyperparams", "[1]"], "hyperparams"),
        (["m", "t", "--target", "y", "--architecture", "pyramid"], "pyramid"),
        (["m", "t", "--target", "y", "--memory-limit", "much"], "much"),
        (["m", "t", "--target", "y", "--max-runtime", "for ever"], "for ever"),
        (["m", "t", "--target", "y", "--not-before", "some day"], "some day"),
    ],
)
def test_invalid_request_ends_with_a_message_and_code_2(
    demo: Tensile, database: Database, arguments: list[str], message: str
) -> None:
    with database.connect("demo") as connection:
        connection.execute("create table t (a real, y text); grant select on t to tensile_reader")
    done = demo("train", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_unreadable_table_ends_with_code_3_and_the_missing_grant(demo: Tensile, database: Database) -> None:
    with database.connect("demo") as connection:
        connection.execute("create table t (a real, y text)")
    done = demo("train", "m", "t", "--target", "y")
    assert done.code == 3
    assert "grant select on" in done.err


def test_database_without_the_catalog_is_refused_with_a_hint(tensile: Tensile, database: Database) -> None:
    dsn = database.cluster.dsn(user="demo", database="postgres")
    for command in (["jobs"], ["job", "1"], ["wait", "1"], ["watch", "1"], ["cancel", "1"], ["models"], ["plan", "1"],
                    ["train", "m", "pg_class"], ["predict", "m", "{}"]):  # fmt: skip
        done = tensile(*command, "--dsn", dsn)
        assert done.code == 4, command
        assert done.err.startswith('tensile: the catalog is not installed in database "postgres"\n  hint: ')
        assert "tensile init --dsn 'dbname=postgres'" in done.err


def test_role_without_the_grant_is_refused_with_the_missing_grant(tensile: Tensile, database: Database) -> None:
    with database.connect() as admin:
        admin.execute("revoke tensile_user from bob")
    try:
        done = tensile("jobs", "--dsn", database.dsn("bob"))
    finally:
        with database.connect() as admin:
            admin.execute("grant tensile_user to bob")
    assert done.code == 3
    assert "grant tensile_user to bob" in done.err


def test_catalog_of_another_version_is_refused(tensile: Tensile, database: Database) -> None:
    with database.connect() as admin:
        admin.execute("create or replace function tensile.catalog_version() returns text immutable return '0.0.1'")
        admin.execute("alter table tensile.jobs rename column phase to stage")
    done = tensile("job", "1", "--dsn", database.dsn("demo"))
    assert done.code == 4
    assert "has version 0.0.1, this program has 0.2.0" in done.err


def _is_watched(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the command has queried its job, and therefore waits."""
    return (
        connection.execute(
            """select from pg_stat_activity
                where datname = current_database() and application_name = 'tensile' and query like '%tensile.jobs%'"""
        ).fetchone()
        is not None
    )
