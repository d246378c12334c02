"""Ranks what Debian's packages depend on by the default of `task => 'pairs'`, beside rankings by popularity.

    python -m indb_tensile.bench pairs [--packages 8000] [--seeds 3] [--threads 1] [--json]

A query is a package by its section and the first line of its description. An item is a package that it depends on, by
its name, as a category and as a text. The packages of the test rows are not among those of the training rows. Each
item of a test pair is ranked among the items of the test pairs. `popularity` ranks them by how often they occur in
the training rows, and `of the section` by how often in those of the query's section. Networks are trained as a job
trains them, by plain PyTorch on the processor.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch
from rich.console import Console
from threadpoolctl import threadpool_limits

from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.result_tables import print_table
from indb_tensile.bench.harness.tables.debian_dependencies import dependency_table
from indb_tensile.bench.harness.trainings.table_trainings import Stopwatch, outputs_of, train
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.encoding.pair_encoding import MOST_JUDGED, mean_ranks, popularity_metrics, rank_metrics
from indb_tensile.learning.storage.columns import TableData
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.request.task_rules import target_text

_ITEM = ("needs", "words")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairScore:
    """How high a method ranks the items of the test pairs, and its cost. `pairs` are those that train."""

    method: str
    seed: int
    pairs: int
    judged: int
    items: int
    mrr: float
    recall_at_1: float
    recall_at_10: float
    epochs: int
    processor_s: float


def main() -> None:
    """Print a table, or one JSON object for each method and seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--packages", type=whole(), default=8000)
    parser.add_argument("--seeds", type=whole(), default=3, help="trainings, each on its own packages and split")
    parser.add_argument("--threads", type=whole(), default=1, help="threads of each training")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    scores = []
    with threadpool_limits(options.threads):
        torch.set_num_threads(options.threads)
        for seed in range(options.seeds):
            for score in measure(dependency_table(options.packages, seed), seed):
                scores.append(asdict(score))
                if options.json:
                    print(json.dumps(scores[-1]), flush=True)
    if not options.json:
        lines = [
            {name: f"{own:.3g}" if isinstance(own, float) else str(own) for name, own in line.items()}
            for line in scores
        ]
        print_table(Console(width=140, highlight=False), "pairs", lines)


def measure(table: TableData, seed: int) -> Iterator[PairScore]:
    """Train on the pairs, and yield the scores of all methods."""
    prepared = prepare(table, seed)
    train_items, items = (part.targets.numpy() for part in (prepared.train, prepared.test))
    pair = prepared.preprocessor.target.pair
    assert pair is not None
    with Stopwatch() as watch, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        epochs, _ = train(prepared)
    methods = {
        "two towers": pair.metrics(outputs_of(prepared, prepared.test).numpy(), items),
        "of the section": section_metrics(prepared),
        "popularity": popularity_metrics(train_items, items),
    }
    for method, metrics in methods.items():
        ours = method == "two towers"
        yield PairScore(
            method=method,
            seed=seed,
            pairs=prepared.train.rows,
            judged=min(len(items), MOST_JUDGED),
            items=len(np.unique(items[:MOST_JUDGED])),
            **{name: round(value, 4) for name, value in metrics.items()},
            epochs=epochs if ours else 0,
            processor_s=round(watch.processor_s, 1) if ours else 0.0,
        )


def prepare(table: TableData, seed: int) -> Prepared:
    """Prepare the training that a request without options has, on packages other than those that test."""
    spec = JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name="packages"),
        target=target_text(_ITEM),
        targets=_ITEM,
        task=Task.PAIRS,
        architecture={"type": "auto"},
        features=("section", "description"),
        preprocess={"encode": {"description": "tokens", "words": "tokens"}},
        hyperparams={"seed": seed},
        split={"seed": seed, "group": "name"},
    )
    return assemble(table, spec)


def section_metrics(prepared: Prepared) -> dict[str, float]:
    """Return the metrics of a ranking by how often an item occurs in the training rows of the query's section."""
    place = int(prepared.preprocessor.positions["section"][0])
    train, test = (part.x[:, place].long().numpy() for part in (prepared.train, prepared.test))
    judged = prepared.test.targets.numpy()[:MOST_JUDGED]
    items, places = np.unique(judged, return_inverse=True)
    counts = np.zeros((int(max(train.max(), test.max())) + 1, len(items)), np.float32)
    learned = prepared.train.targets.numpy()
    at = np.searchsorted(items, learned).clip(max=len(items) - 1)
    known = items[at] == learned
    np.add.at(counts, (train[known], at[known]), 1)
    return rank_metrics(mean_ranks(counts[test[:MOST_JUDGED]], places))


if __name__ == "__main__":
    run(main)
