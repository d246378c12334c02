"""Live progress of jobs and of their device, redrawn in a terminal and printed line by line elsewhere."""

import time
from collections.abc import Sequence

import psycopg
from psycopg.rows import dict_row
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from indb_tensile.cli.output import Row, duration, err, size
from indb_tensile.cli.statements import statement
from indb_tensile.job import JobState

_POLL_S = 0.25
_QUIET_POLL_S = 2.0  # where lines are printed one below the other
_ENDED = {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
_STYLES = {JobState.SUCCEEDED: "green", JobState.FAILED: "red", JobState.CANCELLED: "yellow"}


def watch_jobs(connection: psycopg.Connection, numbers: Sequence[int]) -> list[str]:
    """Show the jobs until all have ended; return their states in the order given."""
    rows = _look(connection, "watched_jobs", numbers)
    if err.is_terminal:
        with Live(_picture(rows, _look(connection, "watched_devices", numbers)), console=err) as live:
            while not _ended(rows):
                time.sleep(_POLL_S)
                rows = _look(connection, "watched_jobs", numbers)
                live.update(_picture(rows, _look(connection, "watched_devices", numbers)))
    else:
        rows = _print_lines(connection, numbers)
    states = {row["job_id"]: str(row["state"]) for row in rows}
    return [states[number] for number in numbers if number in states]


def _print_lines(connection: psycopg.Connection, numbers: Sequence[int]) -> list[Row]:
    told: dict[int, str] = {}
    while True:
        rows = _look(connection, "watched_jobs", numbers)
        for row in rows:
            line = _line(row)
            if told.get(row["job_id"]) != line:
                told[row["job_id"]] = line
                err.print(line, highlight=False, markup=False)
        for device in _look(connection, "watched_devices", numbers):
            line = _device_line(device)
            if told.get(-device["worker_id"]) != line:
                told[-device["worker_id"]] = line
                err.print(line, highlight=False, markup=False)
        if _ended(rows):
            return rows
        time.sleep(_QUIET_POLL_S)


def _picture(rows: Sequence[Row], devices: Sequence[Row]) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("job", "model", "state", "epoch", "loss", "", "ETA", "device memory"):
        table.add_column(heading, justify="right" if heading in {"job", "epoch", "loss", "ETA"} else "left")
    for row in rows:
        table.add_row(
            str(row["job_id"]),
            row["model"],
            Text(_state(row), style=_STYLES.get(row["state"], "")),
            _epoch(row),
            _loss(row),
            ProgressBar(total=100, completed=float(row["percent"] or 0), width=24),
            _eta(row),
            _memory(row),
        )
    return Group(table, *(Text(_device_line(device), style="dim") for device in devices))


def _line(row: Row) -> str:
    percent = f"{float(row['percent'] or 0):3.0f} %"
    parts = [f"job {row['job_id']}", f"{row['model']:<14}", f"{_state(row):<18}", percent]
    parts += [
        f"{name} {text}" for name, text in (("epoch", _epoch(row)), ("loss", _loss(row)), ("ETA", _eta(row))) if text
    ]
    return "  ".join([*parts, _memory(row)]).rstrip()


def _device_line(device: Row) -> str:
    return (
        f"device: {size(device['used_bytes'])} in use, most {size(device['high_water_bytes'])}, "
        f"budget {size(device['budget_bytes'])}"
    )


def _state(row: Row) -> str:
    if row["state"] == JobState.FAILED:
        return f"failed: {row['error']}"
    return str(row["phase"] or row["state"])


def _epoch(row: Row) -> str:
    return f"{row['epoch']}/{row['epochs']}" if row["epochs"] else ""


def _loss(row: Row) -> str:
    return f"{row['loss']:.4f}" if row["loss"] is not None else ""


def _eta(row: Row) -> str:
    return duration(row["eta"].total_seconds()) if row["eta"] is not None and row["state"] == JobState.RUNNING else ""


def _memory(row: Row) -> str:
    return f"{size(row['used_bytes'])} of {size(row['granted_bytes'])}" if row["granted_bytes"] else ""


def _look(connection: psycopg.Connection, name: str, numbers: Sequence[int]) -> list[Row]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement(name), {"jobs": list(numbers)}).fetchall()


def _ended(rows: Sequence[Row]) -> bool:
    return all(row["state"] in _ENDED for row in rows)
