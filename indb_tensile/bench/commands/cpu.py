"""Measures a machine without a GPU: training in the database against a plain script, and memory that plans save.

    tensile bench cpu [--dsn "host=… user=postgres"] [--rows 300000] [--epochs N] [--rounds 3] [--threads N] [--json]

Speed: a table of 25 mixed columns is trained on from SQL, from the commit of `tensile_train` to the published model,
and by a plain PyTorch script (plain_training.py) with the same network, steps and threads, in turns. The figures give
the time of each part of both. The ratio is that of the medians, with the script's imports and without.

Memory: four networks train at once, unplanned (`liveness`) with room for all, and planned within half of the memory
that they took. A trainer's own memory is its proportional bytes beyond those of the same process before it had a job.
The figures give its median while all trained, and its maximum, which occurs while a tensor is copied for a checkpoint
or a new plan. Beside it is the memory that the ledger says the trainers were granted. Then the benchmark kills a
trainer and the controller. No file that they swapped to may be left.
"""

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from psycopg import sql
from psycopg.conninfo import make_conninfo

from indb_tensile import config
from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.processes.controller_process import start_controller
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.processes.process_table import pids_with_environment
from indb_tensile.bench.harness.results.rows import stamped
from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.catalog.queries import parse
from indb_tensile.config import GIB, MIB
from indb_tensile.device.hardware import half_of_cores
from indb_tensile.errors import TensileError, UnavailableError
from indb_tensile.learning.networks import training_length

Row = dict[str, Any]

PURPOSE = "tensile bench cpu"
JOBS = 4
_TRAINED_SHARE = 0.7  # share of the rows that train; the others validate and test
_WIDE_BATCH = 128
_POLL_S = 0.02
_TIMEOUT_S = 3600.0
_SQL = parse(Path(__file__).with_name("cpu.sql").read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each training and each policy, then the ratios."""
    options = _parser().parse_args(arguments)
    with temporary_database(options.dsn, "cpu") as dsn, TemporaryDirectory(dir=options.directory) as directory:
        site = _Site(dsn=dsn, directory=Path(directory), threads=options.threads)
        site.prepare(options.rows)
        rows: list[Row] = []
        for row in _measured(site, options):
            rows.append(row)
            print(stamped(row) if options.json else _line(row), flush=True)
    for ratio in _ratios(rows):
        print(ratio, file=sys.stderr if options.json else sys.stdout)


def _measured(site: "_Site", options: argparse.Namespace) -> Iterator[Row]:
    if "speed" in options.parts:
        with site.controller() as controller:
            hyperparams = _defaults(options.rows, options.epochs)
            # Operators are measured in this first training; the catalog keeps the measurements.
            _train(controller, "warm", hyperparams | {"epochs": 1})
            for number in range(options.rounds):
                yield _train(controller, f"mixed{number}", hyperparams)
                yield _plain(site, hyperparams)
    if "memory" in options.parts:
        yield from _memory(site, [options.width] * options.layers)


# --- speed ---------------------------------------------------------------------------------------------------------


def _defaults(rows: int, epochs: int | None) -> Row:
    """Return the settings that a default training chooses for this table. With them neither side stops early."""
    trained = round(_TRAINED_SHARE * rows)
    batch_size = training_length.batch_size(trained)
    return {"epochs": epochs or training_length.epochs(math.ceil(trained / batch_size)), "batch_size": batch_size}


def _train(controller: "_Controller", model: str, hyperparams: Row) -> Row:
    """Train from commit to published model. A phase's time is the time between polls that saw it."""
    started_s = time.perf_counter()
    job = controller.enqueue(model, "public.mixed", hyperparams)
    phases: dict[str, float] = {}
    seen_s = time.perf_counter()
    while True:
        state, phase, error, score = controller.fetch("state", job=job)
        now_s = time.perf_counter()
        name = phase or state
        phases[name] = phases.get(name, 0.0) + now_s - seen_s
        seen_s = now_s
        if state not in ("queued", "starting", "running"):
            break
        time.sleep(_POLL_S)
    if state != "succeeded":
        raise UnavailableError(f"the training {state}: {error}", hint=f"See {controller.log}.")
    parts = {f"{name}_s": round(taken_s, 3) for name, taken_s in phases.items() if name != state}
    return {"part": "speed", "way": "sql", "seconds": round(seen_s - started_s, 3), "r2": score} | parts


def _plain(site: "_Site", hyperparams: Row) -> Row:
    command = [sys.executable, "-m", "indb_tensile.bench.harness.trainings.plain_training"]
    command += [
        site.dsn,
        "public.mixed",
        "y",
        str(site.threads),
        str(hyperparams["epochs"]),
        str(hyperparams["batch_size"]),
    ]
    command.append(str(site.directory))
    started_s = time.perf_counter()
    completed = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    seconds = time.perf_counter() - started_s
    figures = json.loads(completed.stdout)
    score, features = figures.pop("r2"), figures.pop("features")
    parts = {f"{name}_s": taken_s for name, taken_s in figures.items()}
    return {"part": "speed", "way": "plain", "seconds": round(seconds, 3), "r2": score, "features": features} | parts


# --- memory --------------------------------------------------------------------------------------------------------


def _memory(site: "_Site", hidden: Sequence[int]) -> Iterator[Row]:
    unplanned = _measure_memory(site, hidden, policy="liveness", budget_bytes=6 * GIB)
    yield unplanned
    planned = _measure_memory(site, hidden, policy="tensile+", budget_bytes=unplanned["granted_bytes"] // 2)
    yield planned | {"of_unplanned": round(planned["own_bytes"] / unplanned["own_bytes"], 3)}


def _measure_memory(site: "_Site", hidden: Sequence[int], *, policy: str, budget_bytes: int) -> Row:
    """Train four jobs at once under this policy, then end the trainers and their controller by SIGKILL."""
    with site.controller(policy=policy, budget_bytes=budget_bytes, spare_trainers=JOBS) as controller:
        idle = controller.idle()
        layers = {"type": "mlp", "hidden": list(hidden)}
        hyperparams = {"epochs": 10_000, "batch_size": _WIDE_BATCH}
        jobs = [controller.enqueue(f"wide{n}", "public.small", hyperparams, json.dumps(layers)) for n in range(JOBS)]
        controller.until_training(jobs, steps=8)
        own, granted = [], []
        for _ in range(40):
            own.append(sum(max(0, _proportional(pid) - idle.get(pid, 0)) for pid in controller.trainers()))
            granted.append(controller.fetch("memory")[0])
            time.sleep(0.1)
        swapped_bytes, recomputed = controller.fetch("swapped", jobs=jobs)
        granted_bytes, own_bytes = max(granted), round(median(own))
        row: Row = {
            "part": "memory",
            "policy": policy,
            "budget_bytes": budget_bytes,
            "granted_bytes": granted_bytes,
            "own_bytes": own_bytes,
            "most_bytes": max(own),
            "of_ledger": round(own_bytes / granted_bytes, 3),
            "swapped_bytes": int(swapped_bytes),
            "recomputed": int(recomputed),
            "swap_files": controller.swap_files(),
        }
        os.kill(controller.trainers()[0], signal.SIGKILL)
        controller.process.kill()
        controller.process.wait()
        controller.until_gone()
        return row | {"swap_files_after_kill": len(list(site.swap.iterdir())) + controller.swap_files()}


def _proportional(pid: int) -> int:
    """Return a process's memory, with each shared page divided among its processes; 0 if the process has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


# --- the database and its controllers ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """A database, a directory and the threads of each training."""

    dsn: str
    directory: Path
    threads: int

    @property
    def swap(self) -> Path:
        """Return the directory of swap files."""
        return self.directory / "swap"

    def prepare(self, rows: int) -> None:
        """Create the tables, and let the roles log in."""
        with connect(self.dsn, application_name=PURPOSE) as connection:
            for role in ("tensile_worker", "tensile_reader"):
                connection.execute(sql.SQL(_SQL["allow_login"]).format(sql.Identifier(role)))
            connection.execute(sql.SQL(_SQL["make_table"]).format(rows=sql.Literal(rows)))
            for name in ("fill_target", "compact", "make_small_table", "let_read"):
                connection.execute(_SQL[name])

    @contextmanager
    def controller(self, **settings: object) -> Iterator["_Controller"]:
        """Yield a controller of the processor as a device. All its processes have ended when the block ends."""
        self.swap.mkdir(exist_ok=True)
        values: Mapping[str, object] = {
            "dsn": make_conninfo(self.dsn, user="tensile_worker"),
            "reader_dsn": make_conninfo(self.dsn, user="tensile_reader"),
            "device": "cpu",
            "torch_threads": self.threads,
            "state_dir": self.directory,
            "swap_directory": self.swap,
            "spare_trainers": 1,
            "survey_s": 0,
            "poll_s": 0.2,
            **settings,
        }
        environment = {name: text for name, text in os.environ.items() if not name.startswith(config.PREFIX)}
        environment |= {config.variable(name): str(value) for name, value in values.items()}
        log = self.directory / "controller.log"
        with log.open("w") as output, connect(self.dsn, application_name=PURPOSE) as connection:
            process = start_controller(environment, output)
            controller = _Controller(
                process=process, connection=connection, log=log, mark=f"TENSILE_STATE_DIR={self.directory}"
            )
            try:
                controller.until(
                    lambda: controller.fetch("ready")[0] > 0, "the controller to register", starting=True
                )
                yield controller
            finally:
                connection.execute(_SQL["cancel"])
                process.terminate()
                process.wait()
                controller.until_gone()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Controller:
    """A running controller, its log, and a connection to its database."""

    process: "subprocess.Popen[bytes]"
    connection: Connection
    log: Path
    mark: str

    def fetch(self, name: str, **values: object) -> tuple[Any, ...]:
        """Return the only row of a statement."""
        row = self.connection.execute(_SQL[name], values).fetchone()
        assert row is not None
        return tuple(row)

    def enqueue(self, model: str, relation: str, hyperparams: Row, architecture: str | None = None) -> int:
        """Enqueue a training and return its job's id. The transaction has been committed on return."""
        values = {"model": model, "relation": relation, "architecture": architecture}
        return int(self.fetch("train", **values, hyperparams=json.dumps(hyperparams))[0])

    def idle(self) -> dict[int, int]:
        """Return the memory of all processes, by process id, once enough trainers wait for all jobs."""
        self.until(lambda: len(self._processes()) > JOBS + 1, "the trainers to be there")
        time.sleep(2.0)  # the last trainer finishes its imports, and its memory stops growing
        return {pid: _proportional(pid) for pid in self._processes()}

    def trainers(self) -> list[int]:
        """Return the ids of the processes that train, from the log."""
        pids = dict.fromkeys(map(int, re.findall(r"trainer\[(\d+)\]", self.log.read_text())))
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    def until_training(self, jobs: Sequence[int], steps: int) -> None:
        """Wait until all jobs have gone `steps` steps."""

        def all_do() -> bool:
            training, ended = self.fetch("steps", jobs=list(jobs), steps=steps)
            if ended:
                raise UnavailableError("a training ended too early", hint=f"See {self.log}.")
            return int(training) == len(jobs)

        self.until(all_do, "all trainings to make progress")

    def until_gone(self) -> None:
        """Wait until no process of this controller is left."""
        self.until(lambda: not self._processes(), "its processes to end")

    def swap_files(self) -> int:
        """Return the number of unlinked files in the swap directory that its processes have open."""
        count = 0
        for pid in self._processes():
            with suppress(OSError):
                links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
                count += sum("/swap/" in link and link.endswith("(deleted)") for link in links)
        return count

    def until(self, condition: Any, awaited: str, *, starting: bool = False) -> None:
        """Poll until the condition holds. Raises UnavailableError on timeout, or if a starting controller ends."""
        end_s = time.monotonic() + _TIMEOUT_S
        while not condition():
            if time.monotonic() > end_s or (starting and self.process.poll()):
                raise UnavailableError(f"timed out waiting for {awaited}", hint=f"See {self.log}.")
            time.sleep(_POLL_S)

    def _processes(self) -> list[int]:
        return pids_with_environment(self.mark)


def _line(row: Row) -> str:
    return "  ".join(f"{name} {_figure(name, value)}" for name, value in row.items())


def _figure(name: str, value: Any) -> str:
    return f"{value / MIB:,.0f} MB" if name.endswith("_bytes") else str(value)


def _ratios(rows: Sequence[Row]) -> Iterator[str]:
    ways = {way: [row for row in rows if row.get("way") == way] for way in ("sql", "plain")}
    if all(ways.values()):
        ours, plain = (median(row["seconds"] for row in group) for group in ways.values())
        imports = median(row["import_s"] for row in ways["plain"])
        yield (
            f"from commit to model {ours:.1f} s, the script {plain:.1f} s: ratio {ours / plain:.2f}, and "
            f"{ours / (plain - imports):.2f} without the script's imports"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", required=True, help="a superuser's connection to any database of the server")
    parser.add_argument("--rows", type=whole(1000), default=300_000, help="rows of the table to train on")
    parser.add_argument(
        "--epochs", type=whole(), default=None, help="epochs of each training; default: as a default training chooses"
    )
    parser.add_argument("--rounds", type=whole(), default=3, help="turns of the two trainings")
    parser.add_argument("--threads", type=whole(), default=half_of_cores(), help="threads of each training")
    parser.add_argument("--width", type=whole(), default=3072, help="width of the layers in the memory part")
    parser.add_argument(
        "--layers", type=whole(), default=6, help="number of layers; fewer are closer to a plan's floor"
    )
    parser.add_argument("--directory", default=None, help="a directory on the disk to swap to")
    parser.add_argument("--parts", nargs="+", choices=("speed", "memory"), default=["speed", "memory"])
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    try:
        run(main)
    except TensileError as error:
        sys.exit(f"{error.message}. {error.hint}")
