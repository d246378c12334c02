"""Columns of images become rows of a network: size and channels, missing and broken values, equal bits."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import DataError, RequestError
from indb_tensile.job import Task
from indb_tensile.learning.batches.batch_sources import TrainingSources, ordered_sources
from indb_tensile.learning.encoding.image_faults import SkippedRows
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.storage.columns import TableData
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.learning.training.starting_weights import StartingWeights
from tests.learning import pictures, tables
from tests.nightly import some_examples

PHOTO = ("photo", "bytea")
LABEL = ("label", "text")
KEY = ("id", "bigint")


def photos(rows: int = 40, changes: dict[int, Any] = {}, side: int = 12) -> TableData:  # noqa: B006 - never changed
    """Return squares with the corner as label; `changes` replaces values of rows."""
    values = [pictures.as_hex(pictures.encoded(pictures.square(row, side, 100 + row))) for row in range(rows)]
    listed = [(row, changes.get(row, values[row]), f"corner {row % 4}") for row in range(rows)]
    return tables.table([KEY, PHOTO, LABEL], listed)


def prepared(table: TableData, **options: Any) -> Prepared:
    """Return a prepared training whose images are all decoded."""
    ready = assemble(table, tables.spec("label", **options))
    ready.finish_decoding()
    return ready


def batch(ready: Prepared, rows: list[int], epoch: int | None = None) -> np.ndarray[Any, Any]:
    """Return these training rows as a batch, changed as in an epoch if one is given."""
    sources = (
        ordered_sources(ready.train)
        if epoch is None
        else TrainingSources(part=ready.train, settings=ready.settings).of_epoch(epoch)
    )
    out = np.empty((len(rows), *ready.input_shape), np.float32)
    sources[0].take(np.array(rows, np.int64), out)
    return out


def test_images_are_stored_as_bytes_and_read_as_standardised_numbers() -> None:
    ready = prepared(photos())
    assert (ready.architecture["type"], ready.input_shape) == ("cnn", (1, 12, 12))
    assert (ready.train.x.dtype, ready.train.x.shape[1]) == (torch.uint8, 144)
    everything = ready.train.first(ready.train.rows).numpy()
    assert (everything.mean(), everything.std()) == pytest.approx((0, 1), abs=1e-5)
    assert np.array_equal(batch(ready, [3, 1]), everything[[3, 1]])


def test_size_and_channels_are_those_of_the_images_or_those_requested() -> None:
    assert prepared(photos(side=200)).input_shape == (1, 128, 128)
    assert prepared(photos(), preprocess={"size": [6, 8], "channels": "rgb"}).input_shape == (3, 6, 8)
    colours = [pictures.as_hex(pictures.encoded(pictures.stripes())) for _ in range(9)]
    table = tables.table([PHOTO, LABEL], [(raw, f"{row % 2}") for row, raw in enumerate(colours)])
    with pytest.raises(DataError, match="every feature has one value"):
        prepared(table)
    assert prepared(photos(changes={5: colours[0]})).input_shape == (3, 12, 12)


def test_a_table_and_a_row_are_encoded_equally() -> None:
    ready = prepared(photos(), preprocess={"size": [8, 8]})
    raw = pictures.as_hex(pictures.encoded(pictures.square(1)))
    (of_row,) = ready.preprocessor.transform_rows([{"photo": raw}])
    table = photos(4, {0: raw})
    of_table = ready.preprocessor.transform(table.columns)
    assert np.array_equal(of_row, of_table[0])


@some_examples()
@given(st.randoms(use_true_random=False))
def test_bits_do_not_depend_on_the_order_of_the_rows(draw: random.Random) -> None:
    broken, rows = {7: "\\x89504e47"}, list(range(30))
    draw.shuffle(rows)
    options: dict[str, Any] = {"preprocess": {"on_error": "skip"}, "split": {"seed": 3}}
    first = prepared(photos(30, broken), **options)
    table = photos(30, broken)
    shuffled = tables.table(
        [KEY, PHOTO, LABEL],
        [
            (row, None if raw is None else pictures.as_hex(raw), label)
            for row, raw, label in (
                (row, table.columns["photo"].values[row], table.columns["label"].values[row]) for row in rows
            )
        ],
    )
    second = prepared(shuffled, **options)
    assert second.preprocessor.to_json() == first.preprocessor.to_json()
    assert sorted(map(bytes, second.train.x.numpy())) == sorted(map(bytes, first.train.x.numpy()))


def test_a_broken_image_is_named_by_the_key_of_its_row() -> None:
    with pytest.raises(DataError) as caught:
        prepared(photos(changes={7: "\\x255044462d", 9: "\\x89504e470d0a1a0a00"}))
    assert caught.value.message == (
        'column "photo", id 7: the value starts with 25 50 44 46, '
        "which is no image of PNG, JPEG, WebP, BMP, GIF, TIFF"
    )
    assert "2 rows have such values; the next are: id 9 is a broken PNG image" in caught.value.detail


def test_rows_with_broken_images_are_left_out_and_counted_if_asked() -> None:
    bomb = pictures.as_hex(pictures.png_of_size(60000, 60000))
    ready = prepared(photos(changes={7: "\\x", 9: bomb}), preprocess={"on_error": {"photo": "skip"}})
    assert ready.train.rows + ready.valid.rows + ready.test.rows == 38
    large = "id 9 is an image of 60000 x 60000 pixels, more than the 50000000 in all that are decoded"
    assert ready.skipped == (SkippedRows(column="photo", rows=2, named=("id 7 is empty", large)),)
    facts = {fact.fact: fact.value for fact in ready.report if fact.section == "rows"}
    assert facts["left out, as the image cannot be read"] == "2"
    assert facts["left out, as the target is NULL"] == "0"


def test_a_column_without_any_image_is_refused() -> None:
    words: dict[int, Any] = dict.fromkeys(range(40), "\\x00")
    with pytest.raises(DataError, match='no value of column "photo" is an image that can be read'):
        prepared(photos(changes=words), preprocess={"on_error": "skip"})
    with pytest.raises(DataError, match='column "photo" is NULL in all rows'):
        prepared(photos(changes=dict.fromkeys(range(40))))


def test_a_missing_image_becomes_the_mean_colour_or_an_error() -> None:
    ready = prepared(photos(changes={3: None}))
    (row,) = ready.preprocessor.transform_rows([{"photo": None}])
    assert np.abs(row).max() < 0.02
    with pytest.raises(DataError, match='column "photo", row 4: the value is missing'):
        prepared(photos(changes={3: None}), preprocess={"missing": {"photo": "error"}})


def test_a_prediction_for_a_broken_image_is_an_error_or_not_a_number() -> None:
    rows = [{"photo": pictures.as_hex(pictures.encoded(pictures.square(0)))}, {"photo": "\\x00"}]
    stops = ModelPredictor(tables.bundle(prepared(photos())))
    with pytest.raises(DataError, match='column "photo", row 2: the value starts with 00'):
        stops.predict_rows(rows)
    for architecture in ("cnn", "resnet", "vit"):
        own = {"type": architecture, **({"dropout": 0.1} if architecture != "cnn" else {})}
        ready = prepared(photos(), preprocess={"on_error": "skip"}, architecture=own)
        outputs = ModelPredictor(tables.bundle(ready)).outputs(ready.preprocessor.transform_rows(rows))
        assert np.isnan(outputs).all(axis=1).tolist() == [False, True]


def test_images_stand_beside_numbers_texts_and_other_images() -> None:
    listed = [
        (
            pictures.as_hex(pictures.encoded(pictures.square(row))),
            pictures.as_hex(pictures.encoded(pictures.stripes())),
            row / 7,
            "a b" if row % 3 else "c",
            f"corner {row % 4}",
        )
        for row in range(30)
    ]
    table = tables.table([PHOTO, ("logo", "bytea"), ("size", "double precision"), ("words", "text"), LABEL], listed)
    ready = prepared(table, preprocess={"encode": {"words": "tokens"}})
    assert ready.architecture | {"vocabularies": None, "lengths": None} == {
        "type": "wide_and_deep",
        "image_encoder": "resnet",
        "text_encoder": "pooling",
        "numbers": 1,
        "categories": [],
        "images": [1, 12, 12, 3, 6, 8],
        "vocabularies": None,
        "lengths": None,
    }
    rows = ready.train.first(4)
    assert ready.module(rows).shape == (4, 4)
    whole = ready.preprocessor.transform({name: data.part(0, 30) for name, data in table.columns.items()})
    packed = {row.tobytes() for row in ready.train.first(ready.train.rows).numpy()}
    assert packed <= {row.tobytes() for row in whole}


def test_augmentation_depends_on_seed_epoch_and_row_and_not_on_the_batch() -> None:
    changes = {"augment_flip": True, "augment_shift": 0.2, "augment_rotation": 20, "augment_cutout": 0.3}
    changes["augment_color"] = 0.4
    ready = prepared(photos(), hyperparams=changes)
    first = batch(ready, [0, 1, 2, 3], epoch=1)
    assert np.array_equal(batch(ready, [3, 0], epoch=1), first[[3, 0]])
    assert not np.array_equal(batch(ready, [0, 1, 2, 3], epoch=2), first)
    other = prepared(photos(), hyperparams=changes | {"seed": 1})
    assert not np.array_equal(batch(other, [0, 1, 2, 3], epoch=1), first)
    assert np.array_equal(batch(ready, [0, 1, 2, 3]), ready.train.first(4).numpy())


@pytest.mark.parametrize(
    "change",
    [
        {"augment_flip": True},
        {"augment_shift": 0.3},
        {"augment_rotation": 30},
        {"augment_color": 0.3},
        {"augment_cutout": 0.3},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_augmentation_changes_some_images_and_keeps_their_form(change: dict[str, Any]) -> None:
    ready = prepared(photos(), hyperparams=change)
    plain, changed = batch(ready, list(range(10))), batch(ready, list(range(10)), epoch=0)
    assert changed.shape == plain.shape
    assert np.isfinite(changed).all()
    assert not np.array_equal(changed, plain)


def test_a_training_that_starts_from_a_version_keeps_the_form_of_its_images() -> None:
    first = prepared(photos(), preprocess={"size": [8, 8]})
    start = StartingWeights(model="m", version=1, bundle=tables.bundle(first))
    second = assemble(photos(20, side=16), tables.spec("label"), start=start)
    assert second.input_shape == (1, 8, 8)
    assert second.preprocessor.recipe.images == first.preprocessor.recipe.images


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": {"type": "boosting"}}, "architecture boosting does not read images"),
        ({"architecture": {"type": "cnn", "input_shape": [1, 2, 2]}}, '"input_shape" means nothing for images'),
        ({"architecture": {"type": "vit", "patch": 16}}, "patches of 16 pixels do not fit into images of 12 x 12"),
        ({"preprocess": {"encode": {"photo": "onehot"}}}, 'cannot be "onehot"'),
        ({"preprocess": {"encode": {"photo": "tokens"}}}, 'cannot be "tokens"|architecture auto'),
        ({"preprocess": {"size": {"label": [2, 2]}}}, "which is not a feature"),
        ({"preprocess": {"missing": {"photo": "median"}}}, '"missing" of column "photo"'),
    ],
)
def test_options_that_do_not_go_with_images_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        prepared(photos(), **options)


def test_augmentation_without_images_is_refused() -> None:
    with pytest.raises(RequestError, match='"augment_flip" changes images, and no feature is a column of images'):
        assemble(tables.sample("iris"), tables.spec("target", hyperparams={"augment_flip": True}))


@pytest.mark.nightly
def test_a_network_learns_the_corner_of_a_square_with_every_encoder() -> None:
    for architecture in ({"type": "cnn"}, {"type": "resnet", "width": 8}, {"type": "vit", "width": 32}):
        ready = prepared(photos(120), architecture=architecture, hyperparams={"epochs": 8, "batch_size": 16})
        tables.train(ready)
        rows = photos(16, side=14).columns
        labels = [each.label for each in ModelPredictor(tables.bundle(ready)).predict_columns(rows)]
        assert sum(label == f"corner {row % 4}" for row, label in enumerate(labels)) >= 15, architecture


def test_a_regression_reads_images() -> None:
    table = photos()
    ready = assemble(
        tables.table(
            [PHOTO, ("y", "double precision")],
            [(pictures.as_hex(raw), row / 3) for row, raw in enumerate(table.columns["photo"].values)],
        ),
        tables.spec("y", Task.REGRESSION),
    )
    assert ready.module(ready.train.first(2)).shape == (2, 1)
