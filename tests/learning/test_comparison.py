"""Tells which versions of a model may be compared on the same rows."""

from dataclasses import replace
from typing import Any

import pytest

from indb_tensile.job import Task
from indb_tensile.learning.encoding.encoders import Numbers
from indb_tensile.learning.encoding.preprocessor import Preprocessor, Recipe
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.models.comparison import why_incomparable
from indb_tensile.learning.storage.columns import ColumnKind

FLOWERS = TargetEncoding(name="y", task=Task.CLASSIFICATION, kind=ColumnKind.TEXT, labels=("a", "b"))


def version(target: TargetEncoding = FLOWERS, features: tuple[str, ...] = ("x",)) -> Preprocessor:
    count = len(features)
    numbers = Numbers(names=features, mean=(0.0,) * count, scale=(1.0,) * count, fill=(0.0,) * count)
    return Preprocessor(
        Recipe(
            format=1, features=features, numbers=numbers, texts=(), times=(), arrays=(), target=target, input_shape=()
        )
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"name": "z"}, 'that version predicts "y", this one "z"'),
        (
            {"task": Task.REGRESSION, "kind": ColumnKind.FLOAT, "labels": ()},
            'that version predicts "y" by classification, this one by regression',
        ),
        ({"labels": ("a", "c", "d")}, "that version knows 2 classes and this one 3, of which 1 are the same"),
        ({"labels": ("a",)}, "that version knows 2 classes and this one 1, of which 1 are the same"),
    ],
)
def test_versions_with_another_target_task_or_set_of_classes_are_not_compared(
    changed: dict[str, Any], reason: str
) -> None:
    assert why_incomparable(version(), version(replace(FLOWERS, **changed)), {"x", "y", "z"}) == reason


def test_regressions_of_the_same_target_are_compared_at_any_scale() -> None:
    old = TargetEncoding(name="y", task=Task.REGRESSION, kind=ColumnKind.INTEGER, mean=1.0)
    new = TargetEncoding(name="y", task=Task.REGRESSION, kind=ColumnKind.FLOAT, mean=3.0, scale=2.0)
    assert why_incomparable(version(old), version(new, ("u",)), {"x", "u"}) == ""


def test_a_version_is_not_compared_on_rows_that_lack_its_columns() -> None:
    reason = why_incomparable(version(features=("x", "u", "v")), version(), {"x", "y"})
    assert reason == 'that version needs columns "u", "v", which this one\'s rows lack'
