"""Fits targets of several values or labels: vectors of a regression, and sets of labels."""

from collections.abc import Sequence

import numpy as np

from indb_tensile.errors import DataError
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, ColumnRows, Mask, Rows
from indb_tensile.learning.storage.moments import FIT_BLOCK_NUMBERS, LARGEST, moments
from indb_tensile.learning.storage.row_storage import row_blocks

# Most values of a target: each has an output of the network, and a number in each row on the device.
MOST_VALUES = 1000


def fit_values(
    name: str, data: ColumnData, train: Rows, columns: Sequence[str]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the scale of each value of the training rows.

    A value that is the same in all of them has the scale 1. Raises DataError if every value is, for arrays of more
    than one dimension, and for values that are too large.
    """
    _require_vector(name, data)
    learned = ColumnRows(data, train)
    least, most = np.full(data.shape, np.inf), np.full(data.shape, -np.inf)
    for block in learned.blocks(FIT_BLOCK_NUMBERS):
        least, most = np.minimum(least, block.values.min(axis=0)), np.maximum(most, block.values.max(axis=0))
    if (least == most).all():
        hint = "Regression needs values that differ: add rows, or name another target."
        raise DataError(f'target "{name}" has equal values in all {len(train)} training rows', hint=hint)
    reach = np.maximum(-least, most)
    if (reach > LARGEST).any():
        place = int(np.argmax(reach))
        value = f'"{columns[place]}"' if columns else f"element {place + 1}"
        hint = "Scale the values in SQL, as in a generated column, and name that one."
        raise DataError(f'target "{name}": {value} reaches {reach[place]:g}, too large to standardise', hint=hint)
    blocks = (block.numbers() for block in learned.blocks(FIT_BLOCK_NUMBERS))
    means, scales = moments(blocks, [f"{name}, element {place + 1}" for place in range(data.shape[0])])
    return tuple(means.tolist()), tuple(scales.tolist())


def fit_labels(
    name: str, data: ColumnData, train: Rows, columns: Sequence[str], more_classes: str
) -> tuple[str, ...]:
    """Return the labels of all rows, sorted: as numbers if all are, else as texts.

    An array of booleans has a label for each element: a column, or the element's position. Raises DataError if the
    training rows all have the same set, with `more_classes` as hint, and if there are too many labels.
    """
    if data.kind is ColumnKind.ARRAY:
        _require_vector(name, data)
        labels = tuple(columns) or tuple(str(place) for place in range(1, data.shape[0] + 1))
    else:
        blocks = (data.values[start:end] for start, end in row_blocks(len(data.missing)))
        labels = _sorted({label for block in blocks for own in block.tolist() for label in own})
    if not labels:
        hint = "Multi-label classification needs rows with labels: add some, or name another target."
        raise DataError(f'target "{name}" has no label in any of {len(data.missing)} rows', hint=hint)
    if len(labels) > MOST_VALUES:
        raise DataError(
            f'target "{name}" has {len(labels)} different labels, more than {MOST_VALUES}',
            detail=f"Among them are {', '.join(labels[:5])}.",
            hint="Keep the frequent ones: name a view whose arrays have no other labels.",
        )
    first = data.values[train[0]]
    if all(_equal_sets(block.values, first) for block in ColumnRows(data, train).blocks(FIT_BLOCK_NUMBERS)):
        message = f'target "{name}" has the same labels in all {len(train)} training rows'
        raise DataError(message, hint=more_classes)
    return labels


def finite_rows(data: ColumnData) -> Mask:
    """Return a mask of the rows of numbers, or of arrays of numbers, that are all finite."""
    finite = np.ones(len(data.missing), np.bool_)
    if data.all_finite or not np.issubdtype(data.values.dtype, np.floating):
        return finite
    for start, end in row_blocks(len(finite)):
        values = data.values[start:end]
        finite[start:end] = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    return finite


def negative_rows(data: ColumnData) -> int:
    """Return how many rows have a negative number."""
    parts = (data.values[start:end] for start, end in row_blocks(len(data.values)))
    return sum(int((part < 0).reshape(len(part), -1).any(axis=1).sum()) for part in parts)


def _require_vector(name: str, data: ColumnData) -> None:
    if len(data.shape) != 1 or not data.shape[0]:
        raise DataError(
            f'target "{name}" has arrays of shape {list(data.shape)}',
            hint="Name a column whose arrays have one dimension and an element or more.",
        )
    if data.shape[0] > MOST_VALUES:
        raise DataError(
            f'target "{name}" has arrays of {data.shape[0]} elements, more than {MOST_VALUES}',
            hint="Name a column of shorter arrays.",
        )


def _sorted(labels: set[str]) -> tuple[str, ...]:
    numeric = all(label.lstrip("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numeric else 0, label)))


def merged_labels(first: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    """Return the labels of both, sorted as those of one target are."""
    return _sorted({*first, *other})


def _equal_sets(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], first: object) -> bool:
    if values.dtype == np.object_:
        return all(value == first for value in values.tolist())
    return bool((values == first).all())
