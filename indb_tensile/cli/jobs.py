"""`tensile jobs`, `job`, `train`, `wait`, `watch` and `cancel`: the queue from a terminal."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from indb_tensile.cli.connection import open_connection
from indb_tensile.cli.options import dsn_option, json_option
from indb_tensile.cli.output import Row, show_one, show_rows, warn
from indb_tensile.cli.progress import watch_jobs
from indb_tensile.cli.statements import statement
from indb_tensile.errors import MissingError, RequestError
from indb_tensile.job import JobState

TIMED_OUT = 7
ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
_POLL_S = 0.2


@click.command()
@dsn_option
@json_option
@click.option("--state", type=click.Choice([state.value for state in JobState]), help="only jobs in this state")
@click.option("--model", help="only jobs of this model")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="at most so many, newest first")
def jobs(dsn: str | None, as_json: bool, state: str | None, model: str | None, limit: int) -> None:
    """List jobs, newest first."""
    with open_connection(dsn) as connection:
        rows = _rows(connection, "jobs", {"state": state, "model": model, "limit": limit})
    show_rows(rows, as_json=as_json, empty="no job yet: select tensile_train('model', 'table')")


@click.command()
@dsn_option
@json_option
@click.argument("job_id", type=int)
def job(dsn: str | None, as_json: bool, job_id: int) -> None:
    """Show one job: where it is, its plan, its error."""
    with open_connection(dsn) as connection:
        show_one(_one_job(connection, job_id), as_json=as_json)


@click.command()
@dsn_option
@json_option
@click.argument("model")
@click.argument("relation")
@click.option("--target", help="the column to predict")
@click.option("--task", type=click.Choice(["classification", "regression"]))
@click.option("--architecture", help="mlp, cnn, auto, or a JSON definition")
@click.option("--hyperparams", help="a JSON object")
@click.option("--exclude", multiple=True, metavar="COLUMN", help="a column to leave out; may be given again")
@click.option("--priority", default=0, show_default=True)
@click.option("--memory-limit", help="the most device memory the job may use, such as 200MB")
@click.option("--wait/--no-wait", "waits", default=False, help="watch the job until it has ended")
def train(dsn: str | None, as_json: bool, model: str, relation: str, waits: bool, **given: Any) -> None:
    """Enqueue a training of MODEL on the table RELATION and print the job's number."""
    arguments = given | {
        "model": model,
        "relation": relation,
        "hyperparams": _json_argument("--hyperparams", given["hyperparams"]),
        "exclude": list(given["exclude"]) or None,
    }
    with open_connection(dsn) as connection:
        connection.add_notice_handler(lambda notice: warn(f"notice: {notice.message_primary}"))
        row = connection.execute(statement("train"), arguments).fetchone()
        assert row is not None
        show_one({"job_id": row[0]}, as_json=as_json)
        if waits:
            sys.exit(_outcome(watch_jobs(connection, [row[0]])))


@click.command()
@dsn_option
@json_option
@click.argument("job_ids", type=int, nargs=-1, required=True)
@click.option("--timeout", "timeout_s", type=float, help="seconds to wait at most")
def wait(dsn: str | None, as_json: bool, job_ids: Sequence[int], timeout_s: float | None) -> None:
    """Wait until the jobs have ended; exit with 1 if one failed or was cancelled, with 7 if time ran out."""
    with open_connection(dsn) as connection:
        rows = _until(lambda: [_one_job(connection, number) for number in job_ids], timeout_s)
    show_rows([_summary(row) for row in rows], as_json=as_json)
    sys.exit(_outcome([row["state"] for row in rows]))


@click.command()
@dsn_option
@click.argument("job_ids", type=int, nargs=-1)
def watch(dsn: str | None, job_ids: Sequence[int]) -> None:
    """Show live progress until the jobs have ended; without JOB_IDS, every job that has not ended yet."""
    with open_connection(dsn) as connection:
        numbers = list(job_ids) or [row["job_id"] for row in _rows(connection, "unended_jobs", {})]
        if not numbers:
            warn("no job is queued or running")
            return
        sys.exit(_outcome(watch_jobs(connection, numbers)))


@click.command()
@dsn_option
@json_option
@click.argument("job_ids", type=int, nargs=-1, required=True)
def cancel(dsn: str | None, as_json: bool, job_ids: Sequence[int]) -> None:
    """Cancel jobs: a queued one at once, a running one within a heartbeat."""
    rows = []
    with open_connection(dsn) as connection:
        for number in job_ids:
            row = connection.execute(statement("cancel"), {"job": number}).fetchone()
            rows.append({"job_id": number, "cancelled": row is not None and row[0]})
    show_rows(rows, as_json=as_json)


def _rows(connection: psycopg.Connection, name: str, arguments: dict[str, object]) -> list[Row]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement(name), arguments).fetchall()


def _one_job(connection: psycopg.Connection, number: int) -> Row:
    rows = _rows(connection, "job", {"job": number})
    if not rows:
        raise MissingError(f"job {number} does not exist or is not yours", hint="tensile jobs lists yours")
    return rows[0]


def _until(look: Callable[[], list[Row]], timeout_s: float | None) -> list[Row]:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        rows = look()
        if all(row["state"] in ENDED for row in rows):
            return rows
        if deadline is not None and time.monotonic() > deadline:
            waiting = [str(row["job_id"]) for row in rows if row["state"] not in ENDED]
            warn(f"after {timeout_s:g} s these jobs have not ended: {', '.join(waiting)}")
            sys.exit(TIMED_OUT)
        time.sleep(_POLL_S)


def _summary(row: Row) -> Row:
    return {name: row[name] for name in ("job_id", "model", "state", "metric_name", "metric", "error")}


def _outcome(states: Sequence[str]) -> int:
    return 0 if all(state == JobState.SUCCEEDED for state in states) else 1


def _json_argument(option: str, text: str | None) -> Jsonb | None:
    if text is None:
        return None
    try:
        return Jsonb(json.loads(text))
    except json.JSONDecodeError as error:
        raise RequestError(
            f"{option} is not JSON: {error.msg} at character {error.pos + 1}: {text}",
            hint="""write it as an object, such as --hyperparams '{"epochs": 20}'""",
        ) from error
