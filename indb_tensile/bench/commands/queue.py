"""Measures how fast workers empty the queue, and checks that no job is claimed twice.

    tensile bench queue [--dsn "host=… user=postgres"] [--jobs 10000] [--claimers 8] [--json]

Each claimer is a process with a connection of its own. It claims jobs and marks them cancelled until none is left.
The benchmark creates a database and drops it at the end, so the dsn needs a superuser.
"""

import argparse
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.catalog import jobs
from indb_tensile.catalog.connection import LOOP_LOCK_TIMEOUT_MS, connect
from indb_tensile.catalog.queries import parse
from indb_tensile.job import ClaimedJob

JOBS = 10_000
CLAIMERS = 8
LEASE_S = 600.0

_SQL = parse(Path(__file__).with_name("queue.sql").read_text(encoding="utf-8"))


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dsn", default="", help="a superuser's connection to any database of the server")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--claimers", type=int, default=CLAIMERS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with temporary_database(arguments.dsn, "queue") as own:
        figures = measure(own, arguments.jobs, arguments.claimers)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for key, value in figures.items():
            print(f"{key:<18} {value}")


def measure(dsn: str, count: int, claimers: int) -> dict[str, float | int]:
    """Fill the queue and empty it. `duplicates` counts claims beyond one for each job."""
    with connect(dsn, application_name="tensile bench queue") as connection:
        connection.execute(_SQL["allow"], {"count": count})
        connection.execute(_SQL["fill"], {"count": count})
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(claimers)
    with context.Pool(claimers, initializer=_set_barrier, initargs=(ready,)) as pool:
        parts = pool.map(_empty_queue, [dsn] * claimers, chunksize=1)
    claimed = [job for jobs_claimed, _, _ in parts for job in jobs_claimed]
    elapsed_s = max(end for _, _, end in parts) - min(start for _, start, _ in parts)
    return {
        "jobs": count,
        "claimers": claimers,
        "claims": len(claimed),
        "duplicates": len(claimed) - len(set(claimed)),
        "left_over": count - len(set(claimed)),
        "seconds": round(elapsed_s, 2),
        "jobs_per_s": round(len(claimed) / elapsed_s),
    }


def _set_barrier(ready: "multiprocessing.synchronize.Barrier") -> None:
    """Store the barrier in each claimer's process, since it can only be inherited."""
    global _ready
    _ready = ready


def _empty_queue(dsn: str) -> tuple[Sequence[int], float, float]:
    """Claim jobs and mark them cancelled until there are none.

    Returns the jobs, and the start and end on the monotonic clock.
    """
    claimed = []
    with connect(dsn, application_name="tensile bench queue", lock_timeout_ms=LOOP_LOCK_TIMEOUT_MS) as connection:
        worker = jobs.register_worker(
            connection, host=socket.gethostname(), pid=os.getpid(), device_kind="bench", lease_s=LEASE_S
        )
        _ready.wait()  # all claimers start together, so that each process takes exactly one part
        start = time.monotonic()
        while isinstance(job := jobs.claim_job(connection, worker), ClaimedJob):
            claimed.append(int(job.job))
            jobs.cancelled(connection, job.job, job.claim)
        end = time.monotonic()
        jobs.leave(connection, worker)
    return claimed, start, end


_ready: "multiprocessing.synchronize.Barrier"

if __name__ == "__main__":
    run(main)
