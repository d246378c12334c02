"""The target column is encoded for classification or regression, and an unsuitable one is refused."""

from typing import Any

import numpy as np
import pytest

from indb_tensile.errors import DataError, RequestError
from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.encoding.targets import LinkFunction, TargetEncoding, fit_target, label_text, labeled
from indb_tensile.learning.storage.columns import ColumnKind


def fitted(
    kind: ColumnKind, values: list[Any], task: Task = Task.CLASSIFICATION, train: list[int] | None = None
) -> TargetEncoding:
    data = column_of("y", kind, values)
    return fit_target("y", task, data, np.array(range(len(values)) if train is None else train))


def test_labels_are_sorted_and_have_a_number_if_their_type_is_numeric() -> None:
    words = fitted(ColumnKind.TEXT, ["b", "a", "b"])
    assert (words.labels, words.names, words.numbers, words.outputs) == (("a", "b"), ("a", "b"), None, 2)
    flags = fitted(ColumnKind.BOOLEAN, [True, False, True])
    assert (flags.labels, flags.names, flags.numbers) == ((False, True), ("false", "true"), (0.0, 1.0))
    numbers = fitted(ColumnKind.INTEGER, [10, 9, 9])
    assert (numbers.labels, numbers.names, numbers.numbers) == ((9, 10), ("9", "10"), (9.0, 10.0))
    assert fitted(ColumnKind.FLOAT, [0.5, 1.0, 1.0]).names == ("0.5", "1")


def test_labels_are_encoded_as_their_positions() -> None:
    target = fitted(ColumnKind.TEXT, ["b", "a", "c", "a"])
    assert target.encode(column_of("y", ColumnKind.TEXT, ["c", "a"])).tolist() == [2, 0]
    with pytest.raises(DataError, match='target "y", row 2: the model does not know the label d'):
        target.encode(column_of("y", ColumnKind.TEXT, ["c", "d"]))


def test_values_are_standardised_by_the_training_rows_and_decoded_again() -> None:
    target = fitted(ColumnKind.INTEGER, [1, 3, 1000], Task.REGRESSION, train=[0, 1])
    encoded = target.encode(column_of("y", ColumnKind.INTEGER, [1, 3, 1000]))
    assert encoded.tolist() == [[-1], [1], [998]]
    assert target.restore(encoded).tolist() == [1, 3, 1000]
    assert target.outputs == 1


def test_counts_are_shares_of_their_mean_and_outputs_are_logarithms_of_them() -> None:
    data = column_of("y", ColumnKind.INTEGER, [0, 4, 8, 100])
    target = fit_target("y", Task.REGRESSION, data, np.array([0, 1, 2]), LinkFunction.LOG)
    assert (target.mean, target.scale) == (0.0, 4.0)
    encoded = target.encode(data)
    assert encoded.tolist() == [[0], [1], [2], [25]]
    assert target.decode(encoded).tolist() == [0, 4, 8, 100]
    assert target.restore(np.array([[0.0], [np.log(2)], [-np.inf], [1e9]])).tolist() == [
        4,
        pytest.approx(8),
        0,
        np.inf,
    ]
    assert target.restore(np.array([[target.constant_output(25.0)]])).tolist() == [pytest.approx(100)]


def test_negative_counts_are_refused_with_their_number() -> None:
    data = column_of("y", ColumnKind.FLOAT, [0.0, 1.0, -2.0, -0.5])
    with pytest.raises(DataError, match="is negative in 2 of 4 rows, and loss poisson") as caught:
        fit_target("y", Task.REGRESSION, data, np.array([0, 1]), LinkFunction.LOG)
    assert "NULL" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "values", "task", "fault"),
    [
        (ColumnKind.TEXT, ["a", "a"], Task.CLASSIFICATION, "single class a in all 2 rows"),
        (ColumnKind.INTEGER, [1, 2, 3, 4], Task.CLASSIFICATION, "a class of its own in each of the 4 rows"),
        (ColumnKind.INTEGER, [5, 5, 5], Task.REGRESSION, "is 5 in all 3 training rows"),
        (ColumnKind.FLOAT, [1e300, -1e300], Task.REGRESSION, "too large to standardise"),
    ],
)
def test_a_target_without_information_is_refused(kind: ColumnKind, values: list[Any], task: Task, fault: str) -> None:
    with pytest.raises(DataError, match=fault) as caught:
        fitted(kind, values, task)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("kind", "values", "split", "hint"),
    [
        (
            ColumnKind.TEXT,
            ["a", "a", "b"],
            {"seed": 3},
            'Add rows; or give each part the same shares of the classes, split => \'{"seed": 3, "stratify": "y"}\'; '
            "or change the seed, split => '{\"seed\": 4}'.",
        ),
        (ColumnKind.FLOAT, [1.0, 1.0, 2.0], {}, "Add rows; or change the seed, split => '{\"seed\": 1}'."),
        (ColumnKind.TEXT, ["a", "a", "b"], {"stratify": "y"}, "Add rows of the other classes."),
        (
            ColumnKind.TEXT,
            ["a", "a", "b"],
            {"last": 0.2, "by": "t"},
            "Add rows of another class to the training part, or divide the rows in another way with split.",
        ),
    ],
)
def test_training_rows_of_one_class_are_refused_with_what_brings_another_one(
    kind: ColumnKind, values: list[Any], split: dict[str, Any], hint: str
) -> None:
    data = column_of("y", kind, values)
    with pytest.raises(DataError, match="single class in the 2 training rows") as caught:
        fit_target("y", Task.CLASSIFICATION, data, np.array([0, 1]), split=split)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("kind", "value", "task"),
    [
        (ColumnKind.TEXT, "a", Task.REGRESSION),
        (ColumnKind.TIME, "2020-01-01", Task.CLASSIFICATION),
        (ColumnKind.ARRAY, [1.0], Task.CLASSIFICATION),
    ],
)
def test_a_kind_that_does_not_suit_the_task_is_refused(kind: ColumnKind, value: Any, task: Task) -> None:
    with pytest.raises(RequestError, match=f'target "y" is of kind {kind}'):
        fitted(kind, [value, value], task)


def test_rows_without_a_target_are_left_out() -> None:
    assert labeled("y", column_of("y", ColumnKind.FLOAT, [1, None, 2])).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ([], "the table has no rows"),
        ([None, None], 'target "y" is NULL in all 2 rows'),
        ([1.0, None, float("inf"), float("nan")], 'target "y", row 3: the value is not finite'),
    ],
)
def test_a_missing_or_infinite_target_is_refused(values: list[Any], fault: str) -> None:
    with pytest.raises(DataError, match=fault) as caught:
        labeled("y", column_of("y", ColumnKind.FLOAT, values))
    assert caught.value.hint


def test_labels_are_printed_as_postgresql_prints_them() -> None:
    assert [label_text(label) for label in (True, 3, 3.0, 2.5, "x")] == ["true", "3", "3", "2.5", "x"]
