"""Each sample data set is a table with an id and a target."""

import json
import re

import pytest

from indb_tensile.errors import MissingError
from indb_tensile.learning.relation import datasets


@pytest.mark.parametrize(
    ("name", "count", "width", "target"),
    [
        ("digits", 1797, 3, ("label", "int")),
        ("breast_cancer", 569, 32, ("target", "text")),
        ("diabetes", 442, 12, ("target", "double precision")),
        ("wine", 178, 15, ("target", "text")),
        ("iris", 150, 6, ("target", "text")),
    ],
)
def test_a_data_set_is_a_table_with_an_id_and_a_target(
    name: str, count: int, width: int, target: tuple[str, str]
) -> None:
    columns, rows = datasets.columns(name), list(datasets.rows(name))
    assert columns[0] == ("id", "bigint")
    assert columns[-1] == target == (datasets.target(name), target[1])
    assert len({column for column, _ in columns}) == len(columns) == width
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", column) for column, _ in columns)
    assert [row[0] for row in rows] == list(range(1, count + 1))
    assert {len(row) for row in rows} == {width}
    assert json.loads(json.dumps(rows)) == rows


def test_labels_are_words_except_the_digits() -> None:
    assert {row[-1] for row in datasets.rows("breast_cancer")} == {"malignant", "benign"}
    assert {row[-1] for row in datasets.rows("iris")} == {"setosa", "versicolor", "virginica"}
    first = next(datasets.rows("digits"))
    assert (len(first[1]), len(first[1][0]), first[2]) == (8, 8, 0)


def test_an_unknown_name_is_refused_with_the_known_names() -> None:
    with pytest.raises(MissingError, match='unknown data set "mnist"') as caught:
        datasets.columns("mnist")
    assert caught.value.hint == "Known data sets: digits, breast_cancer, diabetes, wine, iris."
    assert datasets.DATASETS == ("digits", "breast_cancer", "diabetes", "wine", "iris")
