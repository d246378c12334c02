"""Measures what it costs a training that its device is recorded and that many pages show it.

    tensile bench watching [--pages 50] [--seconds 20] [--rounds 3] [--threads 1] [--device emulated] [--json]

One long training runs on a controller. In each round the training is timed twice, in turns that change their order:
while nobody looks, and while `--pages` browsers keep the page of the device open. The time is that of whole
epochs, whose ends are looked for every hundredth of a second at both ends of a turn. `slowdown` is
the median over the rounds of the time with pages over that without, minus 1; the issue asks for at most 0.01.

`page_share` is the processor time of the page and of its database sessions, as a share of one processor, with the
pages open; `idle_page_share` is the same without. `recording_share` is what the controller's record of a device with
`--jobs` jobs costs, once a second, in its own process and in its database session: the record is written by a second
worker of this benchmark, as a controller writes it. Both include the rows of the history.

The figures hold for a quiet machine: other programs disturb both turns of a round, and not equally.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from psycopg import sql

from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.bench_controller import bench_controller, wait_for
from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.processes.page_browsers import (
    PageBrowsers,
    page_processor_s,
    processor_s,
    started_page,
)
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.rows import stamped
from indb_tensile.bench.harness.tables.stored_samples import store_samples
from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.catalog.plans import DeviceUse, JobUse, record_device
from indb_tensile.catalog.queries import parse
from indb_tensile.catalog.usage import JobUsage
from indb_tensile.config import MIB
from indb_tensile.job import JobId, WorkerId

PURPOSE = "tensile bench watching"
_SQL = parse(Path(__file__).with_name("watching.sql").read_text(encoding="utf-8"))
_PERIOD_S = 1.0  # between two records of a controller
_WARM_EPOCHS = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one object."""
    options = _parser().parse_args(arguments)
    with temporary_database(options.dsn, "watching") as dsn:
        figures = measure(dsn, options)
    if options.json:
        print(stamped(figures))
        return
    for name, value in figures.items():
        print(f"{name:<22} {value}")


def measure(dsn: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures. `dsn` is a superuser's, to a database with the catalog."""
    settings = {"device": options.device, "budget_bytes": 256 * MIB, "torch_threads": options.threads}
    with (
        connect(dsn, application_name=PURPOSE, callers_path=True) as connection,
        bench_controller(dsn, "watching", **settings),
        started_page(dsn) as (page, browsers),
    ):
        for role in ("tensile_worker", "tensile_reader"):
            connection.execute(sql.SQL(_SQL["allow_login"]).format(sql.Identifier(role)))
        connection.execute(_SQL["grant_use"].encode())
        store_samples(connection, ["digits"])
        job = _scalar(connection, "train", {"hidden": json.dumps([options.width] * 3)})
        wait_for(lambda: _epochs(connection, job) >= _WARM_EPOCHS, "the training to have begun")
        turns = _turns(connection, job, page.pid, browsers, options)
        recording_share = _recording(connection, dsn, options.jobs, options.seconds)
        connection.execute(_SQL["cancel"].encode(), {"job": job})
    pairs = list(zip(turns[True], turns[False], strict=True))
    return {
        "pages": options.pages,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "epoch_ms_alone": round(1000 * median(alone for _, (alone, _) in pairs), 3),
        "epoch_ms_watched": round(1000 * median(watched for (watched, _), _ in pairs), 3),
        "slowdown": round(median(watched / alone for (watched, _), (alone, _) in pairs) - 1, 4),
        "page_share": round(median(share for (_, share), _ in pairs), 4),
        "idle_page_share": round(median(share for _, (_, share) in pairs), 4),
        "recorded_jobs": options.jobs,
        "recording_share": round(recording_share, 4),
        "processors": os.cpu_count(),
    }


def _turns(
    connection: Connection, job: int, page: int, browsers: PageBrowsers, options: argparse.Namespace
) -> dict[bool, list[tuple[float, float]]]:
    """Return for turns with and without pages the seconds of an epoch and the share of a processor of the page."""
    turns: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number in range(options.rounds):
        for watched in (False, True) if number % 2 == 0 else (True, False):
            if watched:
                browsers.open(options.pages)
            began_s, used_s = time.monotonic(), page_processor_s(connection, page)
            epoch_s = _epoch_s(connection, job, options.seconds)
            used_s = page_processor_s(connection, page) - used_s
            turns[watched].append((epoch_s, used_s / (time.monotonic() - began_s)))
            browsers.close()
    return turns


def _epoch_s(connection: Connection, job: int, seconds: float) -> float:
    """Return the time of an epoch over about this many seconds, between two moments at which epochs ended."""
    first = _next_end(connection, job)
    time.sleep(seconds)
    last = _next_end(connection, job)
    return (last[1] - first[1]) / (last[0] - first[0])


def _next_end(connection: Connection, job: int) -> tuple[int, float]:
    """Wait for the end of an epoch. Returns its number, and the time at which it was seen."""
    before = _epochs(connection, job)
    wait_for(lambda: _epochs(connection, job) > before, "the next epoch")
    row = connection.execute(_SQL["epoch"].encode(), {"job": job}).fetchone()
    assert row is not None
    return int(row[0]), float(row[1])


def _epochs(connection: Connection, job: int) -> int:
    row = connection.execute(_SQL["epoch"].encode(), {"job": job}).fetchone()
    return 0 if row is None else int(row[0])


def _recording(connection: Connection, dsn: str, jobs: int, seconds: float) -> float:
    """Return the processor time of recording a device with this many jobs, as a share of one processor."""
    worker = WorkerId(_scalar(connection, "add_worker", {}))
    numbers = [JobId(row[0]) for row in connection.execute(_SQL["add_jobs"].encode(), {"jobs": jobs})]
    use = DeviceUse(
        kind="recorded",
        capacity_bytes=1 << 30,
        budget_bytes=1 << 30,
        granted_bytes=1 << 29,
        used_bytes=1 << 28,
        high_water_bytes=1 << 29,
        host_bytes=0,
    )
    shares = [JobUse(job=job, granted_bytes=1 << 26, used_bytes=1 << 25, high_water_bytes=1 << 26) for job in numbers]
    usages = [JobUsage(job=job, device_s=0.25, byte_s=1e8, running_s=1.0) for job in numbers]
    with connect(dsn, application_name=f"{PURPOSE} (recording)") as recorder:
        record_device(recorder, worker, use, shares, usages)  # prepares the statements
        session = recorder.info.backend_pid
        own_s, session_s, began_s = time.process_time(), processor_s(session), time.monotonic()
        while (elapsed_s := time.monotonic() - began_s) < seconds:
            record_device(recorder, worker, use, shares, usages)
            time.sleep(_PERIOD_S)
        return (time.process_time() - own_s + processor_s(session) - session_s) / elapsed_s


def _scalar(connection: Connection, name: str, values: dict[str, Any]) -> int:
    row = connection.execute(_SQL[name].encode(), values).fetchone()
    assert row is not None
    return int(row[0])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", default="", help="a superuser's connection to any database of the server")
    parser.add_argument("--pages", type=whole(), default=50, help="browsers that watch the device")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each turn")
    parser.add_argument("--rounds", type=whole(), default=3, help="each with one turn of each kind")
    parser.add_argument("--jobs", type=whole(), default=4, help="jobs on the device whose recording is measured")
    parser.add_argument("--width", type=whole(), default=256, help="width of the three layers of the trained network")
    parser.add_argument("--threads", type=whole(), default=1, help="threads of the training")
    parser.add_argument("--device", choices=("emulated", "cpu"), default="emulated")
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    run(main)
