"""Reads devices, jobs, queue and models for `tensile top` and the page in a browser, as values that JSON can hold."""

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import dict_row

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import parse
from indb_tensile.errors import MissingError

Row = dict[str, Any]

HISTORY_POINTS = 900  # points of one chart, more than a screen has columns
_QUEUE_ROWS = 50
_EPOCHS = 2000  # newest epochs of a job that are sent to every browser that watches the job, after each epoch


def overview(connection: Connection) -> Row:
    """Return devices, the jobs on them, which jobs run side by side, and the head of the queue."""
    queue = rows(connection, "queue")
    return {
        "devices": rows(connection, "devices"),
        "jobs": rows(connection, "device_jobs"),
        "sets": rows(connection, "sets"),
        "queue": queue[:_QUEUE_ROWS],
        "queue_length": len(queue) if len(queue) <= _QUEUE_ROWS else _number(connection, "queue_length"),
    }


def history(connection: Connection, worker: int, age_s: float) -> Row:
    """Return the memory of a device over the last `age_s` seconds, as columns.

    `jobs` has the numbers of all jobs with the bytes that each used, in the order of `at`; null where it had none.
    Jobs that the viewer may not see are missing there and are part of `used_bytes`.
    """
    samples = rows(connection, "history", worker=worker, age_s=age_s, span_s=max(2.0, age_s / HISTORY_POINTS))
    used_of: dict[int, list[int | None]] = {}
    for place, sample in enumerate(samples):
        for job, used in zip(sample.pop("jobs") or (), sample.pop("used") or (), strict=True):
            used_of.setdefault(job, [None] * len(samples))[place] = used
    names = ("at", "budget_bytes", "granted_bytes", "used_bytes", "host_bytes", "busy_percent", "copied")
    columns: Row = {name: [sample[name] for sample in samples] for name in names}
    return columns | {"jobs": [{"job_id": job, "used_bytes": used} for job, used in sorted(used_of.items())]}


def job(connection: Connection, number: int) -> Row:
    """Return a job with its newest epochs, plans, companions and events.

    Raises MissingError if there is no such job that the viewer may see.
    """
    jobs = rows(connection, "job", job=number)
    if not jobs:
        raise MissingError(f"there is no job {number}", hint="Jobs of other users are not shown.")
    return {
        "job": jobs[0],
        "epochs": rows(connection, "epochs", job=number, most=_EPOCHS),
        "plans": rows(connection, "plans", job=number),
        "sharing": rows(connection, "sharing", job=number),
        "events": rows(connection, "events", job=number),
    }


def job_memory(connection: Connection, number: int) -> Row:
    """Return the memory of a job over its life, as columns."""
    samples = rows(connection, "job_memory", job=number)
    names = ("at", "granted_bytes", "used_bytes", "copied_bytes_per_s")
    return {name: [sample[name] for sample in samples] for name in names}


def model(connection: Connection, name: str) -> Row:
    """Return a model with its versions and deployments. Raises MissingError if the viewer sees no such model."""
    models = rows(connection, "model", model=name)
    if not models:
        raise MissingError(
            f'there is no model "{name}"',
            hint="A model is shown from its first version on; one of another user, if it is granted.",
        )
    figures = {row.pop("version"): row for row in rows(connection, "version_metrics", model=name)}
    versions = rows(connection, "versions", model=name)
    return {
        "model": models[0],
        "versions": [version | figures.get(version["version"], {}) for version in versions],
        "deployments": rows(connection, "deployments", model=name),
    }


FIGURES = ("confusion", "roc", "calibration", "importance", "drift")


def figure(connection: Connection, name: str, model_name: str, version: int | None) -> list[Row]:
    """Return a figure of a version, one of `FIGURES`. Raises psycopg's errors, such as that the model has none."""
    return rows(connection, name, model=model_name, version=version)


def rows(connection: Connection, name: str, **values: object) -> list[Row]:
    """Run a statement of statements.sql and return its rows as plain values."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return [{key: plain(value) for key, value in row.items()} for row in cursor.execute(statement(name), values)]


def statement(name: str) -> LiteralString:
    """Return the statement `name` of statements.sql."""
    return _statements()[name]


def plain(value: Any) -> Any:
    """Return a value of a row as JSON has it: times in ISO 8601, spans in seconds, no infinite number."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return float(value) if value.is_finite() else None
        case datetime() | date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case Mapping():
            return {str(key): plain(part) for key, part in value.items()}
        case Sequence():
            return [plain(part) for part in value]
    return str(value)


def _number(connection: Connection, name: str) -> int:
    row = connection.execute(statement(name)).fetchone()
    return int(row[0]) if row else 0


@cache
def _statements() -> Mapping[str, LiteralString]:
    return parse(Path(__file__).with_name("statements.sql").read_text(encoding="utf-8"))
