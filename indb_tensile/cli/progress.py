"""Shows the live progress of jobs and their devices: redrawn in a terminal, and line by line elsewhere."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from psycopg.rows import dict_row
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from indb_tensile.catalog.connection import Connection, Session, pinned
from indb_tensile.cli.line_filter import PrintedLines, change_key
from indb_tensile.cli.output import Row, duration, err, plain, print_json, warn
from indb_tensile.cli.statements import statement
from indb_tensile.job import ENDED_STATES, JobState
from indb_tensile.sizes import size

_POLL_S = 0.25
_QUIET_POLL_S = 2.0  # when the progress is printed line by line
_STYLES = {JobState.SUCCEEDED: "green", JobState.FAILED: "red", JobState.CANCELLED: "yellow"}
_RIGHT = {"job", "epoch", "loss", "ETA"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSample:
    """The watched jobs, their devices, and the sets that run side by side, at one moment, as rows of the database."""

    jobs: Sequence[Row]
    devices: Sequence[Row]
    sets: Sequence[Row] = ()

    @property
    def ended(self) -> bool:
        """Whether all jobs have ended."""
        return all(row["state"] in ENDED_STATES for row in self.jobs)


@dataclass(slots=True, kw_only=True)
class Watch:
    """Shows the jobs until all have ended.

    Without a terminal and without JSON, a line about a job is printed when its phase changes or another tenth of it
    is done, and otherwise at most every `news.QUIET_S` seconds; `news` holds the last lines. `printed` holds the
    values that were last printed as JSON, by job.
    """

    session: Session
    numbers: tuple[int, ...]
    as_json: bool = False
    clock_s: Callable[[], float] = time.monotonic
    news: PrintedLines = field(default_factory=PrintedLines)
    printed: dict[int, object] = field(default_factory=dict)

    def run(self) -> list[str]:
        """Show the jobs until all have ended. Returns their states, in the order of `numbers`."""
        if self.as_json:
            last = self._show_until_ended(self._print_json, _POLL_S)
        elif err.is_terminal:
            with Live(console=err, auto_refresh=False) as live:
                last = self._show_until_ended(lambda look: live.update(render_table(look), refresh=True), _POLL_S)
        else:
            last = self._show_until_ended(self._print_lines, _QUIET_POLL_S)
        states = {row["job_id"]: str(row["state"]) for row in last.jobs}
        return [states[number] for number in self.numbers]

    def _show_until_ended(self, show: Callable[[ProgressSample], None], poll_s: float) -> ProgressSample:
        while True:
            look = self.session.run(self._read)
            show(look)
            if look.ended:
                return look
            time.sleep(poll_s)

    def _read(self, connection: Connection) -> ProgressSample:
        arguments = {"jobs": list(self.numbers)}
        with pinned(connection), connection.cursor(row_factory=dict_row) as cursor:
            jobs = cursor.execute(statement("watched_jobs"), arguments).fetchall()
            devices = cursor.execute(statement("watched_devices"), arguments).fetchall()
            sets = cursor.execute(statement("watched_sets"), arguments).fetchall()
        return ProgressSample(jobs=jobs, devices=devices, sets=sets)

    def _print_json(self, look: ProgressSample) -> None:
        for row in look.jobs:
            values = {name: value for name, value in row.items() if not name.startswith("eta_")}
            if self.printed.get(row["job_id"]) != values:
                self.printed[row["job_id"]] = values
                print_json(row)

    def _print_lines(self, look: ProgressSample) -> None:
        for text in lines(self.news, look, self.clock_s()):
            warn(text)


def lines(news: PrintedLines, look: ProgressSample, now_s: float) -> list[str]:
    """Return the lines to print now: those about jobs and devices with a change worth printing."""
    candidates = [(f"job {row['job_id']}", line(row), change_key(row)) for row in look.jobs]
    several = len(look.devices) > 1
    candidates += [(f"device {row['worker_id']}", device_line(row, named=several), ()) for row in look.devices]
    candidates += [(f"set {row['jobs']}", set_line(row), (row["measured"] is None,)) for row in look.sets]
    return [text for subject, text, mark in candidates if news.is_news(subject, text, mark, now_s)]


def render_table(look: ProgressSample) -> Group:
    """Draw the jobs as a table with progress bars, and below it the devices and the errors of failed jobs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("job", "model", "state", "epoch", "loss", "", "ETA", "device memory"):
        table.add_column(heading, justify="right" if heading in _RIGHT else "left", no_wrap=heading != "state")
    for row in look.jobs:
        table.add_row(
            str(row["job_id"]),
            Text(plain(row["model"])),
            Text(_state(row), style=_STYLES.get(row["state"], "")),
            _epoch(row),
            _loss(row),
            _bar(row),
            _eta(row),
            _memory(row) or _metric(row),
        )
    faults = [f"job {row['job_id']}: {plain(row['error'])}" for row in look.jobs if row["state"] == JobState.FAILED]
    return Group(
        table,
        *(Text(device_line(device, named=len(look.devices) > 1), style="dim") for device in look.devices),
        *(Text(set_line(row), style="dim") for row in look.sets),
        *(Text(fault, style="red") for fault in faults),
    )


def line(row: Row) -> str:
    """Describe one job on one line."""
    parts = [f"job {row['job_id']}", f"{plain(row['model']):<14}", f"{_state(row):<18}"]
    parts += [f"{float(row['percent']):3.0f} %"] if row["percent"] is not None else []
    parts += [
        f"{name} {text}" for name, text in (("epoch", _epoch(row)), ("loss", _loss(row)), ("ETA", _eta(row))) if text
    ]
    parts += [text for text in (_memory(row), _metric(row)) if text]
    if row["state"] == JobState.FAILED:
        parts.append(plain(row["error"]))
    return "  ".join(parts).rstrip()


def device_line(device: Row, *, named: bool = False) -> str:
    """Describe a device's memory on one line, with the driver's figures if it is a GPU.

    `named`: among several devices, with its name, its host and which of the watched jobs it has.
    """
    name = ""
    if named:
        name = f" ({plain(device['device_name'] or '')} on {plain(device['host'])})".replace("( on", "(on")
        name += f" with job{'s' * (len(device['jobs']) != 1)} {', '.join(map(str, device['jobs']))}"
    line = (
        f"device {device['worker_id']}{name}: {size(device['used_bytes'])} in use, "
        f"most {size(device['high_water_bytes'])}, budget {size(device['budget_bytes'])}"
    )
    if device["outside_bytes"] is not None:
        line += f", {size(device['outside_bytes'])} beside it"
    if device["busy_percent"] is not None:
        line += f", {device['busy_percent']} % busy"
    return line


def set_line(row: Row) -> str:
    """Describe on one line how well jobs run side by side: their system throughput, where one job alone has 1."""
    *others, last = row["jobs"]
    measured = "" if row["measured"] is None else f"{row['measured']:.2f}, "
    jobs = f"jobs {', '.join(map(str, others))} and {last}"
    return f"{jobs} side by side: throughput {measured}foretold {row['foretold']:.2f}, in turns 1"


def _state(row: Row) -> str:
    if row["state"] == JobState.QUEUED and row["waits_for"]:
        return f"queued: waits for {plain(row['waits_for'])}"
    return str(row["phase"] or row["state"])


def _bar(row: Row) -> ProgressBar:
    """Return a progress bar in one of the eight colours that every terminal has."""
    percent = float(row["percent"] or 0)
    return ProgressBar(total=100, completed=percent, width=24, complete_style="cyan", finished_style="green")


def _epoch(row: Row) -> str:
    return f"{row['epoch']}/{row['epochs']}" if row["epochs"] else ""


def _loss(row: Row) -> str:
    return f"{row['loss']:.4f}" if row["loss"] is not None else ""


def _eta(row: Row) -> str:
    """Format the remaining time; with early stopping, the least and the most."""
    if row["eta_s"] is None:
        return ""
    most, least_s = duration(row["eta_s"]), row["eta_earliest_s"]
    return most if least_s is None or duration(least_s) == most else f"{duration(least_s)} to {most}"


def _memory(row: Row) -> str:
    return f"{size(row['used_bytes'])} of {size(row['granted_bytes'])}" if row["granted_bytes"] else ""


def _metric(row: Row) -> str:
    return f"{row['metric_name']} {row['metric']:.4f}" if row["metric"] is not None else ""
