"""Checks the column that decides which rows test: whether the table has it, and whether it can decide."""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident

from ..request.feature_rules import check_features
from ..request.request_fields import read_names
from ..request.split_rules import (
    SPLIT_COLUMN_HINTS,
    check_split_column,
    check_split_use,
    deciding_column,
    deciding_option,
    require_order,
)
from ..request.task_rules import target_columns
from .feature_columns import all_known, used_columns
from .refusals import DATA, RefusalError
from .spi import Json, Plpy, Row
from .training_table import Table, TableColumn

_ROWS = 10_000  # rows that are checked; the worker checks all rows


def choose_split_column(plpy: Plpy, request: Json, table: Table, spec: Json) -> Json:
    """Return the split with the name of its column.

    A split by time needs no column name if the table has only one date or timestamp column.
    """
    split: Json = spec["split"]
    if "last" in split and "by" not in split:
        split = split | {"by": _only_time_column(plpy, table, spec)}
    check_split_use(split, target_columns(spec), spec["features"])
    option = deciding_option(split)
    if option is None:
        return split
    name = split[option]
    column = _find_column(table, name, inherited=request.get("split") is None)
    check_split_column(option, f'"{name}" of {table}', column.kind, f"has type {column.type}")
    _check_features(plpy, request, table, spec | {"split": split}, option, name)
    return split


def check_split_values(plpy: Plpy, table: Table, spec: Json) -> None:
    """Refuse a column that does not decide about every row.

    Only the first rows are checked.
    """
    split = spec["split"]
    name = deciding_column(split)
    if name is None:
        return
    counts = _count_parts(plpy, table, spec, name)
    subject = f'split: column "{name}" of {table}'
    if counts["unknown"]:
        raise RefusalError(
            DATA,
            f"{subject} is NULL in {counts['unknown']} of its first {counts['rows']} rows with a target",
            detail="It decides which part each row is in.",
            hint="Fill it, or set the target of these rows to NULL to leave them out.",
        )
    if "column" not in split:
        return
    if counts["strange"]:
        message = (
            f"{subject} is neither train, valid nor test in {counts['strange']} of its first {counts['rows']} rows"
        )
        raise RefusalError(DATA, message, hint=SPLIT_COLUMN_HINTS["column"])
    for part in ("test", "train"):
        if counts["rows"] < _ROWS and not counts[part]:
            raise RefusalError(DATA, f"{subject} names no row of the {part} part", hint=SPLIT_COLUMN_HINTS["column"])


def read_shares(plpy: Plpy, table: Table, spec: Json) -> Json | None:
    """Return the shares of the rows that test and validate, if a column decides about them.

    The shares are counted in the first rows.
    """
    name = spec["split"].get("column")
    if name is None:
        return None
    counts = _count_parts(plpy, table, spec, name)
    rows = max(counts["rows"], 1)
    return {"test": counts["test"] / rows, "valid": counts["valid"] / rows}


def _only_time_column(plpy: Plpy, table: Table, spec: Json) -> str:
    """Return the table's only date or timestamp column. Refuses the request if there are several or none."""
    names = [
        column.name
        for column in table.columns
        if column.kind in ("date", "time") and column.name not in target_columns(spec)
    ]
    if len(names) != 1:
        detail = f"{table} has the dates and timestamps {', '.join(names)}." if names else f"{table} has no date."
        require_order(spec["split"], names, detail)
    plpy.notice(f'split is by "{names[0]}", the only date or timestamp of {table}')
    return names[0]


def _find_column(table: Table, name: str, *, inherited: bool) -> TableColumn:
    """Return the column. If the split was inherited, the error for a missing column says so."""
    try:
        return table.column(name, "split")
    except RefusalError as refusal:
        if inherited:
            refusal.detail = "It is named in the split of the model's last run, as no split is given."
            refusal.hint = f"Give another split, such as split => '{{}}'. {refusal.hint}"
        raise


def _check_features(plpy: Plpy, request: Json, table: Table, spec: Json, option: str, name: str) -> None:
    """Refuse a table that has no features besides the column.

    Notifies the client if the column is left out of the features without being excluded.
    """
    if spec["features"] is not None:
        return
    check_features(
        target_columns(spec), [column.name for column in used_columns(table, spec)], str(table), table.column_names
    )
    if name not in (read_names(request, "exclude") or ()) and option in ("by", "group"):
        plpy.notice(
            f"left out of the features, as the split is by it: {name} "
            "(name it in features => array[...] to learn from it)"
        )


def _count_parts(plpy: Plpy, table: Table, spec: Json, name: str) -> Row:
    """Count the first rows of each part according to the column.

    For a date, timestamp or number only the unknown values matter.
    """
    source, column = table.source, plpy.quote_ident(name)
    known = all_known(plpy, target_columns(spec))
    counts = ", ".join(
        f"pg_catalog.count(*) filter (where part_name {test}) as {part}"
        for part, test in (
            ("unknown", "is null or part_name operator(pg_catalog.=) 'NaN'"),
            ("test", "operator(pg_catalog.=) any (array['test', 'true'])"),
            ("valid", "operator(pg_catalog.=) 'valid'"),
            ("train", "operator(pg_catalog.=) any (array['train', 'false'])"),
            ("strange", "operator(pg_catalog.<>) all (array['train', 'valid', 'test', 'true', 'false'])"),
        )
    )
    statement = f"""select pg_catalog.count(*) as rows, {counts} from (
        select {column}::pg_catalog.text collate pg_catalog."C" as part_name from {source}
         where {known} limit {_ROWS}) as sample"""
    return next(iter(plpy.execute(statement)))
