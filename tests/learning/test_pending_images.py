"""Images that are decoded while the training goes on have the bits of images that were decoded before it."""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from indb_tensile.errors import DataError
from indb_tensile.job import JobSpec
from indb_tensile.learning.batches.batch_order import batches
from indb_tensile.learning.batches.batch_sources import TrainingSources, ordered_sources
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, TableData
from indb_tensile.learning.storage.row_storage import MEMORY, FileStorage, RowStorage
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from tests.learning import pictures, tables

ROWS = 500  # some 350 of them train, and only 256 are decoded before the training
MISSING = 50  # every so many rows have no image
NO_CHANGES: Mapping[int, bytes | None] = MappingProxyType({})
PENDING, BEFORE = "stop", "skip"


def photos(order: list[int], changes: Mapping[int, bytes | None] = NO_CHANGES) -> TableData:
    """Return a table whose rows have these keys in this order. `changes` has other values for the images of some."""
    values = np.empty(len(order), object)
    values[:] = [changes.get(row, pictures.encoded(pictures.square(row, 4, 60 + row % 190))) for row in order]
    missing = np.array([row % MISSING == 0 for row in order])
    listed = [(row, row / 7, f"corner {row % 4}") for row in order]
    table = tables.table([("id", "bigint"), ("weight", "double precision"), ("label", "text")], listed)
    photo = ColumnData(kind=ColumnKind.IMAGE, values=values, missing=missing)
    described = (*table.described, replace(table.described[1], name="photo", type="bytea"))
    return replace(table, columns={**table.columns, "photo": photo}, described=described)


def spec(on_error: str) -> JobSpec:
    return tables.spec(
        "label",
        features=("id", "weight", "photo"),
        preprocess={"on_error": on_error, "standardize": {"id": False}, "size": [32, 32]},
        hyperparams={"batch_size": 32},
    )


def prepared(on_error: str, storage: RowStorage = MEMORY) -> Prepared:
    table = photos(list(range(ROWS)))
    return assemble(replace(table, storage=storage), spec(on_error), consume=True)


def gathered(ready: Prepared, epoch: int) -> list[np.ndarray[Any, Any]]:
    """Return the first batches of an epoch and, after them, the validation rows."""
    sources = TrainingSources(part=ready.train, settings=ready.settings)
    x, _ = sources.of_epoch(epoch)
    orders = [rows.numpy() for rows, _ in zip(batches(ready.train, epoch, ready.settings), range(4), strict=False)]
    result = []
    for source, order in [*((x, own) for own in orders), (ordered_sources(ready.valid)[0], np.arange(40))]:
        out = np.empty((len(order), *ready.input_shape), np.float32)
        source.take(order, out)
        result.append(out)
    return result


@pytest.mark.parametrize("in_file", [False, True], ids=["memory", "file"])
def test_pixels_are_those_of_images_decoded_before(in_file: bool, tmp_path: Path) -> None:
    before = prepared(BEFORE)
    ready = prepared(PENDING, FileStorage(tmp_path) if in_file else MEMORY)
    assert before.train.images is None
    assert ready.train.images is not None
    with ready.decoding_paused():
        early = gathered(ready, 0)
    ready.finish_decoding()
    for own, expected in zip(early, gathered(ready, 0), strict=True):
        assert np.array_equal(own, expected)
    images = ready.preprocessor.recipe.images[0]
    begin = ready.train.x.shape[1] - images.size
    for part, wanted in ((ready.train, before.train), (ready.valid, before.valid), (ready.test, before.test)):
        pixels, numbers = part.x.numpy()[:, begin:], part.x.numpy()[:, :begin]
        # A missing image has the mean colour, which is that of the sample, and all else is equal.
        fill = np.broadcast_to(np.array(images.fill, np.uint8), images.size)
        empty = (pixels == fill).all(axis=1)
        assert 0 < empty.sum() < part.rows / 20
        assert np.array_equal(pixels[~empty], wanted.x.numpy()[~empty, begin:])
        assert np.array_equal(numbers, wanted.x.numpy()[:, :begin])


def test_a_broken_image_in_the_sample_ends_the_preparation_and_all_others_are_named() -> None:
    ready, hashes = prepared(PENDING), photos(list(range(ROWS))).row_hash
    first = min(keys_of(ready.train), key=lambda key: hashes[key])
    last = max(keys_of(ready.test))
    with pytest.raises(DataError) as caught:
        assemble(photos(list(range(ROWS)), {first: b"%PDF", last: b""}), spec(PENDING))
    low, high = sorted((first, last))
    assert caught.value.message.startswith(f'column "photo", id {low}: the value ')
    assert f"2 rows have such values; the next are: id {high} " in caught.value.detail


def test_neither_the_encoder_of_images_nor_their_bits_depend_on_the_order_of_the_rows() -> None:
    order = list(range(ROWS))
    random.Random(5).shuffle(order)
    first, second = (assemble(photos(own), spec(PENDING)) for own in (list(range(ROWS)), order))
    first.finish_decoding()
    second.finish_decoding()
    assert second.preprocessor.recipe.images == first.preprocessor.recipe.images
    begin = first.train.x.shape[1] - first.preprocessor.recipe.images[0].size  # the numbers have other last digits
    own, expected = (sorted(map(bytes, ready.train.x.numpy()[:, begin:])) for ready in (second, first))
    assert own == expected


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_the_error_names_all_broken_images_wherever_the_first_of_them_is_read(part: str) -> None:
    ready, hashes = prepared(PENDING), photos(list(range(ROWS))).row_hash
    keys = {"train": keys_of(ready.train), "valid": keys_of(ready.valid), "test": keys_of(ready.test)}
    # The training row with the greatest hash is not in the sample.
    broken = {max(keys[part], key=lambda key: hashes[key]): b"\x89PNG\r\n\x1a\n\0", keys["test"][7]: b"%PDF"}
    changed = assemble(photos(list(range(ROWS)), broken), spec(PENDING), consume=True)
    own = {"train": changed.train, "valid": changed.valid, "test": changed.test}[part]
    with pytest.raises(DataError) as caught:
        own.chosen(np.arange(own.rows))
    first, second = sorted(broken)
    assert caught.value.message.startswith(f'column "photo", id {first}: the value ')
    assert f"2 rows have such values; the next are: id {second} " in caught.value.detail
    with pytest.raises(DataError, match=f"id {first}"):
        changed.finish_decoding()


def keys_of(part: Part) -> list[int]:
    """Return the keys of the rows of a part that have an image. The key is the first number of a row."""
    assert part.form is not None
    keys = (round(key) for key in part.form.dense(part.x.numpy())[:, 0].tolist())
    return [key for key in keys if key % MISSING]
