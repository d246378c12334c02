"""Learns the section of Debian's packages from few labels: from a registered network, from nothing, or by TF-IDF."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from indb_tensile.bench.harness.networks.tiny_networks import of_parts
from indb_tensile.bench.harness.tables.debian_descriptions import section_table
from indb_tensile.bench.harness.tables.sample_tables import SampleTable
from indb_tensile.bench.harness.trainings.table_trainings import specify, train
from indb_tensile.bench.harness.trainings.text_pretraining import NAME, TOKENS
from indb_tensile.learning.models.artifacts import ModelBundle, pack
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared

_TESTED = 4000  # packages
_SPLIT = {"test_size": 0.01}  # of the labels: those of other packages test
_READ = {"encode": {"description": "tokens"}, "length": TOKENS}
_PENALTIES = (1.0, 10.0, 100.0)  # C of logistic regression


def fine_tune(
    table: SampleTable,
    labels: int,
    seed: int,
    network: RegisteredNetwork,
    part: str,
    hyperparams: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[float, Prepared]:
    """Train this part on `labels` rows, by default with default settings, and return the accuracy on other rows."""
    few, rest = _few_rows(table, labels, seed)
    architecture: dict[str, Any] = {"type": "pretrained", "from": NAME, "train": part}
    spec = replace(specify(few, seed, hyperparams, architecture), preprocess=_READ)
    prepared = assemble(few.table, replace(spec, split={"seed": seed} | _SPLIT), network=network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        train(prepared)
    bundle = ModelBundle(
        architecture=prepared.architecture,
        input_shape=prepared.input_shape,
        outputs=prepared.outputs,
        task=prepared.task,
        preprocessor=prepared.preprocessor,
        weights=dict(prepared.module.state_dict()),
        network=network,
    )
    predicted = [own.label for own in ModelPredictor(bundle).predict_columns(rest.table.columns)]
    expected = rest.table.columns["section"].values
    return float(np.mean([own == other for own, other in zip(predicted, expected, strict=True)])), prepared


def tfidf(table: SampleTable, labels: int, seed: int) -> float:
    """Return the accuracy of logistic regression on TF-IDF, with the penalty that is best on the other rows."""
    few, rest = _few_rows(table, labels, seed)
    x, y = (few.table.columns[name].values for name in ("description", "section"))
    other_x, other_y = (rest.table.columns[name].values for name in ("description", "section"))
    models = [
        make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=penalty, max_iter=300))
        for penalty in _PENALTIES
    ]
    return max(float(model.fit(x, y).score(other_x, other_y)) for model in models)


def untrained(network: RegisteredNetwork) -> RegisteredNetwork:
    """Return a network of the same sizes and tokens that has learned nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        weights = pack(network.sizes.encoder().state_dict(), {})
    return of_parts(NAME, network.sizes, network.tokenizer_text, weights)


def _few_rows(table: SampleTable, labels: int, seed: int) -> tuple[SampleTable, SampleTable]:
    """Return `labels` rows, and up to 4,000 others."""
    descriptions, sections = (table.table.columns[name].values for name in ("description", "section"))
    order = np.random.default_rng(seed).permutation(len(sections))
    parts = (order[:labels], order[labels : labels + _TESTED])
    few, rest = (section_table(zip(descriptions[own], sections[own], strict=True)) for own in parts)
    return few, rest
