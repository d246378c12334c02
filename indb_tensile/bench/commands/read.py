"""Measures a job on a table of many rows, from its commit to the first step and for each epoch, beside a script.

    tensile bench read [--dsn "host=… user=postgres"] [--rows 5000000] [--features 20] [--epochs 2] [--rounds 1]
                       [--json]

The sides run in turns, one at a time, on the same table of float8 columns: a job, a script, and a job that has a
quarter of the table's size as memory, so that its rows are in a file. That memory is the limit of a control group for
the job's trainer; where none can be made, only `read_limit_bytes` limits the rows, and the row says so. All train the
same network, two layers of 128, in batches of 1,024 on one thread, and validate after each epoch.

Each side has a row: the medians of the seconds to the first step and of an epoch, and the peak of its process's
memory (VmHWM, which includes the pages of a file while memory is free). A trainer's peak includes the memory that it
shares with the process that it was forked from, as the script's includes torch. A job's time begins with the commit
and ends when the catalog shows a step. The script's begins with its process
(bench/harness/trainings/plain_reading.py), and its imports have a figure of their own, because a trainer is forked
from a process that has imported already.

The benchmark creates a database for the table, on a server of its own unless the dsn, a superuser's, names one. Its
own controllers run on the processor without its swap file being used, as the network is small.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from psycopg import sql

from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.bench_controller import bench_controller, trainers_of, wait_for
from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.processes.limited_memory import limited_memory
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.processes.process_table import peak_bytes
from indb_tensile.bench.harness.results.rows import stamped
from indb_tensile.catalog.connection import connect
from indb_tensile.catalog.queries import parse
from indb_tensile.config import MIB
from indb_tensile.errors import TensileError

PURPOSE = "tensile bench read"
_LIMITED = 4  # the table has this many times the memory of the job that is limited
# The priority of a trainer (worker/trainer.py), so that other work slows both sides alike.
_AS_NICE = ("nice", "-n", "5")
_SETTINGS: dict[str, object] = {"device": "cpu", "budget_bytes": 512 * MIB, "torch_threads": 1}
_SQL = parse(Path(__file__).with_name("read.sql").read_text(encoding="utf-8"))

Figures = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row for each side, and the ratios of their times."""
    options = _parser().parse_args(arguments)
    with temporary_database(options.dsn, "read") as dsn:
        rows = measure(dsn, options.rows, options.features, options.epochs, options.rounds)
    for row in rows:
        print(stamped(row) if options.json else _line(row), flush=True)
    for line in ratios(rows):
        print(line, file=sys.stderr if options.json else sys.stdout)


def measure(dsn: str, rows: int, features: int, epochs: int, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of all sides, measured in turns. `dsn` is a superuser's, to a database with the catalog."""
    names = [f"f{number}" for number in range(features)]
    seen: dict[str, list[Figures]] = {"job": [], "script": [], "limited": []}
    with connect(dsn, application_name=PURPOSE, callers_path=True) as connection:
        table_bytes = _create(connection, names, rows)
        for _ in range(rounds):
            with bench_controller(dsn, "read", **_SETTINGS) as controller:
                seen["job"].append(_job(connection, controller, epochs))
            seen["script"].append(_script(dsn, names, epochs))
            limit_bytes = max(table_bytes // _LIMITED, _LEAST_LIMIT_BYTES)
            with limited_memory(limit_bytes) as group:
                settings = _SETTINGS if group else {**_SETTINGS, "read_limit_bytes": limit_bytes}
                with bench_controller(dsn, "read", **settings) as controller:
                    seen["limited"].append(_job(connection, controller, epochs, group))
    labels = {"rows": rows, "features": features, "rounds": rounds, "table_bytes": table_bytes}
    limit = {"limit_bytes": limit_bytes, "limited_by": "control group" if group else "read_limit_bytes"}
    return [
        {"side": side, **labels, **(limit if side == "limited" else {}), **_medians(samples)}
        for side, samples in seen.items()
    ]


_LEAST_LIMIT_BYTES = 128 * MIB  # a trainer with a smaller limit has no memory for two windows of rows (shuffling.py)


def ratios(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the jobs' times relative to the script's, in words."""
    job, script, limited = rows
    imported_s = script["first_step_s"] - script["imports_s"]
    return [
        f"first step: {job['first_step_s'] / script['first_step_s']:.2f} of the script's time, "
        f"{job['first_step_s'] / imported_s:.2f} without the script's imports",
        f"epoch: {job['epoch_s'] / script['epoch_s']:.2f} of the script's time",
        f"with {limited['limit_bytes'] / MIB:.0f} MB (by {limited['limited_by']}): first step "
        f"{limited['first_step_s'] / script['first_step_s']:.2f}, epoch {limited['epoch_s'] / script['epoch_s']:.2f} "
        f"of the script's time in memory",
    ]


def _medians(samples: Sequence[Figures]) -> Figures:
    named = {name: median(figures[name] for figures in samples) for name in ("first_step_s", "epoch_s", "imports_s")}
    peak_bytes = max(figures["peak_bytes"] for figures in samples)
    return {name: round(value, 3) for name, value in named.items()} | {"peak_bytes": peak_bytes}


def _create(connection: psycopg.Connection, names: Sequence[str], rows: int) -> int:
    """Create the table, and return its size."""
    columns = sql.SQL(", ").join(sql.SQL("random() as {}").format(sql.Identifier(name)) for name in names)
    for role in ("tensile_worker", "tensile_reader"):
        connection.execute(sql.SQL(_SQL["allow_login"]).format(sql.Identifier(role)))
    connection.execute(sql.SQL(_SQL["create_table"]).format(columns=columns, rows=sql.Literal(rows)))
    for name in ("fill_statistics", "grant_table", "grant_use"):
        connection.execute(_SQL[name])
    row = connection.execute(_SQL["table_bytes"]).fetchone()
    assert row is not None
    return int(row[0])


def _job(
    connection: psycopg.Connection, controller: "subprocess.Popen[bytes]", epochs: int, group: Path | None = None
) -> Figures:
    """Return the seconds from the job's commit to its first step and of an epoch, and the trainer's peak memory."""
    if group is not None:
        for pid in trainers_of(controller.pid):
            (group / "cgroup.procs").write_text(str(pid))
    row = connection.execute(_SQL["train"].encode(), {"epochs": epochs}).fetchone()  # commits
    assert row is not None
    began_s, values = time.perf_counter(), {"job": row[0]}

    def reached(state: str) -> bool:
        seen = connection.execute(_SQL["reached"].encode(), values).fetchone()
        if seen is not None and seen[0] in ("failed", "cancelled"):
            raise TensileError(f"the job {seen[0]}: {seen[1]}")
        return seen is not None and bool(seen[2] if state == "stepped" else seen[3])

    wait_for(lambda: reached("stepped"), "the first step")
    stepped_s = time.perf_counter()
    wait_for(lambda: reached("trained"), "the last epoch")
    trained_s, peak = time.perf_counter(), max(peak_bytes(pid) for pid in trainers_of(controller.pid))
    wait_for(lambda: connection.execute(_SQL["ended"].encode(), values).fetchone() is not None, "the job to end")
    return {
        "first_step_s": stepped_s - began_s,
        "epoch_s": (trained_s - stepped_s) / epochs,
        "imports_s": 0.0,
        "peak_bytes": peak,
    }


def _script(dsn: str, names: Sequence[str], epochs: int) -> Figures:
    module = "indb_tensile.bench.harness.trainings.plain_reading"
    command = [*_AS_NICE, sys.executable, "-m", module, str(epochs), dsn, "bench_read", "y", *names]
    figures: Figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return figures


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['side']:<7} first step after {row['first_step_s']:7.2f} s, an epoch {row['epoch_s']:7.2f} s, at most "
        f"{row['peak_bytes'] / MIB:7.0f} MB; {row['rows']} rows of {row['features']} features, "
        f"{row['table_bytes'] / MIB:.0f} MB in the database"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dsn", default="", help="a superuser's connection to any database of the server")
    parser.add_argument("--rows", type=whole(100), default=5_000_000)
    parser.add_argument("--features", type=whole(), default=20)
    parser.add_argument("--epochs", type=whole(), default=2)
    parser.add_argument("--rounds", type=whole(), default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
