"""A machine without a GPU: a training in the database beside a plain script, and the memory that plans save.

    tensile bench cpu [--dsn "host=… user=postgres"] [--rows 300000] [--epochs N] [--rounds 3] [--threads N] [--json]

Speed: a table of 25 mixed columns is trained on from SQL, from the commit of `tensile_train` to the published
model, and by a plain script of PyTorch (cpu_plain.py) with the same network, steps and threads, in turns. Each part
of both is a column; the ratio is of the medians, with the script's imports and without.

Memory: four networks at once, unplanned (`liveness`) with room for all, and planned with half of what they took. Of
the trainers' memory that counts which is theirs beyond that of the same processes before they had a job
(proportional bytes; the median while all trained, and the most, which is while a tensor is copied for a checkpoint or
a new plan), beside what the ledger says that they were granted.
Then a trainer and the controller are killed: nothing may be left of the files that they swapped to.
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
from indb_tensile.bench.chaos_processes import marked
from indb_tensile.bench.database import fresh
from indb_tensile.bench.ending import run
from indb_tensile.bench.options import whole
from indb_tensile.bench.rows import stamped
from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.catalog.queries import parse
from indb_tensile.config import GIB, MIB
from indb_tensile.errors import TensileError, UnavailableError
from indb_tensile.executor.hardware import half_of_cores
from indb_tensile.learning import defaults

Row = dict[str, Any]

PURPOSE = "tensile bench cpu"
JOBS = 4
_TRAINED_SHARE = 0.7  # of the rows: the others validate and test
_WIDE_BATCH = 128
_POLL_S = 0.02
_PATIENCE_S = 3600.0
_SQL = parse(Path(__file__).with_name("cpu.sql").read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each training and each way to have memory, then the ratios."""
    given = _parser().parse_args(arguments)
    with fresh(given.dsn, "cpu") as dsn, TemporaryDirectory(dir=given.directory) as directory:
        place = _Place(dsn=dsn, directory=Path(directory), threads=given.threads)
        place.prepare(given.rows)
        rows: list[Row] = []
        for row in _measured(place, given):
            rows.append(row)
            print(stamped(row) if given.json else _line(row), flush=True)
    for told in _ratios(rows):
        print(told, file=sys.stderr if given.json else sys.stdout)


def _measured(place: "_Place", given: argparse.Namespace) -> Iterator[Row]:
    if "speed" in given.parts:
        with place.controller() as controller:
            asked = _defaults(given.rows, given.epochs)
            # Operators are measured once, and that is what the catalog keeps.
            _train(controller, "warm", asked | {"epochs": 1})
            for number in range(given.rounds):
                yield _train(controller, f"mixed{number}", asked)
                yield _plain(place, asked)
    if "memory" in given.parts:
        yield from _memory(place, [given.width] * given.layers)


# --- speed ---------------------------------------------------------------------------------------------------------


def _defaults(rows: int, epochs: int | None) -> Row:
    """What a training without settings would choose for this table, given to both so that neither stops early."""
    trained = round(_TRAINED_SHARE * rows)
    batch_size = defaults.batch_size(trained)
    return {"epochs": epochs or defaults.epochs(math.ceil(trained / batch_size)), "batch_size": batch_size}


def _train(controller: "_Controller", model: str, hyperparams: Row) -> Row:
    """From commit to published model; what each phase took is the time in which it was seen."""
    started_s = time.perf_counter()
    job = controller.enqueue(model, "public.mixed", hyperparams)
    phases: dict[str, float] = {}
    seen_s = time.perf_counter()
    while True:
        state, phase, error, score = controller.ask("state", job=job)
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


def _plain(place: "_Place", asked: Row) -> Row:
    command = [sys.executable, "-m", "indb_tensile.bench.cpu_plain"]
    command += [place.dsn, "public.mixed", "y", str(place.threads), str(asked["epochs"]), str(asked["batch_size"])]
    command.append(str(place.directory))
    started_s = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    seconds = time.perf_counter() - started_s
    told = json.loads(done.stdout)
    score, features = told.pop("r2"), told.pop("features")
    parts = {f"{name}_s": taken_s for name, taken_s in told.items()}
    return {"part": "speed", "way": "plain", "seconds": round(seconds, 3), "r2": score, "features": features} | parts


# --- memory --------------------------------------------------------------------------------------------------------


def _memory(place: "_Place", hidden: Sequence[int]) -> Iterator[Row]:
    unplanned = _weighed(place, hidden, policy="liveness", budget_bytes=6 * GIB)
    yield unplanned
    planned = _weighed(place, hidden, policy="tensile+", budget_bytes=unplanned["granted_bytes"] // 2)
    yield planned | {"of_unplanned": round(planned["own_bytes"] / unplanned["own_bytes"], 3)}


def _weighed(place: "_Place", hidden: Sequence[int], *, policy: str, budget_bytes: int) -> Row:
    """Four jobs at once under this policy, and then the end of the trainers and of their controller by SIGKILL."""
    with place.controller(policy=policy, budget_bytes=budget_bytes, spare_trainers=JOBS) as controller:
        idle = controller.idle()
        layers = {"type": "mlp", "hidden": list(hidden)}
        hyperparams = {"epochs": 10_000, "batch_size": _WIDE_BATCH}
        jobs = [controller.enqueue(f"wide{n}", "public.small", hyperparams, json.dumps(layers)) for n in range(JOBS)]
        controller.until_training(jobs, steps=8)
        own, granted = [], []
        for _ in range(40):
            own.append(sum(max(0, _proportional(pid) - idle.get(pid, 0)) for pid in controller.trainers()))
            granted.append(controller.ask("memory")[0])
            time.sleep(0.1)
        swapped_bytes, recomputed = controller.ask("swapped", jobs=jobs)
        held_bytes, own_bytes = max(granted), round(median(own))
        row: Row = {
            "part": "memory",
            "policy": policy,
            "budget_bytes": budget_bytes,
            "granted_bytes": held_bytes,
            "own_bytes": own_bytes,
            "most_bytes": max(own),
            "of_ledger": round(own_bytes / held_bytes, 3),
            "swapped_bytes": int(swapped_bytes),
            "recomputed": int(recomputed),
            "swap_files": controller.swap_files(),
        }
        os.kill(controller.trainers()[0], signal.SIGKILL)
        controller.process.kill()
        controller.process.wait()
        controller.until_gone()
        return row | {"swap_files_after_kill": len(list(place.swap.iterdir())) + controller.swap_files()}


def _proportional(pid: int) -> int:
    """A process's memory, each shared page divided by the number of processes that have it; 0 of one that is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


# --- the place -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    dsn: str
    directory: Path
    threads: int

    @property
    def swap(self) -> Path:
        """Where files are swapped to."""
        return self.directory / "swap"

    def prepare(self, rows: int) -> None:
        """The tables, and roles that can log in."""
        with connect(self.dsn, application_name=PURPOSE) as connection:
            for role in ("tensile_worker", "tensile_reader"):
                connection.execute(sql.SQL(_SQL["allow_login"]).format(sql.Identifier(role)))
            connection.execute(sql.SQL(_SQL["make_table"]).format(rows=sql.Literal(rows)))
            for name in ("fill_target", "compact", "make_small_table", "let_read"):
                connection.execute(_SQL[name])

    @contextmanager
    def controller(self, **settings: object) -> Iterator["_Controller"]:
        """A controller of the processor's own device, surely gone afterwards."""
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
        with log.open("w") as written, connect(self.dsn, application_name=PURPOSE) as connection:
            command = [sys.executable, "-m", "indb_tensile.worker.controller"]
            process = subprocess.Popen(command, env=environment, stderr=written)
            made = _Controller(
                process=process, connection=connection, log=log, mark=f"TENSILE_STATE_DIR={self.directory}"
            )
            try:
                made.until(lambda: made.ask("ready")[0] > 0, "the controller to register", starting=True)
                yield made
            finally:
                connection.execute(_SQL["cancel"])
                process.terminate()
                process.wait()
                made.until_gone()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Controller:
    process: "subprocess.Popen[bytes]"
    connection: Connection
    log: Path
    mark: str

    def ask(self, name: str, **values: object) -> tuple[Any, ...]:
        """The one row of a statement."""
        row = self.connection.execute(_SQL[name], values).fetchone()
        assert row is not None
        return tuple(row)

    def enqueue(self, model: str, relation: str, hyperparams: Row, architecture: str | None = None) -> int:
        """Ask for a training, committed when this returns."""
        values = {"model": model, "relation": relation, "architecture": architecture}
        return int(self.ask("train", **values, hyperparams=json.dumps(hyperparams))[0])

    def idle(self) -> dict[int, int]:
        """The memory of all processes, by number, once so many trainers wait that each job finds one."""
        self.until(lambda: len(self._processes()) > JOBS + 1, "the trainers to be there")
        time.sleep(2.0)  # whoever came last imports nothing more, and settles
        return {pid: _proportional(pid) for pid in self._processes()}

    def trainers(self) -> list[int]:
        """The processes that train, as the log has them."""
        found = dict.fromkeys(map(int, re.findall(r"trainer\[(\d+)\]", self.log.read_text())))
        return [pid for pid in found if Path(f"/proc/{pid}").exists()]

    def until_training(self, jobs: Sequence[int], steps: int) -> None:
        """Until all have gone so many steps."""

        def all_do() -> bool:
            going, ended = self.ask("steps", jobs=list(jobs), steps=steps)
            if ended:
                raise UnavailableError("a training ended too early", hint=f"See {self.log}.")
            return int(going) == len(jobs)

        self.until(all_do, "all trainings to be under way")

    def until_gone(self) -> None:
        """Until no process of this controller is left."""
        self.until(lambda: not self._processes(), "its processes to end")

    def swap_files(self) -> int:
        """How many files without a name its processes have open in the swap directory."""
        found = 0
        for pid in self._processes():
            with suppress(OSError):
                links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
                found += sum("/swap/" in link and link.endswith("(deleted)") for link in links)
        return found

    def until(self, condition: Any, what: str, *, starting: bool = False) -> None:
        """Poll until it holds. Raises UnavailableError where that takes too long, or the controller has ended."""
        end_s = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > end_s or (starting and self.process.poll()):
                raise UnavailableError(f"waited in vain for {what}", hint=f"See {self.log}.")
            time.sleep(_POLL_S)

    def _processes(self) -> list[int]:
        return marked(self.mark)


def _line(row: Row) -> str:
    return "  ".join(f"{name} {_figure(name, value)}" for name, value in row.items())


def _figure(name: str, value: Any) -> str:
    return f"{value / MIB:,.0f} MB" if name.endswith("_bytes") else str(value)


def _ratios(rows: Sequence[Row]) -> Iterator[str]:
    ways = {way: [row for row in rows if row.get("way") == way] for way in ("sql", "plain")}
    if all(ways.values()):
        ours, plain = (median(row["seconds"] for row in found) for found in ways.values())
        imports = median(row["import_s"] for row in ways["plain"])
        yield (
            f"from commit to model {ours:.1f} s, the script {plain:.1f} s: {ours / plain:.2f} of it, and "
            f"{ours / (plain - imports):.2f} of it without what it imports"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", required=True, help="a superuser's connection to any database of the server")
    parser.add_argument("--rows", type=whole(1000), default=300_000, help="of the table that is trained on")
    parser.add_argument(
        "--epochs", type=whole(), default=None, help="of each training; by default as many as it would choose"
    )
    parser.add_argument("--rounds", type=whole(), default=3, help="turns of the two trainings")
    parser.add_argument("--threads", type=whole(), default=half_of_cores(), help="of each training")
    parser.add_argument("--width", type=whole(), default=3072, help="of the layers of the networks that are weighed")
    parser.add_argument("--layers", type=whole(), default=6, help="of them; fewer are closer to the floor of a plan")
    parser.add_argument("--directory", default=None, help="on the disk that is swapped to")
    parser.add_argument("--parts", nargs="+", choices=("speed", "memory"), default=["speed", "memory"])
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    return parser


if __name__ == "__main__":
    try:
        run(main)
    except TensileError as error:
        sys.exit(f"{error.message}. {error.hint}")
