"""Compares the anomalies that the default of `task => 'anomaly'` finds with those of scikit-learn's isolation forest.

    python -m indb_tensile.bench anomalies [--sets cancer wine digits] [--seeds 5] [--json]

The sets are tables of classes, of which one is made rare and counts as the anomalies, as in the collections of such
sets (ODDS, Rayana 2016). Both methods learn from the same rows, encoded alike, without their labels, and score the
same held-out rows. The isolation forest has its defaults. Networks are trained as a job trains them, by plain PyTorch
on the processor. Figures are means over the seeds, each with its own rare rows and its own split.
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
from indb_tensile.bench.harness.tables.rare_classes import RARE_SETS, RareSet, rare_table
from indb_tensile.bench.harness.trainings.table_trainings import Stopwatch, outputs_of, train
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.encoding.anomaly_scale import label_metrics
from indb_tensile.learning.storage.columns import TableData
from indb_tensile.learning.training.boosted_baseline import forest_scores
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyScore:
    """How well one method tells the anomalies of a set, and its cost. Figures are means over the seeds."""

    set: str
    method: str
    rows: int
    anomalies: int
    roc_auc: float
    average_precision: float
    processor_s: float


def main() -> None:
    """Print a table, or one JSON object for each method and set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = [own.name for own in RARE_SETS]
    parser.add_argument("--sets", nargs="+", choices=names, default=names)
    parser.add_argument("--seeds", type=whole(), default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    scores = []
    with threadpool_limits(1):
        torch.set_num_threads(1)
        for chosen in (own for own in RARE_SETS if own.name in options.sets):
            for score in measure(chosen, options.seeds):
                scores.append(asdict(score))
                if options.json:
                    print(json.dumps(scores[-1]), flush=True)
    if not options.json:
        lines = [{name: f"{own:.3g}" if isinstance(own, float) else str(own) for name, own in line.items()}
                 for line in scores]  # fmt: skip
        print_table(Console(width=120, highlight=False), "anomalies", lines)


def measure(chosen: RareSet, seeds: int) -> Iterator[AnomalyScore]:
    """Yield the mean scores of both methods."""
    figures: dict[str, list[tuple[float, float, float]]] = {"autoencoder": [], "isolation forest": []}
    rows = anomalies = 0
    for seed in range(seeds):
        table = rare_table(chosen, seed)
        rows, anomalies = table.rows, int(table.columns[chosen.label].numbers().sum())
        prepared = prepare(table, chosen.label, seed)
        for method, own in figures.items():
            with Stopwatch() as watch:
                scores = network_scores(prepared, seed) if method == "autoencoder" else forest(prepared, seed)
            judged = label_metrics(scores, prepared.test.targets.numpy())
            own.append((judged["roc_auc"], judged["average_precision"], watch.processor_s))
    for method, own in figures.items():
        area, precision, processor_s = np.mean(own, axis=0).tolist()
        yield AnomalyScore(
            set=chosen.name,
            method=method,
            rows=rows,
            anomalies=anomalies,
            roc_auc=round(area, 4),
            average_precision=round(precision, 4),
            processor_s=round(processor_s, 2),
        )


def prepare(table: TableData, label: str, seed: int) -> Prepared:
    """Prepare the training that a request without options has. Both parts have their share of the anomalies."""
    spec = JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name="t"),
        target=label,
        task=Task.ANOMALY,
        architecture={"type": "auto"},
        hyperparams={"seed": seed},
        split={"seed": seed, "test_size": 0.3, "stratify": label},
    )
    return assemble(table, spec)


def network_scores(prepared: Prepared, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Train the network, and return the raw scores of the held-out rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        train(prepared)
    scale = prepared.preprocessor.target.anomaly
    assert scale is not None
    errors = [outputs_of(prepared, part).numpy() for part in (prepared.valid, prepared.train)]
    return scale.fitted(*errors).raw(outputs_of(prepared, prepared.test).numpy())


def forest(prepared: Prepared, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the scores of an isolation forest, which needs no rows that validate and gets them too."""
    return forest_scores(torch.cat([prepared.train.x, prepared.valid.x]), prepared.test.x, seed)


if __name__ == "__main__":
    run(main)
