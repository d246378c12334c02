"""Checks the first rows of a table, which takes some milliseconds; the worker checks all rows.

The statements run with the caller's search_path, which the functions of a view may need. So each function, type and
operator in them is qualified.
"""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident

import re
from collections.abc import Sequence
from typing import Any

from ..request.preprocess_rules import PATH_KINDS, path_steps
from ..request.task_rules import predicts_target, target_columns
from ..request.token_rules import reads_in_lengths
from .feature_columns import used_columns
from .refusals import DATA, RefusalError
from .spi import Json, Plpy, Row, fetch, literal
from .training_table import VECTORS, Table, TableColumn, vector_array

FEWEST_ROWS = 3  # as the worker requires (learning/training/learnable_rows.py)
_ROWS = 10_000  # a scan of this many rows takes some milliseconds at most
_ARRAY_ROWS = 1000  # arrays are wide
_HEADERS = 16  # images whose headers are read to tell the sizes
_TEXTS = 400  # texts whose lengths in tokens are foretold; a share of batches is then right within a few percent
_TEXT_CHARACTERS = 4096  # of each of them; the 128 tokens that are read at most by default rarely have 1,000
_HEADER_BYTES = 65536  # first bytes of an image, among which its header has the size, behind its EXIF


def check_rows(plpy: Plpy, table: Table, spec: Json) -> None:
    """Refuse a table that a model cannot learn from.

    Only the first rows are checked.
    """
    # Labels of anomalies may be NULL, or all equal, and the columns of an item are read as features are.
    names = () if spec["task"] in ("anomaly", "pairs") else target_columns(spec)
    targets = [table.column(name, "target") for name in names]
    arrays = [column for column in used_columns(table, spec) if column.kind == "array"]
    if targets and _is_vector(targets[0], spec):
        arrays = [*targets, *arrays]
    limit = _ARRAY_ROWS if arrays else _ROWS
    summary = _summarize(plpy, table, targets, arrays, limit)
    more_rows = "Insert rows, commit, and call tensile_train again."
    if table.query is not None:
        more_rows = "Change the query's conditions, or insert rows into the tables that it reads."
    if not summary["rows"]:
        raise RefusalError(DATA, f"{table} has no rows", detail=_hidden_rows(plpy, table), hint=more_rows)
    is_complete = summary["rows"] < limit  # otherwise the table has further rows
    subject = f'target "{targets[0].name}" of {table}' if len(targets) == 1 else f"target {spec['target']} of {table}"
    if is_complete and not summary["known"]:
        hint = "Fill it, or name another column with target => '...'."
        raise RefusalError(DATA, f"{subject} is NULL in all {summary['rows']} rows", hint=hint)
    if is_complete and targets and spec["task"] != "forecast" and summary["known"] < FEWEST_ROWS:
        known = f"{summary['known']} row{'' if summary['known'] == 1 else 's'} whose target is known"
        fewest = f"{FEWEST_ROWS} are the fewest to train and test on"
        raise RefusalError(DATA, f"{table} has {known}, and {fewest}", hint=more_rows)
    if summary["infinite"]:
        hint = "Delete these rows, or set their target to NULL to leave them out."
        raise RefusalError(DATA, f"{subject} is not finite in {summary['infinite']} of its first rows", hint=hint)
    if is_complete and summary["value"] is not None and summary["value"] == summary["last_value"]:
        _refuse_one_value(subject, spec["task"], summary)
    for place, column in enumerate(arrays):
        if summary[f"least_{place}"] is None and is_complete and column not in targets and "init_from" not in spec:
            raise _no_element(table, column, summary["rows"])
        _check_shape(table, column, summary[f"least_{place}"], summary[f"most_{place}"], is_target=column in targets)


def _hidden_rows(plpy: Plpy, table: Table) -> str:
    """Return that policies may hide the rows of a table, or an empty text."""
    active = table.oid and any(row["active"] for row in fetch(plpy, ROW_SECURITY, table.oid))
    return "Row-level security applies to you, and no policy shows you a row." if active else ""


def _is_vector(target: TableColumn, spec: Json) -> bool:
    """Return whether the target is an array of one shape; the arrays of integers of label sets differ."""
    return target.kind == "array" and (spec["task"] == "regression" or target.base == "_bool")


def count_shapes(plpy: Plpy, table: Table, target: TableColumn) -> int:
    """Return the number of different shapes of the arrays in the first rows."""
    column, source = plpy.quote_ident(target.name), table.source
    statement = (
        f"select pg_catalog.count(distinct v) as shapes from (select pg_catalog.array_dims({column}) as v "
        f"from {source} where {column} is not null limit {_ARRAY_ROWS}) as sample"
    )
    return int(next(iter(plpy.execute(statement)))["shapes"])


def count_values(plpy: Plpy, table: Table, target: TableColumn) -> int:
    """Return the number of distinct values of an integer target in the first rows."""
    column, source = plpy.quote_ident(target.name), table.source
    statement = (
        f"select pg_catalog.count(distinct v) as values from (select {column} as v from {source} "
        f"where {column} is not null limit {_ROWS}) as sample"
    )
    return int(next(iter(plpy.execute(statement)))["values"])


def read_statistics(plpy: Plpy, table: Table, spec: Json) -> tuple[list[Json], int]:
    """Return the statistics of the columns and the number of rows.

    The service needs both to build the network.
    """
    source = table.source
    targets = [table.column(name, "target") for name in target_columns(spec) if predicts_target(spec["task"])]
    if targets and targets[0].kind == "array" and not _is_vector(targets[0], spec):
        targets = [targets[0]._replace(kind="labels")]
    used = [*_with_paths(used_columns(table, spec), spec), *targets]
    expressions = ["(select pg_catalog.count(*) from sample) as sampled"]
    sampled = [column.name for column in used if reads_in_lengths(spec, column.kind, column.name)]
    for place, column in enumerate(used):
        name = _path_expression(plpy, column) if column.base == _PATH else plpy.quote_ident(column.name)
        query = _texts_query(name) if column.name in sampled else _statistic_query(column, name)
        expressions.append(f"({query}) as c{place}")
    statement = f"""with sample as materialized (select * from {source} limit {_ROWS})
        select {", ".join(expressions)}"""
    row = next(iter(plpy.execute(statement)))
    columns = [
        _sampled_texts(column, row[f"c{place}"]) if column.name in sampled else _statistic(column, row[f"c{place}"])
        for place, column in enumerate(used)
    ]
    rows = int(row["sampled"])
    if rows == _ROWS:
        rows = int(fetch(plpy, f"select pg_catalog.count(*) as rows from {source}")[0]["rows"])
    return columns, rows


def _with_paths(columns: Sequence[TableColumn], spec: Json) -> list[TableColumn]:
    """Return the columns, in which the chosen paths of documents replace the documents."""
    paths = spec["preprocess"].get("paths", {})
    expanded: list[TableColumn] = []
    for column in columns:
        if column.kind != "document":
            expanded.append(column)
        for path, word in paths.get(column.name, {}).items() if column.kind == "document" else ():
            expanded.append(
                TableColumn(
                    name=f"{column.name}.{path}", type=column.name, kind=PATH_KINDS[word], key=False, base=_PATH
                )
            )
    return expanded


_PATH = "path"  # the base type of a path in statistics; its `type` is the name of the documents' column


def _path_expression(plpy: Plpy, column: TableColumn) -> str:
    """Return the SQL expression of a path's value: a text, or an array of texts for labels."""
    steps = ", ".join(_quoted(step) for step in path_steps(column.name.removeprefix(f"{column.type}.")))
    documents = f"{plpy.quote_ident(column.type)}::pg_catalog.jsonb"
    value = f"({documents} operator(pg_catalog.#>>) array[{steps}])"
    if column.kind != "labels":
        return value
    part = f"({documents} operator(pg_catalog.#>) array[{steps}])"
    return (
        f"case when pg_catalog.jsonb_typeof({part}) operator(pg_catalog.=) 'array' "
        f"then array(select pg_catalog.jsonb_array_elements_text({part})) end"
    )


def _quoted(text: str) -> str:
    """Return a literal that has the same value whatever standard_conforming_strings is."""
    return f"E{literal(text)}".replace("\\", "\\\\") if "\\" in text else literal(text)


def _statistic_query(column: TableColumn, name: str) -> str:
    """Return the query for the dimensions of an array, for the number of labels, or of distinct values."""
    if column.kind == "array":
        return f"select pg_catalog.array_dims({_elements(column, name)}) from sample where {name} is not null limit 1"
    if column.kind == "image":
        head = f"pg_catalog.encode(pg_catalog.substr({name}, 1, {_HEADER_BYTES}), 'hex')"
        some = f"select {head} as h from sample where {name} is not null limit {_HEADERS}"
        return f"select pg_catalog.array_agg(h) from ({some}) as images"
    if column.kind == "labels":
        return (
            "select pg_catalog.count(distinct label::pg_catalog.text) from sample, "
            f"lateral pg_catalog.unnest({name}) as label"
        )
    return f"select pg_catalog.count(distinct {name}) from sample"


def _texts_query(name: str) -> str:
    """Return the query for the beginnings of evenly spaced texts of the sample."""
    numbered = f"select {name} as v, pg_catalog.row_number() over () as place from sample"
    step = f"(select 1 operator(pg_catalog.+) (pg_catalog.count(*) operator(pg_catalog./) {_TEXTS}) from sample)"
    return (
        f'select pg_catalog.array_agg(pg_catalog."left"(v::pg_catalog.text, {_TEXT_CHARACTERS}) order by place) '
        f"from ({numbered}) as numbered where (place operator(pg_catalog.%) {step}) operator(pg_catalog.=) 0"
    )


def _sampled_texts(column: TableColumn, texts: list[str | None] | None) -> Json:
    """Return the statistic of a column of texts whose lengths are foretold."""
    return {"name": column.name, "type": column.type, "kind": column.kind, "texts": texts or []}


def _elements(column: TableColumn, name: str) -> str:
    """Return the SQL expression of an array's elements; a vector of pgvector is converted."""
    return vector_array(name) if column.base in VECTORS else name


def _statistic(column: TableColumn, value: Any) -> Json:
    shape = [int(size) for size in re.findall(r":(\d+)\]", value or "")] if column.kind == "array" else []
    distinct = None if column.kind in ("array", "image") else value
    statistic = {"name": column.name, "type": column.type, "kind": column.kind, "distinct": distinct}
    heads = (value or []) if column.kind == "image" else []
    return statistic | {"ndims": len(shape), "shape": shape, "heads": heads}


def _summarize(
    plpy: Plpy, table: Table, targets: Sequence[TableColumn], arrays: Sequence[TableColumn], limit: int
) -> Row:
    """Compute counts and extremes of the first rows in one statement."""
    source = table.source
    shapes_of = [_elements(column, plpy.quote_ident(column.name)) for column in arrays]
    named = [f"{plpy.quote_ident(column.name)} as c{place}" for place, column in enumerate(targets)]
    shaped = [f"{column} as a{place}" for place, column in enumerate(shapes_of)]
    known = " and ".join(f"c{place} is not null" for place in range(len(targets)))
    special_values = ("NaN", "Infinity", "-Infinity")
    infinite = " or ".join(
        f"c{place} operator(pg_catalog.=) '{special_value}'"
        for place, target in enumerate(targets)
        for special_value in special_values
        if target.kind == "float"
    )
    shapes = "".join(
        f", pg_catalog.min(pg_catalog.array_dims(a{place})) as least_{place}"
        f", pg_catalog.max(pg_catalog.array_dims(a{place})) as most_{place}"
        for place in range(len(arrays))
    )
    least, most = _extremes(targets)
    statement = f"""select pg_catalog.count(*) as rows, pg_catalog.count(*) filter (where {known or "true"}) as known,
        {least} as value, {most} as last_value,
        pg_catalog.count(*) filter (where {infinite or "false"}) as infinite{shapes}
        from (select {", ".join([*named, *shaped])} from {source} limit {limit}) as sample"""
    return next(iter(plpy.execute(statement)))


def _extremes(targets: Sequence[TableColumn]) -> tuple[str, str]:
    """Return the expressions for the least and the greatest value of c0 as text; null for several values a row.

    Numbers are compared as numbers and converted afterwards, because their text may lose digits.
    """
    if len(targets) != 1:
        return "null", "null"
    target = targets[0]
    if target.kind in ("array", "labels"):
        return "null", "null"
    if target.kind in ("integer", "float"):
        return "tensile.key_text(pg_catalog.min(c0))", "tensile.key_text(pg_catalog.max(c0))"
    text = 'c0::pg_catalog.text collate pg_catalog."C"'
    return f"pg_catalog.min({text})", f"pg_catalog.max({text})"


def _refuse_one_value(subject: str, task: str, summary: Row) -> None:
    """Refuse a target with a single value."""
    if task == "classification":
        hint = "Classification needs two classes or more: add rows of another one, or name another target."
        raise RefusalError(DATA, f"{subject} has one class only: {summary['value']}", hint=hint)
    hint = f"{task.capitalize()} needs values that differ: add rows, or name another target."
    raise RefusalError(DATA, f"{subject} is {summary['value']} in every row", hint=hint)


def _no_element(table: Table, column: TableColumn, rows: int) -> RefusalError:
    """Return the error for arrays that are all NULL or empty. With `init_from` their shape is that of a version."""
    return RefusalError(
        DATA,
        f'feature "{column.name}" of {table} has no array with an element in all {rows} rows: its shape is unknown',
        hint=f"Fill it, or leave it out with exclude => array[{literal(column.name)}].",
    )


def _check_shape(table: Table, column: TableColumn, least: str | None, most: str | None, *, is_target: bool) -> None:
    """Refuse arrays that differ in shape or do not start at subscript 1, and a target of more than one dimension."""
    if least is None or most is None:  # the first rows contain no array with elements
        return
    subject = f'{"target" if is_target else "feature"} "{column.name}" of {table}'
    leave_out = "Name another target" if is_target else f"Leave it out with exclude => array[{literal(column.name)}]"
    advice = f"{leave_out}, or make the arrays alike."
    if least != most:
        detail = f"Among the first rows are {least} and {most}."
        if is_target and column.base in ("_int2", "_int4", "_int8"):
            advice += " Arrays of any length are sets of labels: task => 'multilabel'."
        raise RefusalError(DATA, f"{subject} holds arrays of different shapes", detail=detail, hint=advice)
    if any(bound != "1" for bound in re.findall(r"\[(-?\d+):", least)):
        raise RefusalError(DATA, f"{subject} holds arrays whose lower bound is not 1: {least}", hint=advice)
    if is_target and least.count("[") > 1:
        hint = "Name a column whose arrays have one dimension."
        raise RefusalError(DATA, f"{subject} holds arrays of {least.count('[')} dimensions", hint=hint)


ROW_SECURITY = "select pg_catalog.row_security_active($1::oid) as active"
