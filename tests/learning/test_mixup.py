"""Rows of images are mixed as seed, epoch and batch say, and the loss counts both classes of a mixed row."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.batches.batch_order import batches
from indb_tensile.learning.batches.batch_sources import TrainingSources, ordered_sources
from indb_tensile.learning.batches.mixup import Mixup
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.encoding.packed_targets import pack, pair_of
from indb_tensile.learning.storage.row_storage import FileStorage
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from tests.learning import tables
from tests.learning.test_images import photos, prepared

MIXUP = Mixup(seed=3, alpha=0.4)
ROWS = np.array([5, 0, 9, 2, 7, 1], np.int64)


def taken(sources: tuple[Any, Any], ready: Prepared, rows: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    x = np.empty((len(rows), *ready.input_shape), np.float32)
    y = np.empty((len(rows), *ready.train.y.shape[1:]), np.float32)
    sources[0].take(rows, x)
    sources[1].take(rows, y)
    return x, y


def test_a_row_is_mixed_with_another_row_of_its_batch_and_so_is_its_class() -> None:
    ready = prepared(photos(), hyperparams={"mixup": 0.4, "seed": 3, "class_weight": {"corner 1": 5}})
    plain, classes = taken(ordered_sources(ready.train), ready, ROWS)
    mixed, pairs = taken(TrainingSources(part=ready.train, settings=ready.settings).of_epoch(2), ready, ROWS)
    shares, partners = MIXUP.shares(2, ROWS), MIXUP.partners(2, ROWS)
    assert sorted(partners) == list(range(6))
    assert not (partners == np.arange(6)).any()
    assert ((shares > 0) & (shares < 1)).all()
    own = shares[:, None, None, None]
    assert np.array_equal(mixed, plain * own + (1 - own) * plain[partners])
    assert np.array_equal(pairs[:, [0, 2]], np.stack([classes[:, 0], classes[partners, 0]], axis=1))
    weights = [classes[:, 1] * shares, classes[partners, 1] * (1 - shares)]
    assert np.array_equal(pairs[:, [1, 3]], np.stack(weights, axis=1))
    assert len(set(classes[:, 1])) == 2


def test_shares_depend_on_seed_epoch_and_row_and_not_on_the_batch() -> None:
    shares = MIXUP.shares(1, ROWS)
    assert np.array_equal(MIXUP.shares(1, ROWS[::-1]), shares[::-1])
    assert not np.array_equal(MIXUP.shares(2, ROWS), shares)
    assert not np.array_equal(Mixup(seed=4, alpha=0.4).shares(1, ROWS), shares)
    many = np.arange(20_000)
    drawn = MIXUP.shares(0, many)
    assert (drawn.mean(), drawn.var()) == (pytest.approx(0.5, abs=0.01), pytest.approx(1 / 7.2, abs=0.003))
    assert np.isfinite(Mixup(seed=0, alpha=1e-9).shares(0, many)).all()
    assert MIXUP.partners(0, ROWS[:1]).tolist() == [0]


def test_validation_rows_are_not_mixed_and_the_loss_of_a_pair_is_that_of_its_class() -> None:
    options = {"label_smoothing": 0.1, "class_weight": "balanced"}
    plain, mixing = (prepared(photos(), hyperparams=options | own) for own in ({}, {"mixup": 0.4}))
    outputs = torch.randn(plain.valid.rows, plain.outputs)
    assert float(mixing.loss(outputs, mixing.valid.y)) == pytest.approx(float(plain.loss(outputs, plain.valid.y)))
    assert torch.equal(mixing.valid.example, plain.valid.example)
    assert torch.equal(mixing.valid.targets, plain.valid.targets)


def test_the_loss_of_mixed_rows_is_that_of_mixed_probabilities() -> None:
    ready = prepared(photos(), hyperparams={"mixup": 0.4, "label_smoothing": 0.2})
    outputs, first, second, shares = torch.randn(9, 4), torch.arange(9) % 4, torch.arange(9) % 3, torch.rand(9)
    pairs = torch.cat([pack(first, shares), pack(second, 1 - shares)], dim=1)
    weight = shares[:, None]
    mixed = weight * functional.one_hot(first, 4) + (1 - weight) * functional.one_hot(second, 4)
    expected = functional.cross_entropy(outputs, mixed, label_smoothing=0.2)
    assert float(ready.loss(outputs, pairs)) == pytest.approx(float(expected))
    assert pair_of(torch.tensor([2])).tolist() == [[2.0, 1.0, 2.0, 0.0]]


@pytest.mark.nightly
def test_mixed_batches_of_rows_in_a_file_are_those_of_rows_in_memory(tmp_path: Path) -> None:
    ready = prepared(photos(60), hyperparams={"mixup": 0.3, "batch_size": 8, "augment_shift": 0.2})
    storage = FileStorage(tmp_path)

    def filed(values: torch.Tensor) -> torch.Tensor:
        whole = storage.array(len(values), tuple(values.shape[1:]), values.numpy().dtype)
        whole.write(0, values.numpy())
        return torch.from_numpy(whole.values)

    in_file = replace(ready.train, x=filed(ready.train.x), y=filed(ready.train.y), storage=storage)

    def loaded(part: Part) -> list[bytes]:
        sources = TrainingSources(part=part, settings=ready.settings)
        return [
            own.tobytes()
            for epoch in range(2)
            for rows in batches(part, epoch, ready.settings)
            for own in taken(sources.of_epoch(epoch), ready, rows.numpy())
        ]

    assert loaded(in_file) == loaded(ready.train)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ("photo", "id")}, '"mixup" is 0.2, and the features are 1 image and 1 other column'),
        ({"hyperparams": {"mixup": 0.2, "batch_size": 1}}, '"mixup" is 0.2, and a batch has one row'),
        ({"hyperparams": {"mixup": 0}}, 'hyperparams: "mixup" is 0'),
        (
            {"task": Task.ANOMALY, "features": ("id",), "target": ""},
            "task anomaly has no classes that could be mixed",
        ),
    ],
)
def test_what_cannot_be_mixed_is_refused(options: dict[str, Any], message: str) -> None:
    options = {"target": "label", "hyperparams": {"mixup": 0.2}} | options
    with pytest.raises(RequestError, match=message):
        assemble(photos(), tables.spec(**options))
