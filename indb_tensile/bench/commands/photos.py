"""Compares when photographs are decoded: while the training goes on, before it, or anew in each epoch.

    python -m indb_tensile.bench photos [--rows 2000] [--side 1200] [--epochs 5] [--rounds 3] [--methods …] [--json]

All methods train the same network from the same first weights on the same rows, with one thread for the network:

- `meanwhile` is what a job does by default. A sample is decoded for the mean of the pixels, then the training begins,
  and each photograph is decoded once beside it.
- `before` decodes all photographs first, as a job does with `"on_error": "skip"`.
- `loader` is a PyTorch script: a DataLoader, whose worker processes decode the photographs of each batch with Pillow.

The methods run in turns. `first_step_s` is the time until the first step has ended, `total_s` that until the last
step has. Both begin with the encoded photographs in memory, and are medians over the rounds.
"""

import argparse
import gc
import io
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from threadpoolctl import threadpool_limits
from torch.utils.data import DataLoader, Dataset

from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.result_tables import print_table
from indb_tensile.bench.harness.tables.photo_table import photo_table
from indb_tensile.bench.harness.tables.sample_tables import SampleTable
from indb_tensile.bench.harness.trainings.image_training import train
from indb_tensile.bench.harness.trainings.table_trainings import specify
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.learning.encoding.pending_images import DECODING_THREADS
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared

_SIDE = 32  # of the images that the network reads
_BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingTimes:
    """The seconds of a method until its first step and until its last, and their ratios to those of `meanwhile`."""

    method: str
    rows: int
    epochs: int
    first_step_s: float
    total_s: float
    first_step_ratio: float
    total_ratio: float


@dataclass(slots=True)
class _Clock:
    """Seconds since the start, at the first step and at the end."""

    started_s: float
    first_s: float = 0.0
    total_s: float = 0.0

    def stepped(self) -> None:
        self.total_s = time.monotonic() - self.started_s
        self.first_s = self.first_s or self.total_s


def main() -> None:
    """Print a table, or one JSON object for each method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=whole(16), default=2000, help="number of photographs")
    parser.add_argument("--side", type=whole(_SIDE), default=1200, help="pixels of a photograph's side")
    parser.add_argument("--epochs", type=whole(), default=5)
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        lines = [
            asdict(line)
            for line in measure(
                photo_table(options.rows, options.side), options.epochs, options.rounds, options.methods
            )
        ]
    if options.json:
        print("\n".join(map(json.dumps, lines)))
        return
    texts = [
        {name: f"{own:.3g}" if isinstance(own, float) else str(own) for name, own in line.items()} for line in lines
    ]
    print_table(Console(width=120, highlight=False), "photographs", texts)


def measure(table: SampleTable, epochs: int, rounds: int, methods: list[str]) -> list[DecodingTimes]:
    """Run the methods in turns. The ratios are to the first method."""
    clocks: dict[str, list[_Clock]] = {method: [] for method in methods}
    for _ in range(rounds):
        for method in methods:
            gc.collect()
            clock = _Clock(time.monotonic())
            METHODS[method](table, epochs, clock)
            clocks[method].append(clock)
    first, total = (
        {method: statistics.median(getattr(clock, name) for clock in own) for method, own in clocks.items()}
        for name in ("first_s", "total_s")
    )
    return [
        DecodingTimes(
            method=method,
            rows=table.table.rows,
            epochs=epochs,
            first_step_s=round(first[method], 2),
            total_s=round(total[method], 2),
            first_step_ratio=round(first[method] / first[methods[0]], 3),
            total_ratio=round(total[method] / total[methods[0]], 3),
        )
        for method in methods
    ]


def _prepared(table: SampleTable, epochs: int, on_error: str) -> Prepared:
    spec = specify(table, 0, {"epochs": epochs, "batch_size": _BATCH}, {"type": "cnn"})
    spec = replace(spec, preprocess={"size": [_SIDE, _SIDE], "channels": "rgb", "on_error": on_error})
    return assemble(replace(table.table, columns=dict(table.table.columns)), spec, consume=True)


def _as_a_job(on_error: str, table: SampleTable, epochs: int, clock: _Clock) -> None:
    prepared = _prepared(table, epochs, on_error)
    with BatchPrefetcher() as feed:
        train(prepared, feed, clock.stepped)
    prepared.finish_decoding()


def _meanwhile(table: SampleTable, epochs: int, clock: _Clock) -> None:
    _as_a_job("stop", table, epochs, clock)


def _before(table: SampleTable, epochs: int, clock: _Clock) -> None:
    _as_a_job("skip", table, epochs, clock)


class _Photos(Dataset[tuple[torch.Tensor, int]]):
    """The photographs of the training rows, decoded by Pillow as Torchvision's transforms do."""

    def __init__(self, values: list[bytes], classes: list[int]) -> None:
        self._values = values
        self._classes = classes

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        with Image.open(io.BytesIO(self._values[row])) as image:
            image.draft("RGB", (2 * _SIDE, 2 * _SIDE))  # as our decoder does, so that both decode the same pixels
            pixels = np.asarray(image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BILINEAR), np.float32)
        return torch.from_numpy(pixels / 127.5 - 1).permute(2, 0, 1), self._classes[row]


def _loader(table: SampleTable, epochs: int, clock: _Clock) -> None:
    prepared = _prepared(photo_table(4 * _BATCH, _SIDE), epochs, "skip")  # for the network and its first weights
    learned = range(round(table.table.rows * _train_share(prepared)))
    classes = sorted(set(table.table.columns["corner"].values))
    values = [table.table.columns["photo"].values[row] for row in learned]
    labels = [classes.index(table.table.columns["corner"].values[row]) for row in learned]
    clock.started_s = time.monotonic()  # without the preparation of the few rows
    loader = DataLoader(
        _Photos(values, labels),
        batch_size=_BATCH,
        shuffle=True,
        num_workers=DECODING_THREADS,
        persistent_workers=True,
    )
    module = prepared.module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=prepared.settings.learning_rate)
    for _ in range(epochs):
        for x, y in loader:
            loss = prepared.loss(module(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            clock.stepped()


def _train_share(prepared: Prepared) -> float:
    return prepared.train.rows / (prepared.train.rows + prepared.valid.rows + prepared.test.rows)


METHODS: dict[str, Callable[[SampleTable, int, _Clock], None]] = {
    "meanwhile": _meanwhile,
    "before": _before,
    "loader": _loader,
}

if __name__ == "__main__":
    run(main)
