"""Reads the argument `transform`: checks each expression, and writes it so that it means the same in each session.

An empty temporary table has the columns of the relation, with types of pg_catalog. A generated column of it for each
expression shows what PostgreSQL makes of the expression: its type, whether it is immutable, the columns that it
needs, and the objects outside pg_catalog that it depends on. PostgreSQL itself writes down the expression that is
stored. The rows of the training then come from a temporary view, whose names PostgreSQL has resolved with a
search_path of pg_catalog only.
"""

# ruff: noqa: S608 - names are quoted by quote_ident, and expressions have passed read_expression

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from ..errors import RequestError
from ..request.expression_tokens import ExpressionFault
from ..request.json_text import json_text
from ..request.task_rules import target_columns
from ..request.transform_rules import read_expression, read_transform
from .expression_functions import refused_functions
from .feature_computation import typed
from .inherited_arguments import LastRun
from .pinned_settings import ALL, pinned
from .query_source import DESCRIBE
from .refusals import DATA, RefusalError, database_error_fields
from .spi import Json, Plpy, callers_path, fetch
from .training_table import VECTORS, Table, TableColumn, kind_of, vector_array

_NOT_IMMUTABLE = "42P17"  # invalid_object_definition: the generation expression is not immutable
_IMMUTABLE = (
    "Its value follows the session's settings, such as TimeZone, DateStyle or lc_time. Say which: "
    "extract(hour from at at time zone 'UTC'), and to_char(at, ...) as extract(... from at)."
)


class _Refused(NamedTuple):
    """An expression that is refused, and why."""

    name: str
    text: str
    fault: ExpressionFault


def add_features(plpy: Plpy, request: Json, last: LastRun, table: Table) -> tuple[Json | None, Table]:
    """Return the part `transform` of the specification, and the table with the computed features as columns.

    The part is None if no features are computed. Raises RequestError with all refused expressions together.
    """
    expressions = read_transform(request.get("transform"))
    if expressions is None:
        stored = last.arguments.get("transform")
        expressions = None if stored is None else read_transform(stored.get("expressions"))
    if not expressions:
        return None, table
    refused = _outside_the_rules(plpy, table, expressions)
    number = next(_numbers)
    with pinned(plpy, ALL):
        transform, columns = _resolved(plpy, table, expressions, f"tensile_columns_{number}", refused)
    return transform, _computed_table(plpy, request, table, transform, columns, number)


def add_stored_features(plpy: Plpy, table: Table, transform: Json) -> Table:
    """Return a relation with the computed features of a version as columns.

    The expressions of `transform` are checked, and the relation has the columns that they name, of fitting types.
    """
    expressions, inputs = transform["expressions"], transform["inputs"]
    values = ", ".join(f"({text})" for text in expressions.values())
    columns = ", ".join(f"null::{typed(plpy, base)} as {plpy.quote_ident(name)}" for name, base in inputs.items())
    with pinned(plpy, ALL):
        result = plpy.execute(f"select {values} from (select {columns}) as x limit 0")
    types = cast(Any, result).coltypes()
    described = [{"name": n, "type": int(t), "modifier": -1} for n, t in zip(expressions, types, strict=True)]
    return _computed_table(plpy, {}, table, transform, _described(plpy, described), next(_numbers))


def drop_view(plpy: Plpy, table: Table) -> None:
    """Drop the temporary view of a table with computed features. An error drops it too, with the transaction."""
    if table.origin:
        plpy.execute(f"drop view {table.source}")
    if table.origin and table.query is not None:
        plpy.execute(f"drop view {table.origin}")


def refuse_roles(table: Table, transform: Json | None, spec: Json, deciding: str | None) -> None:
    """Refuse a computed feature as target, as weight or as the column that divides the rows.

    These are read from relations where nothing is computed, by tensile_evaluate and tensile_split.
    """
    roles: list[tuple[str, str | None]] = [("target", name) for name in target_columns(spec)]
    roles += [("hyperparams: weight", spec["hyperparams"].get("weight")), ("split", deciding)]
    for role, name in roles:
        if transform is not None and name in transform["expressions"]:
            raise RequestError(
                f'{role} is "{name}", which transform computes',
                detail=f"It is computed as {transform['expressions'][name]}.",
                hint="Name a column of the table, or compute the value in a view or with tensile_train_query.",
            )


@contextmanager
def naming_features(
    plpy: Plpy,
    table: Table,
    transform: Json | None,
    hint: str = "Cover such rows: a / nullif(b, 0), or case when ... then ... end.",
) -> Iterator[None]:
    """Run the block. An error in the computation of a row's features gets the name of the feature, and this hint."""
    try:
        yield
    except plpy.SPIError as error:
        if transform is None or not database_error_fields(error)["sqlstate"].startswith(DATA[:2]):
            raise
        for name, expression in transform["expressions"].items():
            try:
                plpy.execute(f"select pg_catalog.count({plpy.quote_ident(name)}) from {table.source}")
            except plpy.SPIError as own:
                fields = database_error_fields(own)
                if not fields["sqlstate"].startswith(DATA[:2]):  # a cancel or a time-out
                    raise
                raise RefusalError(
                    fields["sqlstate"],
                    f'transform: feature "{name}" cannot be computed for a row of {table}: {fields["message"]}',
                    detail=f"It is computed as {expression}.",
                    hint=hint,
                ) from None
        raise


def _outside_the_rules(plpy: Plpy, table: Table, expressions: Mapping[str, str]) -> list[_Refused]:
    """Return the expressions that the rules for words refuse, that no type fits, or that hide a column."""
    readable = {column.name: column for column in table.columns}
    refused: list[_Refused] = []
    calls: dict[str, list[tuple[str, int]]] = {}
    for name, text in expressions.items():
        read = read_expression(text, table.column_names)
        fault = read.fault or _unreadable(readable, read.columns) or _hides(readable.get(name), read.columns)
        if fault is not None:
            refused.append(_Refused(name=name, text=text, fault=fault))
            continue
        for function, place in read.functions.items():
            calls.setdefault(function, []).append((name, place))
    for function, reason in refused_functions(plpy, calls).items():
        for name, place in calls[function]:
            fault = ExpressionFault(text=f"function {function}: {reason}", place=place, hint=_FUNCTIONS)
            refused.append(_Refused(name=name, text=expressions[name], fault=fault))
    return refused


def _unreadable(readable: Mapping[str, TableColumn], columns: frozenset[str]) -> ExpressionFault | None:
    for name in sorted(columns):
        if input_type(readable[name]) is None:
            return ExpressionFault(
                text=f'column "{name}" has type {readable[name].type}, which is not of pg_catalog',
                place=1,
                hint="Cast it in a view or in tensile_train_query.",
            )
    return None


def _hides(column: TableColumn | None, columns: frozenset[str]) -> ExpressionFault | None:
    """Return the fault of a name that is a column's, unless the expression is made from that column."""
    if column is None or (column.name in columns and not column.primary):
        return None
    why = "it is part of the primary key" if column.primary else "the expression does not use it"
    return ExpressionFault(
        text=f'the table has a column "{column.name}", and {why}',
        place=1,
        hint="Choose another name. A feature replaces the column of its name if it is computed from that column.",
    )


def _resolved(
    plpy: Plpy, table: Table, expressions: Mapping[str, str], scratch: str, refused: list[_Refused]
) -> tuple[Json, list[TableColumn]]:
    """Return the part `transform` of the specification and the computed columns, from generated columns.

    `refused` are the expressions that the rules refuse, which PostgreSQL does not read.
    """
    types = {column.name: input_type(column) for column in table.columns}
    columns = ", ".join(f"{plpy.quote_ident(n)} {typed(plpy, base)}" for n, base in types.items() if base is not None)
    plpy.execute(f"create temporary table {scratch} ({columns})")
    known = {expression.name for expression in refused}
    generated: dict[str, str] = {}
    described: list[Json] = []
    for name, text in expressions.items():
        if name in known:
            continue
        own = f"tensile feature {len(generated)}"
        while own in types:
            own += "_"
        outcome = _generate(plpy, scratch, own, text)
        if isinstance(outcome, ExpressionFault):
            refused.append(_Refused(name=name, text=text, fault=outcome))
            continue
        generated[own] = name
        described.append({"name": name, "type": outcome, "modifier": -1})
    _raise_all(table, refused)
    rows = {generated[row["name"]]: row for row in fetch(plpy, GENERATED, scratch) if row["name"] in generated}
    for name, row in rows.items():
        fault = _outside_pg_catalog(row["outside"]) or read_expression(row["expression"], row["inputs"]).fault
        if fault is not None:
            refused.append(_Refused(name=name, text=row["expression"], fault=fault))
    _raise_all(table, refused)
    inputs = {column: types[column] for name in sorted(rows) for column in rows[name]["inputs"]}
    transform = {"expressions": {name: rows[name]["expression"] for name in sorted(rows)}, "inputs": inputs}
    computed = _described(plpy, sorted(described, key=lambda row: str(row["name"])))
    plpy.execute(f"drop table pg_temp.{scratch}")
    return transform, computed


def _described(plpy: Plpy, described: Sequence[Json]) -> list[TableColumn]:
    """Return the computed columns of these names and types."""
    return [
        TableColumn(
            name=row["name"],
            type=row["type"],
            kind=kind_of(row),
            base=row["base"] or "",
            category=row["category"],
            key=False,
            type_oid=row["declared"],
        )
        for row in fetch(plpy, DESCRIBE, json_text(described))
    ]


def _generate(plpy: Plpy, scratch: str, own: str, text: str) -> int | ExpressionFault:
    """Add a generated column for an expression, and return the oid of its type, or why PostgreSQL refuses it."""
    begin = "select ("
    try:
        result = plpy.execute(f"{begin}{text}\n) as value from pg_temp.{scratch} limit 0")
        type_oid = int(cast(Any, result).coltypes()[0])
        name = fetch(plpy, TYPE_NAME, type_oid)[0]["name"]
        begin = f"alter table pg_temp.{scratch} add column {plpy.quote_ident(own)} {name} generated always as ("
        plpy.execute(f"{begin}{text}\n) stored")
    except plpy.SPIError as error:
        fields = database_error_fields(error)
        position = (getattr(error, "spidata", None) or (0,) * 5)[4] or 0
        place = max(1, position - len(begin))
        if fields["sqlstate"] == _NOT_IMMUTABLE:
            return ExpressionFault(text="its value may change from session to session", place=place, hint=_IMMUTABLE)
        return ExpressionFault(text=fields["message"], place=place, hint=fields["hint"])
    return type_oid


def _outside_pg_catalog(objects: Sequence[str]) -> ExpressionFault | None:
    if not objects:
        return None
    return ExpressionFault(text=f"it depends on {', '.join(objects)}, outside pg_catalog", place=1, hint=_FUNCTIONS)


def _computed_table(
    plpy: Plpy, request: Json, table: Table, transform: Json, computed: Sequence[TableColumn], number: int
) -> Table:
    """Create the temporary view of the rows with their features, and return the table that reads it."""
    origin = table.source
    if table.query is not None:  # the names in the query are resolved by the caller's path, the others by ours
        origin = f"pg_temp.tensile_query_{number}"
        with callers_path(plpy, request.get("search_path")):
            plpy.execute(f"create temporary view tensile_query_{number} as select * from {table.source}")
    kept = [column for column in table.columns if column.name not in transform["expressions"]]
    quoted = plpy.quote_ident
    columns = ", ".join(f"t.{quoted(column.name)}" for column in kept)
    features = ", ".join(f"({text}) as {quoted(name)}" for name, text in transform["expressions"].items())
    inputs = ", ".join(
        f"{_input_value(plpy, column, transform['inputs'][column.name])} as {quoted(column.name)}"
        for column in table.columns
        if column.name in transform["inputs"]
    )
    names = ", ".join(f"f.{quoted(column.name)}" for column in computed)
    with pinned(plpy, ALL):
        plpy.execute(
            f"create temporary view tensile_features_{number} as select {', '.join(filter(None, (columns, names)))}"
            f" from {origin} as t cross join lateral (select {features} from (select {inputs}) as x) as f"
        )
    source = f"pg_temp.tensile_features_{number}"
    return table._replace(columns=(*kept, *computed), source=source, origin=origin)


def input_type(column: TableColumn) -> str | None:
    """Return the type of pg_catalog as which expressions see a column, or None if there is none."""
    if column.base in VECTORS:
        return "_float4"
    if column.base == "_enum":
        return "_text"
    return column.base or ("text" if column.kind == "text" else None)  # the base of an enum is empty


def _input_value(plpy: Plpy, column: TableColumn, base: str) -> str:
    """Return the SQL expression of a column's value as expressions see it, in a type of pg_catalog."""
    value = f"t.{plpy.quote_ident(column.name)}"
    return vector_array(value) if column.base in VECTORS else f"{value}::{typed(plpy, base)}"


def _raise_all(table: Table, refused: Sequence[_Refused]) -> None:
    """Refuse all expressions together, each with its feature, its text and the position."""
    if not refused:
        return
    places = [
        f'"{expression.name}" ({expression.text}): {expression.fault.text}, at character {expression.fault.place}.'
        for expression in refused
    ]
    hints = list(dict.fromkeys(expression.fault.hint for expression in refused if expression.fault.hint))
    names = ", ".join(f'"{expression.name}"' for expression in refused)
    raise RequestError(
        f"transform: {'feature' if len(refused) == 1 else f'{len(refused)} features'} of {table} cannot be computed: "
        f"{names}",
        detail=" ".join(places),
        hint=" ".join(hints) or f"Compute {'it' if len(refused) == 1 else 'them'} in a view or a query.",
    )


_numbers = itertools.count(1)
_FUNCTIONS = "Use immutable functions, operators and types of pg_catalog, or compute the feature in a view."

TYPE_NAME = "select pg_catalog.format_type($1::pg_catalog.oid, null) as name"
# The generated columns of a temporary table: each with its expression, the columns that it reads, and the objects
# that it depends on. PostgreSQL records no dependency on an object of pg_catalog that it has created itself.
GENERATED = """
select a.attname as name, pg_get_expr(d.adbin, d.adrelid) as expression,
       array(select i.attname::text
               from pg_depend as n join pg_attribute as i on i.attrelid = n.refobjid and i.attnum = n.refobjsubid
              where (n.classid, n.objid, n.objsubid) in (('pg_attrdef'::regclass, d.oid, 0),
                                                         ('pg_class'::regclass, a.attrelid, a.attnum::int4))
                and n.refclassid = 'pg_class'::regclass and n.refobjid = a.attrelid
                and n.refobjsubid not in (0, a.attnum)
              group by i.attname, i.attnum order by i.attnum) as inputs,
       array(select distinct pg_describe_object(n.refclassid, n.refobjid, n.refobjsubid)
               from pg_depend as n
              where (n.classid, n.objid, n.objsubid) in (('pg_attrdef'::regclass, d.oid, 0),
                                                         ('pg_class'::regclass, a.attrelid, a.attnum::int4))
                and not (n.refclassid = 'pg_class'::regclass and n.refobjid = a.attrelid)) as outside
  from pg_attribute as a
  join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where a.attrelid = format('pg_temp.%I', $1::text)::regclass and a.attgenerated = 's'"""
