"""Features of the first rows that look like keys, give the target away, or order the rows in time: said in NOTICEs.

Its findings are those of learning/leakage.py, which looks at all rows in the job, as a test compares.
"""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from .features import divider_of, used_columns
from .options import SPLIT
from .relation import Column, Table
from .spi import Json, Plpy, literal, qualified

KEY, COUNTER = "key", "counter"
EQUAL, ORDERING, DETERMINING, MISSING_WITH = "equal", "ordering", "determining", "missing with"

_VALUES = 40_000  # that are fetched: some hundredths of a second
_MOST_ROWS = 10_000
_FEWEST_ROWS = 20
_LOG_ACCIDENT = math.log(1e-6)
_NEARLY_ALL = 0.95
_FEWEST_STEPS = 3
_OUT_OF_RANGE = "22003"
# Texts are compared only, so their hashes do.
_FORMS = {
    "integer": "{}::pg_catalog.int8",
    "float": "{}::pg_catalog.float8",
    "boolean": "{}::pg_catalog.bool",
    "text": 'pg_catalog.hashtextextended({}::pg_catalog.text collate pg_catalog."C", 0)',
    "date": "extract(epoch from {})::pg_catalog.float8",
    "time": "extract(epoch from {})::pg_catalog.float8",
}


def notice_doubts(plpy: Plpy, table: Table, spec: Json) -> None:
    """Tell what is doubtful of the features, one NOTICE a kind."""
    features = [column for column in used_columns(table, spec) if column.kind in _FORMS]
    divided = divider_of(spec["split"]) is not None
    moments = [] if divided else [column for column in table.columns if column.kind in ("date", "time")]
    target = table.column(spec["target"], "target")
    asked = list(dict.fromkeys([*features, *moments, target]))
    if asked == [target] or target.kind not in _FORMS:
        return
    values, limit = _first_rows(plpy, table, asked)
    rows = len(values[target.name])
    seen = f"the first {rows} rows" if rows == limit else f"{rows} rows"
    kinds = _of_features(features, target, values, spec["task"])
    keys = [name for name, found in kinds.items() if {KEY, COUNTER} & found]
    if keys and spec["features"] is None:
        plpy.notice(
            f"features that look like keys, with another value in each of {seen}: {', '.join(keys)} "
            f"(leave them out with exclude => {_array(keys)})"
        )
    leaks = [name for name, found in kinds.items() if found - {KEY, COUNTER}]
    if leaks:
        plpy.notice(
            f'features that give target "{target.name}" away in {seen}: {", ".join(leaks)} (leave them out with '
            f"exclude => {_array(leaks)}, unless they are known when a row is to be predicted)"
        )
    _notice_order(plpy, spec, [column for column in moments if orders_rows(column, values[column.name])])


def _of_features(
    features: Sequence[Column], target: Column, values: Mapping[str, list[Any]], task: str
) -> dict[str, set[str]]:
    """What is suspicious of each feature in the rows whose target is known."""
    kept = [place for place, value in enumerate(values[target.name]) if value is not None]
    goal = [values[target.name][place] for place in kept]
    return {
        column.name: set(suspicions(column, [values[column.name][place] for place in kept], target, goal, task))
        for column in features
    }


def _notice_order(plpy: Plpy, spec: Json, ordering: Sequence[Column]) -> None:
    if not ordering:
        return
    size = spec["split"].get("test_size", SPLIT["test_size"]["default"])
    split = json.dumps({"last": size, "by": ordering[0].name}, ensure_ascii=False)
    plpy.notice(
        f'"{ordering[0].name}" orders the rows in time, and a random split tests between rows that it trains on '
        f"(to test on the latest rows: split => {literal(split)})"
    )


def suspicions(column: Column, values: Sequence[Any], target: Column, goal: Sequence[Any], task: str) -> list[str]:
    """What is suspicious of a column beside the target, whose values are all known."""
    if len(values) < _FEWEST_ROWS:
        return []
    known = [_is_known(value) for value in values]
    places = _places(goal)
    found = [MISSING_WITH] if not all(known) and _determines(known, places) else []
    pairs = [(value, place) for value, place, is_known in zip(values, places, known, strict=True) if is_known]
    if len(pairs) < _FEWEST_ROWS:
        return found
    present = [value for value, _ in pairs]
    places = _places([place for _, place in pairs])
    if all(known):
        found += _of_keys(column, present)
    comparable = column.kind == target.kind or "text" not in (column.kind, target.kind)
    if (
        comparable
        and any(places)
        and present == [value for value, is_known in zip(goal, known, strict=True) if is_known]
    ):
        return [*found, EQUAL]
    in_order = _sorts if task == "regression" else _separates
    if column.kind in ("integer", "float", "date", "time") and in_order(present, places):
        return [*found, ORDERING]
    return [*found, DETERMINING] if _determines(present, places) else found


def orders_rows(column: Column, values: Sequence[Any]) -> bool:
    """Whether a date or timestamp increases with the rows, or a timestamp tells nearly every row apart."""
    known = [value for value in values if _is_known(value)]
    if len(known) < _FEWEST_ROWS:
        return False
    if not column.type.startswith("date") and len(set(known)) >= _NEARLY_ALL * len(known):
        return True
    steps = [after - before for before, after in pairwise(known)]
    rising = sum(step >= 0 for step in steps) >= _NEARLY_ALL * len(steps)
    moves: bool = known[0] != known[-1]
    return moves and rising and sum(step > 0 for step in steps) >= _FEWEST_STEPS


def _first_rows(plpy: Plpy, table: Table, columns: Sequence[Column]) -> tuple[dict[str, list[Any]], int]:
    """The columns' values in the first rows, and how many rows those may be at most."""
    limit = max(2 * _FEWEST_ROWS, min(_MOST_ROWS, _VALUES // len(columns)))
    read = ", ".join(
        f"{_FORMS[column.kind].format(plpy.quote_ident(column.name))} as c{place}"
        for place, column in enumerate(columns)
    )
    listed = ", ".join(f"pg_catalog.array_agg(c{place}) as c{place}" for place in range(len(columns)))
    source = qualified(plpy, table.schema, table.name)
    try:
        found = next(
            iter(plpy.execute(f"select {listed} from (select {read} from {source} limit {limit}) as doubted"))
        )
    except plpy.SPIError as error:
        if getattr(error, "sqlstate", "") != _OUT_OF_RANGE:
            raise
        return {column.name: [] for column in columns}, limit  # the job names the row
    return {column.name: found[f"c{place}"] or [] for place, column in enumerate(columns)}, limit


def _is_known(value: Any) -> bool:
    return value is not None and (not isinstance(value, float) or math.isfinite(value))


def _places(goal: Sequence[Any]) -> list[int]:
    """The place of each value among the different ones, in order."""
    known = {value: place for place, value in enumerate(sorted(set(goal)))}
    return [known[value] for value in goal]


def _of_keys(column: Column, values: Sequence[Any]) -> list[str]:
    whole = column.kind in ("integer", "text") or (
        column.kind == "float" and all(value.is_integer() for value in values)
    )
    if not whole or len(set(values)) < len(values):
        return []
    return [COUNTER if column.kind != "text" and all(a < b for a, b in pairwise(values)) else KEY]


def _sorts(values: Sequence[Any], places: Sequence[int]) -> bool:
    rising = [place for _, place in sorted(zip(values, places, strict=True))]
    falling = [place for _, place in sorted(zip(values, places, strict=True), key=lambda pair: (pair[0], -pair[1]))]
    if any(a > b for a, b in pairwise(rising)) and any(a < b for a, b in pairwise(falling)):
        return False
    within = _log_factorials(values) - _log_factorials(zip(values, places, strict=True))
    return within + math.log(2) - _log_arrangements(places) < _LOG_ACCIDENT


def _separates(values: Sequence[Any], places: Sequence[int]) -> bool:
    ordered = [place for _, place in sorted(zip(values, places, strict=True))]
    classes = max(places) + 1
    if sum(a != b for a, b in pairwise(ordered)) != classes - 1 or not _is_function(values, places):
        return False
    return math.lgamma(classes + 1) - _log_arrangements(places) < _LOG_ACCIDENT


def _determines(values: Sequence[Any], places: Sequence[int]) -> bool:
    accident = len(set(values)) * math.log(max(places) + 1) - _log_arrangements(places)
    return accident < _LOG_ACCIDENT and _is_function(values, places)


def _is_function(values: Sequence[Any], places: Sequence[int]) -> bool:
    return len(set(zip(values, places, strict=True))) == len(set(values))


def _log_arrangements(places: Sequence[int]) -> float:
    return math.lgamma(len(places) + 1) - _log_factorials(places)


def _log_factorials(values: Any) -> float:
    return math.fsum(math.lgamma(count + 1) for count in Counter(values).values())


def _array(names: Sequence[str]) -> str:
    return f"array[{', '.join(literal(name) for name in names)}]"
