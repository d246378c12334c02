"""Check that the bridge refuses preprocessing options exactly if a worker refuses them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import RequestError
from indb_tensile.learning.columns import ColumnKind
from indb_tensile.learning.feature_options import FeatureOptions
from indb_tensile.sql_api.errors import RefusalError
from indb_tensile.sql_api.preprocessing import preprocess
from indb_tensile.sql_api.relation import Column, Table

KINDS = {"n": "float", "i": "integer", "b": "boolean", "w": "text", "d": "time", "v": "array"}
COLUMNS = tuple(Column(name=name, type=kind, kind=kind, key=False) for name, kind in KINDS.items())
LEFT_OUT = Column(name="out", type="real", kind="float", key=False)
TABLE = Table(oid=5, schema="public", name="t", columns=(*COLUMNS, LEFT_OUT))
VALUES = st.one_of(
    st.sampled_from([None, True, False, "mean", "median", "zero", "indicator", "error", "mode", 0, 1, 10_001, -0.5]),
    st.sampled_from([10**400, float("inf"), float("nan"), [], "", [1]]),
)
OPTION = st.one_of(VALUES, st.dictionaries(st.sampled_from(sorted(KINDS)), VALUES, max_size=3))


@given(st.dictionaries(st.sampled_from(["standardize", "categories", "missing", "scale"]), OPTION, max_size=3))
def test_option_is_refused_exactly_if_learning_refuses_it(options: dict[str, Any]) -> None:
    try:
        FeatureOptions.parse(options).check({name: ColumnKind(kind) for name, kind in KINDS.items()})
        valid = True
    except RequestError:
        valid = False
    if valid:
        assert _checked(options) == {name: value for name, value in options.items() if value is not None}
    else:
        with pytest.raises(RefusalError):
            _checked(options)


@pytest.mark.parametrize(
    ("options", "sqlstate", "message", "hint"),
    [
        (
            {"missing": "mode"},
            "22023",
            'preprocess: "missing" is "mode"',
            "Give one of mean, median, zero, indicator, error, or a number, for all columns or by column, such as "
            '{"missing": {"price": "zero"}}.',
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
            "It is for columns of kind text: leave it out.",
        ),
        (
            {"missing": {"w": "median"}},
            "22023",
            'preprocess: "missing" of column "w" of type text cannot be "median"',
            "Use error, or leave it out.",
        ),
    ],
)
def test_invalid_option_is_refused_with_a_hint(
    options: dict[str, Any], sqlstate: str, message: str, hint: str
) -> None:
    with pytest.raises(RefusalError) as caught:
        _checked(options)
    error = caught.value.error
    assert (error["sqlstate"], error["message"], error["hint"]) == (sqlstate, message, hint)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    return preprocess({"preprocess": options}, {}, TABLE, COLUMNS)
