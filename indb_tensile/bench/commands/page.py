"""Measures what `tensile web` costs after a day of samples: memory, response times, and CPU time for many browsers.

    tensile bench page [--pages 50] [--seconds 20] [--jobs 1000] [--json]

The command writes a day of samples of one device with four jobs, and thins them out as a controller's maintenance
does. Then it starts the web server, times its responses, and lets many browsers watch the device while its row
changes every second. The CPU time of the server and of its database sessions is an upper bound on how much the
browsers slow down trainings on the machine.
"""

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.processes.page_browsers import page_processor_s, started_page
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.catalog.queries import parse

_SQL = parse(Path(__file__).with_name("page.sql").read_text(encoding="utf-8"))
_ANSWERS = {"page": "/", "history_day": "/api/history?worker={worker}&age=1d", "jobs": "/api/listings/jobs?limit=200"}
_REPEATS = 5
_CACHED_S = 2.1  # the server keeps a response for two seconds
_EVENTS_WITHIN_S = 60  # every browser must have had an event this long after the browsers' time is over


def main() -> None:
    """Print the figures, one per line; with --json, as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dsn", default="", help="connection of a superuser; a database is created and dropped")
    parser.add_argument("--pages", type=int, default=50, help="browsers that watch the device")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for which the browsers watch")
    parser.add_argument("--jobs", type=int, default=1000, help="number of jobs in the list")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with temporary_database(arguments.dsn, "page") as dsn, connect(dsn, application_name="tensile bench page") as c:
        worker = _scalar(c, "add_worker")
        c.execute(_SQL["add_device"].encode(), {"worker": worker})
        c.execute(_SQL["raise_quota"].encode(), {"jobs": arguments.jobs})
        c.execute(_SQL["add_jobs"].encode(), {"jobs": arguments.jobs})
        figures = measure_samples(c, worker) | measure_page(c, dsn, worker, arguments.pages, arguments.seconds)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<28} {value}")


def measure_samples(connection: Connection, worker: int) -> dict[str, Any]:
    """Write a day of samples, thin them out, and return their number and size, and the time that thinning took."""
    connection.execute(_SQL["sample_a_day"].encode(), {"worker": worker})
    connection.execute(_SQL["sample_jobs"].encode())
    started = time.perf_counter()
    removed = 0
    while count := _scalar(connection, "thin"):
        removed += count
    thinning_s = time.perf_counter() - started
    kept = connection.execute(_SQL["count_samples"].encode()).fetchone() or (0, 0)
    connection.execute(_SQL["rewrite_tables"].encode())
    return {
        "samples_of_a_day": removed + kept[0],
        "samples_kept": kept[0],
        "samples_of_jobs_kept": kept[1],
        "kept_bytes": _scalar(connection, "size"),
        "thinning_s": round(thinning_s, 2),
    }


def measure_page(connection: Connection, dsn: str, worker: int, pages: int, seconds: float) -> dict[str, Any]:
    """Start the web server, and return its response times, its memory, and the CPU time that many browsers cost."""
    figures: dict[str, Any] = {}
    with started_page(dsn) as (process, browser):
        for name, path in _ANSWERS.items():
            times_ms = []
            for _ in range(_REPEATS):
                started = time.perf_counter()
                browser.read(path.format(worker=worker))
                times_ms.append(1000 * (time.perf_counter() - started))
                time.sleep(_CACHED_S)
            figures[f"{name}_ms"] = round(median(times_ms), 1)
        browser.open(pages)
        before_s, started = page_processor_s(connection, process.pid), time.monotonic()
        # The page may read just before the first change, and again only after a period.
        while (watched_s := time.monotonic() - started) < seconds or browser.events < pages:
            if watched_s > seconds + _EVENTS_WITHIN_S:
                raise TimeoutError(f"{pages} streams had {browser.events} events within {watched_s:.0f} s")
            connection.execute(_SQL["update_device"].encode())
            time.sleep(1.0)
        used_s = page_processor_s(connection, process.pid) - before_s
        figures["pages"] = pages
        figures["events_per_page"] = round(browser.events / pages, 1)
        figures["share_of_one_core"] = round(used_s / watched_s, 4)
        figures["share_of_machine"] = round(used_s / watched_s / (os.cpu_count() or 1), 4)
        figures["page_rss_mb"] = round(_resident_bytes(process.pid) / 2**20, 1)
    return figures


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _scalar(connection: Connection, name: str) -> int:
    row = connection.execute(_SQL[name].encode()).fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    run(main)
