"""Warns in NOTICEs about features that look like keys, reveal the target or have far values, and about rows in time.

Only the first rows are checked. A table whose rows are all alike in their features is refused. The rules about keys
and about features that reveal the target are those of learning/reports/leakage.py, which checks all rows in the job;
a test compares both.
"""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..request.network_rules import EMBEDDING_ARCHITECTURES
from ..request.preprocess_rules import PREPROCESS
from ..request.split_rules import SPLIT, deciding_option
from ..request.task_rules import target_columns
from .alike_rows import refuse_alike_rows
from .feature_columns import used_columns
from .spi import Json, Plpy, literal
from .training_table import Table, TableColumn

KEY, COUNTER = "key", "counter"
EQUAL, ORDERING, DETERMINING, MISSING_WITH = "equal", "ordering", "determining", "missing with"

_VALUES = 40_000  # values that are fetched, which takes some hundredths of a second
_MOST_ROWS = 10_000
_MOST_TARGETS = 8
_FEWEST_ROWS = 20
_LOG_ACCIDENT = math.log(1e-6)
_NEARLY_ALL = 0.95
_FEWEST_STEPS = 3
# A column is skewed if its standard deviation is above this number of interquartile ranges. Of normal values it is
# 0.74 of them, of exponential ones 0.91, of log-normal ones with a deviation of 1.6 it is 4.8 of them.
_SKEWED = 4
_FEWEST_FAR = 100  # rows; the quartiles of fewer vary much
_MOST_NAMED = 5  # columns that the NOTICE scales one by one
_OUT_OF_RANGE = "22003"
# Texts are only compared for equality, so hashes are sufficient.
_SQL_VALUES = {
    "integer": "{}::pg_catalog.int8",
    "float": "{}::pg_catalog.float8",
    "boolean": "{}::pg_catalog.bool",
    "text": 'pg_catalog.hashtextextended({}::pg_catalog.text collate pg_catalog."C", 0)',
    "date": "extract(epoch from {})::pg_catalog.float8",
    "time": "extract(epoch from {})::pg_catalog.float8",
    "clock": "extract(epoch from {})::pg_catalog.float8",
    "duration": "extract(epoch from {})::pg_catalog.float8",
}


def warn_about_features(plpy: Plpy, table: Table, spec: Json) -> None:
    """Warn about the features, with one NOTICE per kind of finding. Refuse rows that are all alike in them."""
    features = [column for column in used_columns(table, spec) if column.kind in _SQL_VALUES]
    in_order = deciding_option(spec["split"]) in ("by", "column") or "test" in spec["split"]
    time_columns = [] if in_order else [column for column in table.columns if column.kind in ("date", "time")]
    targets = [table.column(name, "target") for name in target_columns(spec)[:_MOST_TARGETS]]
    targets = [target for target in targets if target.kind in _SQL_VALUES]
    columns = list(dict.fromkeys([*features, *time_columns, *targets]))
    if columns == targets or not targets:
        return
    values, limit = _first_rows(plpy, table, columns)
    rows = len(values[targets[0].name])
    if len(features) == len(used_columns(table, spec)):
        own_values = {column.name: values[column.name] for column in features}
        refuse_alike_rows(plpy, table, spec, own_values, is_complete=rows < limit)
    checked_rows = f"the first {rows} rows" if rows == limit else f"{rows} rows"
    kinds: dict[str, set[str]] = {column.name: set() for column in features}
    for target in targets:
        for name, own in _suspicions_by_feature(features, target, values, spec["task"]).items():
            kinds[name] |= own
    shown = f'"{targets[0].name}"' if len(targets) == 1 else spec["target"]
    # The advice repeats what the caller has left out, so it can be copied. Keys are left out without it.
    excluded = [name for name in spec["exclude"] if not table.column(name, "exclude").key]
    keys = [name for name, findings in kinds.items() if {KEY, COUNTER} & findings]
    if keys and spec["features"] is None:
        plpy.notice(
            f"features that look like keys, with a different value in each of {checked_rows}: {', '.join(keys)} "
            f"(leave them out with exclude => {_array([*excluded, *keys])})"
        )
    leaks = [name for name, findings in kinds.items() if findings - {KEY, COUNTER}]
    if leaks:
        plpy.notice(
            f"features that reveal target {shown} in {checked_rows}: {', '.join(leaks)} (leave them out "
            f"with exclude => {_array([*excluded, *leaks])}, unless their values are available at prediction time)"
        )
    _notice_far_values(plpy, spec, [column for column in features if has_far_values(column, values[column.name])])
    _notice_order(plpy, spec, [column for column in time_columns if orders_rows(column, values[column.name])])


def _suspicions_by_feature(
    features: Sequence[TableColumn], target: TableColumn, values: Mapping[str, list[Any]], task: str
) -> dict[str, set[str]]:
    """Return the suspicious properties of each feature in the rows whose target is known."""
    rows = [row for row, value in enumerate(values[target.name]) if value is not None]
    goal = [values[target.name][row] for row in rows]
    return {
        column.name: set(suspicions(column, [values[column.name][row] for row in rows], target, goal, task))
        for column in features
    }


def _notice_order(plpy: Plpy, spec: Json, ordering: Sequence[TableColumn]) -> None:
    """Warn that a random split tests on rows that lie in time between training rows."""
    if not ordering:
        return
    size = spec["split"].get("test_size", SPLIT["test_size"]["default"])
    split = json.dumps({"last": size, "by": ordering[0].name}, ensure_ascii=False)
    plpy.notice(
        f'"{ordering[0].name}" orders the rows in time, and a random split tests between rows that it trains on '
        f"(to test on the latest rows: split => {literal(split)})"
    )


def _notice_far_values(plpy: Plpy, spec: Json, far: Sequence[TableColumn]) -> None:
    """Warn that a few values of these features decide about the scale of all.

    Trees need no scale, and networks that embed numbers divide them at their quantiles.
    """
    scale = spec["preprocess"].get("scale", {})
    if spec["architecture"].get("type") in ("boosting", *EMBEDDING_ARCHITECTURES) or isinstance(scale, str):
        return
    names = [column.name for column in far if column.name not in scale]
    if not names:
        return
    by_rank = scale | dict.fromkeys(names, "quantile") if len(names) <= _MOST_NAMED else "quantile"
    preprocess = json.dumps(spec["preprocess"] | {"scale": by_rank}, ensure_ascii=False)
    plpy.notice(
        f"features with a few values far from all others, which hardly differ beside them: {', '.join(names)} "
        f"(to scale by rank: preprocess => {literal(preprocess)}; or architecture => 'tabm', which takes longer)"
    )


def has_far_values(column: TableColumn, values: Sequence[Any]) -> bool:
    """Return whether the standard deviation of a column of numbers is many times its interquartile range."""
    known = (
        sorted(value for value in values if _is_finite(value)) if column.kind in PREPROCESS["scale"]["kinds"] else []
    )
    if len(known) < _FEWEST_FAR:
        return False
    middle_half = known[3 * len(known) // 4] - known[len(known) // 4]
    mean = sum(known) / len(known)
    deviation = math.sqrt(sum((value - mean) * (value - mean) for value in known) / len(known))
    return bool(0 < _SKEWED * middle_half < deviation)


def suspicions(
    column: TableColumn, values: Sequence[Any], target: TableColumn, goal: Sequence[Any], task: str
) -> list[str]:
    """Return the suspicious properties of a column. All values of the target must be known."""
    if len(values) < _FEWEST_ROWS:
        return []
    known = [_is_finite(value) for value in values]
    ranks = _ranks(goal)
    kinds = [MISSING_WITH] if not all(known) and _determines(known, ranks) else []
    pairs = [(value, rank) for value, rank, usable in zip(values, ranks, known, strict=True) if usable]
    if len(pairs) < _FEWEST_ROWS:
        return kinds
    present = [value for value, _ in pairs]
    ranks = _ranks([rank for _, rank in pairs])
    if all(known):
        kinds += _key_kinds(column, present)
    comparable = column.kind == target.kind or "text" not in (column.kind, target.kind)
    if comparable and any(ranks) and present == [value for value, usable in zip(goal, known, strict=True) if usable]:
        return [*kinds, EQUAL]
    in_order = _orders_regression_target if task == "regression" else _separates_classes
    if column.kind in ("integer", "float", "date", "time", "duration") and in_order(present, ranks):
        return [*kinds, ORDERING]
    return [*kinds, DETERMINING] if _determines(present, ranks) else kinds


def orders_rows(column: TableColumn, values: Sequence[Any]) -> bool:
    """Return whether a date or timestamp increases with the rows, or a timestamp differs in nearly every row."""
    known = [value for value in values if _is_finite(value)]
    if len(known) < _FEWEST_ROWS:
        return False
    if not column.type.startswith("date") and len(set(known)) >= _NEARLY_ALL * len(known):
        return True
    steps = [after - before for before, after in pairwise(known)]
    rising = sum(step >= 0 for step in steps) >= _NEARLY_ALL * len(steps)
    changes: bool = known[0] != known[-1]
    return changes and rising and sum(step > 0 for step in steps) >= _FEWEST_STEPS


def _first_rows(plpy: Plpy, table: Table, columns: Sequence[TableColumn]) -> tuple[dict[str, list[Any]], int]:
    """Return the columns' values in the first rows, and the most rows that were requested."""
    limit = max(2 * _FEWEST_ROWS, min(_MOST_ROWS, _VALUES // len(columns)))
    expressions = ", ".join(
        f"{_SQL_VALUES[column.kind].format(plpy.quote_ident(column.name))} as c{place}"
        for place, column in enumerate(columns)
    )
    aggregates = ", ".join(f"pg_catalog.array_agg(c{place}) as c{place}" for place in range(len(columns)))
    source = table.source
    try:
        statement = f"select {aggregates} from (select {expressions} from {source} limit {limit}) as first_rows"
        row = next(iter(plpy.execute(statement)))
    except plpy.SPIError as error:
        if getattr(error, "sqlstate", "") != _OUT_OF_RANGE:
            raise
        return {column.name: [] for column in columns}, limit  # the job's own error will name the row
    return {column.name: row[f"c{place}"] or [] for place, column in enumerate(columns)}, limit


def _is_finite(value: Any) -> bool:
    return value is not None and (not isinstance(value, float) or math.isfinite(value))


def _ranks(goal: Sequence[Any]) -> list[int]:
    """Return the rank of each value among the distinct values."""
    known = {value: rank for rank, value in enumerate(sorted(set(goal)))}
    return [known[value] for value in goal]


def _key_kinds(column: TableColumn, values: Sequence[Any]) -> list[str]:
    whole = column.kind in ("integer", "text") or (
        column.kind == "float" and all(value.is_integer() for value in values)
    )
    if not whole or len(set(values)) < len(values):
        return []
    return [COUNTER if column.kind != "text" and all(a < b for a, b in pairwise(values)) else KEY]


def _orders_regression_target(values: Sequence[Any], ranks: Sequence[int]) -> bool:
    rising = [rank for _, rank in sorted(zip(values, ranks, strict=True))]
    falling = [rank for _, rank in sorted(zip(values, ranks, strict=True), key=lambda pair: (pair[0], -pair[1]))]
    if any(a > b for a, b in pairwise(rising)) and any(a < b for a, b in pairwise(falling)):
        return False
    within = _log_factorials(values) - _log_factorials(zip(values, ranks, strict=True))
    return within + math.log(2) - _log_arrangements(ranks) < _LOG_ACCIDENT


def _separates_classes(values: Sequence[Any], ranks: Sequence[int]) -> bool:
    ordered = [rank for _, rank in sorted(zip(values, ranks, strict=True))]
    classes = max(ranks) + 1
    if sum(a != b for a, b in pairwise(ordered)) != classes - 1 or not _is_function(values, ranks):
        return False
    return math.lgamma(classes + 1) - _log_arrangements(ranks) < _LOG_ACCIDENT


def _determines(values: Sequence[Any], ranks: Sequence[int]) -> bool:
    accident = len(set(values)) * math.log(max(ranks) + 1) - _log_arrangements(ranks)
    return accident < _LOG_ACCIDENT and _is_function(values, ranks)


def _is_function(values: Sequence[Any], ranks: Sequence[int]) -> bool:
    return len(set(zip(values, ranks, strict=True))) == len(set(values))


def _log_arrangements(ranks: Sequence[int]) -> float:
    return math.lgamma(len(ranks) + 1) - _log_factorials(ranks)


def _log_factorials(values: Any) -> float:
    return math.fsum(math.lgamma(count + 1) for count in Counter(values).values())


def _array(names: Sequence[str]) -> str:
    return f"array[{', '.join(literal(name) for name in names)}]"
