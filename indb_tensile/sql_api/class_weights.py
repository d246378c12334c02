"""Checks the classes that `class_weight` names against the values of the target in the first rows of a table."""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident

from collections.abc import Sequence
from typing import Any

from ..request.hyperparam_rules import check_some_weight, check_weighted_classes
from ..request.task_rules import target_columns
from .spi import Json, Plpy
from .training_table import Table, TableColumn

_ROWS = 10_000  # of a table with more rows the worker checks the classes, after it has read them


def check_class_weights(plpy: Plpy, table: Table, spec: Json, weights: Sequence[Any]) -> None:
    """Refuse the weight of a class that no row has, and weights of 0 for all classes.

    `weights` are values of `class_weight`, of which some may be objects. Tables of parts and the version of
    `init_from` may have further classes, and a table of many rows too: the worker checks these.
    """
    by_class = [own for own in weights if isinstance(own, dict)]
    targets = target_columns(spec)
    if not by_class or len(targets) != 1 or "part_tables" in spec or "init_from" in spec:
        return
    target = table.column(targets[0], "target")
    classes = _read_classes(plpy, table, target, spec["task"])
    if classes is None:
        return
    # The client copies frames into temporary tables, whose names say nothing to its caller.
    of_table = "" if table.schema.startswith("pg_temp") else f" of {table}"
    for own in by_class:
        check_weighted_classes(own, f'target "{target.name}"{of_table}', classes)
        if spec["task"] == "classification":  # rows without a label always count
            check_some_weight(own, f'target "{target.name}"{of_table}', classes)


def _read_classes(plpy: Plpy, table: Table, target: TableColumn, task: str) -> list[str] | None:
    """Return the classes or labels of all rows as SQL shows them, or None if they cannot be told from few rows."""
    values, value = "sample", "own"
    if task == "multilabel" and target.base != "_bool":
        values, value = "sample, lateral pg_catalog.unnest(own) as elements(element)", "element"
    elif task != "classification" or target.kind not in ("boolean", "integer", "text"):
        return None  # elements of an array of booleans have no names, and a worker writes fractions in its own way
    text = f'{value}::pg_catalog.text collate pg_catalog."C"'
    statement = f"""with sample as materialized (
            select {plpy.quote_ident(target.name)} as own from {table.source} limit {_ROWS})
        select (select pg_catalog.count(*) from sample) as rows,
               (select pg_catalog.array_agg(distinct {text}) from {values} where {value} is not null) as classes"""
    row = next(iter(plpy.execute(statement)))
    if row["rows"] >= _ROWS:
        return None
    classes: list[str] = row["classes"] or []
    return sorted(classes, key=int) if target.kind in ("integer", "array") else sorted(classes)
