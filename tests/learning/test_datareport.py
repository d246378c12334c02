"""The data report states what was read, left out, split and encoded, and warns about suspicious columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from indb_tensile.job import Task
from indb_tensile.learning.reports.report_facts import Fact
from indb_tensile.learning.training.preparation import assemble
from tests.learning.tables import spec, table

CITIES = ["Ulm", "Bonn", "Jena"]


def rows(count: int) -> list[list[Any]]:
    """Return rows with an id, a number with gaps, a text, a constant and a rare class."""
    return [
        [row, None if row % 10 == 0 else (row * 7) % 31, CITIES[row % 3], 1, "no" if row % 20 else "yes"]
        for row in range(count)
    ]


DESCRIBED = [("id", "bigint"), ("age", "int"), ("city", "text"), ("one", "int"), ("left", "text")]


def facts_of(report: Sequence[Fact], section: str) -> list[tuple[str | None, str, str]]:
    return [(fact.subject, fact.fact, fact.value) for fact in report if fact.section == section]


def warnings_of(report: Sequence[Fact]) -> dict[str | None, str]:
    return {fact.subject: fact.warning for fact in report if fact.warning}


def test_a_report_states_what_was_read_left_out_split_and_encoded() -> None:
    read = rows(200)
    read[3][4] = read[4][4] = None
    prepared = assemble(table(DESCRIBED, read), spec("left", preprocess={"categories": 2}, exclude=("id",)))

    report = prepared.report

    assert facts_of(report, "rows") == [
        (None, "read", "200"),
        ("left", "left out, as the target is NULL", "2"),
        (None, "equal to another row in features and target", str(_count_equal_rows(read))),
        (None, "of the test part equal to a training row", str(_count_test_rows_in_training(prepared))),
    ]
    parts = {"train": prepared.train.rows, "valid": prepared.valid.rows, "test": prepared.test.rows}
    assert facts_of(report, "split") == [
        (None, "method", "a hash of the primary key (id)"),
        (None, "seed", "0"),
        *((part, "rows", f"{count} ({100 * count / 198:.3g} %)") for part, count in parts.items()),
    ]
    assert facts_of(report, "columns") == [
        ("age", "encoding", "a standardised number"),
        ("age", "missing in the training rows", next(f.value for f in report if f.fact.startswith("missing"))),
        ("city", "encoding", "text: 4 numbers"),
        ("city", "categories", "2 of 3"),
        ("one", "encoding", "a standardised number"),
        ("one", "different values", "1"),
        (None, "left out of the features", "id"),
    ]
    warnings = warnings_of(report)
    assert 'are one category "(other)": preprocess => \'{"categories": 3}\' keeps them apart' in warnings["city"]
    assert warnings["one"] == "the column has one value in all training rows: nothing is learned from it"
    assert "always answering this class gives accuracy 0.9" in warnings["no"]


def _count_equal_rows(read: list[list[Any]]) -> int:
    labeled = [tuple(row[1:]) for row in read if row[4] is not None]
    return len(labeled) - len(set(labeled))


def _count_test_rows_in_training(prepared: Any) -> int:
    def keys(x: Any, y: Any) -> list[tuple[float, ...]]:
        return [(*row, label) for row, label in zip(np.round(x.numpy(), 5).tolist(), y.tolist(), strict=True)]

    trained = set(keys(prepared.train.x, prepared.train.y))
    # The encoding merges rare cities, so more rows are equal in the encoding than in the table.
    return sum(key in trained for key in keys(prepared.test.x, prepared.test.y))


def test_key_columns_and_columns_that_determine_the_target_are_warned_about() -> None:
    described = [("number", "int"), ("grade", "double precision"), ("passed", "boolean")]
    read = [[row, row % 7 + (0.0 if row % 2 else 7.0), row % 2 == 0] for row in range(100)]

    warnings = warnings_of(assemble(table(described, read), spec("passed")).report)

    assert "it looks like a key, which only identifies rows: leave it out with exclude" in warnings["number"]
    assert "reveals passed" in warnings["grade"]


def test_a_random_split_of_rows_in_order_of_time_is_warned_about_with_a_split_by_time() -> None:
    described = [("id", "bigint"), ("day", "date"), ("x", "int"), ("y", "double precision")]
    read = [[row, f"2024-{1 + row // 28:02d}-{1 + row % 28:02d}", row % 13, float(row % 5)] for row in range(300)]
    read_table = table(described, read)

    random = assemble(read_table, spec("y", Task.REGRESSION))
    last = assemble(read_table, spec("y", Task.REGRESSION, split={"last": 0.2, "by": "day"}))

    assert 'split => \'{"last": 0.15, "by": "day"}\' tests on the latest rows' in warnings_of(random.report)[None]
    assert "day" in random.preprocessor.recipe.features
    assert facts_of(last.report, "split")[0] == (None, "method", "the last 20 % by day")
    assert last.preprocessor.recipe.features == ("x",)
    assert min(last.held_out["day"].values) > read_table.columns["day"].values[:240].max() - 1
    assert last.test.rows == 60
