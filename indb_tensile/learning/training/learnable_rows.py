"""Chooses the features and the rows of a training. The rows have a target, and their images can be read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from indb_tensile.errors import DataError, RequestError
from indb_tensile.job import JobSpec, Task
from indb_tensile.learning.decoding.documents import with_derived
from indb_tensile.learning.encoding.decoded_images import DecodedImages, decode_images
from indb_tensile.learning.encoding.feature_choice import choose_features, require_present
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.encoding.image_decoding import ImageForm
from indb_tensile.learning.encoding.image_faults import SkippedRows, skipped_sentence
from indb_tensile.learning.encoding.pair_encoding import item_numbers
from indb_tensile.learning.encoding.target_columns import with_combined
from indb_tensile.learning.encoding.targets import labeled, unlabeled
from indb_tensile.learning.storage.columns import Column, ColumnKind, Columns, Rows, TableData
from indb_tensile.learning.storage.row_storage import positions_where
from indb_tensile.learning.storage.splits import Split
from indb_tensile.request.hyperparam_rules import check_weights
from indb_tensile.request.image_rules import check_images, check_mixup
from indb_tensile.request.split_rules import check_split_use

FEWEST_TRAIN_ROWS = 2  # batch normalisation and every standard deviation need two


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnableRows:
    """A table with its combined target, and the positions of the rows that can be learned from."""

    table: TableData
    known: Rows
    unlabeled_rows: int
    features: tuple[str, ...]
    images: DecodedImages


def learnable_rows(
    table: TableData, spec: JobSpec, options: FeatureOptions, image_forms: Mapping[str, ImageForm]
) -> tuple[LearnableRows, Columns]:
    """Choose features and rows, and decode images. Raises DataError if too little is left.

    Returns also the columns of the table with the chosen paths of documents and the decoded images. `image_forms` are
    those of the version that the training starts from.
    """
    if not spec.target_columns and spec.task is not Task.ANOMALY:
        hint = "Name the columns with target => '...'."
        raise RequestError(f"no target is given, and task {spec.task} needs one", hint=hint)
    features = chosen_features(table.described, spec, options)
    if spec.task is not Task.PAIRS:
        table = with_combined(table, spec.target, spec.targets, spec.task)
    if spec.task is Task.ANOMALY:
        table, labeled_rows = _with_labels(table, spec.target)
    elif spec.task is Task.PAIRS:
        table, labeled_rows = _with_items(table, spec.target_columns)
    else:
        labeled_rows = labeled(spec.target, table.columns[spec.target], table.storage)
    _require_rows(table, labeled_rows)
    columns = _with_paths(table, features, options)
    require_present(columns, features, options, labeled_rows)
    _check_images(spec, columns, features)
    images = decode_images(table, features, options, labeled_rows, image_forms)
    _require_rows(table, images.readable, images.skipped)
    learnable = LearnableRows(
        table=table,
        known=images.readable,
        unlabeled_rows=table.rows - len(labeled_rows),
        features=features,
        images=images,
    )
    return learnable, {**columns, **images.columns}


def chosen_features(described: Sequence[Column], spec: JobSpec, options: FeatureOptions) -> tuple[str, ...]:
    """Return the columns to learn from. No column of the target is one, but those of an item are."""
    target, *others = spec.target_columns or ("",)
    if spec.task is Task.PAIRS:
        query = choose_features(described, target, spec.features, (*left_out(spec), *others))
        chosen = (*query, *spec.target_columns)
        options.check(
            {column.name: column for column in described if column.name in chosen},
            [column.name for column in described],
        )
        return chosen
    return choose_features(described, target, spec.features, (*left_out(spec), *others), options)


def left_out(spec: JobSpec) -> tuple[str, ...]:
    """Return the columns that are not features: the excluded ones, the one that divides the rows, and the weight.

    The dividing column is a feature only if the request names it as a feature. Raises RequestError if the dividing
    column is the target, or is both a feature and the column that says which rows test, and for a weight that is the
    target or a feature.
    """
    split = Split.parse(spec.split)
    check_split_use(spec.split, spec.target_columns, spec.features)
    check_weights(spec.hyperparams, spec.task, spec.target_columns, spec.features)
    if spec.features is not None:
        return spec.exclude
    withheld = (split.withheld, spec.hyperparams.get("weight"))
    return (*spec.exclude, *(name for name in withheld if name is not None))


def _with_labels(table: TableData, target: str) -> tuple[TableData, Rows]:
    """Return the table with a column of labels, and all of its rows: rows without a label are learned from too."""
    if not table.rows:
        raise DataError("the table has no rows", hint="Insert rows, commit, and call tensile_train again.")
    if not target:
        table = replace(table, columns={**table.columns, "": unlabeled(table.rows)})
    return table, positions_where(np.ones(table.rows, np.bool_), table.storage)


def _with_items(table: TableData, items: Sequence[str]) -> tuple[TableData, Rows]:
    """Return the table with a column of the numbers of items, and the positions of the rows with an item.

    One column of an item at least is not NULL.
    """
    if not table.rows:
        raise DataError("the table has no rows", hint="Insert rows, commit, and call tensile_train again.")
    without = np.ones(table.rows, np.bool_)
    for name in items:
        without &= table.columns[name].missing
    numbers = item_numbers([table.columns[name] for name in items], table.storage)
    return replace(table, columns={**table.columns, "": numbers}), positions_where(~without, table.storage)


def _check_images(spec: JobSpec, columns: Columns, features: Sequence[str]) -> None:
    """Refuse a network that reads no images, and augmentations and mixup where the columns do not allow them."""
    images = [name for name in features if columns[name].kind is ColumnKind.IMAGE]
    others = len(features) - len(images)
    check_images(spec.architecture, spec.preprocess, len(images), others, spec.hyperparams)
    check_mixup(spec.hyperparams, spec.task, len(images), others)


def _with_paths(table: TableData, features: Sequence[str], options: FeatureOptions) -> Columns:
    """Return the columns with those that the chosen paths of documents become."""
    documents = [name for name in features if table.columns[name].kind is ColumnKind.DOCUMENT]
    return with_derived(table.columns, options.document_paths(documents), table.storage)


def _require_rows(table: TableData, known: Rows, skipped: tuple[SkippedRows, ...] = ()) -> None:
    fewest = FEWEST_TRAIN_ROWS + 1
    if len(known) < fewest:
        raise DataError(
            f"the table has {len(known)} rows with a target, {fewest} are the fewest to train and test on",
            detail=f"It has {table.rows} rows in all.{skipped_sentence(skipped)}",
            hint="Insert rows, commit, and call tensile_train again.",
        )
