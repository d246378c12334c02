"""Check that the client has every argument of the SQL functions, with its type."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

from indb_tensile.client.train_options import (
    PREDICT_INTO_TYPES,
    SEARCH_TYPES,
    TRAIN_TYPES,
    PredictIntoOptions,
    SearchOptions,
    TrainOptions,
    sql_values,
)
from indb_tensile.errors import RequestError
from tests.conftest import Database

FUNCTIONS: list[tuple[str, Mapping[str, TypeEngine[Any]], Any]] = [
    ("tensile_train", TRAIN_TYPES, TrainOptions),
    ("tensile_train_query", TRAIN_TYPES, TrainOptions),
    ("tensile_search", SEARCH_TYPES, SearchOptions),
    ("tensile_search_query", SEARCH_TYPES, SearchOptions),
    ("tensile_predict_into", PREDICT_INTO_TYPES, PredictIntoOptions),
]


@pytest.mark.postgres
@pytest.mark.shares_database
@pytest.mark.parametrize(("function", "types", "options"), FUNCTIONS, ids=[name for name, _, _ in FUNCTIONS])
def test_the_arguments_are_those_of_the_function(
    database: Database, function: str, types: Mapping[str, TypeEngine[Any]], options: Any
) -> None:
    with database.connect() as connection:
        rows = connection.execute(
            "select a.name, format_type(a.type, null) from pg_proc as p,"
            " unnest(p.proargnames, p.proargtypes::oid[]) as a (name, type)"
            " where p.proname = %s and p.pronamespace = 'public'::regnamespace and a.type is not null",
            (function,),
        ).fetchall()
    declared: dict[str, str] = dict(rows)
    dialect: Any = postgresql.dialect
    own = {name: type_.compile(dialect=dialect()).lower() for name, type_ in types.items()}
    optional = {"relation", "query", "snapshot"} - set(declared)  # of a query, which always has a snapshot
    assert {name: kind for name, kind in own.items() if name not in optional} == declared
    positional = {"model", "relation", "query", "output"}
    assert options.__optional_keys__ == set(types) - positional


def test_values_become_those_of_the_driver() -> None:
    options = {
        "architecture": {"type": "mlp", "hidden": (np.int64(3),)},
        "hyperparams": {"learning_rate": np.float32(0.5), "x": np.array([1, 2])},
        "features": ("a", "b"),
        "priority": np.int16(4),
        "snapshot": True,
        "target": None,
    }
    assert sql_values(options, TRAIN_TYPES) == {
        "architecture": '{"type": "mlp", "hidden": [3]}',
        "hyperparams": {"learning_rate": 0.5, "x": [1, 2]},
        "features": ["a", "b"],
        "priority": 4,
        "snapshot": True,
    }


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"priority": True}, "priority is True, of type bool"),
        ({"snapshot": 1}, "snapshot is 1, of type int"),
        ({"features": "a"}, "features is the text 'a'"),
        ({"hyperparams": "{}"}, "hyperparams is the text '{}'"),
        ({"hyperparams": {"x": object()}}, "hyperparams has a value of type object"),
        ({"max_runtime": 3}, "max_runtime is 3, of type int"),
        ({"features": [1]}, "features is 1, of type int"),
    ],
)
def test_values_of_other_types_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        sql_values(options, TRAIN_TYPES)
