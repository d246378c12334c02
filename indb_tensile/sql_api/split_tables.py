"""Checks the tables that a split names for the rows of its validation and test parts."""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident

from collections.abc import Mapping, Sequence

from ..errors import RequestError
from ..request.copyable_relation import FAMILY
from ..request.part_tables import SAME_COLUMNS_HINT, differing_columns
from ..request.split_rules import TABLE_OPTIONS
from ..request.task_rules import target_columns
from .feature_columns import all_known
from .refusals import DATA, MISSING_TABLE, RefusalError, database_error_fields
from .spi import Json, Plpy, callers_path, fetch
from .training_table import Table, find_table

PartTables = Mapping[str, Table]


def find_part_tables(plpy: Plpy, request: Json, split: Json, table: Table) -> PartTables:
    """Return the tables of parts that the split names, in the order in which they are read.

    A name is looked up with the caller's search_path. Refuses a table that the caller may not read, and a table that
    shares rows with the training table: the table itself, its partitions, children and parents.
    """
    tables: dict[str, Table] = {}
    for part in [part for part in TABLE_OPTIONS if part in split]:
        own = find_table(plpy, {"relation": _find_oid(plpy, request, part, split[part])})
        family = [] if table.query is not None else fetch(plpy, FAMILY, table.oid)
        if own.oid in [int(row["oid"]) for row in family]:
            raise RequestError(
                f"split: {own} of the {part} part shares its rows with {table}, which the model is trained on",
                detail="Rows of the training table, of its partitions and of its parents would be in two parts.",
                hint="Name a table of its own, or let the training table's rows be divided, as in "
                """split => '{"column": "is_test"}'.""",
            )
        tables[part] = own
    if len({own.oid for own in tables.values()}) < len(tables):
        raise RequestError(
            f"split: {tables['test']} is named for the valid part and for the test part",
            hint="Name two tables, or leave valid out: a share of the training table then validates.",
        )
    return tables


def require_same_columns(tables: PartTables, table: Table, used: Sequence[str]) -> None:
    """Refuse a table without the columns that the training reads, or with other types, with all differences."""
    required = {column.name: column.type for column in table.columns if column.name in used}
    for part, own in tables.items():
        message = differing_columns(
            part, f'"{own.schema}.{own.name}"', required, {column.name: column.type for column in own.columns}
        )
        if message:
            raise RefusalError(DATA, message, detail=f"The training reads {table}.", hint=SAME_COLUMNS_HINT)


def require_targets(plpy: Plpy, tables: PartTables, spec: Json) -> None:
    """Refuse a table without a row whose target is known."""
    target = spec["target"]
    for part, own in tables.items():
        statement = f"select 1 as one from {own.source} where {all_known(plpy, target_columns(spec))} limit 1"
        if not list(plpy.execute(statement)):
            raise RefusalError(
                DATA,
                f'split: {own} of the {part} part has no row whose target "{target}" is known',
                hint="Insert rows, commit, and call tensile_train again, or name another table.",
            )


def count_rows(plpy: Plpy, tables: PartTables, spec: Json) -> dict[str, int]:
    """Return the number of rows of each table whose target is known."""
    known = all_known(plpy, target_columns(spec))
    statement = f"select pg_catalog.count(*) as rows from {{}} where {known}"
    counts = {part: next(iter(plpy.execute(statement.format(own.source)))) for part, own in tables.items()}
    return {part: int(row["rows"]) for part, row in counts.items()}


def _find_oid(plpy: Plpy, request: Json, part: str, name: str) -> int:
    """Return the oid of the table of this name. Refuses a name that no table has."""
    inherited = request.get("split") is None
    detail = "It is named in the split of the model's last run, as no split is given." if inherited else ""
    hint = "Name a table, with its schema if it is not in the search_path"
    hint += ", or give another split, such as split => '{}'." if inherited else "."
    try:
        with callers_path(plpy, request.get("search_path")):
            oid = fetch(plpy, TABLE_OF_NAME, name)[0]["oid"]
    except plpy.SPIError as error:
        fields = database_error_fields(error)
        if not fields["sqlstate"].startswith(("42", "22", "0A")):
            raise
        message = f'split: "{part}" is "{name}", which is not the name of a table'
        raise RequestError(message, detail=f"PostgreSQL says: {fields['message']}.", hint=hint) from None
    if oid is None:
        raise RefusalError(
            MISSING_TABLE, f'split: table "{name}" of the {part} part does not exist', detail=detail, hint=hint
        )
    return int(oid)


TABLE_OF_NAME = """
select pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid::pg_catalog.int8 as oid"""
