"""The options of preprocessing are refused by option and column."""

from typing import Any

import pytest

from indb_tensile.errors import RequestError
from indb_tensile.learning.storage.columns import ColumnKind
from indb_tensile.request.preprocess_rules import PREPROCESS, check_preprocess, check_preprocess_columns

FEATURES = {"n": "float", "i": "integer", "b": "boolean", "w": "text", "d": "time", "v": "array"}
COLUMNS = (*FEATURES, "out")


@pytest.mark.parametrize(
    ("options", "sqlstate", "message", "hint"),
    [
        (
            {"missing": "mode"},
            "22023",
            'preprocess: "missing" is "mode"',
            "Give one of mean, median, most_frequent, zero, indicator, error, or a number, or for a column "
            '{"constant": "a text"}, for all columns or by column, such as {"missing": {"price": "zero"}}.',
        ),
        (
            {"missing": {"colour": "median"}},
            "42703",
            'preprocess: "missing" names column "colour", which table "public.t" does not have',
            "The table's columns are n, i, b, w, d, v, out.",
        ),
        (
            {"categories": {"out": 3}},
            "22023",
            'preprocess: "categories" names column "out", which is not a feature',
            "Name features only: n, i, b, w, d, v.",
        ),
        (
            {"categories": {"n": 3}},
            "22023",
            'preprocess: "categories" means nothing to column "n" of type float',
            "It is for columns of kind text or labels: leave it out.",
        ),
        (
            {"missing": {"w": "median"}},
            "22023",
            'preprocess: "missing" of column "w" of type text cannot be "median"',
            "Use most_frequent or error, or leave it out.",
        ),
    ],
)
def test_a_wrong_option_is_named_with_what_it_takes(
    options: dict[str, Any], sqlstate: str, message: str, hint: str
) -> None:
    with pytest.raises(RequestError) as caught:
        _checked(options)
    error = caught.value
    assert (error.sqlstate, error.message, error.hint) == (sqlstate, message, hint)


@pytest.mark.parametrize("number", [10**400, float("inf"), float("nan"), True])
def test_a_missing_value_becomes_a_finite_number(number: float) -> None:
    with pytest.raises(RequestError, match='preprocess: "missing" is '):
        check_preprocess({"missing": number})
    assert check_preprocess({"missing": -0.5, "categories": None}) == {"missing": -0.5}


def test_an_option_names_only_kinds_that_there_are() -> None:
    named = {kind for rule in PREPROCESS.values() for kind in rule["kinds"]}
    assert named == {kind.value for kind in ColumnKind}


def _checked(options: dict[str, Any]) -> None:
    types = {name: (kind, kind) for name, kind in FEATURES.items()}
    check_preprocess_columns(check_preprocess(options), types, 'table "public.t"', COLUMNS)
