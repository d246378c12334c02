"""Checks and enqueues a job of `tensile_predict_into`, and creates its table and the caller's view.

A definer function (sql/57_prediction_tables.sql) creates the table, which a worker fills. The caller's own session
creates the view, so it belongs to the caller, and PostgreSQL checks whether the caller may create it.

The features that a version computes (`transform`) are computed in the caller's session too, for all rows at once: the
worker reads them from a snapshot. A worker evaluates no expression of a user.
"""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident, and every text by quote_literal

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import RequestError
from ..request.column_types import KIND_OF_TYPE
from ..request.job_rules import check_depends_on, check_max_runtime
from ..request.request_fields import read_integer, read_model_name, read_names, read_text
from . import training_arguments
from .feature_computation import checked_expressions
from .feature_expressions import add_stored_features, drop_view, input_type, naming_features
from .pinned_settings import OUTPUTS, pinned
from .refusals import DUPLICATE_TABLE, MISSING, TOO_MANY_COLUMNS, WRONG_KIND, RefusalError
from .relation_columns import describe_version, is_plain_key, key_columns, kinds_agree, named_columns
from .snapshot_copy import make_snapshot, require_writable
from .spi import Json, Plpy, Row, fetch
from .stored_transforms import stored_transform
from .training_request import insert_job, job_of_key
from .training_table import Table, find_table, reasons_against, require_grants
from .version_lookup import find_version

_ANSWERS = ("value", "label", "probabilities", "targets")
_SCALARS = ("integer", "float", "boolean", "text", "date", "time", "clock", "duration")
_MOST_KEYS = 100
_SAME_VALUES = (("int2", "int4", "int8"), ("text", "varchar", "name"))


class _Prediction(NamedTuple):
    """A checked request: the specification of its job, its relation, and the columns that the job reads.

    `plain_key` says that no setting of a session changes the JSON of the key. `transform` has the checked expressions
    of the version, if it computes features; they are columns of `table` then.
    """

    spec: Json
    table: Table
    used: list[str]
    plain_key: bool
    transform: Json | None


def predict_into(plpy: Plpy, request: Json) -> Json:
    """Check the request, enqueue it, and create the table and the view that show its answers."""
    require_writable(plpy)
    existing = job_of_key(plpy, request)
    if existing is not None:
        return {"job": existing}
    depends_on = check_depends_on(request.get("depends_on"))
    priority = training_arguments.priority(request)
    output = _output(plpy, request)
    prediction = _resolve(plpy, request, output)
    spec, table, used = prediction.spec, prediction.table, prediction.used
    direct = _is_read_directly(request, table, used, spec["predict"]["keys"])
    if direct:
        require_grants(plpy, table, used)
        spec["column_numbers"] = {column.name: column.number for column in table.columns if column.name in used}
    job, is_new = insert_job(plpy, request, spec, priority, depends_on)
    if not is_new:
        return {"job": job}
    _create_view(plpy, output, prediction, job)
    if not direct:
        with (
            naming_features(plpy, table, prediction.transform, "Correct the row, or name a view without it."),
            pinned(plpy, OUTPUTS if table.origin else {}),
        ):
            make_snapshot(plpy, table, {}, used, job, read_text(request, "search_path"), purpose="predicted")
    drop_view(plpy, table)
    return {"job": job}


def repeated(plpy: Plpy, spec: Json, relation: int) -> Json:
    """Return the request that a stored specification of a prediction came from."""
    stored = spec["predict"]
    if not isinstance(stored, dict) or not isinstance(stored.get("version_id"), int):
        hint = "Call tensile_predict_into(...) again, which writes a complete one."
        raise RequestError("the stored specification of the prediction is not complete", hint=hint)
    versions = fetch(plpy, VERSION_NUMBER, stored["version_id"])
    if not versions:
        hint = "Predict with another version: select tensile_predict_into('model', 'table', 'output');"
        raise RefusalError(MISSING, f'the version of model "{spec.get("model")}" no longer exists', hint=hint)
    return {
        "model": versions[0]["name"],
        "version": versions[0]["number"],
        "relation": relation,
        "output": stored.get("output"),
        "keys": stored.get("keys"),
        "with_probabilities": stored.get("with_probabilities"),
        "max_runtime_s": spec.get("max_runtime_s"),
        "snapshot": spec.get("snapshot"),
    }


def _resolve(plpy: Plpy, request: Json, output: tuple[str, str]) -> _Prediction:
    """Check the request against the model and the relation."""
    name = read_model_name(request)
    version = find_version(plpy, name, read_integer(request, "version"))
    if read_integer(request, "relation") is None:
        hint = "Name one: select tensile_predict_into('model', 'table', 'output')."
        raise RequestError("no relation is given", hint=hint)
    table = find_table(plpy, request)
    columns = named_columns(plpy, table.oid)
    title = f'"{table.schema}.{table.name}"'
    features = describe_version(plpy, name, version, title, columns)["features"]
    keys = key_columns(plpy, table.oid, title, columns, read_names(request, "keys"))
    _refuse_keys(title, table, columns, keys)
    transform = _checked_transform(plpy, name, version, table, keys)
    _refuse_kinds(name, title, columns, [each for each in features if each["name"] not in _expressions(transform)])
    if transform is not None:
        table = add_stored_features(plpy, table, transform)
    facts = fetch(plpy, VERSION_FACTS, version["version_id"])[0]
    names = list(dict.fromkeys((*(feature["name"] for feature in features), *keys)))
    spec = {
        "model": name,
        "relation": {"oid": table.oid, "schema": table.schema, "name": table.name},
        "target": version["target"],
        "task": facts["task"],
        "architecture": {"type": facts["architecture"]},
        "features": [feature["name"] for feature in features],
        "max_runtime_s": check_max_runtime(request.get("max_runtime_s")),
        "predict": {
            "version_id": version["version_id"],
            "output": ".".join(map(plpy.quote_ident, output)),
            "keys": keys,
            "key_types": [columns[key]["type"] for key in keys],
            "with_probabilities": request.get("with_probabilities") is True,
        },
    }
    if request.get("snapshot"):
        spec["snapshot"] = True
    plain_key = is_plain_key(columns, keys)
    return _Prediction(spec=spec, table=table, used=names, plain_key=plain_key, transform=transform)


def _expressions(transform: Json | None) -> Mapping[str, str]:
    return {} if transform is None else transform["expressions"]


def _checked_transform(plpy: Plpy, model: str, version: Row, table: Table, keys: Sequence[str]) -> Json | None:
    """Return the checked expressions of a version, or None if it computes no features.

    Refuses a column from which an expression would compute other values here than from the JSON of a row, as the
    other functions do, and a key that has the name of a computed feature.
    """
    stored = stored_transform(version)
    if stored is None:
        return None
    expressions, inputs = checked_expressions(plpy, stored, version["number"])
    by_name = {column.name: column for column in table.columns}
    for name, base in inputs.items():
        if not _sees_same_values(input_type(by_name[name]), base):
            raise RefusalError(
                WRONG_KIND,
                f'column "{name}" of {table} has type {by_name[name].type}, and model "{model}" computes features '
                f"from a column of type {base}",
                hint=f"Name a view that casts the column to {base}, or use tensile_predict_table, which converts "
                "each value.",
            )
    for key in keys:
        if key in expressions:
            raise RequestError(
                f'column "{key}" of {table} is a key, and model "{model}" computes a feature of this name',
                detail=f"The model computes it as {expressions[key]}.",
                hint="Name other columns in keys, or a view that has the column under two names.",
            )
    return {"expressions": expressions, "inputs": inputs}


def _sees_same_values(own: str | None, learned: str) -> bool:
    """Return whether a cast between these types gives the value that their JSON has."""
    return own == learned or any(own in family and learned in family for family in _SAME_VALUES)


def _output(plpy: Plpy, request: Json) -> tuple[str, str]:
    """Return schema and name of the view. Refuses a name that a relation has."""
    schema, name = fetch(plpy, OUTPUT, read_text(request, "output"), read_text(request, "callers_schema"))[0]["parts"]
    existing = fetch(plpy, EXISTING, schema, name)
    if existing:
        hint = "Choose another name."
        if existing[0]["is_view"]:
            shown = f"{plpy.quote_ident(schema)}.{plpy.quote_ident(name)}"
            hint = f"Choose another name, or drop the view first: drop view {shown};"
        raise RefusalError(DUPLICATE_TABLE, f'output: relation "{schema}.{name}" already exists', hint=hint)
    return schema, name


def _create_view(plpy: Plpy, output: tuple[str, str], prediction: _Prediction, job: int) -> None:
    """Create the caller's view on the job's table: the columns of tensile_predict_table, and those of the key."""
    table = fetch(plpy, MAKE, job)[0]["name"]
    keys = prediction.spec["predict"]["keys"]
    view = ".".join(map(plpy.quote_ident, output))
    if prediction.plain_key:
        pairs = ", ".join(f"{plpy.quote_literal(key)}, p.key_{place}" for place, key in enumerate(keys, 1))
        shown = [f"pg_catalog.jsonb_build_object({pairs}) as key"]
    else:  # the JSON of other types depends on settings, which that function pins
        own = ", ".join(f"p.key_{place} as {plpy.quote_ident(key)}" for place, key in enumerate(keys, 1))
        shown = [f"(select tensile.row_json(k.*) from (select {own}) as k) as key"]
    shown += [f"p.{answer}" for answer in _ANSWERS]
    for place, key in enumerate(keys, 1):
        if key not in ("key", *_ANSWERS):  # such a column is in "key" only
            shown.append(f"p.key_{place} as {plpy.quote_ident(key)}")
    plpy.execute(f"create view {view} as select {', '.join(shown)} from {table} as p")
    relation = prediction.spec["relation"]
    text = (
        f'predictions of model "{prediction.spec["model"]}" for {relation["schema"]}.{relation["name"]}, by job {job}'
    )
    plpy.execute(f"comment on view {view} is {plpy.quote_literal(text)}")


def _is_read_directly(request: Json, table: Table, used: Sequence[str], keys: Sequence[str]) -> bool:
    """Return whether the worker reads the relation itself, and not a snapshot of it."""
    learned = all(column.kind in _SCALARS for column in table.columns if column.name in keys)
    return learned and not (request.get("snapshot") or table.origin or reasons_against(table, used))


def _refuse_kinds(model: str, title: str, columns: Mapping[str, Row], features: Sequence[Json]) -> None:
    for feature in features:
        column = columns[feature["name"]]
        if not kinds_agree(column, feature["kind"]):
            raise RefusalError(
                WRONG_KIND,
                f'column "{feature["name"]}" of relation {title} has type {column["type"]}, '
                f'and model "{model}" has learned from a column of kind {feature["kind"]}',
                hint="Name a view that casts the column, or use tensile_predict_table, which converts each value.",
            )


def _refuse_keys(title: str, table: Table, columns: Mapping[str, Row], keys: Sequence[str]) -> None:
    """Refuse keys whose values cannot be stored: those of other types than base types and enums."""
    if len(keys) > _MOST_KEYS:
        hint = f"Name {_MOST_KEYS} columns or fewer."
        raise RefusalError(TOO_MANY_COLUMNS, f"keys has {len(keys)} columns, the most are {_MOST_KEYS}", hint=hint)
    if len(set(keys)) < len(keys):
        raise RequestError(f"keys names a column twice: {', '.join(keys)}", hint="Name each column once.")
    primary = {column.name for column in table.columns if column.primary}
    for key in keys:
        column = columns[key]
        scalar = column["enumerated"] or KIND_OF_TYPE.get(column["base"] or "") in _SCALARS
        if not scalar and key not in primary:
            raise RefusalError(
                WRONG_KIND,
                f'column "{key}" of relation {title} has type {column["type"]}, and cannot be a key',
                detail="A key has a base type of PostgreSQL, such as bigint, text, uuid or date, or an enum.",
                hint="Name a view that casts the column to text.",
            )


MAKE = "select tensile.make_prediction_table($1::int8) as name"
OUTPUT = "select tensile.view_parts($1::text, $2::text, 'output') as parts"
EXISTING = """
select c.relkind = 'v' as is_view
  from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
 where n.nspname = $1::text and c.relname = $2::text"""
VERSION_FACTS = """
select v.task::text as task, v.architecture ->> 'type' as architecture
  from tensile.model_versions as v where v.version_id = $1::int8"""
VERSION_NUMBER = """
select m.name, v.number from tensile.model_versions as v join tensile.models as m using (model_id)
 where v.version_id = $1::int8 and m.dropped_at is null"""
