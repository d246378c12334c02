"""Describes the table to train on and the columns that a model can learn from."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import RequestError
from ..request.column_types import KIND_OF_TYPE, SUPPORTED_TYPES
from ..request.copyable_relation import COLUMNS, FAMILY, NO_ROWS, Reason, counting, reasons
from ..request.request_fields import read_integer
from .refusals import MISSING_COLUMN, MISSING_TABLE, WRONG_KIND, RefusalError
from .spi import Json, Plpy, Row, fetch, literal, qualified
from .table_grants import check_caller, check_reader


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column of a table."""

    name: str
    type: str
    kind: str  # integer, float, boolean, text, date, time or array; empty for unsupported types
    key: bool  # part of the primary key, or an identity column
    primary: bool = False  # part of the primary key
    number: int = 0  # PostgreSQL's number of the column in its table
    type_oid: int = 0  # of a query's column only: its type as PostgreSQL's catalog names it
    type_modifier: int = -1  # of a query's column only


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A relation that the caller may read, or a query.

    `source` is the item of a FROM clause that gives the rows. `reasons` says why the trainers' role cannot copy the
    relation as it stands. `query` is the text of a query; a query has no oid and no schema (query_source.py).
    """

    oid: int
    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    source: str
    reasons: tuple[Reason, ...] = ()
    query: str | None = None

    def __str__(self) -> str:
        return f'table "{self.schema}.{self.name}"' if self.query is None else "the query"

    @property
    def title(self) -> str:
        """Return the words for the relation in PostgreSQL's own error about a missing column."""
        return f'relation "{self.schema}.{self.name}"' if self.query is None else "the query"

    @property
    def column_names(self) -> list[str]:
        """Return the names of all columns."""
        return [column.name for column in self.columns]

    @property
    def names(self) -> str:
        """Return the columns' names for a hint."""
        return ", ".join(self.column_names) or "none"

    def column(self, name: str, role: str) -> TableColumn:
        """Return the column of this name. `role` is the argument that names it, for the error message."""
        for column in self.columns:
            if column.name == name:
                return column
        message = f'column "{name}" of {self.title} does not exist'
        detail = "" if role == "target" else f"It is named in {role}."
        raise RefusalError(MISSING_COLUMN, message, detail=detail, hint=f"The columns are {self.names}.")


def find_table(plpy: Plpy, request: Json) -> Table:
    """Return the relation of the request. Refuses a relation that the caller may not read.

    The trainers' role need not be able to read the relation.
    """
    oid = read_integer(request, "relation")
    if oid is None:
        raise RequestError("no table is given", hint="Name one: select tensile_train('model', 'table').")
    relations = fetch(plpy, RELATION, oid)
    if not relations:
        raise no_table(oid)
    facts = relations[0]
    described = fetch(plpy, COLUMNS, oid)
    table_reasons = reasons(fetch(plpy, FAMILY, oid), described)
    table = Table(
        oid=oid,
        schema=facts["schema"],
        name=facts["name"],
        columns=tuple(
            TableColumn(
                name=row["name"],
                type=row["type"],
                kind=kind_of(row),
                key=row["key"],
                primary=row["primary_key"],
                number=row["number"],
            )
            for row in described
        ),
        source=qualified(plpy, facts["schema"], facts["name"]),
        reasons=table_reasons,
    )
    if table_reasons and table_reasons[0].code == NO_ROWS:
        hint = "Name the table that holds the rows to train on."
        raise RefusalError(WRONG_KIND, table_reasons[0].text, hint=hint)
    check_caller(plpy, facts)
    return table


def reasons_against(table: Table, used: Sequence[str]) -> tuple[Reason, ...]:
    """Return why the trainers' role cannot copy these columns of the relation and its key.

    If there is a reason, the training uses a snapshot. Missing grants are not among the reasons: `require_grants`
    checks them.
    """
    return counting(table.reasons, used)


def require_grants(plpy: Plpy, table: Table, used: Sequence[str]) -> None:
    """Refuse a relation if the trainers' role lacks a grant for these columns or for the key."""
    key = [column.name for column in table.columns if column.primary]
    check_reader(plpy, table.oid, str(table), list(dict.fromkeys((*used, *key))))


def no_table(oid: int) -> RefusalError:
    """Return the error for an oid that belongs to no relation."""
    return RefusalError(MISSING_TABLE, f"there is no table with oid {oid}", hint="It may have been dropped.")


def learnable_target(table: Table, column: TableColumn) -> TableColumn:
    """Return the column. Refuses a column whose type a model cannot learn from."""
    if not column.kind:
        message = f'target "{column.name}" of {table} has type {column.type}, which cannot be learned from'
        raise RequestError(message, hint=_SUPPORTED)
    return column


def require_learnable(table: Table, features: Sequence[TableColumn]) -> None:
    """Refuse all columns together whose types a model cannot learn from."""
    unsupported = [column for column in features if not column.kind]
    if not unsupported:
        return
    listed = ", ".join(literal(column.name) for column in unsupported)
    if len(unsupported) == 1:
        message = (
            f'feature "{unsupported[0].name}" of {table} has type {unsupported[0].type}, which cannot be learned from'
        )
        advice = f"Leave it out with exclude => array[{listed}]. "
    else:
        described = ", ".join(f'"{column.name}" ({column.type})' for column in unsupported)
        message = f"{len(unsupported)} features of {table} have types that cannot be learned from: {described}"
        advice = f"Leave them out with exclude => array[{listed}]. "
    raise RequestError(message, hint=advice + _SUPPORTED)


def kind_of(column: Row) -> str:
    """Return the kind of a described column, or an empty text for a type that models cannot learn from."""
    return "text" if column["enumerated"] else KIND_OF_TYPE.get(column["base"] or "", "")


_SUPPORTED = f"Supported are {SUPPORTED_TYPES}."

RELATION = """
select c.relname as name, n.nspname as schema, current_user as caller,
       has_schema_privilege(n.oid, 'usage') as caller_enters, has_table_privilege(c.oid, 'select') as caller_reads
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
 where c.oid = $1::oid"""
