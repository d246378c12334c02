"""The target: labels become class numbers, sets of labels memberships, values standardised values, and back."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError
from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.encoding.anomaly_scale import ERRORS_OF_PART, AnomalyScale
from indb_tensile.learning.encoding.forecast_encoding import QUANTILES, ForecastValues
from indb_tensile.learning.encoding.pair_encoding import PairEncoding
from indb_tensile.learning.encoding.target_columns import combined, require_columns
from indb_tensile.learning.encoding.target_vectors import finite_rows, fit_labels, fit_values, negative_rows
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, ColumnRows, Mask, Rows
from indb_tensile.learning.storage.moments import FIT_BLOCK_NUMBERS, LARGEST, moments
from indb_tensile.learning.storage.row_storage import MEMORY, RowStorage, positions_where, row_blocks
from indb_tensile.request.split_rules import more_classes_hint
from indb_tensile.request.task_rules import check_target

Label = bool | int | float | str
CONTAMINATION = 0.01  # the default share of the rows that are anomalies


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

    A regression that predicts several values has `means` and `scales` instead, and the names of the values in
    `values`: columns, or the positions in an array. `columns` are the columns that were combined
    (target_columns.py); it is empty for a target of one column. A multi-label task has a membership for each label.
    A forecast has packed targets (windows.py), whose meaning is in `forecast`. Anomalies have the errors of
    reconstructed columns as outputs, whose meaning is in `anomaly`, and labels of which true is an anomaly; without a
    column of labels the name is empty. Pairs have the vectors of their queries and items as outputs (`pair`), and
    the numbers of their items as targets.
    """

    name: str
    task: Task
    kind: ColumnKind
    labels: tuple[Label, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    link: LinkFunction = LinkFunction.STANDARD
    values: tuple[str, ...] = ()
    means: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    columns: tuple[str, ...] = ()
    forecast: ForecastValues | None = None
    anomaly: AnomalyScale | None = None
    pair: PairEncoding | None = None

    @property
    def outputs(self) -> int:
        """Return the number of outputs of the network: one per class, label or value."""
        if self.forecast is not None:
            return QUANTILES * self.forecast.count
        if self.anomaly is not None:
            return ERRORS_OF_PART * len(self.anomaly.parts)
        if self.pair is not None:
            return 2 * self.pair.width
        return max(len(self.values), 1) if self.task is Task.REGRESSION else len(self.labels)

    @property
    def source_columns(self) -> tuple[str, ...]:
        """Return the columns of the table that the target is made from."""
        if self.pair is not None:
            return self.pair.items
        return self.columns or ((self.name,) if self.name else ())

    @property
    def column(self) -> str:
        """Return the column that `encode` takes: that of pairs has the numbers of items, and no name."""
        return self.name if self.pair is None else ""

    @property
    def elements(self) -> tuple[str, ...]:
        """Return the names of the array's elements, for a target that is an array of one shape; else nothing."""
        return self.values or (self.names if self.kind is ColumnKind.ARRAY else ())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the labels as SQL shows them."""
        return tuple(label_text(label) for label in self.labels)

    @cached_property
    def numbers(self) -> tuple[float, ...] | None:
        """Return the labels as numbers (true is 1), or None for text labels and for sets of labels."""
        texts = self.kind is ColumnKind.TEXT or self.task is Task.MULTILABEL
        return None if texts else tuple(float(label) for label in self.labels)

    def encode(self, data: ColumnData) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
        """Return class numbers (rows,), standardised values (rows, values), or memberships 0 and 1 (rows, labels).

        Raises DataError for a label that the model was not trained on.
        """
        numeric = (ColumnKind.INTEGER, ColumnKind.FLOAT)
        if data.kind is not self.kind and not (data.kind in numeric and self.kind in numeric):
            raise DataError(f'target "{self.name}" is of kind {data.kind}, the model was trained on {self.kind}')
        if self.elements and len(data.missing) and data.shape != (len(self.elements),):
            shown = f"of shape {list(data.shape)}, the model was trained on {len(self.elements)} elements"
            raise DataError(f'target "{self.name}" is {shown}')
        if self.forecast is not None:
            packed: npt.NDArray[np.float32] = data.values.astype(np.float32)
            return packed
        if self.anomaly is not None:
            return self._known_labels(data)
        if self.pair is not None:
            return data.values.astype(np.int64)
        if self.values:
            return ((data.numbers().reshape(-1, self.outputs) - self._means) / self._scales).astype(np.float32)
        if self.task is Task.REGRESSION:
            return ((data.numbers() - self.mean) / self.scale).astype(np.float32)[:, None]
        if self.task is Task.MULTILABEL:
            return self._memberships(data)
        codes = self._codes(data)
        if (codes < 0).any():
            row = int(np.argmax(codes < 0))
            raise self._unknown_label(row, label_text(data.values.tolist()[row]))
        return codes

    def column_of_rows(self, rows: Sequence[Mapping[str, Any]]) -> ColumnData:
        """Return the target of rows from SQL, which are objects. Raises MissingError if a row has none."""
        if not self.source_columns:
            return unlabeled(len(rows))
        require_columns(rows, self.source_columns)
        if not self.columns:
            return column_of(self.name, self.kind, [row[self.name] for row in rows])
        kind = ColumnKind.BOOLEAN if self.task is Task.MULTILABEL else ColumnKind.FLOAT
        parts = {name: column_of(name, kind, [row[name] for row in rows]) for name in self.columns}
        return combined(parts, self.columns, self.task)

    def restore(self, outputs: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Convert regression outputs to the target's own unit: (rows, 1) to (rows,), or several values a row.

        The value of a pair is the similarity of its query and its item.
        """
        if self.pair is not None:
            return self.pair.similarities(outputs)
        if self.link is LinkFunction.STANDARD:
            return self.decode(outputs)
        with np.errstate(over="ignore"):  # of a network that diverged
            if self.values:
                return np.exp(outputs.astype(np.float64)) * self._scales
            return np.exp(outputs.reshape(-1).astype(np.float64)) * self.scale

    def decode(self, encoded: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Convert encoded values of a regression to the target's own unit, in the shapes of `restore`."""
        if self.values:
            return encoded.astype(np.float64) * self._scales + self._means
        return encoded.reshape(-1).astype(np.float64) * self.scale + self.mean

    def constant_output(self, encoded_mean: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the outputs of a regression that predicts the values whose encoded form is `encoded_mean`."""
        mean = np.asarray(encoded_mean, np.float64)
        if self.link is LinkFunction.STANDARD:
            return mean
        return np.log(np.maximum(mean, np.finfo(np.float64).tiny))  # a value may be 0 in all training rows

    @cached_property
    def _means(self) -> npt.NDArray[np.float64]:
        return np.array(self.means)

    @cached_property
    def _scales(self) -> npt.NDArray[np.float64]:
        return np.array(self.scales)

    def _known_labels(self, data: ColumnData) -> npt.NDArray[np.float32]:
        """Return 1 for an anomaly, 0 for another row, and -1 for a row whose label is not known: (rows, 1)."""
        codes = np.where(data.missing, -1.0, data.numbers()).astype(np.float32)
        strange = np.flatnonzero(~np.isin(codes, (-1.0, 0.0, 1.0)) | (~data.missing & (codes < 0)))
        if len(strange):
            value = label_text(data.values.tolist()[strange[0]])
            raise DataError(
                f'target "{self.name}" is {value} in row {int(strange[0]) + 1}, and labels of anomalies are 0 and 1',
                hint="Name a boolean column, or one of 0 and 1 in which 1 is an anomaly.",
            )
        return codes[:, None]

    def _memberships(self, data: ColumnData) -> npt.NDArray[np.float32]:
        """Return 1 for each label of a row, else 0."""
        if self.kind is ColumnKind.ARRAY:
            return data.values.reshape(len(data.missing), -1).astype(np.float32)
        whole = np.zeros((len(data.missing), len(self.labels)), np.float32)
        for row, (labels, is_missing) in enumerate(zip(data.values, data.missing, strict=True)):
            for label in () if is_missing else labels:
                place = self._class_number(label)
                if place < 0:
                    raise self._unknown_label(row, label)
                whole[row, place] = 1.0
        return whole

    def _unknown_label(self, row: int, label: str) -> DataError:
        return DataError(
            f'target "{self.name}", row {row + 1}: the model does not know the label {label}',
            detail=f"It was trained on: {', '.join(self.names[:20])}.",
        )

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


def unlabeled(rows: int) -> ColumnData:
    """Return a column of labels of which none is known."""
    return ColumnData(kind=ColumnKind.BOOLEAN, values=np.zeros(rows, np.bool_), missing=np.ones(rows, np.bool_))


def anomaly_target(name: str, data: ColumnData, contamination: float | None) -> TargetEncoding:
    """Return the target of anomalies before the columns of a row are known. `data` are the labels.

    Raises RequestError for labels of another kind.
    """
    check_target(Task.ANOMALY, f'"{name}"', data.kind.value, f"is of kind {data.kind}")
    scale = AnomalyScale(parts=(), contamination=CONTAMINATION if contamination is None else contamination)
    return TargetEncoding(name=name, task=Task.ANOMALY, kind=data.kind, labels=(False, True), anomaly=scale)


def pair_target(name: str, items: tuple[str, ...]) -> TargetEncoding:
    """Return the target of pairs, whose items these columns describe, before a row is encoded."""
    return TargetEncoding(name=name, task=Task.PAIRS, kind=ColumnKind.INTEGER, pair=PairEncoding(items=items))


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
    if data.kind in (ColumnKind.FLOAT, ColumnKind.ARRAY):
        _require_finite(name, ~data.missing & ~finite_rows(data))
    return positions_where(~data.missing, storage)


def fit_target(
    name: str,
    task: Task,
    data: ColumnData,
    train: Rows,
    link: LinkFunction = LinkFunction.STANDARD,
    columns: tuple[str, ...] = (),
    split: Mapping[str, Any] | None = None,
) -> TargetEncoding:
    """Fit the target's encoding. `data` contains the labelled rows, `train` the positions of training rows.

    `columns` are the columns that were combined to this one, `split` the request's options, for hints. Labels are
    collected from all labelled rows. Raises DataError if the training rows have one value only, and for negative
    values if the link is `log`; RequestError if the type does not suit the task.
    """
    check_target(task, f'"{name}"', _kind_for_task(data), f"is of kind {data.kind}")
    if link is LinkFunction.LOG:
        _require_counts(name, data)
    more_classes = more_classes_hint(dict(split or {}), name, data.kind)
    if task is Task.MULTILABEL:
        labels = fit_labels(name, data, train, columns, more_classes)
        return TargetEncoding(name=name, task=task, kind=data.kind, labels=labels, columns=columns)
    if data.kind is ColumnKind.ARRAY:
        means, scales = fit_values(name, data, train, columns)
        if link is LinkFunction.LOG:
            means, scales = (0.0,) * len(means), tuple(mean or 1.0 for mean in means)
        values = columns or tuple(str(place) for place in range(1, len(means) + 1))
        return TargetEncoding(
            name=name,
            task=task,
            kind=data.kind,
            link=link,
            values=values,
            means=means,
            scales=scales,
            columns=columns,
        )
    if task is Task.REGRESSION:
        return _fit_value(name, data, train, link)
    return _fit_classes(name, data, train, more_classes)


def _kind_for_task(data: ColumnData) -> str:
    """Return the kind by which a task accepts the target: an array of booleans is one of flags."""
    return "flags" if data.kind is ColumnKind.ARRAY and data.values.dtype == np.bool_ else data.kind.value


def _fit_classes(name: str, data: ColumnData, train: Rows, more_classes: str) -> TargetEncoding:
    """Fit the classes of a target. Raises DataError if there is one class, or one class per row.

    `more_classes` is the hint if the training rows have one class, and other rows have others.
    """
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
        raise DataError(f'target "{name}" has a single class in the {len(train)} training rows', hint=more_classes)
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
    negative = negative_rows(data)
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
