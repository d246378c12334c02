"""Compares a GridSearchCV whose candidates train side by side with the same search in turns, and with first fit.

    tensile bench grid [--candidates 4] [--rounds 3] [--epochs 20] [--width 512] [--budget-mb 24] [--threads 1]

The search is that of a user of scikit-learn: `GridSearchCV(TensileClassifier(…), n_jobs=candidates)` in joblib's
threading backend, on the digits, with one fold, so each candidate is one training. All methods run the same search;
the settings of the controller decide what its jobs do (bench/harness/share/share_methods.py): `turns` runs one job at
a time with all of the memory, `first_fit` runs unplanned jobs side by side as they fit, and `completion` is the
default. The methods take turns in each round, after a round that is not counted, in which each method learns
latencies.

A row has the medians of the time of the whole search and of the mean time of a candidate's fit. Then come the bars of
sharing (bench/harness/share/share_bars.py): the times over those of the best rival, as medians over the rounds of the
ratio within a round. The exit code is 1 if the candidates' scores differ between the methods, since plans change no
result.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from psycopg import sql

from indb_tensile import config
from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.bench_controller import bench_controller
from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.rows import stamped
from indb_tensile.bench.harness.share.share_bars import CLOSE
from indb_tensile.bench.harness.share.share_methods import COMPLETION, FIRST_FIT, TURNS, ShareMethod, available
from indb_tensile.catalog.connection import connect
from indb_tensile.catalog.queries import parse
from indb_tensile.config import MIB

PURPOSE = "tensile bench grid"
METHODS = (TURNS, FIRST_FIT, COMPLETION)
_LINK_BYTES_PER_S = 400_000_000
_SQL = parse(Path(__file__).with_name("grid.sql").read_text(encoding="utf-8"))
_RATES = (1e-3, 2e-3, 5e-4, 3e-3, 1e-4, 5e-3, 2e-4, 1e-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRun:
    """One search: its time, the mean time of a candidate's fit, and the candidates' scores."""

    search_s: float
    fit_s: float
    scores: tuple[float, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each method, and the bars."""
    options = _parser().parse_args(arguments)
    runs = measure(options)
    labels = {"candidates": options.candidates, "rounds": options.rounds, "budget_mb": options.budget_mb}
    for method, own in runs.items():
        medians = {name: round(median(getattr(each, name) for each in own), 3) for name in ("search_s", "fit_s")}
        row = {"method": method, **labels, **medians}
        print(stamped(row) if options.json else _line(row), flush=True)
    for line in bars(runs):
        print(line, file=sys.stderr if options.json else sys.stdout)
    if len({each.scores for own in runs.values() for each in own}) > 1:
        print("the scores of the candidates differ between the methods", file=sys.stderr)
        sys.exit(1)


def measure(options: argparse.Namespace) -> dict[str, list[GridRun]]:
    """Return the runs of each method, which has a database and a controller of its own."""
    known = frozenset(field.name for field in fields(config.Settings))
    methods = {method.name: method for method in available(known, METHODS)}
    runs: dict[str, list[GridRun]] = {name: [] for name in methods}
    with ExitStack() as stack:
        places = {name: _place(stack, method, known, options) for name, method in methods.items()}
        names = list(places)
        for number in range(options.rounds + 1):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                outcome = search(places[name], options)
                if number > 0:
                    runs[name].append(outcome)
    return runs


def search(dsn: str, options: argparse.Namespace) -> GridRun:
    """Run the search on the database of one method."""
    import joblib
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV, ShuffleSplit

    from indb_tensile.client import TensileClassifier

    x, y = load_digits(return_X_y=True)
    network = {"type": "mlp", "hidden": [options.width] * 3}
    choices = [{"epochs": options.epochs, "batch_size": 128, "learning_rate": rate} for rate in _RATES]
    grid = GridSearchCV(
        TensileClassifier(dsn=dsn, architecture=network, random_state=1),
        {"hyperparams": choices[: options.candidates]},
        cv=ShuffleSplit(1, test_size=0.2, random_state=0),
        n_jobs=options.candidates,
        refit=False,
        error_score="raise",
    )
    began_s = time.perf_counter()
    with joblib.parallel_backend("threading"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about models without a name, once for each candidate
        grid.fit(x, y)
    search_s = time.perf_counter() - began_s
    results: dict[str, Any] = grid.cv_results_
    scores = tuple(map(float, results["mean_test_score"]))
    return GridRun(search_s=search_s, fit_s=float(results["mean_fit_time"].mean()), scores=scores)


def bars(runs: dict[str, list[GridRun]]) -> list[str]:
    """Return what is asked of sharing, with the figures: each time over that of the best rival."""
    lines = []
    for measure_name, text in (("search_s", "time of the search"), ("fit_s", "mean time of a fit")):
        ratios = {
            rival: median(
                getattr(ours, measure_name) / getattr(other, measure_name)
                for ours, other in zip(runs[COMPLETION], runs[rival], strict=True)
            )
            for rival in METHODS
            if rival != COMPLETION
        }
        rival, ratio = max(ratios.items(), key=lambda item: (item[1], item[0]))
        met = "met" if ratio <= CLOSE else "NOT MET"
        lines.append(f"{text} over that of {rival}: {ratio:.3f}, at most {CLOSE} is asked: {met}")
    return lines


def _place(stack: ExitStack, method: ShareMethod, known: frozenset[str], options: argparse.Namespace) -> str:
    """Start a database and a controller of a method, and return the connection string of the database."""
    dsn = stack.enter_context(temporary_database(options.dsn, f"grid_{method.name}"))
    with connect(dsn, application_name=PURPOSE) as connection:
        for role in ("tensile_worker", "tensile_reader"):
            connection.execute(sql.SQL(_SQL["allow_login"]).format(sql.Identifier(role)))
        connection.execute(_SQL["grant_use"].encode())
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="tensile-grid-")))
        directory.chmod(0o755)  # the database server finds the service there
        connection.execute(_SQL["set_socket_directory"].encode(), {"directory": str(directory)})
    settings = {
        "service_directory": directory,
        "capacity_bytes": options.budget_mb * MIB,
        "budget_bytes": options.budget_mb * MIB,
        "torch_threads": options.threads,
        "spare_trainers": options.candidates,
        "baseline": False,
        "link_out_bytes_per_s": _LINK_BYTES_PER_S,
        "link_in_bytes_per_s": _LINK_BYTES_PER_S,
        **method.settings(options.candidates, known),
    }
    stack.enter_context(bench_controller(dsn, f"grid-{method.name}", **settings))
    return dsn


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['method']:<11} search {row['search_s']:7.2f} s, mean fit {row['fit_s']:7.2f} s "
        f"({row['candidates']} candidates, {row['rounds']} rounds, {row['budget_mb']} MB)"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", default="", help="a superuser's connection to any database of the server")
    parser.add_argument("--candidates", type=int, choices=range(2, len(_RATES) + 1), default=4)
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--epochs", type=whole(), default=20)
    parser.add_argument("--width", type=whole(), default=512, help="width of the three layers of each network")
    parser.add_argument("--budget-mb", type=whole(), default=24, help="memory of the device")
    parser.add_argument("--threads", type=whole(), default=1, help="threads of each training")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
