"""Measures how long a search takes, and what it finds, beside training all trials to their end, one by one.

    tensile bench search [--dsn "host=… user=postgres"] [--table breast_cancer] [--trials 16] [--parallel 4]
                         [--seeds 5] [--epochs N] [--threads 1] [--json]

The methods run in turns, for each seed, with the same trials: the values are drawn at random from the seed, which
also decides the split, the weights and the batches.

- `asha` compares trials at a ninth and a third of their epochs, or of twice the patience of early stopping. It trains
  `--parallel` of them at once.
- `together` trains every trial to its end, `--parallel` of them at once.
- `turns` trains every trial to its end, one after the other, as a script would that calls tensile_train for each.

Each method has a row: the median of the seconds from the commit of the search to its end, of the best metric on the
validation rows and of that version's metric on the test rows (times 100), and of the epochs that all trials took. The
ratios below are medians over the seeds of the ratio within a seed; points are those of the best validation metric.

The tables are those of `bench quality`. The benchmark creates a database for the table, on a server of its own unless
the dsn, a superuser's, names one. Its controller trains on the processor, each trial on `--threads` threads.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from psycopg import sql

from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.bench_controller import bench_controller, wait_for
from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.rows import stamped
from indb_tensile.bench.harness.tables.quality_sets import KNOWN_SETS, load
from indb_tensile.bench.harness.tables.stored_samples import store_table
from indb_tensile.catalog.connection import connect
from indb_tensile.catalog.queries import parse
from indb_tensile.config import MIB
from indb_tensile.errors import InvariantError, TensileError

PURPOSE = "tensile bench search"
METHODS = ("asha", "together", "turns")
_ARCHITECTURE = {
    "type": "mlp",
    "hidden": {"choices": [[64], [128, 64], [256, 128]]},
    "dropout": {"range": [0.0, 0.4]},
}
_HYPERPARAMS = {
    "learning_rate": {"range": [1e-4, 1e-1], "log": True},
    "weight_decay": {"range": [1e-5, 1e-1], "log": True},
}
_SQL = parse(Path(__file__).with_name("search.sql").read_text(encoding="utf-8"))

Figures = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row for each method, and the ratios."""
    options = _parser().parse_args(arguments)
    with temporary_database(options.dsn, "search") as dsn:
        seen = measure(dsn, options)
    labels = {"table": options.table, "trials": options.trials, "parallel": options.parallel, "seeds": options.seeds}
    for method, samples in seen.items():
        row = {
            "method": method,
            **labels,
            **{name: round(median(s[name] for s in samples), 3) for name in samples[0]},
        }
        print(stamped(row) if options.json else _line(row), flush=True)
    for line in ratios(seen):
        print(line, file=sys.stderr if options.json else sys.stdout)


def measure(dsn: str, options: argparse.Namespace) -> dict[str, list[Figures]]:
    """Return the figures of each method for each seed. `dsn` is a superuser's, to a database with the catalog."""
    settings = {"device": "cpu", "budget_bytes": 1024 * MIB, "torch_threads": options.threads, "spare_trainers": 2}
    seen: dict[str, list[Figures]] = {method: [] for method in METHODS}
    with (
        connect(dsn, application_name=PURPOSE, callers_path=True) as connection,
        bench_controller(dsn, "search", **settings),
    ):
        for role in ("tensile_worker", "tensile_reader"):
            connection.execute(sql.SQL(_SQL["allow_login"]).format(sql.Identifier(role)))
        connection.execute(_SQL["grant_use"])
        table = load(options.table)
        store_table(connection, table)
        for seed in range(options.seeds):
            trials: set[str] = set()
            for method in METHODS[seed % len(METHODS) :] + METHODS[: seed % len(METHODS)]:
                figures, parameters = _search(connection, options, table.target, method, seed)
                seen[method].append(figures)
                trials.add(parameters)
            if len(trials) > 1:
                raise InvariantError(f"the trials of the methods differ for seed {seed}")
    return seen


def ratios(seen: dict[str, list[Figures]]) -> list[str]:
    """Return the times relative to `turns`, and by how many points each method's best metric is behind it."""
    lines = []
    for method in METHODS[:-1]:
        pairs = list(zip(seen[method], seen["turns"], strict=True))
        time_ratio = median(own["seconds"] / turns["seconds"] for own, turns in pairs)
        behind = median(turns["best"] - own["best"] for own, turns in pairs)
        tested = median(turns["tested"] - own["tested"] for own, turns in pairs)
        lines.append(
            f"{method}: {time_ratio:.2f} of the time of turns; {behind:+.2f} points behind on the validation rows, "
            f"{tested:+.2f} on the test rows"
        )
    return lines


def _search(
    connection: psycopg.Connection, options: argparse.Namespace, target: str, method: str, seed: int
) -> tuple[Figures, str]:
    """Run one search. Returns its figures and the values of its trials."""
    hyperparams: dict[str, Any] = (
        _HYPERPARAMS | {"seed": seed} | ({"epochs": options.epochs} if options.epochs else {})
    )
    values = {
        "model": f"{method}_{seed}",
        "table": options.table,
        "target": target,
        "trials": options.trials,
        "parallel": 1 if method == "turns" else options.parallel,
        "prune": "asha" if method == "asha" else "none",
        "seed": seed,
        "architecture": json.dumps(_ARCHITECTURE),
        "hyperparams": json.dumps(hyperparams),
    }
    began_s = time.perf_counter()
    row = connection.execute(_SQL["search"].encode(), values).fetchone()  # commits
    assert row is not None
    search = {"search": row[0]}
    ended: list[Any] = []

    def over() -> bool:
        ended[:] = connection.execute(_SQL["ended"].encode(), search).fetchall()
        return bool(ended)

    wait_for(over, "the search to end")
    seconds = time.perf_counter() - began_s
    state, error = ended[0]
    if state != "succeeded":
        raise TensileError(f"the search {state}: {error}")
    outcome = connection.execute(_SQL["outcome"].encode(), search).fetchone()
    parameters = connection.execute(_SQL["parameters"].encode(), search).fetchone()
    assert outcome is not None
    assert parameters is not None
    _, best, tested, epochs, trained = outcome
    figures = {
        "seconds": seconds,
        "best": 100 * best,
        "tested": 100 * tested,
        "epochs": float(epochs),
        "trained": float(trained),
    }
    return figures, str(parameters[0])


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['method']:<9} {row['seconds']:7.2f} s, best {row['best']:6.2f} on the validation rows, "
        f"{row['tested']:6.2f} on the test rows; {row['epochs']:.0f} epochs, {row['trained']:.0f} of {row['trials']} "
        f"trials to their end ({row['table']}, {row['seeds']} seeds)"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dsn", default="", help="a superuser's connection to any database of the server")
    parser.add_argument("--table", choices=KNOWN_SETS, default="breast_cancer", metavar="SET")
    parser.add_argument("--trials", type=whole(2), default=16)
    parser.add_argument("--parallel", type=whole(2), default=4)
    parser.add_argument("--seeds", type=whole(), default=5)
    parser.add_argument("--epochs", type=whole(), help="by default as a training chooses them")
    parser.add_argument("--threads", type=whole(), default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
