"""Returns each row of a relation with its part of a version's split, read with the caller's own rights.

The answer comes in pages. The first call opens a cursor, and the following calls name the cursor's number.
"""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident

import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import RequestError
from ..request.copyable_relation import COLUMNS
from ..request.request_fields import read_integer, read_model_name, read_text
from ..request.split_rules import deciding_column
from ..request.task_rules import named_targets
from ..request.time_texts import parse_interval, parse_time_of_day
from .feature_columns import all_known
from .refusals import DENIED, MISSING_COLUMN, MISSING_TABLE, NOT_READY, RefusalError
from .spi import Cursor, Json, Plpy, Row, callers_path, fetch, qualified
from .split_membership import Membership, row_hash, seconds
from .stored_transforms import stored_transform
from .training_table import VECTORS, find_table, vector_array
from .version_lookup import find_version

_PAGE_ROWS = 2000
_MOST_OPEN = 4  # more than one, because a view that is read may itself call tensile_split
_INTEGERS = ("int2", "int4", "int8")
_INTEGER_ARRAYS = ("_int2", "_int4", "_int8")
_SINGLE = ("_float4", "_int2")  # arrays that a training stores in single precision
_TEXTS = ("text", "varchar", "bpchar", "char", "name")
_LABELS = ("_text", "_varchar", "_bpchar", "_name", "_uuid", "_enum")
_DOUBLE = ("_float8", "_numeric", "_int4", "_int8")


def split(plpy: Plpy, request: Json) -> Json:
    """Return the number of a new reading, or the next page of an open one.

    A page contains pairs of a key, as JSON, and a part, which is None for a row without a target. The last page is
    empty.
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
    """The readings of one or several relations, one after another, page by page."""

    def __init__(self, plpy: Plpy, request: Json) -> None:
        name = read_model_name(request)
        version = find_version(plpy, name, read_integer(request, "version"))
        path = read_text(request, "search_path")
        rule = _rule(fetch(plpy, RULE, version["version_id"])[0], name, version["number"])
        tables = {part: _present_oid(plpy, stored) for part, stored in rule.get("tables", {}).items()}
        part_of_table = {own: part for part, own in tables.items() if own is not None}
        oid = read_integer(request, "relation")
        oids = [] if oid is None else [oid]
        if oid is None:
            for part, own in tables.items():
                if own is None:
                    raise _missing_part_table(rule["tables"][part])
            oids = [_training_relation(plpy, version["version_id"]), *part_of_table]
        computed = frozenset((stored_transform(version) or {}).get("expressions", ()))
        self._readings = [
            _TableReading(
                plpy,
                _Divided(name, rule, version["target"], version["task"], part_of_table.get(each), computed),
                each,
                path,
            )
            for each in oids
        ]

    def page(self, plpy: Plpy) -> list[tuple[str, str | None]]:
        """Return the next rows, or no rows after the last table."""
        while self._readings:
            rows = self._readings[0].page(plpy)
            if rows:
                return rows
            del self._readings[0]
        return []


class _Divided(NamedTuple):
    """How a version's rows were divided. `part` is that of all rows of a table; with None the rule divides them."""

    model: str
    rule: Json
    target: str
    task: str
    part: str | None
    computed: frozenset[str]  # the names of computed features


class _TableReading:
    """An open cursor over a relation's rows, read page by page."""

    def __init__(self, plpy: Plpy, divided: _Divided, oid: int, path: str | None) -> None:
        self._path = path
        self._whole_part = divided.part
        rule = divided.rule
        table = find_table(plpy, {"relation": oid})
        columns = {row["name"]: row for row in fetch(plpy, COLUMNS, table.oid)}
        targets = named_targets(divided.target, columns)
        decisive = deciding_column(rule)
        identity = rule["identity"]
        if divided.part is not None:  # the table of a part need not have the training relation's key
            identity = [column for column in identity if column in columns]
        names = [*identity, *targets, *([] if decisive is None else [decisive])]
        _refuse_computed(divided, names)
        missing = [column for column in names if column not in columns]
        if missing:
            raise RefusalError(
                MISSING_COLUMN,
                f'{table} has no column "{missing[0]}", which the split of model "{divided.model}" uses',
                hint="Name the relation that it was trained on, or one with the same columns.",
            )
        timed = rule.get("timed", ())
        sets = targets if divided.task == "multilabel" else ()
        self._forms = [_hash_form(columns[name], timed=name in timed, as_set=name in sets) for name in identity]
        self._decisive = "" if decisive is None else _hash_form(columns[decisive])
        self._member = Membership(rule, _WORD_FORMS.get(self._decisive, self._decisive))
        values = dict(zip(identity, self._forms, strict=True))
        if decisive is not None:
            values.setdefault(decisive, self._decisive)
        statement = _statement(plpy, values, identity, targets, decisive)
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
        if self._whole_part is not None:
            return self._whole_part
        values = [_hash_value(row[f"c{place}"], form) for place, form in enumerate(self._forms)]
        forms = [_WORD_FORMS.get(form, form) for form in self._forms]
        return self._member.part(row_hash(values, forms), _hash_value(row["decisive"], self._decisive))


def _refuse_computed(divided: _Divided, names: Sequence[str]) -> None:
    """Refuse a split that tells rows apart by computed features, as for a table without a key."""
    computed = [name for name in names if name in divided.computed]
    if computed:
        raise RefusalError(
            NOT_READY,
            f'the split of model "{divided.model}" tells rows apart by "{computed[0]}", which the model computes',
            detail="The table has no primary key, so all features together tell its rows apart.",
            hint="Give the table a primary key and train again, or divide its rows by a column: "
            'split => \'{"column": "part"}\'.',
        )


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


def _present_oid(plpy: Plpy, stored: Json) -> int | None:
    """Return the oid of the table of a part, or None. In a copy of the database it is found by its name."""
    oid = fetch(plpy, PRESENT_OID, stored["oid"], stored["schema"], stored["name"])[0]["oid"]
    return None if oid is None else int(oid)


def _missing_part_table(stored: Json) -> RefusalError:
    message = f'table "{stored["schema"]}.{stored["name"]}", which the split names, does not exist'
    return RefusalError(MISSING_TABLE, message, hint="Name one relation: tensile_split('model', 'table').")


def _hash_form(described: Row, *, timed: bool = False, as_set: bool = False) -> str:
    """Return the form that the row hash uses for a column's values, as in learning/decoding/copy_encodings.py.

    With `timed` the seconds of an interval or time of day are used, and not its text. With `as_set` an array of
    integers is a set of labels.
    """
    base = described["base"]
    if base in _INTEGERS:
        return "integer"
    if base in ("float4", "float8", "numeric"):
        return "numeric" if base == "numeric" else "float"
    if base == "bool":
        return "boolean"
    if base in _TIME_FORMS:
        return str(base)
    if timed:
        return "interval" if base == "interval" else "clock"
    if base in VECTORS:
        return "vector"
    if base in _LABELS or (as_set and base in _INTEGER_ARRAYS):
        return "labels"
    if base == "_bool":
        return "bool[]"
    if base in _SINGLE or base in _DOUBLE:
        return "float4[]" if base in _SINGLE else "float8[]"
    return "text" if base in _TEXTS or described["enumerated"] else "any"


def _hash_value(value: Any, form: str) -> Any:
    if value is None:
        return None
    if form in _READ_TEXTS:
        return _READ_TEXTS[form](value)
    return seconds(value, form) if form in _TIME_FORMS else value


def _statement(
    plpy: Plpy, forms: Mapping[str, str], identity: Sequence[str], targets: Sequence[str], decisive: str | None
) -> str:
    """Return a query for the identity, the dividing column, whether the target is known, and the key as JSON.

    `forms` has the form of each column that is hashed or divides.
    """
    quoted = {name: f"t.{plpy.quote_ident(name)}" for name in (*identity, *([decisive] if decisive else []))}
    values = {name: _HASH_EXPRESSIONS[form].format(quoted[name]) for name, form in forms.items()}
    own = [f"{values[name]} as c{place}" for place, name in enumerate(identity)]
    decides = "null" if decisive is None else values[decisive]
    shown = [quoted[name] for name in identity if forms[name] not in _WIDE_FORMS]
    key = f"(select pg_catalog.to_jsonb(k.*) from (select {', '.join(shown)}) as k)" if shown else "'{}'"
    chosen = [
        *own,
        f"{decides} as decisive",
        f"{all_known(plpy, targets, 't.')} as takes_part",
        f"{key}::pg_catalog.text as key",
    ]
    return f"select {', '.join(chosen)}"


_WIDE_FORMS = ("float4[]", "float8[]", "bool[]", "vector")  # not shown in the key
_TIME_FORMS = ("date", "timestamp", "timestamptz")
_WORD_FORMS = {"any": "text", "numeric": "float", **dict.fromkeys((*_TIME_FORMS, "interval", "clock"), "time")}
_READ_TEXTS: dict[str, Callable[[str], float]] = {
    "interval": parse_interval,
    "clock": parse_time_of_day,
    "numeric": float,
}
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
    "numeric": "{0}::pg_catalog.text",  # a cast to float8 refuses what is beyond its range
    "boolean": "{0}::pg_catalog.bool",
    "text": "{0}::pg_catalog.text",
    "any": "tensile.key_text({0})",  # the text of other types depends on settings, which that function pins
    "float4[]": "{0}::pg_catalog.float8[]",
    "float8[]": "{0}::pg_catalog.float8[]",
    "bool[]": "{0}::pg_catalog.bool[]",
    "vector": vector_array("{0}").replace("'{}'", "'{{}}'"),
    "labels": "{0}::pg_catalog.text[]",
    "interval": "tensile.key_text({0})",
    "clock": "tensile.key_text({0})",
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
PRESENT_OID = """
select coalesce((select c.oid
                   from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                  where c.oid = $1::oid and n.nspname = $2::text and c.relname = $3::text),
                pg_catalog.to_regclass(pg_catalog.format('%I.%I', $2::text, $3::text))::oid)::int8 as oid"""
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
