"""Measures the cost of a checkpoint in a file and in the catalog: seconds, WAL, and space that remains occupied.

    tensile bench checkpoints [--dsn "host=… user=postgres"] [--size 20MB] [--rounds 10] [--directory DIR] [--json]

Both stores save the same random bytes, in turns, in one run. The catalog's table is vacuumed after each checkpoint,
as autovacuum does between two checkpoints that are minutes apart. `catalog_kept_bytes` is its size at the end. The
benchmark creates a database and drops it, so the dsn needs a superuser. Without a dsn the server is a private one
that does not wait for its disk (fsync off), while a file is always written with fsync. To compare seconds, name a
server.
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.catalog import jobs, stored_checkpoints
from indb_tensile.catalog.checkpoint_files import CheckpointFiles
from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.catalog.queries import parse
from indb_tensile.catalog.stored_checkpoints import StoredCheckpoint
from indb_tensile.config import MIB
from indb_tensile.job import CheckpointStore, ClaimedJob
from indb_tensile.units import parse_bytes

SIZE_BYTES = 20 * MIB
ROUNDS = 10
LEASE_S = 3600.0

_SQL = parse(Path(__file__).with_name("checkpoints.sql").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one checkpoint."""

    seconds: float
    wal_bytes: int


def main() -> None:
    """Print one object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dsn", default="", help="a superuser's connection to any database of the server")
    parser.add_argument("--size", type=parse_bytes, default=SIZE_BYTES, help="bytes of a checkpoint, such as 148MB")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="checkpoints in each store")
    parser.add_argument("--directory", type=Path, help="directory of the files; default: a temporary one")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with (
        temporary_database(arguments.dsn, "checkpoints") as own,
        tempfile.TemporaryDirectory(dir=arguments.directory) as place,
    ):
        figures = measure(own, Path(place), arguments.size, arguments.rounds)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for key, value in figures.items():
            print(f"{key:<28} {value}")


def measure(dsn: str, directory: Path, size_bytes: int, rounds: int) -> dict[str, float | int | str]:
    """Return medians over `rounds` checkpoints in each store."""
    with connect(dsn, application_name="tensile bench checkpoints") as connection:
        job = _claim_job(connection)
        files = CheckpointFiles(directory, stored_checkpoints.installation(connection), socket.gethostname())
        local, catalog = [], []
        for _ in range(rounds):
            data = os.urandom(size_bytes)
            local.append(_cost(connection, partial(_save_file, connection, job, files, data)))
            save = partial(stored_checkpoints.save_checkpoint, connection, job.job, job.claim, [data], {})
            catalog.append(_cost(connection, save))
            connection.execute(_SQL["vacuum"])
        kept_bytes, fsync = (connection.execute(_SQL[name]).fetchone() or (0,) for name in ("kept", "fsync"))
    figures: dict[str, float | int | str] = {"size_bytes": size_bytes, "rounds": rounds, "fsync": fsync[0]}
    for name, costs in (("local", local), ("catalog", catalog)):
        figures[f"{name}_s"] = round(statistics.median(cost.seconds for cost in costs), 4)
        figures[f"{name}_wal_bytes"] = round(statistics.median(cost.wal_bytes for cost in costs))
    files_bytes = sum(path.stat().st_size for path in files.directory.iterdir())
    return figures | {
        "local_kept_bytes": files_bytes,
        "catalog_kept_bytes": int(kept_bytes[0]),
        "wal_ratio": round(float(figures["catalog_wal_bytes"]) / max(1, float(figures["local_wal_bytes"]))),
    }


def _claim_job(connection: Connection) -> ClaimedJob:
    connection.execute(_SQL["enqueue"])
    worker = jobs.register_worker(
        connection, host=socket.gethostname(), pid=os.getpid(), device_kind="bench", lease_s=LEASE_S
    )
    claimed = jobs.claim_job(connection, worker)
    assert isinstance(claimed, ClaimedJob)
    return claimed


def _save_file(connection: Connection, job: ClaimedJob, files: CheckpointFiles, data: bytes) -> None:
    written = files.write(job.job, [data])
    stored = StoredCheckpoint(
        store=CheckpointStore.LOCAL,
        host=socket.gethostname(),
        position={},
        size_bytes=written.size_bytes,
        digest=written.digest,
    )
    stored_checkpoints.record_checkpoint(connection, job.job, job.claim, stored)
    files.keep_only(job.job, stored.digest)


def _cost(connection: Connection, save: Callable[[], None]) -> Cost:
    before, started_s = _wal_position_bytes(connection), time.perf_counter()
    save()
    seconds = time.perf_counter() - started_s
    return Cost(seconds=seconds, wal_bytes=_wal_position_bytes(connection) - before)


def _wal_position_bytes(connection: Connection) -> int:
    row = connection.execute(_SQL["written"]).fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    run(main)
