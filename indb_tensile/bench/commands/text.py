"""Measures what networks learn from texts, beside TF-IDF with logistic regression, and how fast texts become tokens.

    python -m indb_tensile.bench text [--methods default tfidf …] [--rows 20000] [--repeat 1000000 [--file]] [--json]
    python -m indb_tensile.bench text --buckets 4 [--methods default transformer] [--rows 20000] [--epochs 5] [--json]

The texts are the descriptions of Debian's packages, as `apt-cache dumpavail` lists them, and the answer is a
package's section. All methods learn from the rows for training and validation and are scored on the same test rows,
by accuracy. `default` reads the descriptions as tokens without any other setting; `convolution` and `transformer`
name the encoder. Networks are trained as a job trains them, by plain PyTorch on the processor.

With `--repeat` the benchmark instead tokenises this many texts, which are descriptions whose words are drawn anew, as
a job does before its first step, and trains one epoch on them. It prints the texts per second, the share of the epoch
that training waits for its batches, and the most memory of the process: all of it, and its own without the pages of
files. With `--file` the texts are in a file in the working directory, as those of a table larger than memory are.

With `--buckets` the benchmark compares epochs whose batches have texts of at most so many lengths
(learning/batches/length_buckets.py) with epochs of one length. The texts are then descriptions with the names of all
packages that a package needs: most are short, and some are very long. Both are trained by the captured steps of a job
on the processor, an epoch of one after an epoch of the other, and their networks are scored on the same test rows.
"""

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from threadpoolctl import threadpool_limits

from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.own_memory import OwnMemory, own_bytes
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.result_tables import print_table
from indb_tensile.bench.harness.tables.debian_dependencies import package_texts
from indb_tensile.bench.harness.tables.debian_descriptions import debian_descriptions, section_table
from indb_tensile.bench.harness.tables.sample_tables import SampleTable
from indb_tensile.bench.harness.tables.stored_texts import stored_section_table
from indb_tensile.bench.harness.trainings.boosted_tables import rows_to_learn_and_test
from indb_tensile.bench.harness.trainings.table_trainings import Stopwatch, metrics_of_test, specify, train
from indb_tensile.bench.harness.trainings.text_epochs import text_epochs
from indb_tensile.learning.batches.batch_order import batches
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.learning.batches.batch_sources import TrainingSources
from indb_tensile.learning.storage.splits import Split
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared

_TOKENS = {"encode": {"description": "tokens"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """The accuracy of one method on the test rows, and its cost. Processor time counts all threads."""

    method: str
    rows: int
    seed: int
    accuracy: float
    epochs: int
    seconds: float
    processor_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRate:
    """How many texts became tokens in how long, and how an epoch went on.

    `prepare_s` includes learning the tokens. `peak_mib` is the most memory of the process, `own_mib` the most of its
    own, and `began_mib` that of its own when the preparation began, which includes texts in memory.
    """

    rows: int
    prepare_s: float
    texts_per_s: float
    epoch_s: float
    waited_share: float
    peak_mib: int
    own_mib: int
    began_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketScore:
    """Epochs of one training: the lengths of its batches, and the tokens that they compute, relative to one length.

    `epoch_s` is the median, and `speedup` the median ratio of an epoch of one length to the epoch after it.
    """

    method: str
    rows: int
    seed: int
    lengths: str
    token_share: float
    epoch_s: float
    speedup: float
    accuracy: float


def main() -> None:
    """Print a table, or one JSON object for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--rows", type=whole(), help="of the descriptions; default: all")
    parser.add_argument("--seeds", type=whole(), default=1, help="trainings, each on its own split")
    parser.add_argument("--repeat", type=whole(), help="tokenise this many texts instead")
    parser.add_argument("--file", action="store_true", help="with --repeat, store the texts in a file")
    parser.add_argument("--buckets", type=whole(), help="compare batches of at most so many lengths with one length")
    parser.add_argument("--epochs", type=whole(), default=5, help="of each training with --buckets")
    parser.add_argument(
        "--length", type=whole(), help="tokens of a text with --buckets; default: chosen by the texts"
    )
    parser.add_argument("--threads", type=whole(), default=1, help="threads of each training")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table = debian_descriptions() if options.buckets is None else package_texts()
    table = table if options.rows is None else drawn(table, options.rows)
    with threadpool_limits(options.threads):
        torch.set_num_threads(options.threads)
        measured: Iterator[TextScore | TokenRate | BucketScore] = measure(table, options.methods, options.seeds)
        if options.repeat is not None:
            texts = shuffled_words(table, options.repeat)
            del table
            stored = stored_section_table(texts, options.repeat, Path()) if options.file else section_table(texts)
            measured = iter([tokenise(stored)])
        if options.buckets is not None:
            methods = [name for name in options.methods if name != "tfidf"]
            measured = chain.from_iterable(
                compare_buckets(table, name, options.buckets, options.epochs, options.length, seed)
                for seed in range(options.seeds)
                for name in methods
            )
        results = []
        for result in measured:
            results.append(asdict(result))
            if options.json:
                print(json.dumps(results[-1]), flush=True)
    if not options.json:
        lines = [
            {name: f"{value:,.4g}" if isinstance(value, float) else str(value) for name, value in own.items()}
            for own in results
        ]
        print_table(Console(width=140, highlight=False), table.name, lines)


def measure(table: SampleTable, methods: list[str], seeds: int) -> Iterator[TextScore]:
    """Train by each method on each seed's split, and yield the scores."""
    for seed in range(seeds):
        for method in methods:
            with Stopwatch() as watch:
                accuracy, epochs = METHODS[method](table, seed)
            yield TextScore(
                method=method,
                rows=table.table.rows,
                seed=seed,
                accuracy=round(accuracy, 4),
                epochs=epochs,
                seconds=round(watch.seconds, 2),
                processor_s=round(watch.processor_s, 2),
            )


def tokenise(table: SampleTable) -> TokenRate:
    """Prepare a training on the texts, and train one epoch on them."""
    began_bytes = own_bytes(os.getpid())
    with OwnMemory({"own": os.getpid()}) as memory:
        started_s = time.perf_counter()
        prepared = _prepare(table, 0, None, consume=True)
        prepared_s = time.perf_counter()
        waited_s = _train_epoch(prepared)
        epoch_s = time.perf_counter() - prepared_s
    rows = prepared.train.rows + prepared.valid.rows + prepared.test.rows
    return TokenRate(
        rows=rows,
        prepare_s=round(prepared_s - started_s, 2),
        texts_per_s=round(rows / (prepared_s - started_s)),
        epoch_s=round(epoch_s, 2),
        waited_share=round(waited_s / epoch_s, 4),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        own_mib=memory.peaks_bytes["own"] >> 20,
        began_mib=began_bytes >> 20,
    )


def compare_buckets(
    table: SampleTable, method: str, most: int, epochs: int, length: int | None = None, seed: int = 0
) -> Iterator[BucketScore]:
    """Train with one length and with several, epoch by epoch in turns, and yield both scores."""
    encoder = None if method == "default" else method
    plain, bucketed = (
        _prepare(table, seed, encoder, {"epochs": epochs, "length_buckets": own}, length) for own in (None, most)
    )
    with text_epochs(plain) as single, text_epochs(bucketed) as several:
        pairs = [(single.train(), several.train()) for _ in range(epochs)]
        single.finish()
        several.finish()
    speedup = statistics.median(before / after for before, after in pairs)
    for place, prepared in enumerate((plain, bucketed)):
        buckets = prepared.buckets
        lengths = (prepared.preprocessor.recipe.tokens[0].length,) if buckets is None else buckets.lengths
        yield BucketScore(
            method=method,
            rows=prepared.train.rows,
            seed=seed,
            lengths=" ".join(map(str, lengths)),
            token_share=1.0 if buckets is None else round(buckets.token_share, 3),
            epoch_s=round(statistics.median(pair[place] for pair in pairs), 3),
            speedup=round(speedup, 3) if place else 1.0,
            accuracy=round(metrics_of_test(prepared)["accuracy"], 4),
        )


def drawn(table: SampleTable, rows: int) -> SampleTable:
    """Return evenly spaced rows of the table."""
    descriptions, sections = (table.table.columns[name].values for name in ("description", "section"))
    chosen = np.arange(min(rows, len(sections))) * len(sections) // min(rows, len(sections))
    return section_table(zip(descriptions[chosen], sections[chosen], strict=True))


def shuffled_words(table: SampleTable, rows: int) -> Iterator[tuple[str, str]]:
    """Yield this many different texts, each with the words of two descriptions, and their sections."""
    descriptions, sections = (table.table.columns[name].values for name in ("description", "section"))
    draw = np.random.default_rng(0)
    firsts, seconds = draw.integers(len(sections), size=(2, rows))
    return (
        (f"{descriptions[first]} {descriptions[second]}", sections[first])
        for first, second in zip(firsts, seconds, strict=True)
    )


def _train_epoch(prepared: Prepared) -> float:
    """Train one epoch as a job does, and return the seconds that it has waited for batches."""
    settings, module = prepared.settings, prepared.module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=settings.learning_rate)
    orders = batches(prepared.train, 0, settings)
    sources = TrainingSources(part=prepared.train, settings=settings)
    with BatchPrefetcher() as feed:
        with closing(feed.batches(sources.parts_of, orders, sources.of_epoch(0))) as loaded:
            for _, (x, y) in loaded:
                loss = prepared.loss(module(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return feed.waiting.waited_s


# --- methods ------------------------------------------------------------------------------------------------------


def _prepare(
    table: SampleTable,
    seed: int,
    encoder: str | None,
    hyperparams: Mapping[str, Any] | None = None,
    length: int | None = None,
    *,
    consume: bool = False,
) -> Prepared:
    architecture = {"type": "auto"} if encoder is None else {"type": "wide_and_deep", "text_encoder": encoder}
    own = {name: value for name, value in (hyperparams or {}).items() if value is not None}
    preprocess = _TOKENS if length is None else {**_TOKENS, "length": length}
    spec = replace(specify(table, seed, own, architecture), preprocess=preprocess)
    return assemble(table.table, spec, consume=consume)


def _network(encoder: str | None, table: SampleTable, seed: int) -> tuple[float, int]:
    prepared = _prepare(table, seed, encoder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        epochs, _ = train(prepared)
    return metrics_of_test(prepared)["accuracy"], epochs


def _tfidf(table: SampleTable, seed: int) -> tuple[float, int]:
    x, y = (table.table.columns[name].values for name in ("description", "section"))
    learn, test = rows_to_learn_and_test(table, Split(seed=seed))
    model = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=10, max_iter=300))
    model.fit(x[learn], y[learn])
    return float(model.score(x[test], y[test])), 0


METHODS: dict[str, Callable[[SampleTable, int], tuple[float, int]]] = {
    "default": partial(_network, None),
    "convolution": partial(_network, "convolution"),
    "transformer": partial(_network, "transformer"),
    "tfidf": _tfidf,
}

if __name__ == "__main__":
    run(main)
