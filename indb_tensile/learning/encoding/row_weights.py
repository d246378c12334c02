"""The weights of rows in the loss: by the class of a row, by a column, or by both.

A row of a set of labels has a weight for each label, by whether it has the label.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, RequestError
from indb_tensile.job import Task
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.storage.columns import ColumnRows, Rows
from indb_tensile.learning.storage.row_storage import BLOCK_ROWS, MEMORY, RowStorage, gathered, row_blocks
from indb_tensile.request.hyperparam_rules import check_weight_kind, check_weighted_classes

Weights = npt.NDArray[Any]  # (rows,), or (rows, labels) for class weights of sets of labels


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOptions:
    """The request's weights. `by_class` is "balanced" or the weight of each named class; None means no weights."""

    by_class: str | Mapping[str, float] | None = None
    column: str | None = None

    @classmethod
    def parse(cls, hyperparams: Mapping[str, Any]) -> "WeightOptions":
        """Read the options from checked hyper-parameters."""
        return cls(by_class=hyperparams.get("class_weight"), column=hyperparams.get("weight"))

    @property
    def used(self) -> bool:
        """Return whether rows have different weights."""
        return self.by_class is not None or self.column is not None


def row_weights(
    options: WeightOptions,
    target: TargetEncoding,
    goal: ColumnRows,
    column: ColumnRows | None,
    parts: Sequence[Rows],
    storage: RowStorage = MEMORY,
) -> list[Weights]:
    """Return the weights of the rows of each part, of which the first one trains. Their mean in that part is 1.

    `goal` and `column` have all rows with a target; `parts` has positions in them. The weights are in `storage`. A
    mean of 1 keeps the meaning of the learning rate. Raises DataError for weights that are missing, negative or all
    zero in the training rows, RequestError for a class that the target does not have.
    """
    of_labels = options.by_class is not None and target.task is Task.MULTILABEL
    shape, dtype = ((target.outputs,), np.float32) if of_labels else ((), np.float64)
    whole = storage.array(len(goal), shape, dtype)
    for start, end in row_blocks(len(goal)):
        whole.write(start, np.ones((end - start, *shape), dtype))
    weights = whole.values
    if options.column is not None and column is not None:
        of_rows = _of_column(options.column, column)
        _multiply(weights, (block[:, None] for block in of_rows) if of_labels else of_rows)
    if options.by_class is not None and of_labels:
        _multiply(weights, _of_labels(options.by_class, target, goal, parts[0]))
    elif options.by_class is not None:
        by_class = _by_class(options.by_class, target, goal, parts[0])
        _multiply(weights, (by_class[target.encode(block)] for block in goal.blocks(BLOCK_ROWS)))
    train = parts[0]
    numbers = len(train) * math.prod(shape)
    mean = (
        sum(float(weights[train[start:end]].sum(dtype=np.float64)) for start, end in row_blocks(len(train))) / numbers
    )
    if not mean > 0:
        hint = "Give at least one training row a weight above 0."
        raise DataError(f"the weights of all {len(train)} training rows are 0", hint=hint)
    return [_divided(gathered(weights, part, storage), mean) for part in parts]


def _multiply(weights: Weights, blocks: Iterable[Weights]) -> None:
    start = 0
    for block in blocks:
        weights[start : start + len(block)] *= block
        start += len(block)


def _divided(weights: Weights, divisor: float) -> Weights:
    for start, end in row_blocks(len(weights)):
        weights[start:end] /= divisor
    return weights


def _of_column(name: str, rows: ColumnRows) -> Iterator[Weights]:
    check_weight_kind(f'"{name}"', rows.kind, f"is of kind {rows.kind}")
    wrong = 0
    for block in rows.blocks(BLOCK_ROWS):
        values = block.numbers()
        wrong += int((~np.isfinite(values) | (values < 0)).sum())
        yield values
    if wrong:
        raise DataError(
            f'weight: column "{name}" is NULL, negative or not finite in {wrong} rows with a target',
            hint="Set it to a number of 0 or more in each row; a row of weight 0 is not learned from.",
        )


def _by_class(by_class: str | Mapping[str, float], target: TargetEncoding, goal: ColumnRows, train: Rows) -> Weights:
    """Return the weight of each class."""
    if target.task is not Task.CLASSIFICATION:
        hint = 'Leave it out, or give a "weight" column.'
        raise RequestError("class_weight is for classification and multilabel only", hint=hint)
    if not isinstance(by_class, str):
        check_weighted_classes(dict(by_class), f'target "{target.name}"', target.names)
        return np.array([float(by_class.get(name, 1.0)) for name in target.names])
    counts = np.zeros(target.outputs, np.int64)
    for start, end in row_blocks(len(train)):
        classes = target.encode(goal.data.take(goal.rows[train[start:end]]))
        counts += np.bincount(classes, minlength=target.outputs)
    return len(train) / (target.outputs * np.maximum(counts, 1))


def _of_labels(
    by_class: str | Mapping[str, float], target: TargetEncoding, goal: ColumnRows, train: Rows
) -> Iterator[Weights]:
    """Yield the weights of rows with and without each label.

    "balanced" lets the rows with a label and those without it count the same; a label that all training rows have, or
    none, is not weighed. Weights by name are those of the rows that have the label.
    """
    with_label, without = np.ones(target.outputs, np.float32), np.ones(target.outputs, np.float32)
    if isinstance(by_class, str):
        occurring = np.zeros(target.outputs)
        for start, end in row_blocks(len(train)):
            occurring += target.encode(goal.data.take(goal.rows[train[start:end]])).sum(axis=0, dtype=np.float64)
        varied = (occurring > 0) & (occurring < len(train))
        with_label[varied] = len(train) / (2 * occurring[varied])
        without[varied] = len(train) / (2 * (len(train) - occurring[varied]))
    else:
        check_weighted_classes(dict(by_class), f'target "{target.name}"', target.names)
        with_label[:] = [by_class.get(name, 1.0) for name in target.names]
    for block in goal.blocks(BLOCK_ROWS):
        yield np.where(target.encode(block) > 0, with_label, without)
