"""Measures the time from a table of many rows to the first step: a job from its commit on, beside a plain script.

    tensile bench reading [--dsn "host=… user=postgres"] [--rows 1000000] [--features 20] [--rounds 3] [--json]

Both sides run in turns, one at a time, on the same table of float8 columns. Each side has a row: the median of the
seconds to the first step, and the peak memory of its process (VmHWM). A trainer's peak includes the memory that it
shares with the process that it was forked from, as the script's includes torch. A job's time begins with the commit
and ends when the catalog shows a step. The script's begins with its process (bench/harness/plain_reading.py). Its
imports also have a figure of their own, because a trainer is forked from a process that has imported already. The
ratio is the job's time over the script's, so below 1 the job is faster.

The benchmark creates a database for the table, on a server of its own unless the dsn, a superuser's, names one. Its
own controller runs on an emulated device with a fast link.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from indb_tensile import config
from indb_tensile.bench.harness.argument_types import whole
from indb_tensile.bench.harness.bench_database import temporary_database
from indb_tensile.bench.harness.chaos_processes import all_processes, peak_bytes
from indb_tensile.bench.harness.process_exit import run
from indb_tensile.bench.harness.rows import stamped
from indb_tensile.catalog.connection import connect
from indb_tensile.catalog.queries import parse
from indb_tensile.config import MIB
from indb_tensile.errors import TensileError, UnavailableError

PURPOSE = "tensile bench reading"
TIMEOUT_S = 3600.0
POLL_S = 0.01
_LINK_BYTES_PER_S = 10**12  # fast enough not to matter
_AS_NICE = ("nice", "-n", "5")  # as a trainer (worker/trainer.py), so that other work slows both sides alike
_SQL = parse(Path(__file__).with_name("reading.sql").read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row for the job and one for the plain script, and the ratio of their times."""
    options = _parser().parse_args(arguments)
    with temporary_database(options.dsn, "reading") as dsn:
        rows = measure(dsn, options.rows, options.features, options.rounds)
    for row in rows:
        print(stamped(row) if options.json else _line(row), flush=True)
    ratios = f"ratio: {ratio(rows):.2f} of the script's time to the first step"
    ratios += f", {ratio(rows, imported=True):.2f} without the script's imports"
    print(ratios, file=sys.stderr if options.json else sys.stdout)


def measure(dsn: str, rows: int, features: int, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of both sides, measured in turns. `dsn` is a superuser's, to a database with the catalog."""
    names = [f"f{number}" for number in range(features)]
    seen: dict[str, list[dict[str, float]]] = {"job": [], "script": []}
    with connect(dsn, application_name=PURPOSE, callers_path=True) as connection:
        _create(connection, names, rows)
        with _controller(connection, dsn) as controller:
            for _ in range(rounds):
                seen["job"].append(_job(connection, controller))
                seen["script"].append(_script(dsn, names))
    return [
        {
            "side": side,
            "rows": rows,
            "features": features,
            "rounds": rounds,
            "seconds": round(median(figures["seconds"] for figures in samples), 3),
            "imports_s": round(median(figures["imports_s"] for figures in samples), 3),
            "peak_bytes": max(figures["peak_bytes"] for figures in samples),
        }
        for side, samples in seen.items()
    ]


def ratio(rows: Sequence[dict[str, Any]], *, imported: bool = False) -> float:
    """Return the job's time over the script's; with `imported`, over the script's time after its imports."""
    job, script = rows
    return float(job["seconds"] / (script["seconds"] - (script["imports_s"] if imported else 0.0)))


def _create(connection: psycopg.Connection, names: Sequence[str], rows: int) -> None:
    columns = sql.SQL(", ").join(sql.SQL("random() as {}").format(sql.Identifier(name)) for name in names)
    for role in ("tensile_worker", "tensile_reader"):
        connection.execute(sql.SQL(_SQL["allow_login"]).format(sql.Identifier(role)))
    connection.execute(sql.SQL(_SQL["create_table"]).format(columns=columns, rows=sql.Literal(rows)))
    for name in ("fill_statistics", "grant_table", "grant_use"):
        connection.execute(_SQL[name])


@contextmanager
def _controller(connection: psycopg.Connection, dsn: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a controller with a ready trainer. If the controller ends before, the error contains its log."""
    directory = Path(tempfile.mkdtemp(prefix="tensile-reading-"))
    directory.chmod(0o755)
    (directory / "service").mkdir()
    settings: dict[str, object] = {
        "dsn": make_conninfo(dsn, user="tensile_worker"),
        "device": "emulated",
        "link_out_bytes_per_s": _LINK_BYTES_PER_S,
        "link_in_bytes_per_s": _LINK_BYTES_PER_S,
        "spare_trainers": 1,
        "survey_s": 0.0,
        "service_directory": directory / "service",
        "state_dir": directory,
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith(config.PREFIX)}
    environment |= {config.variable(key): str(value) for key, value in settings.items()}
    log = directory / "controller.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "indb_tensile.worker.controller"]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        _wait(lambda: _trainers(process.pid) or _raise_if_ended(process, log), "a trainer to be ready")
        yield process
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(directory)


def _raise_if_ended(process: "subprocess.Popen[bytes]", log: Path) -> bool:
    if process.poll() is not None:
        raise UnavailableError(f"the controller ended: {log.read_text(errors='replace')[-2000:]}")
    return False


def _job(connection: psycopg.Connection, controller: "subprocess.Popen[bytes]") -> dict[str, float]:
    """Return seconds from the job's commit to its first training step, and the trainer's peak memory in bytes."""
    row = connection.execute(_SQL["train"].encode()).fetchone()  # commits
    assert row is not None
    began_s, values = time.perf_counter(), {"job": row[0]}

    def stepped() -> bool:
        ended = connection.execute(_SQL["ended"].encode(), values).fetchone()
        if ended is not None and ended[0] == "failed":
            raise TensileError(f"the job failed: {ended[1]}")
        step = connection.execute(_SQL["first_step"].encode(), values).fetchone()
        return ended is not None or (step is not None and step[0] >= 1)

    _wait(stepped, "the first step")
    seconds, peak = time.perf_counter() - began_s, max(peak_bytes(pid) for pid in _trainers(controller.pid))
    connection.execute(_SQL["cancel"].encode(), values)
    _wait(lambda: connection.execute(_SQL["ended"].encode(), values).fetchone() is not None, "the job to end")
    return {"seconds": seconds, "imports_s": 0.0, "peak_bytes": peak}


def _script(dsn: str, names: Sequence[str]) -> dict[str, float]:
    command = [
        *_AS_NICE,
        sys.executable,
        "-m",
        "indb_tensile.bench.harness.plain_reading",
        dsn,
        "bench_reading",
        "y",
        *names,
    ]
    figures: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return figures


def _trainers(controller: int) -> list[int]:
    return [
        process.pid
        for process in all_processes()
        if process.parent == controller and process.name == "tensile trainer"
    ]


def _wait(condition: "Any", awaited: str) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end_s:
            raise UnavailableError(f"timed out after {TIMEOUT_S:g} s waiting for {awaited}", hint="Use fewer rows.")
        time.sleep(POLL_S)


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['side']:<7} first step after {row['seconds']:7.2f} s, at most {row['peak_bytes'] / MIB:7.0f} MB; "
        f"{row['rows']} rows of {row['features']} features"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dsn", default="", help="a superuser's connection to any database of the server")
    parser.add_argument("--rows", type=whole(100), default=1_000_000)
    parser.add_argument("--features", type=whole(), default=20)
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
