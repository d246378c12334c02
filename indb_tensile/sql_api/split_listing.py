"""Returns each row of a relation with its part of a version's split, read with the caller's own rights.

The answer comes in pages. The first call opens a cursor, and the following calls name the cursor's number.
"""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident

import itertools
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RequestError
from ..request.copyable_relation import COLUMNS
from ..request.request_fields import read_integer, read_model_name, read_text
from .refusals import DENIED, MISSING_COLUMN, MISSING_TABLE, NOT_READY, RefusalError
from .spi import Cursor, Json, Plpy, Row, callers_path, fetch, qualified
from .split_membership import Membership, row_hash, seconds
from .training_table import find_table
from .version_lookup import find_version

_PAGE_ROWS = 2000
_MOST_OPEN = 4  # more than one, because a view that is read may itself call tensile_split
_INTEGERS = ("int2", "int4", "int8")
_SINGLE = ("_float4", "_int2")  # arrays that a training stores in single precision
_DOUBLE = ("_float8", "_numeric", "_int4", "_int8")


def split(plpy: Plpy, request: Json) -> Json:
    """Return the number of a new reading, or the next page of an open one.

    A page contains pairs of a key, as JSON, and a part. The last page is empty.
    """
    number = read_integer(request, "reading")
    if number is None:
        reading = _Reading(plpy, request)
        number = next(_numbers)
        _open_readings[number] = reading
        while len(_open_readings) > _MOST_OPEN:
            _open_readings.popitem(last=False)
        return {"reading": number}
    if number not in _open_readings:
        raise RequestError(f"there is no reading {number} in this session")
    rows = _open_readings[number].page(plpy)
    if not rows:
        del _open_readings[number]
    return {"rows": rows}


class _Reading:
    """An open cursor over a relation's rows, read page by page."""

    def __init__(self, plpy: Plpy, request: Json) -> None:
        name = read_model_name(request)
        version = find_version(plpy, name, read_integer(request, "version"))
        self._path = read_text(request, "search_path")
        rule = _rule(fetch(plpy, RULE, version["version_id"])[0], name, version["number"])
        self._member = Membership(rule)
        oid = read_integer(request, "relation")
        table = find_table(
            plpy, {"relation": _training_relation(plpy, version["version_id"]) if oid is None else oid}
        )
        columns = {row["name"]: row for row in fetch(plpy, COLUMNS, table.oid)}
        decisive = rule.get("by", rule.get("column"))
        names = [*rule["identity"], version["target"], *([] if decisive is None else [decisive])]
        missing = [column for column in names if column not in columns]
        if missing:
            raise RefusalError(
                MISSING_COLUMN,
                f'{table} has no column "{missing[0]}", which the split of model "{name}" uses',
                hint="Name the relation that it was trained on, or one with the same columns.",
            )
        self._forms = [_hash_form(columns[column]) for column in rule["identity"]]
        self._decisive = "" if decisive is None else _hash_form(columns[decisive])
        statement = _statement(plpy, columns, rule["identity"], version["target"], decisive)
        with callers_path(plpy, self._path):
            self._cursor: Cursor = plpy.cursor(f"{statement} from {qualified(plpy, table.schema, table.name)} as t")

    def page(self, plpy: Plpy) -> list[tuple[str, str | None]]:
        """Return the next rows.

        If the relation is a view, its functions run here with the caller's search_path.
        """
        with callers_path(plpy, self._path):
            rows = list(self._cursor.fetch(_PAGE_ROWS))
        return [(row["key"], self._part(row)) for row in rows]

    def _part(self, row: Row) -> str | None:
        if not row["takes_part"]:
            return None
        values = [_hash_value(row[f"c{place}"], form) for place, form in enumerate(self._forms)]
        forms = ["time" if form in _TIME_FORMS else form for form in self._forms]
        return self._member.part(row_hash(values, forms), _hash_value(row["decisive"], self._decisive))


def _rule(bundle: Row, model: str, number: int) -> Json:
    """Return the rule of the version's split. Refuses a caller who is not the owner."""
    if not bundle["own"]:
        message = f'model "{model}" belongs to another role, and only its owner may ask which rows it was trained on'
        raise RefusalError(DENIED, message, hint="Ask its owner, or train a model of your own.")
    if bundle["rule"] is None:
        message = f'version {number} of model "{model}" does not say how its rows were divided'
        raise RefusalError(NOT_READY, message, hint="It is of release 0.1: train the model again.")
    rule: Json = json.loads(bundle["rule"])
    return rule


def _training_relation(plpy: Plpy, version: int) -> int:
    """Return the oid of the relation that a version was trained on.

    In a copy of the database the relation has another oid; it is then found by its name.
    """
    relation = fetch(plpy, TRAINED_ON, version)[0]
    if relation["of_query"]:
        raise RefusalError(
            NOT_READY,
            "the model was trained on the rows of a query, which are not kept",
            hint="Name a relation with the same rows, such as a view of the query: tensile_split('model', 'view').",
        )
    oid = relation["oid"] if relation["unchanged"] else relation["named_so"]
    if oid is None:
        message = f'table "{relation["schema"]}.{relation["name"]}", which the model was trained on, does not exist'
        raise RefusalError(MISSING_TABLE, message, hint="Name another: tensile_split('model', 'table').")
    return int(oid)


def _hash_form(described: Row) -> str:
    """Return the form that the row hash uses for a column's values, as in learning/copy_encodings.py."""
    base = described["base"]
    if base in _INTEGERS:
        return "integer"
    if base in ("float4", "float8", "numeric"):
        return "float"
    if base == "bool":
        return "boolean"
    if base in ("date", "timestamp", "timestamptz"):
        return str(base)
    return "float4[]" if base in _SINGLE else "float8[]" if base in _DOUBLE else "text"


def _hash_value(value: Any, form: str) -> Any:
    return seconds(value, form) if value is not None and form in _TIME_FORMS else value


def _statement(
    plpy: Plpy, described: Mapping[str, Row], identity: Sequence[str], target: str, decisive: str | None
) -> str:
    """Return a query for the identity, the dividing column, whether the target is known, and the key as JSON."""
    quoted = {name: f"t.{plpy.quote_ident(name)}" for name in (*identity, target, *([decisive] if decisive else []))}
    values = {name: _HASH_EXPRESSIONS[_hash_form(described[name])].format(column) for name, column in quoted.items()}
    own = [f"{values[name]} as c{place}" for place, name in enumerate(identity)]
    decides = "null" if decisive is None else values[decisive]
    shown = [quoted[name] for name in identity if not _hash_form(described[name]).endswith("[]")]
    key = f"(select pg_catalog.to_jsonb(k.*) from (select {', '.join(shown)}) as k)" if shown else "'{}'"
    chosen = [
        *own,
        f"{decides} as decisive",
        f"{quoted[target]} is not null as takes_part",
        f"{key}::pg_catalog.text as key",
    ]
    return f"select {', '.join(chosen)}"


_TIME_FORMS = ("date", "timestamp", "timestamptz")
_numbers = itertools.count(1)
_open_readings: OrderedDict[int, _Reading] = OrderedDict()

# The expressions run with the caller's search_path, so every name is qualified. Dates and timestamps are converted as
# a trainer receives them: in days or microseconds since 2000.
_SINCE_2000 = "946684800000000"
_MICROSECONDS = (
    f"case when pg_catalog.isfinite({{0}}::pg_catalog.{{1}}) then (extract(epoch from {{0}}::pg_catalog.{{1}}) "
    f"operator(pg_catalog.*) 1000000 operator(pg_catalog.-) {_SINCE_2000})::pg_catalog.int8::pg_catalog.text "
    "else {0}::pg_catalog.text end"
)
_HASH_EXPRESSIONS = {
    "integer": "{0}::pg_catalog.int8",
    "float": "{0}::pg_catalog.float8",
    "boolean": "{0}::pg_catalog.bool",
    "text": "{0}::pg_catalog.text",
    "float4[]": "{0}::pg_catalog.float8[]",
    "float8[]": "{0}::pg_catalog.float8[]",
    "date": "case when pg_catalog.isfinite({0}::pg_catalog.date) then ({0}::pg_catalog.date operator(pg_catalog.-) "
    "'2000-01-01'::pg_catalog.date)::pg_catalog.text else {0}::pg_catalog.text end",
    "timestamp": _MICROSECONDS.replace("{1}", "timestamp"),
    "timestamptz": _MICROSECONDS.replace("{1}", "timestamptz"),
}
RULE = """
select b.version_id is not null as own, (b.bundle -> 'split')::text as rule
  from tensile.model_versions as v
  left join tensile.version_bundles as b on b.version_id = v.version_id
 where v.version_id = $1::int8"""
TRAINED_ON = """
select v.relation_oid::int8 as oid, v.relation_schema as schema, v.relation_name as name,
       coalesce(v.relation_oid = 0, false) as of_query,
       exists (select from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                where c.oid = v.relation_oid and n.nspname = v.relation_schema and c.relname = v.relation_name)
       as unchanged,
       case when v.relation_oid <> 0
         then pg_catalog.to_regclass(pg_catalog.format('%I.%I', v.relation_schema, v.relation_name))::oid::int8
       end as named_so
  from tensile.model_versions as v where v.version_id = $1::int8"""
