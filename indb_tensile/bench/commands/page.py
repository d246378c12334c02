"""Measures what `tensile web` costs: memory after a day of samples, answers, and the processors' time for many pages.

    tensile bench page [--pages 50] [--seconds 20] [--jobs 1000] [--json]

A day of samples of one device with four jobs is written and thinned out as a controller's housekeeping does it. Then
the page is started, its answers are timed, and many browsers watch the device while it changes every second. Their
processor time, with that of the page's database sessions, bounds by how much they slow down trainings on the machine.
"""

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

from indb_tensile.bench.harness.bench_database import temporary_database
from indb_tensile.bench.harness.page_browsers import page_processor_s, started_page
from indb_tensile.bench.harness.process_exit import run
from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.catalog.queries import parse

_SQL = parse(Path(__file__).with_name("page.sql").read_text(encoding="utf-8"))
_ANSWERS = {"page": "/", "history_day": "/api/history?worker={worker}&age=1d", "jobs": "/api/listings/jobs?limit=200"}
_REPEATS = 5
_CACHED_S = 2.1  # an answer is kept for two seconds
_EVENTS_WITHIN_S = 60  # after the time for which the browsers watch, each has had an event


def main() -> None:
    """Print one object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dsn", default="", help="connection of a superuser; a database is created and dropped")
    parser.add_argument("--pages", type=int, default=50, help="browsers that watch the device")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which they watch")
    parser.add_argument("--jobs", type=int, default=1000, help="jobs in the list")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with temporary_database(arguments.dsn, "page") as dsn, connect(dsn, application_name="tensile bench page") as c:
        worker = _scalar(c, "add_worker")
        c.execute(_SQL["add_device"].encode(), {"worker": worker})
        c.execute(_SQL["allow"].encode(), {"jobs": arguments.jobs})
        c.execute(_SQL["add_jobs"].encode(), {"jobs": arguments.jobs})
        figures = measure_samples(c, worker) | measure_page(c, dsn, worker, arguments.pages, arguments.seconds)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<28} {value}")


def measure_samples(connection: Connection, worker: int) -> dict[str, Any]:
    """Write a day of samples, thin them out, and return what is left of them."""
    connection.execute(_SQL["sample_a_day"].encode(), {"worker": worker})
    connection.execute(_SQL["sample_jobs"].encode())
    started = time.perf_counter()
    removed = 0
    while count := _scalar(connection, "thin"):
        removed += count
    thinning_s = time.perf_counter() - started
    kept = connection.execute(_SQL["kept"].encode()).fetchone() or (0, 0)
    connection.execute(_SQL["live_bytes"].encode())
    return {
        "samples_of_a_day": removed + kept[0],
        "samples_kept": kept[0],
        "samples_of_jobs_kept": kept[1],
        "kept_bytes": _scalar(connection, "size"),
        "thinning_s": round(thinning_s, 2),
    }


def measure_page(connection: Connection, dsn: str, worker: int, pages: int, seconds: float) -> dict[str, Any]:
    """Start the page and return its answers' times, its memory, and the processor time of many pages."""
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
            connection.execute(_SQL["touch"].encode())
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
