"""The commands `tensile job`, `metrics`, `train`, `wait`, `watch`, `cancel`, `retry` and others on single jobs."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, LiteralString

import click
import psycopg
from psycopg.rows import dict_row
from rich.text import Text

from indb_tensile.catalog.connection import Connection, pinned
from indb_tensile.cli.database_choice import open_connection, open_session
from indb_tensile.cli.loss_chart import loss_chart
from indb_tensile.cli.output import Row, out, plain, show_one, show_rows, warn
from indb_tensile.cli.progress import Watch
from indb_tensile.cli.shared_options import dsn_option, json_option
from indb_tensile.cli.statements import statement
from indb_tensile.cli.training_options import training_arguments, training_options
from indb_tensile.errors import MissingError
from indb_tensile.job import ENDED_STATES, JobState
from indb_tensile.monitor import live_figures
from indb_tensile.monitor.job_pictures import job_learning_picture
from indb_tensile.request.figure_rules import REPORTED_METRICS

TIMED_OUT = 7
INTERRUPTED = 130
_POLL_S = 0.2
_NUMBER_COLUMNS = 9  # width of a metric, such as 1.234e-05
_LOSS_COLUMNS = 28  # width of the epoch and of both losses


@click.command()
@dsn_option
@json_option
@click.argument("job_id", type=int)
def job(dsn: str | None, as_json: bool, job_id: int) -> None:
    """Show one job: its state, progress and memory, its error, and the report on the data of its table."""
    with open_connection(dsn) as connection:
        row, report = _read_job(connection, job_id), _report(connection, job_id)
    if as_json:
        show_one(row | {"data_report": report}, as_json=True)
        return
    show_one(row, as_json=False)
    if report:
        out.print()
        show_rows([{name: fact[name] for name in fact if name != "warning"} for fact in report], as_json=False)
    for fact in report:
        if fact["warning"]:
            out.print(Text(f"warning: {plain(fact['subject'] or fact['section'])}: {plain(fact['warning'])}"))


@click.command()
@dsn_option
@json_option
@click.argument("job_id", type=int)
@click.option("--by-label", is_flag=True, help="show the metrics of each class, label or target on the held-out rows")
@click.option("--chart", "charted", metavar="METRIC", help="draw this metric of the validation rows, not the losses")
@click.option("--picture", metavar="FILE", help="draw losses, metrics and learning rate, as SVG")
def metrics(
    dsn: str | None, as_json: bool, job_id: int, by_label: bool, charted: str | None, picture: str | None
) -> None:
    """Show the losses and metrics of a job after each epoch, a chart of both losses, and the baseline's metric."""
    with open_connection(dsn) as connection:
        _read_job(connection, job_id)
        if picture is not None:
            Path(picture).write_text(job_learning_picture(connection, job_id), encoding="utf-8")
        epochs = _rows(connection, live_figures.statement("epochs"), {"job": job_id, "most": None})
        judged = _rows(connection, statement("judged"), {"job": job_id})
        labels = _rows(connection, statement("label_metrics"), {"job": job_id}) if by_label else []
    names = sorted({name for row in epochs for name in row["metrics"]})
    if charted is not None and charted not in names:
        known = f"its metrics are {', '.join(names)}" if names else "it has no metrics of validation rows yet"
        raise MissingError(f"job {job_id} has no metric {charted}", hint=known)
    if by_label:
        _show_labels(job_id, labels, as_json=as_json)
        return
    if as_json:
        show_rows(epochs, as_json=True)
        return
    losses = ("epoch", "loss", "valid_loss")
    shown = _fitting(names) if out.is_terminal else names
    table = [
        {name: row[name] for name in losses} | {name: row["metrics"].get(name) for name in shown} for row in epochs
    ]
    show_rows(table, as_json=False, empty=f"job {job_id} has finished no epoch yet")
    if shown != names:
        warn(f"not shown, but in --json: {', '.join(names[len(shown) :])}")
    lines = {name: [(row["epoch"], row[name]) for row in epochs] for name in losses[1:]}
    if charted is not None:
        lines = {charted: [(row["epoch"], row["metrics"].get(charted)) for row in epochs]}
    _draw(lines)
    for row in judged:
        if row["baseline"] is not None:
            out.print()
            out.print(_beside_baseline(row))


def _show_labels(job_id: int, labels: Sequence[Row], *, as_json: bool) -> None:
    """Show a row for each label, with nothing where its rows do not define a metric."""
    names = [name for name in REPORTED_METRICS if any(name in row["metrics"] for row in labels)]
    table = [
        {"name": row["name"], "rows": row["rows"]} | {name: row["metrics"].get(name) for name in names}
        for row in labels
    ]
    kinds = "one that predicts one number, or a forecast, whose metrics by step are those of tensile_forecast_metrics"
    empty = f"job {job_id} has no metrics by label: it has published no version, {kinds}"
    show_rows(table, as_json=as_json, empty=empty)


def _draw(lines: Mapping[str, Sequence[tuple[int, float | None]]]) -> None:
    if chart := loss_chart(lines, out.width):
        out.print()
    for line in chart:
        out.print(line)


def _beside_baseline(judged: Mapping[str, Any]) -> Text:
    """Return the metric of the version on the held-out rows, and that of the baseline on the same rows."""
    name, own = judged["metric_name"], judged["metric"]
    shown = "undefined" if own is None else f"{own:.4g}"
    other = judged["baseline_name"] or "gradient boosting"
    return Text(f"{name} on the held-out rows: {shown}; of {other}, the baseline: {judged['baseline']:.4g}")


def _fitting(names: Sequence[str]) -> Sequence[str]:
    """Return the first names whose columns fit the terminal beside those of the losses."""
    ends = accumulate(max(len(name), _NUMBER_COLUMNS) + 1 for name in names)
    return names[: sum(_LOSS_COLUMNS + end <= out.width for end in ends)]


@click.command()
@dsn_option
@json_option
@click.argument("model")
@click.argument("relation")
@training_options
@click.option("--wait/--no-wait", "waits", default=False, help="watch the job until it has ended")
def train(dsn: str | None, as_json: bool, waits: bool, **options: Any) -> None:
    """Enqueue a training of MODEL on the table RELATION and print the job's number."""
    with open_connection(dsn) as connection:
        connection.add_notice_handler(lambda notice: warn(f"notice: {notice.message_primary}"))
        row = connection.execute(statement("train"), training_arguments(options)).fetchone()
    assert row is not None
    show_one({"job_id": row[0]}, as_json=as_json)
    if waits:
        sys.stdout.flush()
        sys.exit(watch_until_ended(dsn, [row[0]], as_json=as_json))


@click.command()
@dsn_option
@json_option
@click.argument("job_ids", type=int, nargs=-1, required=True)
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), help="seconds to wait at most")
def wait(dsn: str | None, as_json: bool, job_ids: Sequence[int], timeout_s: float | None) -> None:
    """Wait until the jobs have ended; exit with 1 if one failed or was cancelled, with 7 if time ran out."""
    with open_session(dsn) as session, _interruptible(job_ids):
        rows = _poll(
            lambda: session.run(lambda connection: [_read_job(connection, number) for number in job_ids]), timeout_s
        )
    show_rows([_summary(row) for row in rows], as_json=as_json)
    states = [row["state"] for row in rows]
    sys.exit(_outcome(states) if all(state in ENDED_STATES for state in states) else TIMED_OUT)


@click.command()
@dsn_option
@json_option
@click.argument("job_ids", type=int, nargs=-1)
def watch(dsn: str | None, as_json: bool, job_ids: Sequence[int]) -> None:
    """Show live progress until the jobs have ended; without JOB_IDS, of all jobs that have not ended yet.

    With --json, print a job each time that one of its values has changed.
    """
    sys.exit(watch_until_ended(dsn, job_ids, as_json=as_json))


@click.command()
@dsn_option
@json_option
@click.argument("job_ids", type=int, nargs=-1, required=True)
def cancel(dsn: str | None, as_json: bool, job_ids: Sequence[int]) -> None:
    """Cancel jobs: a queued job at once, a running job within a heartbeat. A job that has ended does not change."""
    with open_connection(dsn) as connection:
        for number in job_ids:
            with pinned(connection):
                requested = connection.execute(live_figures.statement("cancel"), {"job": number}).fetchone() == (
                    True,
                )
            state = _read_job(connection, number)["state"]
            if as_json:
                show_one({"job_id": number, "cancelled": requested, "state": state}, as_json=True)
            elif not requested:
                warn(f"job {number} had ended already: {state}")
            else:
                warn(f"job {number} " + ("is cancelled" if state == JobState.CANCELLED else "is being stopped"))


@click.command()
@dsn_option
@json_option
@click.argument("job_ids", type=int, nargs=-1, required=True)
def pause(dsn: str | None, as_json: bool, job_ids: Sequence[int]) -> None:
    """Pause jobs: they give up their device memory, and train no further until `tensile resume`."""
    _change(dsn, job_ids, "pause", "is paused", as_json=as_json)


@click.command()
@dsn_option
@json_option
@click.argument("job_ids", type=int, nargs=-1, required=True)
def resume(dsn: str | None, as_json: bool, job_ids: Sequence[int]) -> None:
    """Resume paused jobs: they continue where they were, as soon as they have device memory again."""
    _change(dsn, job_ids, "resume", "is resumed", as_json=as_json)


@click.command()
@dsn_option
@json_option
@click.argument("job_ids", type=int, nargs=-1, required=True)
def retry(dsn: str | None, as_json: bool, job_ids: Sequence[int]) -> None:
    """Enqueue the requests of jobs that failed or were cancelled as new jobs, and print the numbers of these."""
    rows: list[Row] = []
    with open_connection(dsn) as connection, connection.transaction():
        connection.add_notice_handler(lambda notice: warn(f"notice: {notice.message_primary}"))
        for number in job_ids:
            row = connection.execute(live_figures.statement("retry"), {"job": number}).fetchone()
            assert row is not None
            rows.append({"job_id": row[0], "retry_of": number})
    show_rows(rows, as_json=as_json)


@click.command(context_settings={"ignore_unknown_options": True})  # a priority may be negative
@dsn_option
@json_option
@click.argument("job_id", type=int)
@click.argument("priority", type=int)
def priority(dsn: str | None, as_json: bool, job_id: int, priority: int) -> None:
    """Change the priority of a queued or running job: of your own jobs, those of a higher PRIORITY start first."""
    with open_connection(dsn) as connection, pinned(connection):
        connection.execute(live_figures.statement("set_priority"), {"job": job_id, "priority": priority})
    show_one({"job_id": job_id, "priority": priority}, as_json=as_json)


def _change(dsn: str | None, job_ids: Sequence[int], name: str, outcome: str, *, as_json: bool) -> None:
    with open_connection(dsn) as connection:
        for number in job_ids:
            with pinned(connection):
                connection.execute(live_figures.statement(name), {"job": number})
            state = _read_job(connection, number)["state"]
            if as_json:
                show_one({"job_id": number, "paused": name == "pause", "state": state}, as_json=True)
            else:
                warn(f"job {number} {outcome}")


def watch_until_ended(dsn: str | None, job_ids: Sequence[int], *, as_json: bool) -> int:
    """Watch these jobs, or all jobs that have not ended. Returns the exit code for their states."""
    with open_session(dsn) as session:
        numbers = list(job_ids) or [
            row["job_id"] for row in session.run(lambda connection: _rows(connection, statement("unended_jobs")))
        ]
        if not numbers:
            warn("no job is queued or running")
            return 0
        with _interruptible(numbers):
            session.run(lambda connection: [_read_job(connection, number) for number in job_ids])
            return _outcome(Watch(session=session, numbers=tuple(numbers), as_json=as_json).run())


@contextmanager
def _interruptible(numbers: Sequence[int]) -> Iterator[None]:
    """End the command on an interruption, with a message that the jobs continue."""
    try:
        yield
    except KeyboardInterrupt:
        listed = " ".join(str(number) for number in numbers)
        warn(
            f"interrupted: the jobs continue. To watch them: tensile watch {listed}; "
            f"to stop them: tensile cancel {listed}"
        )
        sys.exit(INTERRUPTED)


def _rows(connection: Connection, text: LiteralString, arguments: Mapping[str, object] | None = None) -> list[Row]:
    with pinned(connection), connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(text, arguments).fetchall()


def _read_job(connection: Connection, number: int) -> Row:
    rows = _rows(connection, statement("job"), {"job": number})
    if not rows:
        raise MissingError(
            f"job {number} does not exist or belongs to another role", hint="tensile jobs lists your jobs"
        )
    return rows[0]


def _report(connection: Connection, number: int) -> list[Row]:
    """Return the report on the data of the job's table; empty if there is none yet, or for another role's job."""
    try:
        return _rows(connection, live_figures.statement("data_report"), {"job": number})
    except psycopg.errors.InsufficientPrivilege:  # the role is a monitor
        return []


def _poll(read: Callable[[], list[Row]], timeout_s: float | None) -> list[Row]:
    """Read the jobs until all have ended or the time is over. Returns the last rows."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        rows = read()
        waiting = [str(row["job_id"]) for row in rows if row["state"] not in ENDED_STATES]
        if not waiting:
            return rows
        if deadline is not None and time.monotonic() >= deadline:
            warn(f"after {timeout_s:g} s these jobs have not ended: {', '.join(waiting)}")
            return rows
        time.sleep(_POLL_S)


def _summary(row: Row) -> Row:
    return {name: row[name] for name in ("job_id", "model", "state", "metric_name", "metric", "error")}


def _outcome(states: Sequence[str]) -> int:
    return 0 if all(state == JobState.SUCCEEDED for state in states) else 1
