"""What the SQL functions ask of Python: a request is checked and enqueued here, or put to the service.

The extension carries this file's text inside one PL/Python function, `tensile.bridge`, which compiles it once
per session. Hence the standard library only, one module where the tree would have three, and SQL text in it:
the database host has nothing else of the package. Everything runs with the caller's own privileges, and a
caller may reach it directly: no request holds an address, a path or SQL.
"""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident, every value is a parameter

import json
import math
import re
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Json = dict[str, Any]
Row = Mapping[str, Any]


class Plan(Protocol):
    """A prepared statement of PL/Python."""


class Plpy(Protocol):
    """What is used of PL/Python's module `plpy`."""

    @property
    def SPIError(self) -> type[Exception]:  # noqa: N802 - its name there
        """What an error of SQL is raised as."""

    def prepare(self, query: str, types: Sequence[str]) -> Plan:
        """Prepare a statement."""

    def execute(self, plan: Plan | str, arguments: Sequence[object] = ()) -> Iterable[Row]:
        """Run it; an error is an SPIError."""

    def notice(self, message: str) -> None:
        """Tell the client."""

    def quote_ident(self, name: str) -> str:
        """The name as SQL wants it."""


class RefusalError(Exception):
    """The answer is no: `tensile.call` raises it in SQL with these four."""

    def __init__(self, sqlstate: str, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.error = {"sqlstate": sqlstate, "message": message, "detail": detail, "hint": hint}


def handle(plpy: Plpy, verb: str, request: Json) -> Json:
    """Do what `verb` says: the answer is `{"ok": true, "result": …}` or `{"ok": false, "error": {…}}`.

    The error has sqlstate, message, detail and hint. It is returned, not raised: PL/Python would put its
    exception's name before the message. `tensile.call` raises it.
    """
    try:
        return {"ok": True, "result": _VERBS.get(verb, _unknown_verb)(plpy, request)}
    except RefusalError as refusal:
        return {"ok": False, "error": refusal.error}
    except plpy.SPIError as error:
        return {"ok": False, "error": _database_error(error)}


# SQLSTATEs, as in errors.py.
_INVALID = "22023"
_DATA = "22000"
_MISSING = "42704"
_DENIED = "42501"
_UNSUPPORTED = "0A000"
_UNAVAILABLE = "57P03"
_PROTOCOL = "08P01"

# What options there are: the tables of learning/, value for value (a test compares them). Its worker checks again,
# since a specification in the queue is untrusted input. A rule without "default" is a parameter that must be given.
_SHARE: Json = {"type": "number", "minimum": 0, "below": 1}
_FLAG: Json = {"type": "boolean", "default": False}
HYPERPARAMS: dict[str, Json] = {
    "epochs": {"type": "integer", "minimum": 1, "maximum": 100000, "default": 40},
    "batch_size": {"type": "integer", "minimum": 1, "maximum": 1048576, "default": 64},
    "optimizer": {"type": "choice", "values": ["sgd", "adam", "adamw"], "default": "adamw"},
    "learning_rate": {"type": "number", "above": 0, "maximum": 100, "default": None},
    "schedule": {"type": "choice", "values": ["constant", "cosine", "step"], "default": "cosine"},
    "warmup": _SHARE | {"default": 0.0},
    "decay": {"type": "number", "above": 0, "maximum": 1, "default": 0.1},
    "decay_at": {"type": "numbers", "above": 0, "below": 1, "length": [1, 16], "default": [0.5, 0.75]},
    "momentum": _SHARE | {"default": None},
    "nesterov": _FLAG,
    "betas": {"type": "numbers", "minimum": 0, "below": 1, "length": [2, 2], "default": [0.9, 0.999]},
    "eps": {"type": "number", "above": 0, "maximum": 1, "default": 1e-8},
    "weight_decay": {"type": "number", "minimum": 0, "maximum": 100, "default": None},
    "clip_norm": {"type": "number", "above": 0, "default": None},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2147483647, "default": 0},
}
_DROPOUT: Json = _SHARE | {"default": 0.0}
_ACTIVATIONS = ("relu", "gelu", "tanh", "sigmoid", "silu")
_ACTIVATION: Json = {"type": "choice", "values": list(_ACTIVATIONS), "default": "relu"}
_WIDTHS: Json = {"type": "integers", "minimum": 1, "maximum": 65536, "length": [0, 64]}
_INPUT_SHAPE: Json = _WIDTHS | {"length": [1, 3], "default": None}
ARCHITECTURES: dict[str, dict[str, Json]] = {
    "auto": {"input_shape": _INPUT_SHAPE},
    "mlp": {
        "hidden": _WIDTHS | {"default": [128, 64]},
        "activation": _ACTIVATION,
        "dropout": _DROPOUT,
        "batch_norm": _FLAG,
        "input_shape": _INPUT_SHAPE,
    },
    "cnn": {
        "channels": _WIDTHS | {"length": [1, 32], "default": [32, 64]},
        "kernel": {"type": "integer", "minimum": 1, "maximum": 31, "default": 3},
        "depth": {"type": "integer", "minimum": 1, "maximum": 16, "default": 1},
        "hidden": _WIDTHS | {"default": [128]},
        "activation": _ACTIVATION,
        "dropout": _DROPOUT,
        "batch_norm": {"type": "boolean", "default": True},
        "input_shape": _INPUT_SHAPE,
    },
    "layers": {"layers": {"type": "layers"}, "input_shape": _INPUT_SHAPE},
}
LAYERS = (
    *("linear", "conv2d", "batch_norm1d", "batch_norm2d", "layer_norm", *_ACTIVATIONS, "dropout", "max_pool2d"),
    *("avg_pool2d", "adaptive_avg_pool2d", "flatten", "reshape", "lstm", "gru", "transformer_encoder", "residual"),
)
SPLIT: dict[str, Json] = {
    "test_size": {"type": "number", "above": 0, "below": 1, "default": 0.15},
    "valid_size": _SHARE | {"default": 0.15},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2147483647, "default": 0},
}
EARLY_STOP: dict[str, Json] = {
    "patience": {"type": "integer", "minimum": 1, "maximum": 100000, "default": 10},
    "min_delta": {"type": "number", "minimum": 0, "default": 0.0},
    "metric": {"type": "text", "default": "loss"},
}
METRICS: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "balanced_accuracy", "f1_macro", "log_loss", "roc_auc"),
    "regression": ("r2", "rmse", "mae"),
}
PREPROCESS = ("standardize", "categories", "missing")
_KNOWN_ARCHITECTURES = (
    f"Give a name ({', '.join(ARCHITECTURES)}) or a JSON object such as "
    '{"type": "mlp", "hidden": [64, 64], "dropout": 0.1}.'
)
DEPLOY = ("if_better", "always", "never")

_CLASSES_OF_AN_INTEGER = 20  # an integer target of more values is a quantity
_SAMPLE_ARRAY_ROWS = 1000  # arrays are wide
_SAMPLE_ROWS = 10_000  # a scan of these takes some milliseconds at most; the worker checks the rest
_TARGET_NAMES = ("target", "label", "class", "y")
_MAX_FRAME_BYTES = 64 << 20  # the service's own bound
_SLICE_S = 0.1  # how long a cancel may go unnoticed

# Kinds of column by type name within pg_catalog.
_KINDS = {
    **dict.fromkeys(("int2", "int4", "int8"), "integer"),
    **dict.fromkeys(("float4", "float8", "numeric"), "float"),
    "bool": "boolean",
    **dict.fromkeys(("text", "varchar", "bpchar", "char", "name"), "text"),
    **dict.fromkeys(("date", "timestamp", "timestamptz"), "time"),
    **dict.fromkeys(("_float4", "_float8", "_numeric", "_int2", "_int4", "_int8"), "array"),
}
_SUPPORTED = (
    "Supported are smallint, integer, bigint, real, double precision, numeric, boolean, text, varchar, char, enums, "
    "date, timestamp, timestamptz, and arrays of real, double precision, numeric and integers."
)


# Training -----------------------------------------------------------------------------------------------------


def _train(plpy: Plpy, request: Json) -> Json:
    """Check the request and enqueue it as the caller."""
    key = _text(request, "idempotency_key")
    if key is not None and (known := _rows(plpy, _JOB_OF_KEY, (key,))):
        return {"job": known[0]["job_id"]}
    spec, _ = _resolved(plpy, request)
    priority = _priority(request)
    relation = spec["relation"]
    values = (spec["model"], relation["oid"], relation["schema"], relation["name"], json.dumps(spec))
    added = _rows(plpy, _ENQUEUE, (*values, priority, _text(request, "not_before"), key))
    # Another session took the key between the look-up and now: that job is the one.
    return {"job": (added or _rows(plpy, _JOB_OF_KEY, (key,)))[0]["job_id"]}


def _explain(plpy: Plpy, request: Json) -> Json:
    """Ask the service what this training would need, without enqueuing it."""
    spec, table = _resolved(plpy, request)
    _priority(request)
    columns, rows = _statistics(plpy, table, spec)
    room = _rows(plpy, _DEVICE_ROOM, ())[0]["room_bytes"]
    asked = {"verb": "explain", "spec": spec, "columns": columns, "rows": rows}
    answer = _service.ask(plpy, asked | {"limit_bytes": spec["memory_limit_bytes"], "budget_bytes": room})
    return {"rows": answer["rows"]}


def _create_model(plpy: Plpy, request: Json) -> Json:
    """Store a definition under a new name."""
    name = _model_name(request)
    architecture = _architecture(_text(request, "architecture"))
    hyperparams = _options("hyperparams", request.get("hyperparams") or {}, HYPERPARAMS)
    definition = {"architecture": architecture, "hyperparams": hyperparams}
    made = _rows(plpy, _CREATE_MODEL, (name, json.dumps(definition)))
    if not made:
        mine = _rows(plpy, _MODEL, (name,))
        if mine and mine[0]["own"]:
            hint = f"To define it anew, drop it first: select tensile_drop_model({_literal(name)})."
            raise RefusalError("42710", f'model "{name}" already exists', hint=hint)
        raise _taken(name)
    return {"model": made[0]["model_id"]}


def _taken(name: str) -> RefusalError:
    hint = "Model names are unique in the database: choose another name."
    return RefusalError(_DENIED, f'model "{name}" belongs to another role', hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    name: str
    type: str
    kind: str  # empty for a type that cannot be learned from
    key: bool  # part of the primary key, or an identity column


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    oid: int
    schema: str
    name: str
    columns: tuple[_Column, ...]

    def __str__(self) -> str:
        return f'table "{self.schema}.{self.name}"'

    @property
    def names(self) -> str:
        return ", ".join(column.name for column in self.columns) or "none"

    def column(self, name: str, role: str) -> _Column:
        for column in self.columns:
            if column.name == name:
                return column
        message = f'column "{name}" of relation "{self.schema}.{self.name}" does not exist'
        detail = "" if role == "target" else f"It is named in {role}."
        raise RefusalError("42703", message, detail=detail, hint=f"The columns are {self.names}.")


def _resolved(plpy: Plpy, request: Json) -> tuple[Json, _Table]:
    """The JobSpec of a request, everything left out filled in, and its table."""
    _refuse_what_comes_later(request)
    name = _model_name(request)
    table = _table(plpy, request)
    before = _before(plpy, name)
    target = _target(request, before, table)
    task = _task(plpy, request, before, table, target)
    features, exclude = _features(plpy, request, before, table, target)
    options = {key: _inherited(request, key, before) for key in ("hyperparams", "split", "early_stop", "preprocess")}
    architecture = _architecture(_text(request, "architecture"), before.get("architecture"))
    spec = {
        "model": name,
        "relation": {"oid": table.oid, "schema": table.schema, "name": table.name},
        "target": target.name,
        "task": task,
        "architecture": architecture,
        "hyperparams": _options("hyperparams", options["hyperparams"] or {}, HYPERPARAMS),
        "features": features,
        "exclude": exclude,
        "preprocess": _preprocess(options["preprocess"] or {}),
        "split": _split(options["split"] or {}),
        "metric": _metric(request, before, task),
        "early_stop": _early_stop(options["early_stop"], task),
        "memory_limit_bytes": _memory_limit(plpy, request),
        "max_runtime_s": _max_runtime(request),
        "deploy": _choice(request, "deploy", DEPLOY, "if_better"),
    }
    _check_rows(plpy, table, spec)
    return spec, table


def _refuse_what_comes_later(request: Json) -> None:
    later = (
        ("snapshot", bool(request.get("snapshot")), "Train on a table: create table ... as select ... from it."),
        ("depends_on", request.get("depends_on") is not None, "Enqueue the second job when the first has ended."),
        ("init_from", request.get("init_from") is not None, "Leave it out: training starts from fresh parameters."),
    )
    for name, given, hint in later:
        if given:
            raise RefusalError(_UNSUPPORTED, f"{name} is not supported yet", hint=hint)


def _before(plpy: Plpy, name: str) -> Json:
    """What arguments left out mean: those of the model's last successful run, else its definition."""
    found = _rows(plpy, _MODEL, (name,))
    if not found:
        return {}
    if not found[0]["own"]:
        raise _taken(name)
    last = found[0]["last_spec"] or found[0]["definition"]
    return dict(json.loads(last)) if last else {}


def _inherited(request: Json, key: str, before: Json) -> Any:
    given = request.get(key)
    return before.get(key) if given is None else given


# The table ----------------------------------------------------------------------------------------------------


def _table(plpy: Plpy, request: Json) -> _Table:
    """The table to train on, once caller and worker may both read it."""
    oid = _integer(request, "relation")
    if oid is None:
        raise RefusalError(_INVALID, "no table is given", hint="Name one: select tensile_train('model', 'table').")
    found = _rows(plpy, _RELATION, (oid,))
    if not found:
        raise RefusalError("42P01", f"there is no table with oid {oid}", hint="It may have been dropped.")
    facts = found[0]
    _check_kind(plpy, facts)
    _check_grants(plpy, facts)
    columns = tuple(
        _Column(name=c["name"], type=c["type"], kind=_kind(c), key=c["key"]) for c in _rows(plpy, _COLUMNS, (oid,))
    )
    return _Table(oid=oid, schema=facts["schema"], name=facts["name"], columns=columns)


_RELATION_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "p": "a partitioned table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
    "t": "a TOAST table",
}


def _kind(column: Row) -> str:
    return "text" if column["enumerated"] else _KINDS.get(column["base"] or "", "")


def _check_kind(plpy: Plpy, facts: Row) -> None:
    kind = _RELATION_KINDS.get(facts["kind"], "")
    if facts["persistence"] == "t":
        kind = kind or "a temporary table, which other sessions cannot read"
    if kind:
        copy = plpy.quote_ident(f"{facts['name']}_rows")
        source = _qualified(plpy, facts["schema"], facts["name"])
        raise RefusalError(
            "42809",
            f'"{facts["schema"]}.{facts["name"]}" is {kind}',
            detail="Models are trained on ordinary tables, which the worker reads with its own grants.",
            hint=f"Train on a copy: create table {copy} as select * from {source};",
        )


def _check_grants(plpy: Plpy, facts: Row) -> None:
    subject = f'"{facts["schema"]}.{facts["name"]}"'
    schema = plpy.quote_ident(facts["schema"])
    table = _qualified(plpy, facts["schema"], facts["name"])
    if not (facts["caller_enters"] and facts["caller_reads"]):
        grants = _grants(
            facts["caller_enters"], facts["caller_reads"], schema, table, plpy.quote_ident(facts["caller"])
        )
        raise RefusalError(_DENIED, f"permission denied for table {subject}", hint=f"Ask its owner for: {grants}")
    if facts["secured"]:
        raise RefusalError(
            _DENIED,
            f"table {subject} has row-level security, which the worker does not see through",
            detail="Its policies decide by role, and the worker is not the role that asks.",
            hint=f"Train on the rows that you see: create table ... as select * from {table};",
        )
    if not (facts["worker_enters"] and facts["worker_reads"]):
        grants = _grants(facts["worker_enters"], facts["worker_reads"], schema, table, "tensile_worker")
        raise RefusalError(_DENIED, f"the worker may not read table {subject}", hint=f"Run: {grants}")


def _grants(enters: bool, reads: bool, schema: str, table: str, role: str) -> str:
    statements = [] if enters else [f"grant usage on schema {schema} to {role};"]
    return " ".join(statements + ([] if reads else [f"grant select on {table} to {role};"]))


# Target, task, features ---------------------------------------------------------------------------------------


def _target(request: Json, before: Json, table: _Table) -> _Column:
    """The column to predict: as asked, as last time, or the only one with a usual name."""
    named = _text(request, "target")
    if named is None:
        named = before.get("target")
    if named is not None:
        return _learnable(table, table.column(named, "target"), "target")
    usual = [column for column in table.columns if column.name in _TARGET_NAMES]
    if len(usual) != 1:
        found = " and ".join(column.name for column in usual)
        raise RefusalError(
            _INVALID,
            f"no target is given for {table}",
            detail=f"It has {found}." if usual else f"It has no column named {', '.join(_TARGET_NAMES)}.",
            hint=f"Name the column to predict with target => '...'. Columns: {table.names}.",
        )
    return _learnable(table, usual[0], "target")


def _task(plpy: Plpy, request: Json, before: Json, table: _Table, target: _Column) -> str:
    """The task as asked, as last time for the same target, or by the target's type and values."""
    task: str | None = _choice(request, "task", tuple(METRICS), None)
    if task is None and before.get("target") == target.name:
        task = before["task"]
    if task is None:
        task, reason = _task_by_type(plpy, table, target)
        plpy.notice(f'task is {task}, as target "{target.name}" {reason}')
    _check_task(task, table, target)
    return task


def _task_by_type(plpy: Plpy, table: _Table, target: _Column) -> tuple[str, str]:
    if target.kind != "integer":
        return "regression" if target.kind == "float" else "classification", f"has type {target.type}"
    values = _count_values(plpy, table, target)
    if values <= _CLASSES_OF_AN_INTEGER:
        return "classification", f"is an integer of {values} values"
    return "regression", f"is an integer of more than {_CLASSES_OF_AN_INTEGER} values"


def _check_task(task: str, table: _Table, target: _Column) -> None:
    fits = ("integer", "float") if task == "regression" else ("integer", "float", "boolean", "text")
    if target.kind not in fits:
        nouns = "numeric" if task == "regression" else "text, boolean or numeric"
        raise RefusalError(
            _INVALID,
            f'target "{target.name}" of {table} has type {target.type}, which {task} cannot predict',
            hint=f"Name a {nouns} column with target => '...'"
            + (", or use task => 'classification'." if task == "regression" and target.kind != "time" else "."),
        )


def _learnable(table: _Table, column: _Column, role: str) -> _Column:
    if not column.kind:
        way = f"Leave it out with exclude => array[{_literal(column.name)}]. " if role == "feature" else ""
        raise RefusalError(
            _INVALID,
            f'{role} "{column.name}" of {table} has type {column.type}, which cannot be learned from',
            hint=way + _SUPPORTED,
        )
    return column


def _features(
    plpy: Plpy, request: Json, before: Json, table: _Table, target: _Column
) -> tuple[list[str] | None, list[str]]:
    """`features` (None: every column that is not excluded) and `exclude` of the specification."""
    features = _names(request, "features")
    exclude = _names(request, "exclude")
    if features is None and exclude is None:
        features = before.get("features")
    if exclude is None:
        present = {column.name for column in table.columns}
        exclude = [name for name in before.get("exclude") or () if name in present and name not in (features or ())]
    for name in exclude:
        table.column(name, "exclude")
    if features is None:
        exclude = exclude + _keys_left_out(plpy, table, target, exclude)
        used = [c for c in table.columns if c.name != target.name and c.name not in exclude]
    else:
        used = [table.column(name, "features") for name in features if name not in exclude]
        if target in used:
            raise RefusalError(
                _INVALID, f'"{target.name}" is both target and feature', hint="Leave it out of features."
            )
    if not used:
        hint = f"Name columns with features => array['...']. Columns: {table.names}."
        raise RefusalError(_INVALID, f"no features are left in {table}", hint=hint)
    for column in used:
        _learnable(table, column, "feature")
    return features if features is None else [column.name for column in used], exclude


def _keys_left_out(plpy: Plpy, table: _Table, target: _Column, exclude: Sequence[str]) -> list[str]:
    keys = [c.name for c in table.columns if c.key and c.name != target.name and c.name not in exclude]
    if keys:
        plpy.notice(
            f"left out of the features, as keys tell rows apart and nothing else: {', '.join(keys)} "
            "(name them in features => array[...] to learn from them)"
        )
    return keys


def _used(table: _Table, spec: Json) -> list[_Column]:
    """The feature columns of a resolved specification."""
    if spec["features"] is not None:
        return [column for column in table.columns if column.name in spec["features"]]
    return [c for c in table.columns if c.name != spec["target"] and c.name not in spec["exclude"]]


# The rows, as far as a short look tells -----------------------------------------------------------------------


def _count_values(plpy: Plpy, table: _Table, target: _Column) -> int:
    """How many values an integer target has in the first rows; counting stops where the answer is clear."""
    column, source = plpy.quote_ident(target.name), _qualified(plpy, table.schema, table.name)
    statement = (
        f"select count(distinct v) as values from (select {column} as v from {source} "
        f"where {column} is not null limit {_SAMPLE_ROWS}) as sample"
    )
    return int(next(iter(plpy.execute(statement)))["values"])


def _check_rows(plpy: Plpy, table: _Table, spec: Json) -> None:
    """Refuse a table that cannot be learned from, as far as its first rows tell."""
    target = table.column(spec["target"], "target")
    arrays = [column for column in _used(table, spec) if column.kind == "array"]
    look = _look(plpy, table, target, arrays)
    if not look["rows"]:
        raise RefusalError(_DATA, f"{table} has no rows", hint="Insert rows, commit, and call tensile_train again.")
    whole = look["rows"] < (
        _SAMPLE_ARRAY_ROWS if arrays else _SAMPLE_ROWS
    )  # else what was seen says nothing of the rest
    subject = f'target "{target.name}" of {table}'
    if whole and not look["known"]:
        hint = "Fill it, or name another column with target => '...'."
        raise RefusalError(_DATA, f"{subject} is NULL in all {look['rows']} rows", hint=hint)
    if look["infinite"]:
        hint = "Delete these rows, or set their target to NULL to leave them out."
        raise RefusalError(_DATA, f"{subject} is not finite in {look['infinite']} of its first rows", hint=hint)
    if whole and look["single"]:
        _refuse_one_value(subject, spec["task"], look)
    for place, column in enumerate(arrays):
        _check_shape(table, column, look[f"least_{place}"], look[f"most_{place}"])


def _refuse_one_value(subject: str, task: str, look: Row) -> None:
    if task == "classification":
        hint = "Classification needs two classes or more: add rows of another one, or name another target."
        raise RefusalError(_DATA, f"{subject} has one class only: {look['value']}", hint=hint)
    hint = "Regression needs values that differ: add rows, or name another target."
    raise RefusalError(_DATA, f"{subject} is {look['value']} in every row", hint=hint)


def _check_shape(table: _Table, column: _Column, least: str | None, most: str | None) -> None:
    if least is None or most is None:  # no array that has elements among the first rows
        return
    subject = f'feature "{column.name}" of {table}'
    way = f"Leave it out with exclude => array[{_literal(column.name)}], or make the arrays alike."
    if least != most:
        detail = f"Among the first rows are {least} and {most}."
        raise RefusalError(_DATA, f"{subject} holds arrays of different shapes", detail=detail, hint=way)
    if any(bound != "1" for bound in re.findall(r"\[(-?\d+):", least)):
        raise RefusalError(_DATA, f"{subject} holds arrays whose lower bound is not 1: {least}", hint=way)


def _look(plpy: Plpy, table: _Table, target: _Column, arrays: Sequence[_Column]) -> Row:
    """Figures of the first rows, in one statement."""
    source = _qualified(plpy, table.schema, table.name)
    columns = [plpy.quote_ident(target.name), *(plpy.quote_ident(column.name) for column in arrays)]
    named = ", ".join(f"{column} as c{place}" for place, column in enumerate(columns))
    infinite = "c0 in ('NaN', 'Infinity', '-Infinity')" if target.kind == "float" else "false"
    shapes = "".join(
        f", min(pg_catalog.array_dims(c{place + 1})) as least_{place}"
        f", max(pg_catalog.array_dims(c{place + 1})) as most_{place}"
        for place in range(len(arrays))
    )
    rows = _SAMPLE_ROWS if not arrays else _SAMPLE_ARRAY_ROWS
    statement = f"""select count(*) as rows, count(c0) as known, min(c0::text) as value,
        min(c0::text collate "C") is not distinct from max(c0::text collate "C") as single,
        count(*) filter (where {infinite}) as infinite{shapes}
        from (select {named} from {source} limit {rows}) as sample"""
    return next(iter(plpy.execute(statement)))


def _statistics(plpy: Plpy, table: _Table, spec: Json) -> tuple[list[Json], int]:
    """What the service must know of the columns to build the network, and how many rows there are."""
    source = _qualified(plpy, table.schema, table.name)
    used = [*_used(table, spec), table.column(spec["target"], "target")]
    asked = ["(select count(*) from sample) as sampled"]
    for place, column in enumerate(used):
        name = plpy.quote_ident(column.name)
        if column.kind == "array":
            asked.append(f"(select array_dims({name}) from sample where {name} is not null limit 1) as c{place}")
        else:
            asked.append(f"(select count(distinct {name}) from sample) as c{place}")
    statement = f"""with sample as materialized (select * from {source} limit {_SAMPLE_ROWS})
        select {", ".join(asked)}"""
    found = next(iter(plpy.execute(statement)))
    columns = [_statistic(column, found[f"c{place}"]) for place, column in enumerate(used)]
    rows = int(found["sampled"])
    if rows == _SAMPLE_ROWS:
        rows = int(_rows(plpy, f"select count(*) as rows from {source}", ())[0]["rows"])
    return columns, rows


def _statistic(column: _Column, found: Any) -> Json:
    shape = [int(size) for size in re.findall(r":(\d+)\]", found or "")] if column.kind == "array" else []
    distinct = None if column.kind == "array" else found
    about = {"name": column.name, "type": column.type, "kind": column.kind, "distinct": distinct}
    return about | {"ndims": len(shape), "shape": shape}


# Options ------------------------------------------------------------------------------------------------------


def _architecture(given: str | None, before: Json | None = None) -> Json:
    """The network: a name, or a JSON object with the key "type"; left out, the one before, else chosen by columns."""
    if given is None:
        return before or {"type": "auto"}
    architecture: Any = {"type": given}
    if given.lstrip().startswith("{"):
        try:
            architecture = json.loads(given)
        except json.JSONDecodeError as error:
            raise RefusalError(
                _INVALID, f"architecture is not valid JSON: {error}", hint=_KNOWN_ARCHITECTURES
            ) from None
    kind = architecture.get("type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise RefusalError(_INVALID, f'unknown architecture "{kind}"', hint=_KNOWN_ARCHITECTURES)
    options = {name: value for name, value in architecture.items() if name != "type"}
    _check_layers(options.get("layers") or [])
    return {"type": kind} | _options(f"architecture {kind}", options, ARCHITECTURES[kind])


def _check_layers(layers: Any) -> None:
    """Refuse what is no layer; whether layers fit together is known when they are built."""
    pending = list(layers) if isinstance(layers, list) else []
    for layer in pending:
        kind = layer.get("type") if isinstance(layer, dict) else None
        if kind not in LAYERS:
            raise RefusalError(_INVALID, f"unknown layer {_shown(layer)}", hint=f"Known types: {', '.join(LAYERS)}.")
        if isinstance(layer.get("layers"), list):  # those of a residual layer; an lstm has a number there
            pending.extend(layer["layers"])


def _options(subject: str, given: Any, known: Mapping[str, Json]) -> Json:
    """What was given, nulls left out, once names, types and ranges are right."""
    if not isinstance(given, dict):
        raise RefusalError(_INVALID, f"{subject} must be a JSON object, not {_shown(given)}")
    for name, value in given.items():
        if name not in known:
            hint = f"Known parameters: {', '.join(known) or 'none'}."
            raise RefusalError(_INVALID, f'{subject}: unknown parameter "{name}"', hint=hint)
        if value is not None and not _fits(value, known[name]):
            hint = f'"{name}" must be {_wanted(known[name])}.'
            raise RefusalError(_INVALID, f'{subject}: "{name}" is {_shown(value)}', hint=hint)
    for name, rule in known.items():
        if "default" not in rule and given.get(name) is None:
            raise RefusalError(_INVALID, f'{subject}: parameter "{name}" is missing', hint=f"Give {_wanted(rule)}.")
    return {name: value for name, value in given.items() if value is not None}


def _fits(value: Any, rule: Json) -> bool:
    kind = rule["type"]
    if kind == "choice":
        return isinstance(value, str) and value in rule["values"]
    if kind == "layers":
        return isinstance(value, list) and all(isinstance(item, dict) for item in value)
    if kind in ("integers", "numbers"):
        few, many = rule.get("length", (0, math.inf))
        single = rule | {"type": kind[:-1]}
        return isinstance(value, list) and few <= len(value) <= many and all(_fits(item, single) for item in value)
    if isinstance(value, bool) or kind in ("boolean", "text"):
        return isinstance(value, {"boolean": bool, "text": str}.get(kind, ()))
    if not isinstance(value, int if kind == "integer" else (int, float)) or not math.isfinite(value):
        return False
    least, most = rule.get("minimum", -math.inf), rule.get("maximum", math.inf)
    return bool(least <= value <= most and rule.get("above", -math.inf) < value < rule.get("below", math.inf))


def _wanted(rule: Json) -> str:
    """What a parameter takes, in words."""
    if rule["type"] == "choice":
        return "one of " + ", ".join(rule["values"])
    words = (("minimum", "at least"), ("above", "above"), ("maximum", "at most"), ("below", "below"))
    limits = [f"{word} {rule[key]}" for key, word in words if key in rule]
    few, many = rule.get("length", (None, None))
    count = "" if few is None else f" of length {few}" if few == many else f" of length {few} to {many}"
    return f"{_NOUNS[rule['type']]}{count}" + (" " + " and ".join(limits) if limits else "")


_NOUNS = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "text": "a text",
    "integers": "a list of integers",
    "numbers": "a list of numbers",
    "layers": "a list of JSON objects",
}


def _split(given: Any) -> Json:
    options = _options("split", given, SPLIT)
    shares = {name: rule["default"] for name, rule in SPLIT.items()} | options
    if shares["test_size"] + shares["valid_size"] >= 1:
        sizes = f"test_size {shares['test_size']} and valid_size {shares['valid_size']}"
        message = f"split: {sizes} leave no rows to train on"
        raise RefusalError(_INVALID, message, hint="Keep their sum below 1.")
    return options


def _preprocess(given: Any) -> Json:
    if not isinstance(given, dict):
        raise RefusalError(_INVALID, f"preprocess must be a JSON object, not {_shown(given)}")
    for name in given:
        if name not in PREPROCESS:
            hint = f"Known parameters: {', '.join(PREPROCESS)}."
            raise RefusalError(_INVALID, f'preprocess: unknown parameter "{name}"', hint=hint)
    return given


def _early_stop(given: Any, task: str) -> Json | None:
    """An empty object is early stopping with its defaults; nothing at all is none."""
    if given is None:
        return None
    options = _options("early_stop", given, EARLY_STOP)
    known = ("loss", *METRICS[task])
    if options.get("metric", "loss") not in known:
        hint = f"Known for {task}: {', '.join(known)}."
        raise RefusalError(_INVALID, f'early_stop: unknown metric "{options["metric"]}"', hint=hint)
    return options


def _metric(request: Json, before: Json, task: str) -> str | None:
    metric = _text(request, "metric")
    if metric is None:
        inherited: str | None = before.get("metric")
        return inherited if inherited in METRICS[task] else None
    if metric not in METRICS[task]:
        hint = f"For {task}: {', '.join(METRICS[task])}."
        raise RefusalError(_INVALID, f'unknown metric "{metric}" for {task}', hint=hint)
    return metric


def _memory_limit(plpy: Plpy, request: Json) -> int | None:
    text = _text(request, "memory_limit")
    if text is None:
        return None
    # PostgreSQL reads sizes itself; what it refuses arrives with its own message.
    size_bytes = int(_rows(plpy, "select pg_catalog.pg_size_bytes($1::text) as bytes", (text,))[0]["bytes"])
    if size_bytes <= 0:
        raise RefusalError(_INVALID, f'memory_limit is "{text}"', hint="Give a size above 0, such as '512 MB'.")
    return size_bytes


def _max_runtime(request: Json) -> int | None:
    seconds = request.get("max_runtime_s")
    if seconds is None:
        return None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds >= 1:
        raise RefusalError(
            _INVALID, f"max_runtime is {_shown(seconds)} seconds", hint="Give an interval of a second or more."
        )
    return int(seconds)


def _priority(request: Json) -> int:
    priority = _integer(request, "priority") or 0
    if not -1000 <= priority <= 1000:
        hint = "Give a number from -1000 to 1000; jobs of higher priority go first."
        raise RefusalError(_INVALID, f"priority is {priority}", hint=hint)
    return priority


# Predictions, evaluations, sample data ------------------------------------------------------------------------


def _predict(plpy: Plpy, request: Json) -> Json:
    """Predict each of `rows`; a row that is null has the prediction null."""
    name, kind = _model_name(request), _choice(request, "kind", _PREDICTIONS, "value")
    version = _version(plpy, name, _integer(request, "version"))
    rows = request.get("rows")
    if not isinstance(rows, list):
        raise RefusalError(_INVALID, "rows is not a list")
    asked = [_row(row, unnamed=request.get("unnamed") is True) for row in rows if row is not None]
    values: list[Any] = []
    if asked:
        version_id = version["version_id"]
        answer = _service.ask(plpy, {"verb": "predict", "version": version_id, "rows": asked, "kind": kind})
        values = [_storable(value) for value in answer["values"]]
    given = iter(values)
    return {"values": [None if row is None else next(given) for row in rows]}


def _row(row: Any, *, unnamed: bool) -> Any:
    """A row as the service reads it: `row(1, 2)` has no names, and a literal without a type is a text."""
    if unnamed and isinstance(row, dict):
        names = [f"f{place + 1}" for place in range(len(row))]
        return [row[name] for name in names] if all(name in row for name in names) else row
    return _literal_row(row) if isinstance(row, str) else row


def _literal_row(text: str) -> Any:
    """JSON, or an array of numbers as PostgreSQL writes it."""
    try:
        return json.loads(text.translate(_BRACES) if re.fullmatch(r"[{}\d\s.,eE+-]+", text) else text)
    except json.JSONDecodeError:
        raise RefusalError(
            "22P02",
            f"the row to predict is neither JSON nor an array of numbers: {_shown(text)}",
            hint="Pass a row, an array or jsonb: tensile_predict('model', t) from a table t, array[1, 2], "
            "or '{\"column\": 1}'::jsonb.",
        ) from None


_BRACES = str.maketrans("{}", "[]")


def _storable(value: Any) -> Any:
    """JSON in PostgreSQL knows no NaN and no infinity: they travel as texts, which float8 reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {key: _storable(item) for key, item in value.items()}
    return value


def _version(plpy: Plpy, name: str, number: int | None) -> Row:
    """The version of a model that the caller may see: this one, or the deployed one."""
    found = _rows(plpy, _VERSION, (name, number))
    if not found:
        hint = "See your models: select * from tensile.model_list. Its owner can train it with tensile_train(...)."
        raise RefusalError(_MISSING, f'there is no model "{name}"', hint=hint)
    if found[0]["version_id"] is not None:
        return found[0]
    if number is not None:
        hint = f"See its versions: select * from tensile_training_info({_literal(name)})."
        raise RefusalError(_MISSING, f'model "{name}" has no version {number}', hint=hint)
    hint = "Predictions become possible when a training has succeeded: see tensile.stat_jobs."
    raise RefusalError("55000", f'model "{name}" has no deployed version', hint=hint)


def _evaluate(plpy: Plpy, request: Json) -> Json:
    """Score a version on a relation, read as the caller; without one, give the figures of its own held-out rows."""
    version = _version(plpy, _model_name(request), _integer(request, "version"))
    oid = _integer(request, "relation")
    if oid is None:
        return {"metrics": json.loads(version["metrics"])}
    found = _rows(plpy, _RELATION_NAME, (oid,))
    if not found:
        raise RefusalError("42P01", f"there is no table with oid {oid}", hint="It may have been dropped.")
    target = version["target"]
    source, column = found[0]["name"], plpy.quote_ident(target)
    limit = _MOST_EVALUATED_ROWS + 1
    statement = f"select to_jsonb(t) as row from {source} as t where {column} is not null limit {limit}"
    rows = [row["row"] for row in plpy.execute(statement)]
    if not rows:
        raise RefusalError(_DATA, f'{source} has no row whose target "{target}" is known')
    if len(rows) == limit:
        raise RefusalError(
            "54000",
            f"{source} has more than {_MOST_EVALUATED_ROWS} rows, too many to evaluate in one answer",
            hint=f"Evaluate a sample: create temporary table part as select * from {source} "
            f"tablesample system (10) limit {_MOST_EVALUATED_ROWS};",
        )
    asked = f'{{"verb": "evaluate", "version": {version["version_id"]}, "rows": [{", ".join(rows)}]}}'
    return _storable(_service.ask(plpy, asked))  # type: ignore[no-any-return]


def _load_dataset(plpy: Plpy, request: Json) -> Json:
    """Create a table in the caller's current schema and fill it with a sample data set."""
    name = _text(request, "dataset")
    if name is None:
        raise RefusalError(_INVALID, "no data set is named", hint="Name one: select tensile_load_dataset('digits').")
    page = _service.ask(plpy, {"verb": "dataset", "name": name, "offset": 0})
    table = _create_table(plpy, _text(request, "table") or name, page)
    fill = f"insert into {table} select * from pg_catalog.jsonb_populate_recordset(null::{table}, $1)"
    names = [column for column, _ in page["columns"]]
    rows = 0
    while page["rows"]:  # a page past the end is empty
        records = [dict(zip(names, row, strict=True)) for row in page["rows"]]
        list(plpy.execute(plpy.prepare(fill, ["jsonb"]), [json.dumps(records)]) or ())
        rows += len(records)
        page = _service.ask(plpy, {"verb": "dataset", "name": name, "offset": rows})
    _let_worker_read(plpy, table)
    return {"rows": rows}


def _create_table(plpy: Plpy, name: str, page: Json) -> str:
    place = _rows(plpy, "select pg_catalog.current_schema() as schema", ())[0]["schema"]
    if place is None:
        raise RefusalError(
            "3F000", "no schema is selected to create the table in", hint="Run: set search_path = public;"
        )
    columns = []
    for column, type_name in page["columns"]:
        if not re.fullmatch(_DATASET_TYPES, type_name):
            raise RefusalError(_PROTOCOL, f'the service gave column "{column}" the type "{type_name}"')
        columns.append(f"{plpy.quote_ident(column)} {type_name}")
    columns.append(f"primary key ({plpy.quote_ident(page['primary_key'])})")
    table = _qualified(plpy, place, name)
    plpy.execute(f"create table {table} ({', '.join(columns)})")
    return table


def _let_worker_read(plpy: Plpy, table: str) -> None:
    plpy.execute(f"grant select on {table} to tensile_worker")
    facts = _rows(plpy, _WORKER_MAY_ENTER, ())[0]
    if facts["enters"]:
        return
    grant = f"grant usage on schema {plpy.quote_ident(facts['schema'])} to tensile_worker"
    if facts["mine"]:
        plpy.execute(grant)
    else:
        plpy.notice(f"the worker may not use the schema yet; its owner must run: {grant};")


_DATASET_TYPES = r"(smallint|int|integer|bigint|real|double precision|boolean|text|date|timestamptz)(\[\]){0,3}"
_MOST_EVALUATED_ROWS = 100_000
_PREDICTIONS = ("value", "label", "proba", "vector")


def _ping(plpy: Plpy, request: Json) -> Json:
    """Ask the service who it is: whether one answers at all."""
    return dict(_service.ask(plpy, {"verb": "ping"}))


def _unknown_verb(plpy: Plpy, request: Json) -> Json:
    raise RefusalError(_INVALID, "the bridge has no such verb", hint=f"Known verbs: {', '.join(_VERBS)}.")


# The service --------------------------------------------------------------------------------------------------


class _Service:
    """The session's connection to a service: opened at the first request, opened anew when it has died."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def ask(self, plpy: Plpy, request: Json | str) -> Any:
        """The result that the service answers with. Raises RefusalError: its error, or 57P03 where none answers."""
        body = request.encode() if isinstance(request, str) else json.dumps(request).encode()
        if len(body) > _MAX_FRAME_BYTES:
            size = f"a request of {len(body)} bytes exceeds the {_MAX_FRAME_BYTES} that the service reads"
            raise RefusalError("54000", size, hint="Ask for fewer rows at a time.")
        answer = json.loads(self._exchanged(plpy, struct.pack(">I", len(body)) + body))
        if answer["ok"]:
            return answer["result"]
        error = answer["error"]
        raise RefusalError(
            error["sqlstate"], error["message"], detail=error.get("detail", ""), hint=error.get("hint", "")
        )

    def _exchanged(self, plpy: Plpy, frame: bytes) -> bytes:
        if self._socket is not None:
            try:
                return self._once(plpy, self._socket, frame)
            except OSError:
                pass  # the service was restarted since: everything it is asked may be asked twice
        self._socket = _connected(plpy)
        try:
            return self._once(plpy, self._socket, frame)
        except OSError as error:
            raise _no_service(f"The connection broke: {error}.") from None

    def _once(self, plpy: Plpy, connection: socket.socket, frame: bytes) -> bytes:
        """Send, then receive. A connection that fails, or whose answer is not waited for, is not used again."""
        self._socket = None
        try:
            _send(plpy, connection, frame)
            (size_bytes,) = struct.unpack(">I", _receive(plpy, connection, 4))
            if size_bytes > _MAX_FRAME_BYTES:
                raise ConnectionError(f"the answer announces {size_bytes} bytes")
            answer = _receive(plpy, connection, size_bytes)
            self._socket = connection
            return answer
        finally:
            if self._socket is None:
                connection.close()


_service = _Service()


def _connected(plpy: Plpy) -> socket.socket:
    """A connection to the first service that accepts one, the one that was alive last before the others."""
    facts = _rows(plpy, _SERVICES, ())[0]
    directory, names = facts["directory"], facts["names"] or []
    if not directory:
        hint = "An administrator sets it: select tensile_set_setting('socket_directory', '\"/run/tensile\"')."
        raise RefusalError(_UNAVAILABLE, "no service answers: the setting socket_directory is not set", hint=hint)
    faults = []
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name):
            continue  # a name, never a path
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.settimeout(_SLICE_S)
        try:
            connection.connect(f"{directory.rstrip('/')}/{name}.sock")
        except OSError as error:
            connection.close()
            faults.append(f"{name}: {error.strerror or error}")
        else:
            return connection
    raise _no_service(f"Tried {'; '.join(faults)}." if faults else "No controller with a service is alive.")


def _no_service(detail: str) -> RefusalError:
    hint = "Start one with: tensile up, or tensile controller; tensile doctor says what is missing."
    return RefusalError(_UNAVAILABLE, "no service answers", detail=detail, hint=hint)


def _send(plpy: Plpy, connection: socket.socket, frame: bytes) -> None:
    left = memoryview(frame)
    while left:
        try:
            left = left[connection.send(left) :]
        except TimeoutError:
            _notice_cancel(plpy)


def _receive(plpy: Plpy, connection: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        try:
            part = connection.recv(min(1 << 20, size_bytes - len(received)))
        except TimeoutError:
            _notice_cancel(plpy)
            continue
        if not part:
            raise ConnectionResetError("the service closed it")
        received += part
    return bytes(received)


def _notice_cancel(plpy: Plpy) -> None:
    """Any statement does: a cancel or a timeout that has arrived is raised by it."""
    plpy.execute("select 1")


# Small helpers ------------------------------------------------------------------------------------------------


def _rows(plpy: Plpy, statement: str, arguments: Sequence[object]) -> Sequence[Row]:
    """All rows of a statement, prepared once per session; its casts say the parameters' types."""
    if statement not in _plans:
        types = dict(re.findall(r"\$(\d+)::(\w+)", statement))
        _plans[statement] = plpy.prepare(statement, [types[number] for number in sorted(types, key=int)])
    return list(plpy.execute(_plans[statement], list(arguments)))


_plans: dict[str, Plan] = {}


def _database_error(error: Any) -> Json:
    """PostgreSQL's own error, its parts kept apart: (code, detail, hint, …) is what PL/Python stores of it."""
    data = getattr(error, "spidata", None) or (None, None, None)
    return {"sqlstate": error.sqlstate, "message": str(error), "detail": data[1] or "", "hint": data[2] or ""}


def _qualified(plpy: Plpy, schema: str, name: str) -> str:
    return f"{plpy.quote_ident(schema)}.{plpy.quote_ident(name)}"


def _literal(text: str) -> str:
    """The text as a SQL literal, for hints."""
    return "'" + text.replace("'", "''") + "'"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def _model_name(request: Json) -> str:
    name = _text(request, "model")
    if name is None or not 1 <= len(name) <= 200:
        raise RefusalError(
            _INVALID, f"the model's name is {_shown(name)}", hint="Give a name of 1 to 200 characters."
        )
    return name


def _text(request: Json, key: str) -> str | None:
    value = request.get(key)
    if value is not None and not isinstance(value, str):
        raise RefusalError(_INVALID, f"{key} is {_shown(value)}, not a text")
    return value


def _integer(request: Json, key: str) -> int | None:
    value = request.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise RefusalError(_INVALID, f"{key} is {_shown(value)}, not an integer")
    return value


def _names(request: Json, key: str) -> list[str] | None:
    value = request.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise RefusalError(_INVALID, f"{key} is {_shown(value)}, not a list of column names")
    return list(dict.fromkeys(value))


def _choice(request: Json, key: str, known: Sequence[str], default: Any) -> Any:
    value = _text(request, key)
    if value is None:
        return default
    if value not in known:
        raise RefusalError(_INVALID, f'unknown {key} "{value}"', hint=f"Known: {', '.join(known)}.")
    return value


# Statements ---------------------------------------------------------------------------------------------------

_RELATION = """
select c.relname as name, n.nspname as schema, c.relkind as kind, c.relpersistence as persistence,
       c.relrowsecurity as secured, current_user as caller,
       has_schema_privilege(n.oid, 'usage') as caller_enters, has_table_privilege(c.oid, 'select') as caller_reads,
       has_schema_privilege('tensile_worker', n.oid, 'usage') as worker_enters,
       has_table_privilege('tensile_worker', c.oid, 'select') as worker_reads
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
 where c.oid = $1::oid"""
_COLUMNS = """
select a.attname as name, format_type(a.atttypid, a.atttypmod) as type, b.typtype = 'e' as enumerated,
       case when b.typnamespace = 'pg_catalog'::regnamespace then b.typname end as base,
       a.attidentity <> '' or coalesce(a.attnum = any (i.indkey::int2[]), false) as key
  from pg_catalog.pg_attribute as a
  join pg_catalog.pg_type as t on t.oid = a.atttypid
  join pg_catalog.pg_type as b on b.oid = case t.typtype when 'd' then t.typbasetype else t.oid end
  left join pg_catalog.pg_index as i on i.indrelid = a.attrelid and i.indisprimary
 where a.attrelid = $1::oid and a.attnum > 0 and not a.attisdropped
 order by a.attnum"""
_MODEL = """
select m.owner_name = current_user and m.owner_oid = tensile.current_role_oid() as own,
       m.definition::text as definition, m.last_spec::text as last_spec
  from tensile.models as m where m.name = $1::text"""
_CREATE_MODEL = """
insert into tensile.models (name, definition) values ($1::text, $2::jsonb)
on conflict (name) do nothing returning model_id"""
_JOB_OF_KEY = """
select job_id from tensile.jobs
 where owner_oid = tensile.current_role_oid() and owner_name = current_user and idempotency_key = $1::text"""
_ENQUEUE = """
insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec, priority, not_before,
                          idempotency_key)
values ($1::text, $2::oid, $3::text, $4::text, $5::jsonb, $6::int4, $7::timestamptz, $8::text)
on conflict (owner_oid, idempotency_key) where idempotency_key is not null do nothing
returning job_id"""
_VERSION = """
select v.version_id, v.target, v.metrics::text as metrics
  from tensile.models as m
  left join tensile.model_versions as v
    on v.model_id = m.model_id and case when $2::int4 is null then v.deployed else v.number = $2 end
 where m.name = $1::text"""
_RELATION_NAME = """
select c.oid::pg_catalog.regclass::text as name from pg_catalog.pg_class as c where c.oid = $1::oid"""
_DEVICE_ROOM = """
select max(d.budget_bytes - d.granted_bytes) as room_bytes
  from tensile.devices as d
  join tensile.workers as w using (worker_id)
 where w.stopped_at is null and w.heartbeat_at > now() - make_interval(secs => w.lease_s)"""
_SERVICES = """
select (select s.value #>> '{}' from tensile.settings as s where s.name = 'socket_directory') as directory,
       array(select w.service_name from tensile.workers as w
              where w.service_name is not null and w.stopped_at is null
              order by w.heartbeat_at desc) as names"""
_WORKER_MAY_ENTER = """
select n.nspname as schema, has_schema_privilege('tensile_worker', n.oid, 'usage') as enters,
       pg_has_role(n.nspowner, 'usage') as mine
  from pg_catalog.pg_namespace as n where n.nspname = current_schema()"""

_VERBS: dict[str, Callable[[Plpy, Json], Json]] = {
    "train": _train,
    "explain": _explain,
    "create_model": _create_model,
    "predict": _predict,
    "evaluate": _evaluate,
    "load_dataset": _load_dataset,
    "ping": _ping,
}
