"""Measures quality and time of a training without any settings, beside real rivals in the same run.

    python -m indb_tensile.bench defaults [--tables iris wine …] [--csv FILE TARGET] [--seeds 5] [--json]

The benchmark needs no database: it prepares and trains tables as a job does, by plain PyTorch on the processor.
`defaults` is a training without settings. `fixed` has the defaults of release 0.1: 40 epochs in batches of 64,
without early stopping. The rivals are scikit-learn's HistGradientBoosting with its defaults and a linear model. All
learn from the rows for training and validation and are scored on the same test rows, by accuracy or R².
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from indb_tensile.bench.harness.argument_types import whole
from indb_tensile.bench.harness.process_exit import run
from indb_tensile.bench.harness.result_tables import print_table
from indb_tensile.bench.harness.sample_tables import NAMES, SampleTable, from_csv, sample
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.columns import ColumnData, ColumnKind, Rows
from indb_tensile.learning.hyperparams import learning_rate
from indb_tensile.learning.model_metrics import default_metric, evaluate
from indb_tensile.learning.preparation import Part, Prepared, assemble, batch_plan, batches, ordered_batches
from indb_tensile.learning.splits import Split, divide

FIXED = {"epochs": 40, "batch_size": 64}  # release 0.1's values where the request has none
LARGE_ROWS = 100_000  # with more rows, `fixed` trains once and the linear model is left out, to save time
_EVALUATED_ROWS = 4096
_MOST_CATEGORIES = 254  # HistGradientBoosting accepts no more


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
    parser.add_argument("--tables", nargs="*", choices=NAMES, default=list(NAMES), help="default: all")
    parser.add_argument(
        "--csv", nargs=2, action="append", default=[], metavar=("FILE", "TARGET"), help="also train on this file"
    )
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=whole(), default=5, help="trainings of each table, each on its own split")
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
    """Train by each method on each seed's split, and yield the scores."""
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
        own = [score for score in scores if score.method == method]
        metrics = [score.metric for score in own]
        rows.append(
            {
                "method": method,
                "median": f"{median(metrics):.3f}",
                "least": f"{min(metrics):.3f}",
                "most": f"{max(metrics):.3f}",
                "epochs": f"{median(score.epochs for score in own):,.0f}",
                "steps": f"{median(score.steps for score in own):,.0f}",
                "seconds": f"{median(score.seconds for score in own):,.1f}",
                "processor s": f"{median(score.processor_s for score in own):,.1f}",
            }
        )
    return rows


# --- ours --------------------------------------------------------------------------------------------------------


def train(prepared: Prepared) -> tuple[int, int]:
    """Train in place as a job's loop does, and load the best epoch's weights. Returns the epochs and steps taken."""
    module, settings, stop = prepared.module, prepared.settings, prepared.early_stop
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
    )
    per_epoch = batch_plan(prepared.train.rows, settings).steps
    best: dict[str, torch.Tensor] = {}
    epoch = 0
    while epoch < settings.epochs and not stop.stopped:
        module.train()
        for step, rows in enumerate(batches(prepared.train, epoch, settings)):
            rate = learning_rate(settings, epoch * per_epoch + step, settings.epochs * per_epoch)
            optimizer.param_groups[0]["lr"] = rate
            loss = prepared.loss(module(prepared.train.x[rows]), prepared.train.y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if stop.patience is not None:
            stop = stop.observe(epoch, float(prepared.loss(_outputs(prepared, prepared.valid), prepared.valid.y)))
            if stop.best_epoch == epoch:
                best = {name: value.clone() for name, value in module.state_dict().items()}
        epoch += 1
    if best:
        module.load_state_dict(best)
    return epoch, epoch * per_epoch


def _outputs(prepared: Prepared, part: Part) -> torch.Tensor:
    prepared.module.eval()
    with torch.inference_mode():
        return torch.cat([prepared.module(part.x[rows]) for rows in ordered_batches(part, _EVALUATED_ROWS)])


def _network(method: str, table: SampleTable, seed: int, hyperparams: dict[str, int]) -> TrainingScore:
    with _Stopwatch() as watch:
        prepared = assemble(table.table, _spec(table, seed, hyperparams))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            epochs, steps = train(prepared)
    outputs, y = _outputs(prepared, prepared.test).numpy(), prepared.test.y.numpy()
    metric = evaluate(table.task, outputs, y, prepared.preprocessor).get(default_metric(table.task), math.nan)
    return _score(method, table, seed, metric, watch, epochs=epochs, steps=steps)


class _Stopwatch:
    """Measures wall-clock and processor seconds of a block."""

    def __enter__(self) -> "_Stopwatch":
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        began_s, began_processor_s = self._began
        self.seconds, self.processor_s = time.perf_counter() - began_s, time.process_time() - began_processor_s


def _score(
    method: str, table: SampleTable, seed: int, metric: float, watch: _Stopwatch, *, epochs: int = 0, steps: int = 0
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


def _spec(table: SampleTable, seed: int, hyperparams: dict[str, int]) -> JobSpec:
    return JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name=table.name),
        target=table.target,
        task=table.task,
        architecture={"type": "auto"},
        hyperparams={"seed": seed} | hyperparams,
        split={"seed": seed},
    )


# --- rivals ------------------------------------------------------------------------------------------------------


def _boosting(table: SampleTable, seed: int) -> TrainingScore:
    """Score gradient boosting on the columns without encoding: numbers, and texts as categories."""
    columns = {name: data for name, data in table.table.columns.items() if name not in ("id", table.target)}
    x = np.column_stack([_for_boosting(data) for data in columns.values()])
    texts = [name for name, data in columns.items() if data.kind is ColumnKind.TEXT]
    categorical = [place for place, name in enumerate(columns) if name in texts] or None
    estimator = HistGradientBoostingClassifier if table.task is Task.CLASSIFICATION else HistGradientBoostingRegressor
    model = estimator(random_state=seed, categorical_features=categorical)
    known = np.flatnonzero(~table.table.columns[table.target].missing)
    y = table.table.columns[table.target].values
    learn, test = _parts(table, known, seed)
    with _Stopwatch() as watch:
        model.fit(x[learn], y[learn])
    return _score("boosting", table, seed, model.score(x[test], y[test]), watch)


def _linear(table: SampleTable, seed: int) -> TrainingScore:
    """Score a linear model of the encoded features that the networks train on."""
    prepared = assemble(table.table, _spec(table, seed, {}))
    parts = (prepared.train, prepared.valid)
    x = torch.cat([part.x.flatten(1) for part in parts]).numpy()
    y = torch.cat([part.y.reshape(part.rows) for part in parts]).numpy()
    test = prepared.test.x.flatten(1).numpy(), prepared.test.y.reshape(prepared.test.rows).numpy()
    model = LogisticRegression(max_iter=2000) if table.task is Task.CLASSIFICATION else Ridge()
    with _Stopwatch() as watch:
        model.fit(x, y)
    return _score("linear", table, seed, model.score(*test), watch)


def _parts(table: SampleTable, known: Rows, seed: int) -> tuple[Rows, Rows]:
    """Return the rows to learn from and the rows to score on, from the split of a job with this seed."""
    parts = divide(table.table.row_hash[known], Split(seed=seed))
    return known[np.concatenate([parts.train, parts.valid])], known[parts.test]


def _for_boosting(data: ColumnData) -> npt.NDArray[np.float64]:
    """Return an array (rows, columns), NaN where missing. Texts become ranks by frequency; the rarest share one."""
    if data.kind is not ColumnKind.TEXT:
        return data.numbers().reshape(len(data.missing), -1)
    texts = np.where(data.missing, "", data.values).astype(str)
    _, codes, counts = np.unique(texts, return_inverse=True, return_counts=True)
    ranks = np.empty(len(counts), np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    codes_by_rank = np.minimum(ranks[codes], _MOST_CATEGORIES - 1).astype(np.float64)
    return np.where(data.missing, np.nan, codes_by_rank)[:, None]


METHODS: dict[str, Callable[[SampleTable, int], TrainingScore]] = {
    "defaults": lambda table, seed: _network("defaults", table, seed, {}),
    "fixed": lambda table, seed: _network("fixed", table, seed, FIXED),
    "boosting": _boosting,
    "linear": _linear,
}

if __name__ == "__main__":
    run(main)
