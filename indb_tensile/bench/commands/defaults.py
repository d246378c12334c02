"""Compares quality and time of a training without any settings with those of rivals in the same run.

    python -m indb_tensile.bench defaults [--tables iris wine …] [--csv FILE TARGET] [--seeds 5] [--json]

The benchmark needs no database: it prepares tables as a job does, and trains the networks by a simple PyTorch loop on
the CPU. `defaults` is a training without settings. `fixed` has the defaults of release 0.1: 40 epochs in batches of
64, without early stopping. The rivals are scikit-learn's HistGradientBoosting with its defaults (`boosting`) and a
linear model (`linear`). All learn from the rows for training and validation, and their score is the accuracy or R² on
the same test rows.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.result_tables import print_table
from indb_tensile.bench.harness.tables.sample_tables import NAMES, SampleTable, from_csv, sample
from indb_tensile.bench.harness.trainings.boosted_tables import boosting, rows_to_learn_and_test
from indb_tensile.bench.harness.trainings.table_trainings import Stopwatch, metrics_of_test, specify, train
from indb_tensile.job import Task
from indb_tensile.learning.evaluation.model_metrics import default_metric
from indb_tensile.learning.storage.splits import Split
from indb_tensile.learning.training.preparation import assemble

FIXED = {"epochs": 40, "batch_size": 64}  # release 0.1's values where the request has none
LARGE_ROWS = 100_000  # with more rows, `fixed` trains on one split and the linear model not at all, to save time


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingScore:
    """The result of one training: its metric on the test rows, and its cost.

    `processor_s` counts the processor time of all threads. On a busy machine it is more reliable than `seconds`.
    """

    table: str
    method: str
    seed: int
    metric: float
    epochs: int
    steps: int
    seconds: float
    processor_s: float


def main() -> None:
    """Print a table, or one JSON object for each training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--tables", nargs="*", choices=NAMES, default=list(NAMES), help="tables to train on (default: all)"
    )
    parser.add_argument(
        "--csv", nargs=2, action="append", default=[], metavar=("FILE", "TARGET"), help="also train on this file"
    )
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument(
        "--seeds", type=whole(), default=5, help="number of splits; each method is trained once on each"
    )
    parser.add_argument("--threads", type=whole(), default=1, help="threads of each training")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    makers: list[Callable[[], SampleTable]] = [partial(sample, name) for name in arguments.tables]
    makers += [partial(from_csv, Path(file), target) for file, target in arguments.csv]
    with threadpool_limits(arguments.threads):
        torch.set_num_threads(arguments.threads)
        for make in makers:
            scores = []
            for score in measure(make(), arguments.methods, arguments.seeds):
                scores.append(score)
                if arguments.json:
                    print(json.dumps(asdict(score)), flush=True)
            if not arguments.json:
                print_table(Console(width=140, highlight=False), scores[0].table, lines(scores))


def measure(table: SampleTable, methods: Sequence[str], seeds: int) -> Iterator[TrainingScore]:
    """Train by each method on each seed's split, and yield the scores.

    Some methods are left out for tables of more than LARGE_ROWS.
    """
    for seed in range(seeds):
        for method in methods:
            large = table.table.rows > LARGE_ROWS
            if large and (method == "linear" or (method == "fixed" and seed)):
                continue
            yield METHODS[method](table, seed)


def lines(scores: Sequence[TrainingScore]) -> list[dict[str, str]]:
    """Return a row for each method: the median and range of its metric, and medians of its costs."""
    rows = []
    for method in dict.fromkeys(score.method for score in scores):
        of_method = [score for score in scores if score.method == method]
        metrics = [score.metric for score in of_method]
        rows.append(
            {
                "method": method,
                "median": f"{median(metrics):.3f}",
                "least": f"{min(metrics):.3f}",
                "most": f"{max(metrics):.3f}",
                "epochs": f"{median(score.epochs for score in of_method):,.0f}",
                "steps": f"{median(score.steps for score in of_method):,.0f}",
                "seconds": f"{median(score.seconds for score in of_method):,.1f}",
                "processor s": f"{median(score.processor_s for score in of_method):,.1f}",
            }
        )
    return rows


# --- methods ------------------------------------------------------------------------------------------------------


def _network(method: str, table: SampleTable, seed: int, hyperparams: dict[str, int]) -> TrainingScore:
    with Stopwatch() as watch:
        prepared = assemble(table.table, specify(table, seed, hyperparams))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            epochs, steps = train(prepared)
    metric = metrics_of_test(prepared).get(default_metric(table.task), math.nan)
    return _score(method, table, seed, metric, watch, epochs=epochs, steps=steps)


def _score(
    method: str, table: SampleTable, seed: int, metric: float, watch: Stopwatch, *, epochs: int = 0, steps: int = 0
) -> TrainingScore:
    return TrainingScore(
        table=table.name,
        method=method,
        seed=seed,
        metric=float(metric),
        epochs=epochs,
        steps=steps,
        seconds=watch.seconds,
        processor_s=watch.processor_s,
    )


def _boosting(table: SampleTable, seed: int) -> TrainingScore:
    """Score gradient boosting on the columns as they are: numbers, and texts as categories."""
    model, x = boosting(table, seed)
    y = table.table.columns[table.target].values
    learn, test = rows_to_learn_and_test(table, Split(seed=seed))
    with Stopwatch() as watch:
        model.fit(x[learn], y[learn])
    return _score("boosting", table, seed, model.score(x[test], y[test]), watch)


def _linear(table: SampleTable, seed: int) -> TrainingScore:
    """Score a linear model on the encoded features that the networks train on."""
    prepared = assemble(table.table, specify(table, seed, {}))
    parts = (prepared.train, prepared.valid)
    x = torch.cat([part.x.flatten(1) for part in parts]).numpy()
    y = torch.cat([part.y.reshape(part.rows) for part in parts]).numpy()
    test = prepared.test.x.flatten(1).numpy(), prepared.test.y.reshape(prepared.test.rows).numpy()
    model = LogisticRegression(max_iter=2000) if table.task is Task.CLASSIFICATION else Ridge()
    with Stopwatch() as watch:
        model.fit(x, y)
    return _score("linear", table, seed, model.score(*test), watch)


METHODS: dict[str, Callable[[SampleTable, int], TrainingScore]] = {
    "defaults": lambda table, seed: _network("defaults", table, seed, {}),
    "fixed": lambda table, seed: _network("fixed", table, seed, FIXED),
    "boosting": _boosting,
    "linear": _linear,
}

if __name__ == "__main__":
    run(main)
