"""Check the bins of inputs: how training rows are divided, and that other rows are counted by the same bins."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import DatabaseError
from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.encoding.row_columns import columns_of_rows
from indb_tensile.learning.evaluation.input_bins import (
    BINS_FIGURE,
    COUNTS_FIGURE,
    InputBins,
    InputCounter,
    Measure,
    input_figures,
    read_bins,
)
from indb_tensile.learning.storage.coded_texts import CodedTexts, TextCodes
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, TableData
from indb_tensile.learning.training.preparation import assemble

from .tables import spec, table

DESCRIBED = [
    ("id", "int"),
    ("age", "double precision"),
    ("member", "boolean"),
    ("city", "text"),
    ("seen", "timestamp"),
    ("numbers", "real[]"),
    ("y", "double precision"),
]
FEATURES = [name for name, _ in DESCRIBED[1:-1]]


def customer(n: int) -> tuple[Any, ...]:
    """Return a row; of every 25 ages and of every 50 cities one is missing."""
    city = None if n % 50 == 9 else ["Bern", "Oslo", "Rome", f"village {n}", f"hamlet {n}"][n % 5]
    seen = f"2026-01-{n % 28 + 1:02}T00:00:00"
    return n, None if n % 25 == 7 else float(n), n % 3 == 0, city, seen, [1.0, 2.0], float(n)


def customers(rows: int = 100) -> TableData:
    return table(DESCRIBED, map(customer, range(rows)))


@pytest.fixture(scope="module")
def preprocessor() -> Preprocessor:
    return assemble(customers(), spec("y", Task.REGRESSION)).preprocessor


def figures_of(data: TableData, preprocessor: Preprocessor) -> dict[str, dict[str, Any]]:
    return input_figures(data.columns, preprocessor, np.arange(data.rows))


def test_training_rows_are_counted_in_bins_of_each_column(preprocessor: Preprocessor) -> None:
    figures = figures_of(customers(), preprocessor)

    assert figures[COUNTS_FIGURE] == {
        "format": 1,
        "rows": 100,
        "inputs": [
            {"feature": "age", "measure": "number", "counts": [24, 24, 24, 24, 4]},
            {"feature": "member", "measure": "boolean", "counts": [66, 34, 0]},
            {"feature": "city", "measure": "category", "counts": [20, 20, 20, 38, 2]},
            {"feature": "seen", "measure": "time", "counts": [20, 20, 20, 22, 18, 0]},
            {"feature": "numbers", "reason": "columns of arrays are not measured"},
        ],
    }
    bounds = [(entry["ends"], entry["categories"]) for entry in figures[BINS_FIGURE]["inputs"]]
    assert bounds[:3] == [(["24", "49", "74"], []), ([], []), ([], ["Bern", "Oslo", "Rome"])]
    days = [f"2026-01-{day:02} 00:00:00" for day in (5, 10, 15, 22)]
    assert bounds[3:] == [(days, [])]


def test_training_stores_the_figures_of_its_training_rows_alone() -> None:
    prepared = assemble(customers(), spec("y", Task.REGRESSION))
    again = assemble(customers(), spec("y", Task.REGRESSION))

    counted = prepared.inputs[COUNTS_FIGURE]
    assert counted["rows"] == prepared.train.rows == 70
    assert [sum(entry["counts"]) for entry in counted["inputs"][:4]] == [70] * 4
    assert prepared.inputs == again.inputs, "equal requests store equal figures"


def test_rows_from_sql_fall_into_the_bins_of_the_table_they_came_from(preprocessor: Preprocessor) -> None:
    figures = figures_of(customers(), preprocessor)
    objects = [dict(zip([name for name, _ in DESCRIBED], customer(n), strict=True)) for n in range(100)]
    bins = read_bins(figures[BINS_FIGURE])
    counter = InputCounter(bins)
    for begin in range(0, 100, 30):
        rows = objects[begin : begin + 30]
        counter.add(columns_of_rows(preprocessor, rows, [own.feature for own in bins]))

    expected = [count for entry in figures[COUNTS_FIGURE]["inputs"] for count in entry.get("counts", ())]
    assert counter.take() == (100, expected)
    assert counter.take() == (0, [0] * len(expected)), "the next counts begin at nothing"


def test_values_that_the_training_never_saw_have_bins_too() -> None:
    bins = [
        InputBins(feature="price", measure=Measure.NUMBER, edges=(0.0, 5.0), below=True),
        InputBins(feature="city", measure=Measure.CATEGORY, categories=("Bern",)),
        InputBins(feature="empty", measure=Measure.NUMBER),
    ]
    counter = InputCounter(bins)
    counter.add(
        {
            "price": column_of("price", ColumnKind.FLOAT, [-1.0, 0.0, 0.1, 5.0, 9.0, None, float("inf")]),
            "city": column_of("city", ColumnKind.TEXT, ["Bern", "Oslo", None, "", "Bern", "Rome", "Bern"]),
            "empty": column_of("empty", ColumnKind.FLOAT, [None, 1.0, None, None, None, None, None]),
        }
    )

    assert counter.counts.tolist() == [1, 1, 2, 1, 2, 3, 3, 1, 1, 6]


def test_text_that_a_network_reads_as_tokens_is_measured_by_its_length() -> None:
    texts = [("word " * (n % 40 + 1)).strip() for n in range(80)]
    described = [("id", "int"), ("body", "text"), ("y", "double precision")]
    data = table(described, [(n, text, float(n)) for n, text in enumerate(texts)])
    preprocessor = assemble(data, spec("y", Task.REGRESSION, preprocess={"encode": "tokens"})).preprocessor
    figures = input_figures(data.columns, preprocessor, np.arange(80))

    (entry,) = figures[COUNTS_FIGURE]["inputs"]
    assert (entry["measure"], entry["counts"]) == ("length", [20, 20, 20, 20, 0])
    (own,) = read_bins(figures[BINS_FIGURE])
    assert own.edges == (49.0, 99.0, 149.0)


def test_coded_texts_are_counted_as_plain_ones() -> None:
    own = InputBins(feature="city", measure=Measure.CATEGORY, categories=("Bern", "Oslo"))
    plain = column_of("city", ColumnKind.TEXT, ["Bern", None, "Rome", "Oslo", "Bern"])
    codes = TextCodes()
    numbers = codes.encode(plain.values)
    values: Any = CodedTexts(numbers, codes.texts())
    coded = replace(plain, values=values)

    assert own.counts(coded).tolist() == own.counts(plain).tolist() == [2, 1, 1, 1]


def test_many_rows_are_sampled_the_same_way_each_time(preprocessor: Preprocessor) -> None:
    many = customers(20_100)
    first, second = figures_of(many, preprocessor), figures_of(many, preprocessor)

    assert first == second
    assert first[COUNTS_FIGURE]["rows"] == 20_000
    ages = first[COUNTS_FIGURE]["inputs"][0]["counts"]
    assert len(ages) == 11
    assert max(ages[:-1]) - min(ages[:-1]) <= 1, "tenths of the rows that have an age"


def test_columns_beyond_what_a_figure_may_hold_say_so(preprocessor: Preprocessor) -> None:
    names = [f"c{n}" for n in range(1_600)]
    values = np.random.default_rng(1).standard_normal(400)
    columns = {name: ColumnData(kind=ColumnKind.FLOAT, values=values, missing=values > 9) for name in names}
    wide = Preprocessor(replace(preprocessor.recipe, features=tuple(names)))
    counted = input_figures(columns, wide, np.arange(400))[COUNTS_FIGURE]["inputs"]

    reasons = {entry["feature"]: entry.get("reason") for entry in counted}
    assert reasons["c0"] is None
    assert reasons["c1599"] == "the columns before it have as many bins as are stored"
    assert list(reasons) == names


@pytest.mark.parametrize("stored", [{}, {"format": 2, "inputs": []}, {"format": 1, "inputs": [{"feature": 3}]}])
def test_bins_of_another_form_are_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(DatabaseError, match="the stored bins of a version's inputs"):
        read_bins(stored)


@cache
def _of_ages() -> Preprocessor:
    recipe = assemble(customers(), spec("y", Task.REGRESSION)).preprocessor.recipe
    return Preprocessor(replace(recipe, features=("age",)))


numbers = st.one_of(st.none(), st.floats(width=32), st.integers(-3, 3).map(float))


@given(st.lists(numbers, min_size=1, max_size=60), st.lists(numbers, max_size=60))
def test_every_number_falls_into_the_one_bin_whose_bounds_it_is_within(
    training: Sequence[float | None], predicted: Sequence[float | None]
) -> None:
    data = {"age": column_of("age", ColumnKind.FLOAT, training)}
    figures = input_figures(data, _of_ages(), np.arange(len(training)))
    (own,) = read_bins(figures[BINS_FIGURE])

    def place(value: float | None) -> int:
        """Return the number of the bin, by a comparison with one bound after the other."""
        if value is None or not np.isfinite(value):
            return own.size - 1
        if own.below and value < own.edges[0]:
            return 0
        return bisect_left(own.edges, value) + own.below

    for values in (training, predicted):
        counts = [0] * own.size
        for value in values:
            counts[place(value)] += 1
        assert own.counts(column_of("age", ColumnKind.FLOAT, values)).tolist() == counts
    finite = [value for value in training if value is not None and np.isfinite(value)]
    assert len(own.edges) < 10
    assert set(own.edges) <= set(finite)
