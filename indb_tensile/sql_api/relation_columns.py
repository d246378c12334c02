"""Describes a relation whose rows are predicted: its columns, those that a version needs, and those of its key."""

from collections.abc import Mapping, Sequence

from ..errors import RequestError
from ..request.column_types import KIND_OF_TYPE
from ..request.copyable_relation import COLUMNS
from ..request.request_fields import read_integer, read_model_name
from . import service_connection
from .refusals import MISSING_COLUMN, RefusalError
from .row_features import raw_columns
from .spi import Json, Plpy, Row, fetch
from .training_table import VIEW_KEY, no_table
from .version_lookup import find_version

INTEGERS = ("int2", "int4", "int8")
# Types whose JSON no setting of the session changes. Keys of other types become JSON under pinned settings.
_PLAIN_KEYS = (*INTEGERS, "bool", "numeric", "text", "varchar", "bpchar", "name", "uuid", "date", "timestamp")
_MOST_PAIRS = 50  # PostgreSQL allows 100 arguments to a function, and a pair takes two


def describe_prediction(plpy: Plpy, request: Json) -> Json:
    """Return the target of a model, the kind of its predictions, and the columns that its rows need.

    `several` says whether a prediction has several values, and `needed` names the columns of the relation that the
    rows must have. `columns` are all columns with their types, and `relation` is the quoted name. Refuses a relation
    that lacks a needed column.
    """
    model = read_model_name(request)
    version = find_version(plpy, model, None)
    oid = read_integer(request, "relation")
    if oid is None:
        raise RequestError("no relation is given", hint="Name the relation whose rows to predict.")
    source, columns = named_relation(plpy, oid)
    described = describe_version(plpy, model, version, source, columns)
    return {
        "target": version["target"],
        "several": described["several"],
        "kind": described["kind"],
        "needed": raw_columns(version, [feature["name"] for feature in described["features"]]),
        "columns": {column: row["type"] for column, row in columns.items()},
        "relation": source,
    }


def named_relation(plpy: Plpy, oid: int) -> tuple[str, dict[str, Row]]:
    """Return the relation's name, quoted, and its columns. PostgreSQL checks the caller's rights when it reads."""
    names = fetch(plpy, RELATION_NAME, oid)
    if not names:
        raise no_table(oid)
    return names[0]["name"], named_columns(plpy, oid)


def named_columns(plpy: Plpy, oid: int) -> dict[str, Row]:
    """Return the described columns of a relation by their names."""
    return {row["name"]: row for row in fetch(plpy, COLUMNS, oid)}


def describe_version(
    plpy: Plpy, model: str, version: Row, source: str, columns: Mapping[str, Row], side: str | None = None
) -> Json:
    """Return the service's description of a version, or of one side. Refuses a relation that lacks a feature."""
    own: Json = {"verb": "features", "version": version["version_id"]}
    described: Json = service_connection.ask(plpy, own if side is None else own | {"side": side})
    needed = raw_columns(version, [feature["name"] for feature in described["features"]])
    absent = [name for name in needed if name not in columns]
    if absent:
        raise RefusalError(
            MISSING_COLUMN,
            f'relation {source} has no column "{absent[0]}", which model "{model}" needs',
            hint=f"Name a relation that has it. The columns of {source} are {', '.join(columns) or 'none'}.",
        )
    return described


def key_columns(
    plpy: Plpy, oid: int, source: str, columns: Mapping[str, Row], keys: Sequence[str] | None
) -> list[str]:
    """Return the columns that name a row: the given ones, or else those of the primary key.

    For a view these are the columns of the primary key of its table.

    The given name "*" stands for all columns.
    """
    if keys is None:
        keys = [name for name, column in columns.items() if column["primary_key"]]
        keys = keys or [row["name"] for row in fetch(plpy, VIEW_KEY, oid)]
        if not keys:
            raise RequestError(
                f"keys is null, and relation {source} has no primary key",
                hint="Name columns that tell its rows apart: keys => array['id'].",
            )
    if keys == ["*"] and "*" not in columns:
        return list(columns)
    for name in keys:
        if name not in columns:
            raise RefusalError(
                MISSING_COLUMN,
                f'relation {source} has no column "{name}"',
                detail="It is named in keys.",
                hint=f"The columns of {source} are {', '.join(columns) or 'none'}.",
            )
    return list(keys)


def is_plain_key(columns: Mapping[str, Row], key: Sequence[str]) -> bool:
    """Return whether json_build_object may make the key's JSON, which then depends on no setting of the session."""
    return len(key) <= _MOST_PAIRS and all(type_of(columns[name]) in _PLAIN_KEYS for name in key)


def kinds_agree(column: Row, kind: str) -> bool:
    """Return whether the service can read the column's binary form as values of this kind."""
    type_kind = "text" if column["enumerated"] else KIND_OF_TYPE.get(column["base"] or "", "")
    return kind == {"integer": "number", "float": "number", "boolean": "number", "date": "time"}.get(
        type_kind, type_kind
    )


def type_of(column: Row) -> str:
    """Return the name of the type in whose binary form the values of a column come."""
    return "text" if column["enumerated"] else str(column["base"])  # the binary form of an enum is its label


RELATION_NAME = """
select pg_catalog.format('%I.%I', n.nspname, c.relname) as name
  from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
 where c.oid = $1::oid"""
