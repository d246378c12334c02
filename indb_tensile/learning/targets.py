"""The column to predict: converts labels to class numbers and values to standardised values, and back."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError
from indb_tensile.job import Task
from indb_tensile.learning.columns import ColumnData, ColumnKind, ColumnRows, Mask, Rows
from indb_tensile.learning.moments import FIT_BLOCK_NUMBERS, LARGEST, moments
from indb_tensile.learning.row_storage import MEMORY, RowStorage, positions_where, row_blocks
from indb_tensile.request.task_rules import check_target

Label = bool | int | float | str


class LinkFunction(StrEnum):
    """What a regression's output is: a standardised value, or the logarithm of the value's share of the mean."""

    STANDARD = "standard"
    LOG = "log"


def link_function_of(loss: str | None) -> LinkFunction:
    """Return the link of the loss of this name."""
    return LinkFunction.LOG if loss == "poisson" else LinkFunction.STANDARD


@dataclass(frozen=True, kw_only=True)
class TargetEncoding:
    """The meaning of a model's output.

    `labels` (sorted) are for classification, `mean` and `scale` for regression. With the link `log`, for counts, the
    mean is 0 and the scale is the mean of the training rows: a predicted value is the scale times exp(output), so an
    output of 0 is the mean, whatever the unit of the target.
    """

    name: str
    task: Task
    kind: ColumnKind
    labels: tuple[Label, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    link: LinkFunction = LinkFunction.STANDARD

    @property
    def outputs(self) -> int:
        """Return the number of outputs of the network: one per class, or one."""
        return len(self.labels) if self.task is Task.CLASSIFICATION else 1

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the labels as SQL shows them."""
        return tuple(label_text(label) for label in self.labels)

    @cached_property
    def numbers(self) -> tuple[float, ...] | None:
        """Return the labels as numbers (true is 1), or None for text labels."""
        return None if self.kind is ColumnKind.TEXT else tuple(float(label) for label in self.labels)

    def encode(self, data: ColumnData) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
        """Return class numbers (rows,) or standardised values (rows, 1).

        Raises DataError for a label that the model was not trained on.
        """
        numeric = (ColumnKind.INTEGER, ColumnKind.FLOAT)
        if data.kind is not self.kind and not (data.kind in numeric and self.kind in numeric):
            raise DataError(f'target "{self.name}" is of kind {data.kind}, the model was trained on {self.kind}')
        if self.task is Task.REGRESSION:
            return ((data.numbers() - self.mean) / self.scale).astype(np.float32)[:, None]
        codes = self._codes(data)
        if (codes < 0).any():
            row = int(np.argmax(codes < 0))
            known = ", ".join(self.names[:20])
            label = label_text(data.values.tolist()[row])
            raise DataError(
                f'target "{self.name}", row {row + 1}: the model does not know the label {label}',
                detail=f"It was trained on: {known}.",
            )
        return codes

    def restore(self, outputs: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Convert regression outputs (rows, 1) to the target's own unit (rows,)."""
        if self.link is LinkFunction.STANDARD:
            return self.decode(outputs)
        with np.errstate(over="ignore"):  # of a network that diverged
            return np.exp(outputs.reshape(-1).astype(np.float64)) * self.scale

    def decode(self, encoded: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Convert encoded values (rows, 1) of a regression to the target's own unit (rows,)."""
        return encoded.reshape(-1).astype(np.float64) * self.scale + self.mean

    def constant_output(self, encoded_mean: float) -> float:
        """Return the output of a regression that predicts the value whose encoded form is `encoded_mean`."""
        return encoded_mean if self.link is LinkFunction.STANDARD else float(np.log(encoded_mean))

    def _codes(self, data: ColumnData) -> npt.NDArray[np.int64]:
        """Return the class number of each row, -1 for unknown labels."""
        if data.kind is not self.kind or self.kind is ColumnKind.TEXT:
            return np.fromiter(
                (self._class_number(value) for value in data.values.tolist()), np.int64, len(data.values)
            )
        labels = np.array(self.labels)
        codes = np.minimum(np.searchsorted(labels, data.values), len(labels) - 1)
        return np.where(labels[codes] == data.values, codes, -1)

    def _class_number(self, value: Label) -> int:
        class_number = self._class_numbers.get(value, -1)
        # JSON pads a char(n) with blanks. COPY's decoder (binaryvalues.py) strips the blanks.
        return (
            self._class_numbers.get(value.rstrip(" "), -1)
            if class_number < 0 and isinstance(value, str)
            else class_number
        )

    @cached_property
    def _class_numbers(self) -> dict[Label, int]:
        return {label: class_number for class_number, label in enumerate(self.labels)}


def label_text(label: Label) -> str:
    """Return a label as PostgreSQL's text output writes it."""
    if isinstance(label, bool):
        return "true" if label else "false"
    if isinstance(label, float) and label.is_integer() and abs(label) < 1e15:
        return str(int(label))
    return str(label)


def labeled(name: str, data: ColumnData, storage: RowStorage = MEMORY) -> Rows:
    """Return the positions of the rows whose target is not NULL, in `storage`. A model cannot learn from other rows.

    Raises DataError if there are no rows, if the target is always NULL, and if a target is not finite.
    """
    if not len(data.missing):
        raise DataError("the table has no rows", hint="Insert rows, commit, and call tensile_train again.")
    if data.missing.all():
        hint = "Fill it, or name another column with target => '...'."
        raise DataError(f'target "{name}" is NULL in all {len(data.missing)} rows', hint=hint)
    if data.kind is ColumnKind.FLOAT:
        _require_finite(name, ~data.missing & ~np.isfinite(data.values))
    return positions_where(~data.missing, storage)


def fit_target(
    name: str, task: Task, data: ColumnData, train: Rows, link: LinkFunction = LinkFunction.STANDARD
) -> TargetEncoding:
    """Fit the target's encoding. `data` contains the labelled rows, `train` the positions of training rows.

    Labels are collected from all labelled rows. Raises DataError if the training rows have one value only, and for
    negative values if the link is `log`; RequestError if the type does not suit the task.
    """
    check_target(task, f'"{name}"', data.kind, f"is of kind {data.kind}")
    if task is Task.REGRESSION:
        return _fit_value(name, data, train, link)
    return _fit_classes(name, data, train)


def _fit_classes(name: str, data: ColumnData, train: Rows) -> TargetEncoding:
    """Fit the classes of a target. Raises DataError if there is one class, or one class per row."""
    labels, counts = _distinct(data)
    if len(labels) == 1:
        raise DataError(
            f'target "{name}" has the single class {label_text(labels[0])} in all {len(data.values)} rows',
            hint="Classification needs two classes or more: add rows of another one, or name another target.",
        )
    if max(counts) == 1 and len(labels) > 2:
        hint = "Use task => 'regression' for a number, or name a target whose values repeat."
        raise DataError(f'target "{name}" has a class of its own in each of the {len(labels)} rows', hint=hint)
    first = data.values[train[0]]
    if all((block.values == first).all() for block in ColumnRows(data, train).blocks(FIT_BLOCK_NUMBERS)):
        hint = "Add rows, or change the split's seed, as in split => '{\"seed\": 1}'."
        raise DataError(f'target "{name}" has a single class in the {len(train)} training rows', hint=hint)
    return TargetEncoding(name=name, task=Task.CLASSIFICATION, kind=data.kind, labels=tuple(labels))


def _distinct(data: ColumnData) -> tuple[list[Label], list[int]]:
    """Return the distinct values in their order, and the number of rows of each."""
    row_counts: Counter[Label] = Counter()
    for start, end in row_blocks(len(data.values)):
        values = data.values[start:end]
        if data.kind is ColumnKind.TEXT:  # np.unique would sort the rows, comparing texts one by one
            row_counts.update(values.tolist())
        else:
            distinct, counts = np.unique(values, return_counts=True)
            row_counts.update(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
    labels = sorted(row_counts)
    return labels, [row_counts[label] for label in labels]


def _fit_value(name: str, data: ColumnData, train: Rows, link: LinkFunction) -> TargetEncoding:
    if link is LinkFunction.LOG:
        _require_counts(name, data)
    learned = ColumnRows(data, train)
    bounds = [(block.values.min(), block.values.max()) for block in learned.blocks(FIT_BLOCK_NUMBERS)]
    low, high = float(min(least for least, _ in bounds)), float(max(most for _, most in bounds))
    if low == high:
        hint = "Regression needs values that differ: add rows, or name another target."
        raise DataError(f'target "{name}" is {low:g} in all {len(train)} training rows', hint=hint)
    if max(-low, high) > LARGEST:
        hint = "Scale the column in SQL, as in a generated column, and name that one."
        raise DataError(f'target "{name}" reaches {max(-low, high):g}, too large to standardise', hint=hint)
    mean, scale = _value_moments(learned)
    if link is LinkFunction.LOG:
        mean, scale = 0.0, mean
    return TargetEncoding(name=name, task=Task.REGRESSION, kind=data.kind, mean=mean, scale=scale, link=link)


def _value_moments(learned: ColumnRows) -> tuple[float, float]:
    """Return the mean and the standard deviation; 1 for the deviation of nearly equal values, which may be zero."""
    if len(learned) <= FIT_BLOCK_NUMBERS:
        values = learned.data.values[learned.rows].astype(np.float64)
        return float(values.mean()), float(values.std()) or 1.0
    means, scales = moments((block.numbers()[:, None] for block in learned.blocks(FIT_BLOCK_NUMBERS)), ["target"])
    return float(means[0]), float(scales[0])


def _require_counts(name: str, data: ColumnData) -> None:
    """Refuse negative values, in any part of the split."""
    every = row_blocks(len(data.values))
    negative = sum(int((data.values[start:end] < 0).sum()) for start, end in every)
    if negative:
        raise DataError(
            f'target "{name}" is negative in {negative} of {len(data.values)} rows, and loss poisson predicts counts',
            hint='Set these targets to NULL to leave the rows out, or choose another loss: "huber", "mae" or "mse".',
        )


def _require_finite(name: str, wrong: Mask) -> None:
    if wrong.any():
        raise DataError(
            f'target "{name}", row {int(np.argmax(wrong)) + 1}: the value is not finite',
            detail=f"Rows that hold NaN or infinity there: {int(wrong.sum())}.",
            hint="Delete these rows, or set their target to NULL to leave them out.",
        )
