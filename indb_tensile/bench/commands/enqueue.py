"""Measures how long `tensile_train` takes to return, and the time from its commit to the job's first step.

    python -m indb_tensile.bench enqueue --dsn "host=… user=demo dbname=…" [--json]

The first call of a session compiles the bridge (the Python code of the SQL functions), so it has a figure of its own,
`enqueue_cold_ms`. To measure the first step, a controller must run and have no other job. Without a controller this
figure is missing.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import psycopg

from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.catalog.connection import connect
from indb_tensile.catalog.queries import parse

ROUNDS = 50
TIMEOUT_S = 60.0
POLL_S = 0.002

_SQL = parse(Path(__file__).with_name("enqueue.sql").read_text(encoding="utf-8"))


def main() -> None:
    """Print the times in milliseconds, one per line; with --json, as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dsn", default="", help="connection of an ordinary user who may create a table")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of calls after the first")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with connect(arguments.dsn, application_name="tensile bench enqueue", callers_path=True) as connection:
        figures = measure(connection, arguments.rounds)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<24} {value if value is not None else 'no controller runs'}")


def measure(connection: psycopg.Connection, rounds: int) -> dict[str, float | int | None]:
    """Enqueue a first job and then `rounds` jobs, each in a transaction that is rolled back; then commit one."""
    connection.execute(_SQL["create_table"].encode())
    connection.execute(_SQL["grant_table"].encode())
    try:
        calls_ms = [_enqueue_and_roll_back(connection) for _ in range(rounds + 1)]
        first_step_ms = _first_step(connection)
    finally:
        connection.execute(_SQL["drop_table"].encode())
    return {
        "rounds": rounds,
        "enqueue_cold_ms": round(calls_ms[0], 2),
        "enqueue_median_ms": round(statistics.median(calls_ms[1:]), 2),
        "enqueue_p99_ms": round(statistics.quantiles(calls_ms[1:], n=100)[-1], 2),
        "first_step_ms": None if first_step_ms is None else round(first_step_ms),
    }


def _enqueue_and_roll_back(connection: psycopg.Connection) -> float:
    with connection.transaction(force_rollback=True):
        started = time.perf_counter()
        connection.execute(_SQL["train"].encode())
        return 1000 * (time.perf_counter() - started)


def _first_step(connection: psycopg.Connection) -> float | None:
    """Return the milliseconds from the commit to the first step in the catalog; None without a controller."""
    if connection.execute(_SQL["worker"].encode()).fetchone() is None:
        return None
    row = connection.execute(_SQL["train"].encode()).fetchone()
    assert row is not None
    committed = time.perf_counter()
    while time.perf_counter() < committed + TIMEOUT_S:
        progress = connection.execute(_SQL["first_step"].encode(), row).fetchone()
        if progress is not None and progress[0] >= 1:
            elapsed_ms = 1000 * (time.perf_counter() - committed)
            connection.execute(_SQL["cancel"].encode(), row)
            return elapsed_ms
        time.sleep(POLL_S)
    raise TimeoutError(f"job {row[0]} made no step within {TIMEOUT_S:.0f} s: see tensile.stat_jobs")


if __name__ == "__main__":
    run(main)
