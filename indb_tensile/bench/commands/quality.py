"""Compares the quality of models for tables with that of rivals, on a fixed list of real data sets.

    python -m indb_tensile.bench quality [--sets wage letter …] [--methods default boosting …] [--seeds 5]
        [--development] [--larger-development] [--hyperparams JSON …] [--published] [--csv FILE TARGET] [--threads 1]
        [--json]

The data sets (bench/harness/tables/quality_sets.py) were fixed before any default was chosen. For each seed the rows
are split; all methods learn from the rows for training and validation. The score is the accuracy or R² on the test
rows, times 100. `auc` is the area under the ROC curve times 100, for more than two classes the mean over the classes.
A point is 1 of these 100.

- `default` is a training without settings, as a job trains it, but by a simple PyTorch loop
  (harness/trainings/table_trainings.py).
- `boosting` is scikit-learn's HistGradientBoosting with its defaults, with texts as categories.
- `mlp` is scikit-learn's MLP with its defaults, on the usual inputs of a network: scaled numbers, and a column of
  ones and zeros for each category of a text.
- `plain` is the network of `default`, trained as a short script would: Adam with a rate of 0.001, batches of 128, 50
  epochs.
- `logistic` is scikit-learn's logistic regression on the same inputs, with a penalty that cross-validation chooses.
- `own_mlp`, `own_boosting` and `own_linear` are our architectures `mlp`, `boosting` and `linear` with their defaults,
  trained in the same way as the default; a network for tables, such as `tabm`, has its own name.

The small tables iris and wine are not part of the list: `--sets iris wine penguins --methods default logistic`.
The defaults for small tables were chosen on other tables, which `--development` uses instead, and the network for
tables of 1,000 rows and more on those of `--larger-development`. Each `--hyperparams`
adds a method: the default with these hyper-parameters.

`--published` also measures the time from the call of tensile_train to the published version, and the time of a short
script that does the same work (harness/trainings/published_times.py). It starts a PostgreSQL server, so it needs its
programs.

The time of a method is that of a training with encoding and scoring. The last lines are the mean ranks of the methods
over all sets, the points by which the default is behind boosting on each set (negative if it is ahead), and the sets
of 5,000 rows or more on which it is more than three points behind. Then each of the demands that was measured (a bar)
is called met or missed.
"""

import argparse
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from threadpoolctl import threadpool_limits

from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.process_exit import exit_on_sigterm, run
from indb_tensile.bench.harness.results.result_tables import print_table
from indb_tensile.bench.harness.tables.development_sets import DEVELOPMENT_SETS
from indb_tensile.bench.harness.tables.larger_development_sets import LARGER_DEVELOPMENT_SETS
from indb_tensile.bench.harness.tables.quality_sets import KNOWN_SETS, LARGE_ROWS, QUALITY_SETS, load
from indb_tensile.bench.harness.tables.sample_tables import SampleTable, from_csv
from indb_tensile.bench.harness.trainings.boosted_tables import boosting, rows_to_learn_and_test
from indb_tensile.bench.harness.trainings.published_times import (
    PublishedTime,
    PublishedTimes,
    published_row,
    published_times,
    ratio,
)
from indb_tensile.bench.harness.trainings.table_trainings import Stopwatch, metrics_of_test, specify, train
from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.evaluation.model_metrics import default_metric, evaluate, evaluate_classes
from indb_tensile.learning.storage.splits import Split
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.request.loss_rules import fits_task
from indb_tensile.request.network_rules import TABLE_ARCHITECTURES

MOST_BEHIND = 3.0  # most points by which the default may be behind boosting on a large set
_DEFAULT, _BOOSTING, _LOGISTIC = "default", "boosting", "logistic"
_SOLVER_STEPS = 2000
_SCRIPT_EPOCHS, _SCRIPT_BATCH, _SCRIPT_RATE = 50, 128, 1e-3

Array = npt.NDArray[Any]
Metrics = Mapping[str, float]  # by name, as shares
Method = Callable[[SampleTable, int], tuple[Metrics, int]]  # scores a seed's split; also returns the epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityScore:
    """The result of one training: accuracy or R² times 100 (`score`), the area under the ROC curve, and its cost."""

    table: str
    rows: int
    method: str
    seed: int
    score: float
    auc: float | None
    epochs: int
    seconds: float
    processor_s: float


Figure = TypeVar("Figure", QualityScore, PublishedTime)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityVerdict:
    """The comparison over all sets: the mean rank of each method, and how far the default is behind on each set."""

    mean_ranks: dict[str, float]
    behind: dict[str, float]
    large_behind: tuple[str, ...]  # the large sets on which the default is more than MOST_BEHIND points behind


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each data set and the comparison, or one JSON object for each training and the comparison."""
    options = _parser().parse_args(arguments)
    if options.published:
        exit_on_sigterm()  # which ends the server and the controller
    makers: list[Callable[[], SampleTable]] = [partial(load, name) for name in options.sets]
    makers += [partial(from_csv, Path(file), target) for file, target in options.csv]
    scores: list[QualityScore] = []
    published: list[PublishedTime] = []
    methods = {name: METHODS[name] for name in options.methods}
    methods |= {f"default {text}": _network("auto", json.loads(text)) for text in options.hyperparams}
    console = Console(width=140, highlight=False)
    with threadpool_limits(options.threads), _timing(options) as timing:
        torch.set_num_threads(options.threads)
        for table in (make() for make in makers):
            suited = _suited(methods, table)
            new_scores = list(_printed(measure(table, suited, options.seeds), as_json=options.json))
            timed = (
                [] if timing is None else list(_printed(timing.measure(table, options.seeds), as_json=options.json))
            )
            if not options.json:
                if new_scores:
                    print_table(console, f"{table.name}, {table.table.rows:,} rows", lines(new_scores))
                if timed:
                    print_table(console, f"{table.name}, until published", [published_row(timed)])
            scores += new_scores
            published += timed
    verdict = compare(scores) if scores else None
    bars = bars_met(verdict, published)
    if options.json:
        print(json.dumps(({} if verdict is None else asdict(verdict)) | {"bars": bars}))
        return
    ranked = () if verdict is None else verdict_lines(verdict)
    judged = (f"{'met' if met else 'missed'}: {bar}" for bar, met in bars.items())
    for line in (*ranked, *published_lines(published), *judged):
        console.print(line)


def _suited(methods: Mapping[str, Method], table: SampleTable) -> dict[str, Method]:
    """Return the methods that suit the table's task.

    A regression has neither logistic regression nor hyper-parameters of a loss for classes.
    """
    if table.task is Task.CLASSIFICATION:
        return dict(methods)
    others = {_LOGISTIC, *(name for name in methods if name.startswith(f"{_DEFAULT} {{") and not _fits(name, table))}
    return {name: method for name, method in methods.items() if name not in others}


def _fits(method: str, table: SampleTable) -> bool:
    return fits_task(json.loads(method.removeprefix(_DEFAULT)), table.task)


def _printed(figures: Iterable[Figure], *, as_json: bool) -> Iterator[Figure]:
    """Yield the figures, and print each one at once if the output is JSON."""
    for each in figures:
        if as_json:
            print(json.dumps(asdict(each)), flush=True)
        yield each


def _timing(options: argparse.Namespace) -> AbstractContextManager[PublishedTimes | None]:
    return published_times(options.threads) if options.published else nullcontext()


def measure(table: SampleTable, methods: Mapping[str, Method], seeds: int) -> Iterator[QualityScore]:
    """Train by each method on each seed's split, and yield the scores."""
    for seed in range(seeds):
        for method, score in methods.items():
            with Stopwatch() as watch, torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                metrics, epochs = score(table, seed)
            area = metrics.get("roc_auc")
            yield QualityScore(
                table=table.name,
                rows=table.table.rows,
                method=method,
                seed=seed,
                score=100 * metrics[default_metric(table.task)],
                auc=None if area is None else 100 * area,
                epochs=epochs,
                seconds=watch.seconds,
                processor_s=watch.processor_s,
            )


def compare(scores: Sequence[QualityScore]) -> QualityVerdict:
    """Rank the methods on each set by their mean scores; equal means share the mean of their ranks.

    A method that does not suit a set is ranked on the other sets.
    """
    tables = list(dict.fromkeys(score.table for score in scores))
    methods = list(dict.fromkeys(score.method for score in scores))
    rows = {score.table: score.rows for score in scores}
    means = {
        table: {
            method: fmean(score.score for score in scores if (score.table, score.method) == (table, method))
            for method in methods
            if any((score.table, score.method) == (table, method) for score in scores)
        }
        for table in tables
    }
    ranks = {
        method: fmean(
            sum(other > mean[method] for other in mean.values())
            + (1 + sum(other == mean[method] for other in mean.values())) / 2
            for mean in means.values()
            if method in mean
        )
        for method in methods
    }
    both = {_DEFAULT, _BOOSTING} <= set(methods)
    behind = {table: mean[_BOOSTING] - mean[_DEFAULT] for table, mean in means.items()} if both else {}
    far_behind = tuple(
        table for table, points in behind.items() if rows[table] >= LARGE_ROWS and points > MOST_BEHIND
    )
    return QualityVerdict(mean_ranks=ranks, behind=behind, large_behind=far_behind)


def lines(scores: Sequence[QualityScore]) -> list[dict[str, str]]:
    """Return a row for each method: mean and range of its score, mean area, and medians of its costs."""
    rows = []
    for method in dict.fromkeys(score.method for score in scores):
        of_method = [score for score in scores if score.method == method]
        points = [score.score for score in of_method]
        areas = [score.auc for score in of_method if score.auc is not None]
        rows.append(
            {
                "method": method,
                "mean": f"{fmean(points):.2f}",
                "least": f"{min(points):.2f}",
                "most": f"{max(points):.2f}",
                "auc": f"{fmean(areas):.2f}" if areas else "-",
                "epochs": f"{median(score.epochs for score in of_method):,.0f}",
                "seconds": f"{median(score.seconds for score in of_method):,.1f}",
                "processor s": f"{median(score.processor_s for score in of_method):,.1f}",
            }
        )
    return rows


def verdict_lines(verdict: QualityVerdict) -> Iterator[str]:
    """Yield the comparison in words, with the sets on which the default is worse and those on which it is not."""
    ranked = sorted(verdict.mean_ranks.items(), key=lambda pair: (pair[1], pair[0]))
    yield "mean rank: " + ", ".join(f"{method} {rank:.2f}" for method, rank in ranked)
    if not verdict.behind:
        return
    losses = {table: points for table, points in verdict.behind.items() if points > 0}
    wins = {table: points for table, points in verdict.behind.items() if points <= 0}
    yield f"behind boosting on {len(losses)}: {_listed(losses)}"
    yield f"not behind boosting on {len(wins)}: {_listed(wins)}"
    yield f"large sets more than {MOST_BEHIND:g} points behind: {', '.join(verdict.large_behind) or 'none'}"


def bars_met(verdict: QualityVerdict | None, times: Sequence[PublishedTime]) -> dict[str, bool]:
    """Return whether each bar that was measured is met: ranks, large sets, and times compared with the script's."""
    bars: dict[str, bool] = {}
    if verdict is not None and verdict.behind:
        ranks = verdict.mean_ranks
        bars["the default's mean rank is no worse than boosting's"] = ranks[_DEFAULT] <= ranks[_BOOSTING]
        bars[f"on no large set more than {MOST_BEHIND:g} points behind boosting"] = not verdict.large_behind
    compared = [time for time in times if time.plain_s is not None]
    names = dict.fromkeys(time.table for time in compared)
    tables = [[time for time in compared if time.table == name] for name in names]
    for rival, words in (("plain_s", "a plain script"), ("plain_warm_s", "a plain script without its start")):
        if tables:
            bars[f"published no later than by {words}"] = all(ratio(each, rival) <= 1 for each in tables)
    return bars


def published_lines(times: Sequence[PublishedTime]) -> Iterator[str]:
    """Yield on which sets we are slower than the plain script, with its start and without it."""
    compared = [time for time in times if time.plain_s is not None]
    names = dict.fromkeys(time.table for time in compared)
    for rival, words in (("plain_s", "a plain script"), ("plain_warm_s", "a plain script without its start")):
        tables = {name: [time for time in compared if time.table == name] for name in names}
        slower = {table: ratio(each, rival) for table, each in tables.items() if ratio(each, rival) > 1}
        shown = ", ".join(f"{table} {times:.2f}" for table, times in slower.items()) or "none"
        if compared:
            yield f"published later than by {words}, on {len(slower)} of {len(tables)} sets: {shown}"


def _listed(behind: Mapping[str, float]) -> str:
    ordered = sorted(behind.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{table} {points:+.2f}" for table, points in ordered) or "none"


# --- methods ------------------------------------------------------------------------------------------------------


def _network(kind: str, hyperparams: Mapping[str, Any] | None = None) -> Method:
    """Return the method that trains this architecture as a job does."""

    def score(table: SampleTable, seed: int) -> tuple[Metrics, int]:
        prepared = assemble(table.table, specify(table, seed, hyperparams or {}, {"type": kind}))
        epochs, _ = train(prepared)
        return metrics_of_test(prepared), epochs

    return score


def _plain(table: SampleTable, seed: int) -> tuple[Metrics, int]:
    """Score the network of `default`, trained as a short script would, on the rows for training and validation."""
    prepared = assemble(table.table, specify(table, seed, {}))
    parts = (prepared.train, prepared.valid)
    x, y = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y"))
    module = prepared.module.train()
    optimizer = torch.optim.Adam(module.parameters(), lr=_SCRIPT_RATE)
    for _ in range(_SCRIPT_EPOCHS):
        for rows in torch.split(torch.randperm(len(x)), _SCRIPT_BATCH):
            loss = prepared.loss(module(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return metrics_of_test(prepared), _SCRIPT_EPOCHS


def _boosting(table: SampleTable, seed: int) -> tuple[Metrics, int]:
    model, x = boosting(table, seed)
    y = table.table.columns[table.target].values
    learn, test = rows_to_learn_and_test(table, Split(seed=seed))
    model.fit(x[learn], y[learn])
    if table.task is Task.REGRESSION:
        return {default_metric(table.task): model.score(x[test], y[test])}, 0
    places = np.searchsorted(model.classes_, y[test])
    known = model.classes_[np.minimum(places, len(model.classes_) - 1)] == y[test]  # a class may be in no other row
    metrics = _of_probabilities(model.predict_proba(x[test[known]]), places[known])
    return metrics | {default_metric(table.task): model.score(x[test], y[test])}, 0


def _scikit_mlp(table: SampleTable, seed: int) -> tuple[Metrics, int]:
    prepared = assemble(table.table, specify(table, seed, {}, {"type": "mlp"}))
    parts = (prepared.train, prepared.valid)
    x = np.concatenate([part.x.flatten(1).numpy() for part in parts])
    y = np.concatenate([_flat_targets(part) for part in parts])
    test = prepared.test.x.flatten(1).numpy()
    with warnings.catch_warnings():
        # The rival keeps scikit-learn's default number of iterations, even if it has not converged by then.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if table.task is Task.REGRESSION:
            regressor = MLPRegressor(random_state=seed).fit(x, y)
            outputs = regressor.predict(test).reshape(-1, 1)
            return evaluate(table.task, outputs, prepared.test.y.numpy(), prepared.preprocessor), regressor.n_iter_
        model = MLPClassifier(random_state=seed).fit(x, y)
    chances = np.zeros((len(test), prepared.outputs))
    chances[:, model.classes_] = model.predict_proba(test)
    return _of_probabilities(chances, _flat_targets(prepared.test)), model.n_iter_


def _logistic(table: SampleTable, seed: int) -> tuple[Metrics, int]:
    if table.task is Task.REGRESSION:
        raise RequestError(f"{table.name} is a regression, which the method logistic does not know")
    prepared = assemble(table.table, specify(table, seed, {}, {"type": "linear"}))
    parts = (prepared.train, prepared.valid)
    x = np.concatenate([part.x.flatten(1).numpy() for part in parts])
    y = np.concatenate([_flat_targets(part) for part in parts])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of a solver that ends early, and of classes that a fold lacks
        model = LogisticRegressionCV(max_iter=_SOLVER_STEPS).fit(x, y)
        chances = np.zeros((prepared.test.rows, prepared.outputs))
        chances[:, model.classes_] = model.predict_proba(prepared.test.x.flatten(1).numpy())
    return _of_probabilities(chances, _flat_targets(prepared.test)), 0


def _flat_targets(part: Part) -> Array:
    flat: Array = part.targets.reshape(part.rows).numpy()
    return flat


def _of_probabilities(chances: Array, targets: Array) -> dict[str, float]:
    """Return the metrics of class probabilities. The softmax of their logarithms is the probabilities."""
    return evaluate_classes(np.log(np.maximum(chances, np.finfo(np.float64).tiny)), targets)


_COMPARED: dict[str, Method] = {
    _DEFAULT: _network("auto"),
    _BOOSTING: _boosting,
    "mlp": _scikit_mlp,
    "plain": _plain,
}
METHODS = (
    _COMPARED
    | {_LOGISTIC: _logistic}
    | {f"own_{kind}": _network(kind) for kind in ("mlp", "boosting", "linear")}
    | {kind: _network(kind) for kind in TABLE_ARCHITECTURES}
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sets", nargs="*", choices=tuple(KNOWN_SETS), default=list(QUALITY_SETS), metavar="NAME")
    parser.add_argument(
        "--development",
        dest="sets",
        action="store_const",
        const=list(DEVELOPMENT_SETS),
        help="the small tables on which defaults were chosen, in place of --sets",
    )
    parser.add_argument(
        "--larger-development",
        dest="sets",
        action="store_const",
        const=list(LARGER_DEVELOPMENT_SETS),
        help="the tables of 1,000 rows and more on which the default network was chosen, in place of --sets",
    )
    parser.add_argument(
        "--csv", nargs=2, action="append", default=[], metavar=("FILE", "TARGET"), help="also train on this file"
    )
    parser.add_argument("--methods", nargs="*", choices=tuple(METHODS), default=list(_COMPARED), metavar="NAME")
    parser.add_argument(
        "--hyperparams",
        nargs="*",
        default=[],
        metavar="JSON",
        help="also score the default with these hyper-parameters",
    )
    parser.add_argument("--published", action="store_true", help="also measure the time until a version is published")
    parser.add_argument(
        "--seeds", type=whole(), default=5, help="number of splits; each method is trained once on each"
    )
    parser.add_argument("--threads", type=whole(), default=1, help="threads of each training")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
