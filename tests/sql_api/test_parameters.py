"""Check that the bridge refuses a named parameter exactly if a worker refuses it."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import RequestError
from indb_tensile.learning import hyperparams
from indb_tensile.learning import parameters as learning
from indb_tensile.sql_api import options
from indb_tensile.sql_api.errors import RefusalError
from indb_tensile.sql_api.parameters import check_parameters

TABLES = {"hyperparams": options.HYPERPARAMS, "split": options.SPLIT, "cnn": options.ARCHITECTURES["cnn"]}
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, -1, 0.5, 1.0, 31, 100, 100_000, 1048577, 10**400, -(10**400), float("inf")]),
    st.integers(),
    st.floats(),
)
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.sampled_from(["adam", "step", "relu", "", "1"]),
    st.lists(st.one_of(NUMBERS, st.booleans(), st.text(max_size=2)), max_size=5),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


@given(st.data(), st.sampled_from(sorted(TABLES)))
def test_value_is_refused_exactly_if_learning_refuses_it(data: st.DataObject, table: str) -> None:
    name = data.draw(st.sampled_from([*TABLES[table], "unknown"]))
    parameters = {name: data.draw(ANYTHING)}

    assert _refuses(check_parameters, table, parameters) == _refuses(learning.check_parameters, table, parameters)


def _refuses(check: Callable[[str, Any, Any], object], table: str, parameters: Any) -> bool:
    try:
        check(table, parameters, TABLES[table])
    except (RefusalError, RequestError):
        return True
    return False


@pytest.mark.parametrize(
    ("parameters", "valid"),
    [
        ({"epochs": 1}, True),
        ({"epochs": 0}, False),
        ({"epochs": True}, False),
        ({"epochs": 1.0}, False),
        ({"epochs": "1"}, False),
        ({"epochs": 100_001}, False),
        ({"epochs": None}, True),
        ({"clip_norm": 10**308}, True),
        ({"clip_norm": 10**309}, False),
        ({"betas": [0.9, 0.99]}, True),
        ({"betas": [0.9]}, False),
        ({"betas": [0.9, 1]}, False),
        ({"betas": [0.9, True]}, False),
        ({"nesterov": 1}, False),
        ({"nesterov": True}, True),
        ({"learning_rate": 0}, False),
        ({"learning_rate": 1}, True),
        ([], False),
        ("epochs", False),
    ],
)
def test_names_types_and_ranges_are_checked(parameters: Any, valid: bool) -> None:
    with nullcontext() if valid else pytest.raises(RefusalError):
        check_parameters("hyperparams", parameters, options.HYPERPARAMS)
    with nullcontext() if valid else pytest.raises(RequestError):
        learning.check_parameters("hyperparams", parameters, hyperparams.HYPERPARAMS)


def test_nulls_are_omitted_and_a_missing_parameter_is_named() -> None:
    assert check_parameters("hyperparams", {"epochs": 2, "eps": None}, options.HYPERPARAMS) == {"epochs": 2}
    with pytest.raises(RefusalError) as caught:
        check_parameters("architecture layers", {}, options.ARCHITECTURES["layers"])
    assert caught.value.error == {
        "sqlstate": "22023",
        "message": 'architecture layers: parameter "layers" is missing',
        "detail": "",
        "hint": "Give a list of JSON objects.",
    }
