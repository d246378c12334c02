"""The list of `bench quality` has the tables that were fixed for it, whole and with their kinds of columns."""

import numpy as np
import pytest

from indb_tensile.bench.harness.tables.development_sets import DEVELOPMENT_SETS
from indb_tensile.bench.harness.tables.quality_sets import LARGE_ROWS, QUALITY_SETS, SMALL_SETS, load, missing_package
from indb_tensile.errors import MissingError
from indb_tensile.job import Task
from indb_tensile.learning.storage.columns import ColumnKind

# Rows, features, features of texts, and features with missing values.
SHAPES = {
    "diabetes": (442, 10, 0, 0),
    "auto": (397, 8, 2, 1),
    "college": (777, 17, 1, 0),
    "wage": (3000, 9, 7, 0),
    "planes": (3322, 7, 4, 1),
    "bikeshare": (8645, 12, 2, 0),
    "flights": (20460, 28, 7, 17),
    "penguins": (344, 7, 2, 5),
    "breast_cancer": (569, 30, 0, 0),
    "german": (1000, 20, 13, 0),
    "oj": (1070, 17, 1, 0),
    "mushroom": (5644, 22, 22, 0),
    "fair": (6366, 8, 0, 0),
    "magic": (19020, 10, 0, 0),
    "letter": (20000, 16, 0, 0),
    "rain": (26115, 12, 1, 7),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", QUALITY_SETS)
def test_a_data_set_has_its_rows_and_columns(name: str) -> None:
    package = missing_package(name)
    if package is not None:
        pytest.skip(f"{package} is not installed: it is in the extra `data`")
    quality_set = load(name)
    features = {
        column: data for column, data in quality_set.table.columns.items() if column not in ("id", quality_set.target)
    }
    texts = sum(data.kind is ColumnKind.TEXT for data in features.values())
    gaps = sum(bool(data.missing.any()) for data in features.values())
    assert (quality_set.table.rows, len(features), texts, gaps) == SHAPES[name]
    target = quality_set.table.columns[quality_set.target]
    if quality_set.task is Task.CLASSIFICATION:
        assert 2 <= len(set(target.values[~target.missing].tolist())) <= 26
    else:
        assert np.nanstd(target.numbers()) > 0


def test_the_list_has_large_tables_categories_with_missing_values_and_both_tasks() -> None:
    assert list(SHAPES) == list(QUALITY_SETS)
    assert len(SHAPES) >= 12
    assert sum(rows >= LARGE_ROWS for rows, *_ in SHAPES.values()) >= 6
    assert sum(texts > 0 and gaps > 0 for _, _, texts, gaps in SHAPES.values()) >= 4
    assert {chosen.task for chosen in QUALITY_SETS.values()} == {Task.CLASSIFICATION, Task.REGRESSION}


def test_an_unknown_data_set_is_refused() -> None:
    with pytest.raises(MissingError, match='unknown data set "moon"') as caught:
        load("moon")
    assert "diabetes" in caught.value.hint


def test_defaults_are_chosen_with_other_tables_than_those_that_judge_them() -> None:
    assert not DEVELOPMENT_SETS.keys() & (QUALITY_SETS | SMALL_SETS).keys()
    assert not {"german", "iris", "wine", "wdbc", "penguins"} & DEVELOPMENT_SETS.keys()


@pytest.mark.nightly
@pytest.mark.parametrize("name", DEVELOPMENT_SETS)
def test_a_table_for_choosing_defaults_is_small_and_has_a_target_in_each_row(name: str) -> None:
    if missing_package(name) is not None:
        pytest.skip("its package is not installed: it is in the extra `data`")
    chosen = load(name)
    assert 100 <= chosen.table.rows <= 1000
    target = chosen.table.columns[chosen.target]
    if chosen.task is Task.CLASSIFICATION:
        counts = np.unique(target.values.astype(str), return_counts=True)[1]
        assert not target.missing.any()
        assert len(counts) > 1
    else:
        assert np.nanstd(target.numbers()) > 0
