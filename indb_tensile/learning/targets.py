"""The column to predict: labels as class numbers, or a standardised value, and back."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, RequestError
from indb_tensile.job import Task
from indb_tensile.learning.columns import ColumnData, Kind, Mask, Rows
from indb_tensile.learning.encoders import LARGEST

Label = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a model's output means. `labels` (sorted) for classification; `mean` and `scale` for regression."""

    name: str
    task: Task
    kind: Kind
    labels: tuple[Label, ...] = ()
    mean: float = 0.0
    scale: float = 1.0

    @property
    def outputs(self) -> int:
        """How many numbers the network gives: one per class, or one."""
        return len(self.labels) if self.task is Task.CLASSIFICATION else 1

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The labels as SQL shows them."""
        return tuple(label_text(label) for label in self.labels)

    @cached_property
    def numbers(self) -> tuple[float, ...] | None:
        """The labels as numbers (true is 1), None for texts."""
        return None if self.kind is Kind.TEXT else tuple(float(label) for label in self.labels)

    def encode(self, data: ColumnData) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
        """Class numbers (rows,) or standardised values (rows, 1). Raises DataError for a label never trained on."""
        numeric = (Kind.INTEGER, Kind.FLOAT)
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
        """Regression outputs or encoded values (rows, 1) in the target's own unit (rows,)."""
        return outputs.reshape(-1).astype(np.float64) * self.scale + self.mean

    def _codes(self, data: ColumnData) -> npt.NDArray[np.int64]:
        """The class of each row, -1 where its label is not known."""
        if data.kind is not self.kind or self.kind is Kind.TEXT:
            return np.fromiter((self._place(value) for value in data.values.tolist()), np.int64, len(data.values))
        labels = np.array(self.labels)
        codes = np.minimum(np.searchsorted(labels, data.values), len(labels) - 1)
        return np.where(labels[codes] == data.values, codes, -1)

    def _place(self, value: Label) -> int:
        place = self._places.get(value, -1)
        # A char(n) arrives padded in JSON and bare in COPY, where it is cast.
        return self._places.get(value.rstrip(" "), -1) if place < 0 and isinstance(value, str) else place

    @cached_property
    def _places(self) -> dict[Label, int]:
        return {label: place for place, label in enumerate(self.labels)}


def label_text(label: Label) -> str:
    """A label as PostgreSQL's text output writes it."""
    if isinstance(label, bool):
        return "true" if label else "false"
    if isinstance(label, float) and label.is_integer() and abs(label) < 1e15:
        return str(int(label))
    return str(label)


def labeled(name: str, data: ColumnData) -> Rows:
    """The rows whose target is known; the others cannot be learned from.

    Raises DataError for no rows at all, for a target that is always NULL, and for one that is not finite.
    """
    if not len(data.missing):
        raise DataError("the table has no rows", hint="Insert rows, commit, and call tensile_train again.")
    if data.missing.all():
        hint = "Fill it, or name another column with target => '...'."
        raise DataError(f'target "{name}" is NULL in all {len(data.missing)} rows', hint=hint)
    if data.kind is Kind.FLOAT:
        _require_finite(name, ~data.missing & ~np.isfinite(data.values))
    return np.flatnonzero(~data.missing)


def fit_target(name: str, task: Task, data: ColumnData, train: Rows) -> Target:
    """`data` holds the labelled rows, `train` says which of them train. Labels are taken from all of them.

    Raises DataError where there is nothing to tell apart, RequestError where the type does not suit the task.
    """
    if task is Task.REGRESSION:
        return _fit_value(name, data, train)
    return _fit_classes(name, data, train)


def _fit_classes(name: str, data: ColumnData, train: Rows) -> Target:
    if data.kind in (Kind.ARRAY, Kind.DATE, Kind.TIME):
        hint = "Name a text, boolean or numeric column with target => '...'."
        raise RequestError(f'target "{name}" is of kind {data.kind}, which has no classes', hint=hint)
    labels, counts = _distinct(data)
    if len(labels) == 1:
        raise DataError(
            f'target "{name}" has the single class {label_text(labels[0])} in all {len(data.values)} rows',
            hint="Classification needs two classes or more: add rows of another one, or name another target.",
        )
    if max(counts) == 1 and len(labels) > 2:
        hint = "Use task => 'regression' for a number, or name a target whose values repeat."
        raise DataError(f'target "{name}" has a class of its own in each of the {len(labels)} rows', hint=hint)
    learned = data.values[train]
    if (learned == learned[0]).all():
        hint = "Add rows, or change the split's seed, as in split => '{\"seed\": 1}'."
        raise DataError(f'target "{name}" has a single class in the {len(train)} training rows', hint=hint)
    return Target(name=name, task=Task.CLASSIFICATION, kind=data.kind, labels=tuple(labels))


def _distinct(data: ColumnData) -> tuple[list[Label], list[int]]:
    """The values in their order, and how often each occurs."""
    if data.kind is Kind.TEXT:  # numpy would sort the rows, and compare texts one by one
        found = Counter(data.values.tolist())
        return sorted(found), [found[label] for label in sorted(found)]
    values, counts = np.unique(data.values, return_counts=True)
    return values.tolist(), counts.tolist()


def _fit_value(name: str, data: ColumnData, train: Rows) -> Target:
    if data.kind not in (Kind.INTEGER, Kind.FLOAT):
        hint = "Use task => 'classification', or name a numeric column with target => '...'."
        raise RequestError(f'target "{name}" is of kind {data.kind}, which regression cannot predict', hint=hint)
    known = data.values[train].astype(np.float64)
    if known.min() == known.max():
        hint = "Regression needs values that differ: add rows, or name another target."
        raise DataError(f'target "{name}" is {known[0]:g} in all {len(train)} training rows', hint=hint)
    if np.abs(known).max() > LARGEST:
        hint = "Scale the column in SQL, as in a generated column, and name that one."
        raise DataError(f'target "{name}" reaches {np.abs(known).max():g}, too large to standardise', hint=hint)
    scale = float(known.std()) or 1.0  # values that differ by less than a double's spacing of their squares
    return Target(name=name, task=Task.REGRESSION, kind=data.kind, mean=float(known.mean()), scale=scale)


def _require_finite(name: str, wrong: Mask) -> None:
    if wrong.any():
        raise DataError(
            f'target "{name}", row {int(np.argmax(wrong)) + 1}: the value is not finite',
            detail=f"Rows that hold NaN or infinity there: {int(wrong.sum())}.",
            hint="Delete these rows, or set their target to NULL to leave them out.",
        )
