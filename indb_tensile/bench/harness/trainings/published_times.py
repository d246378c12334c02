"""Measures the time from the call of tensile_train to the published version, beside a plain script's, in turns.

Ours begins with the call and ends when its commit of the version is seen: the job is claimed by a controller with a
spare trainer, which has imported torch already. The plain script (plain_table_training.py) is a new process that does
the same work: the same network, rows, batches, epochs and early stopping, from the same table. `plain_s` is its whole
time. `plain_warm_s` leaves the start of the interpreter and the imports out, as a process would that stays, so it is
the comparison with our time, whose processes stay too.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from indb_tensile.bench.harness.processes.bench_controller import bench_controller
from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.tables.sample_tables import SampleTable
from indb_tensile.bench.harness.tables.stored_samples import store_table
from indb_tensile.catalog.connection import connect
from indb_tensile.catalog.queries import parse
from indb_tensile.cluster import temporary_cluster
from indb_tensile.config import MIB
from indb_tensile.errors import TensileError, UnavailableError
from indb_tensile.job import Task

_SQL = parse(Path(__file__).with_name("published_times.sql").read_text(encoding="utf-8"))
_PLAIN = "indb_tensile.bench.harness.trainings.plain_table_training"
_POLL_S = 0.002
_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTime:
    """The seconds of one training by us, and of the plain script that does the same work.

    `plain_train_s` are those of the script's epochs alone. Without a plain script of the network they are None.
    """

    table: str
    rows: int
    seed: int
    epochs: int
    ours_s: float
    plain_s: float | None
    plain_warm_s: float | None
    plain_train_s: float | None


class PublishedTimes:
    """A server and a controller of the benchmark's own, on which trainings are timed."""

    def __init__(self, connection: psycopg.Connection, dsn: str, threads: int, directory: Path) -> None:
        self._connection = connection
        self._dsn = dsn
        self._threads = threads
        self._directory = directory

    def measure(self, table: SampleTable, seeds: int) -> Iterator[PublishedTime]:
        """Train on the table, and let the script do the same, in turns. The first training is not measured.

        Later trainings of a controller find their captured steps and their operators' latencies, as all but the first
        one of a kind do.
        """
        store_table(self._connection, table)
        self._train(table, 0)
        for seed in range(seeds):
            ours_s, version = self._train(table, seed)
            settings = self._settings(table, version)
            plain = None if settings is None else self._plain(table, settings)
            yield PublishedTime(
                table=table.name,
                rows=table.table.rows,
                seed=seed,
                epochs=version["epochs"],
                ours_s=ours_s,
                plain_s=None if plain is None else plain["whole"],
                plain_warm_s=None if plain is None else sum(plain[part] for part in _WARM_PARTS),
                plain_train_s=None if plain is None else plain["train"],
            )

    def _train(self, table: SampleTable, seed: int) -> tuple[float, dict[str, Any]]:
        """Return the seconds until the version is published, and how it was trained."""
        values = {"model": table.name, "table": table.name, "target": table.target, "seed": seed, "task": table.task}
        began_s = time.perf_counter()
        row = self._connection.execute(_SQL["train"].encode(), values).fetchone()  # commits
        assert row is not None
        job = {"job": row[0]}
        while (ended := self._connection.execute(_SQL["ended"].encode(), job).fetchone()) is None:
            if time.perf_counter() > began_s + _TIMEOUT_S:
                raise UnavailableError(f"job {row[0]} on {table.name} did not end within {_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)
        seconds = time.perf_counter() - began_s
        if ended[0] != "succeeded":
            raise TensileError(f"the training on {table.name} {ended[0]}: {ended[1]}")
        version = self._connection.execute(_SQL["version"].encode(), job).fetchone()
        assert version is not None
        return seconds, {"architecture": version[0], **version[1], "epochs": version[1]["epochs_trained"]}

    def _settings(self, table: SampleTable, version: dict[str, Any]) -> dict[str, Any] | None:
        """Return the script's arguments, or None for a network that the script cannot build."""
        network, own = version["architecture"], version["hyperparams"]
        if network["type"] != "mlp" or network.get("batch_norm"):
            return None
        return {
            "classes": table.task is Task.CLASSIFICATION,
            "hidden": network["hidden"],
            "dropout": network["dropout"],
            "members": own.get("ensemble", 1),
            "batch_size": own["batch_size"],
            "epochs": version["epochs"],
            "most_epochs": own["epochs"],
            "stops_early": version["early_stop"].get("on", True),
            "learning_rate": own["learning_rate"],
            "weight_decay": own["weight_decay"],
        }

    def _plain(self, table: SampleTable, settings: dict[str, Any]) -> dict[str, float]:
        arguments = (self._dsn, f"public.{table.name}", table.target, str(self._threads), json.dumps(settings))
        command = [sys.executable, "-m", _PLAIN, *arguments, str(self._directory / "plain.safetensors")]
        began_s = time.perf_counter()
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        seconds = time.perf_counter() - began_s
        if done.returncode:
            raise TensileError(f"the plain script failed on {table.name}: {done.stderr[-500:]}")
        parts: dict[str, float] = json.loads(done.stdout)
        return parts | {"whole": seconds}


_WARM_PARTS = ("read", "encode", "train", "save")


@contextmanager
def published_times(threads: int) -> Iterator[PublishedTimes]:
    """Yield the measuring on a server and a controller that live as long as the block."""
    settings = {"device": "cpu", "budget_bytes": 1024 * MIB, "torch_threads": threads, "baseline": False}
    with (
        temporary_cluster() as cluster,
        temporary_database(cluster.dsn(database="postgres"), "quality") as dsn,
        connect(dsn, application_name="tensile bench quality", callers_path=True) as connection,
        bench_controller(dsn, "quality", **settings),
        TemporaryDirectory() as directory,
    ):
        for role in ("tensile_worker", "tensile_reader"):
            connection.execute(sql.SQL(_SQL["allow_login"]).format(sql.Identifier(role)))
        connection.execute(_SQL["grant_use"])
        yield PublishedTimes(connection, make_conninfo(dsn), threads, Path(directory))


def published_row(times: Sequence[PublishedTime]) -> dict[str, str]:
    """Return the medians of a table's times, and how long ours is in terms of the script's, within each seed."""
    own = [time for time in times if time.plain_s is not None]
    row = {"epochs": f"{median(time.epochs for time in times):,.0f}", "ours s": _median(times, "ours_s")}
    if not own:
        return row | {"plain s": "-", "without start s": "-", "epochs s": "-", "ours/plain": "-", "ours/warm": "-"}
    return row | {
        "plain s": _median(own, "plain_s"),
        "without start s": _median(own, "plain_warm_s"),
        "epochs s": _median(own, "plain_train_s"),
        "ours/plain": f"{ratio(own, 'plain_s'):.2f}",
        "ours/warm": f"{ratio(own, 'plain_warm_s'):.2f}",
    }


def ratio(times: Sequence[PublishedTime], rival: str) -> float:
    """Return the median of our seconds by those of the script."""
    return float(median(time.ours_s / getattr(time, rival) for time in times))


def _median(times: Sequence[PublishedTime], name: str) -> str:
    return f"{median(getattr(time, name) for time in times):.2f}"
