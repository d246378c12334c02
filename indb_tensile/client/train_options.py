"""The arguments of trainings, searches and stored predictions: their names and types in Python and in SQL."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from sqlalchemy.types import TypeEngine

from indb_tensile.client.function_call import (
    BIGINT,
    BIGINTS,
    BOOLEAN,
    DURATION,
    INTEGER,
    JSON,
    MOMENT,
    RELATION,
    TEXT,
    TEXTS,
)
from indb_tensile.errors import RequestError
from indb_tensile.request.json_text import json_text
from indb_tensile.request.near_names import did_you_mean


class TrainOptions(TypedDict, total=False):
    """The arguments of `tensile_train`, besides the model and the relation, with its defaults."""

    target: str
    task: str
    architecture: str | Mapping[str, Any]
    hyperparams: Mapping[str, Any]
    features: Sequence[str]
    exclude: Sequence[str]
    preprocess: Mapping[str, Any]
    split: Mapping[str, Any]
    metric: str
    early_stop: Mapping[str, Any]
    init_from: str
    priority: int
    memory_limit: str
    max_runtime: timedelta
    deploy: str
    depends_on: Sequence[int]
    not_before: datetime
    idempotency_key: str
    snapshot: bool
    transform: Mapping[str, Any]
    forecast: Mapping[str, Any]
    devices: int


class SearchOptions(TrainOptions, total=False):
    """The arguments of `tensile_search`, besides the model and the relation."""

    trials: int
    parallel: int
    sampler: str
    prune: str
    search_seed: int
    max_duration: timedelta


class PredictIntoOptions(TypedDict, total=False):
    """The arguments of `tensile_predict_into`, besides the model, the relation and the output."""

    keys: Sequence[str]
    version: int
    with_probabilities: bool
    priority: int
    max_runtime: timedelta
    depends_on: Sequence[int]
    not_before: datetime
    idempotency_key: str
    snapshot: bool


TRAIN_TYPES: dict[str, TypeEngine[Any]] = {
    "model": TEXT,
    "relation": RELATION,
    "query": TEXT,
    "target": TEXT,
    "task": TEXT,
    "architecture": TEXT,
    "hyperparams": JSON,
    "features": TEXTS,
    "exclude": TEXTS,
    "preprocess": JSON,
    "split": JSON,
    "metric": TEXT,
    "early_stop": JSON,
    "init_from": TEXT,
    "priority": INTEGER,
    "memory_limit": TEXT,
    "max_runtime": DURATION,
    "deploy": TEXT,
    "depends_on": BIGINTS,
    "not_before": MOMENT,
    "idempotency_key": TEXT,
    "snapshot": BOOLEAN,
    "transform": JSON,
    "forecast": JSON,
    "devices": INTEGER,
}
SEARCH_TYPES: dict[str, TypeEngine[Any]] = TRAIN_TYPES | {
    "trials": INTEGER,
    "parallel": INTEGER,
    "sampler": TEXT,
    "prune": TEXT,
    "search_seed": BIGINT,
    "max_duration": DURATION,
}
PREDICT_INTO_TYPES: dict[str, TypeEngine[Any]] = {
    "model": TEXT,
    "relation": RELATION,
    "output": TEXT,
    "keys": TEXTS,
    "version": INTEGER,
    "with_probabilities": BOOLEAN,
    "priority": INTEGER,
    "max_runtime": DURATION,
    "depends_on": BIGINTS,
    "not_before": MOMENT,
    "idempotency_key": TEXT,
    "snapshot": BOOLEAN,
}
_POSITIONAL = ("model", "relation", "query", "output")


def check_options(verb: str, options: Mapping[str, Any], types: Mapping[str, TypeEngine[Any]]) -> None:
    """Raise RequestError for an argument that the verb does not have, with the names that it has."""
    known = [name for name in types if name not in _POSITIONAL]
    for name in options:
        if name not in known:
            raise RequestError(
                f'{verb} has no argument "{name}"',
                detail=f"Its arguments are: {', '.join(known)}.",
                hint=did_you_mean(name, known).rstrip(),
            )


def sql_values(options: Mapping[str, Any], types: Mapping[str, TypeEngine[Any]]) -> dict[str, Any]:
    """Return the arguments as the driver takes them. Raises RequestError for a value of another type."""
    return {name: _sql_value(name, value, types[name]) for name, value in options.items() if value is not None}


def _sql_value(name: str, value: Any, type_: TypeEngine[Any]) -> Any:
    if type_ is TEXT and name == "architecture" and isinstance(value, Mapping):
        return json_text(_plain(name, value))
    expected = _PYTHON_TYPES[id(type_)]
    if isinstance(value, str) and type_ in (TEXTS, BIGINTS, JSON):
        raise RequestError(f"{name} is the text {value!r}", hint=f"Give {expected[1]}.")
    if type_ in (TEXTS, BIGINTS) and isinstance(value, Sequence):
        return [_one(name, item, TEXT if type_ is TEXTS else BIGINT) for item in value]
    if type_ is JSON and isinstance(value, Mapping):
        return _plain(name, value)
    return _one(name, value, type_)


def _one(name: str, value: Any, type_: TypeEngine[Any]) -> Any:
    python_type, words = _PYTHON_TYPES[id(type_)]
    index = getattr(value, "__index__", None)
    if type_ in (INTEGER, BIGINT) and index is not None and not isinstance(value, bool):
        return index()  # numpy's integers too
    if not isinstance(value, python_type) or (isinstance(value, bool) and type_ is not BOOLEAN):
        raise RequestError(f"{name} is {value!r}, of type {type(value).__name__}", hint=f"Give {words}.")
    return value


def _plain(name: str, value: Any) -> Any:
    """Return a JSON document without numpy's scalars and other mappings. Raises RequestError for other objects."""
    if isinstance(value, Mapping):
        return {str(key): _plain(name, inner) for key, inner in value.items()}
    if isinstance(value, str | int | float | None):
        return value
    if hasattr(value, "item") and not hasattr(value, "__len__"):
        return _plain(name, value.item())
    if hasattr(value, "tolist"):
        return _plain(name, value.tolist())
    if isinstance(value, Sequence):
        return [_plain(name, inner) for inner in value]
    raise RequestError(
        f"{name} has a value of type {type(value).__name__}", hint="Give texts, numbers, lists and dicts."
    )


_PYTHON_TYPES: dict[int, tuple[Any, str]] = {
    id(TEXT): (str, "a text"),
    id(RELATION): (str, "a relation"),
    id(TEXTS): (Sequence, "a list of texts"),
    id(BIGINTS): (Sequence, "a list of job numbers"),
    id(JSON): (Mapping, "a dict"),
    id(BOOLEAN): (bool, "True or False"),
    id(INTEGER): (int, "a whole number"),
    id(BIGINT): (int, "a whole number"),
    id(DURATION): (timedelta, "a datetime.timedelta"),
    id(MOMENT): (datetime, "a datetime.datetime"),
}
