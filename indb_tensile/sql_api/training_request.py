"""Checks a training and enqueues it as the caller, or explains what it would need."""

import json
from collections.abc import Sequence

from ..request.job_rules import DEPLOY, check_max_runtime, refuse_unsupported
from ..request.request_fields import read_choice, read_key, read_model_name, read_text
from ..request.split_rules import deciding_column
from . import service_connection, training_arguments
from .data_warnings import warn_about_features
from .feature_columns import choose_features, used_columns
from .first_rows import check_rows, read_statistics
from .inherited_arguments import fitting, fitting_task, tell_inherited
from .query_source import describe_query
from .snapshot_copy import make_snapshot, require_writable
from .spi import Json, Plpy, callers_path, fetch
from .split_column import check_split_values, choose_split_column, read_shares
from .stored_models import last_run
from .target_column import choose_target, choose_task
from .training_table import Table, find_table, reasons_against, require_grants


def train(plpy: Plpy, request: Json) -> Json:
    """Check the request and enqueue it.

    A relation that trainers cannot read in its present form is copied into a snapshot.
    """
    refuse_unsupported(request)
    require_writable(plpy)
    key = read_key(request)
    if key is not None and (existing := fetch(plpy, JOB_OF_KEY, key)):
        return {"job": existing[0]["job_id"]}
    spec, table = _resolve(plpy, request)
    with callers_path(plpy, _search_path(request)):
        warn_about_features(plpy, table, spec)
    priority = training_arguments.priority(request)
    relation = spec["relation"]
    values = (spec["model"], relation["oid"], relation["schema"], relation["name"], json.dumps(spec))
    enqueued = fetch(plpy, ENQUEUE, *values, priority, read_text(request, "not_before"), key)
    if not enqueued:  # another session has used the key since the look-up: return its job
        return {"job": fetch(plpy, JOB_OF_KEY, key)[0]["job_id"]}
    job = enqueued[0]["job_id"]
    used = _used_names(table, spec)
    if _needs_snapshot(request, table, used):
        make_snapshot(plpy, table, used, job, _search_path(request))
    return {"job": job}


def explain(plpy: Plpy, request: Json) -> Json:
    """Return what this training would need, as the service computes it, without enqueuing the training."""
    refuse_unsupported(request)
    spec, table = _resolve(plpy, request)
    training_arguments.priority(request)
    with callers_path(plpy, _search_path(request)):
        columns, rows = read_statistics(plpy, table, spec)
        shares = read_shares(plpy, table, spec)
    device = fetch(plpy, DEVICE_ROOM)[0]
    service_request = {"verb": "explain", "spec": spec, "columns": columns, "rows": rows, "shares": shares}
    answer = service_connection.ask(
        plpy,
        service_request
        | {
            "limit_bytes": spec["memory_limit_bytes"],
            "budget_bytes": device["room_bytes"],
            "owner_oid": int(device["owner_oid"]),
        },
    )
    return {"rows": answer["rows"]}


def _resolve(plpy: Plpy, request: Json) -> tuple[Json, Table]:
    """Return the complete JobSpec of a request, with defaults and inherited arguments, and its table."""
    name = read_model_name(request)
    table = find_table(plpy, request) if "query" not in request else describe_query(plpy, request)
    last = last_run(plpy, name)
    target = choose_target(request, last.arguments, table)
    last = fitting_task(plpy, request, last, target)
    with callers_path(plpy, _search_path(request)):
        task = choose_task(plpy, request, last.arguments, table, target)
    last = fitting(plpy, request, last, table, target, task)
    before = last.arguments
    features, exclude = choose_features(plpy, request, before, table, target)
    spec = {
        "model": name,
        "relation": {"oid": table.oid, "schema": table.schema, "name": table.name},
        "target": target.name,
        "task": task,
        "architecture": training_arguments.architecture(request, before),
        "hyperparams": training_arguments.hyperparams(request, before),
        "features": features,
        "exclude": exclude,
        "preprocess": {},
        "split": training_arguments.split(request, before),
        "metric": training_arguments.metric(request, before, task),
        "early_stop": None,
        "memory_limit_bytes": training_arguments.memory_limit(plpy, request),
        "max_runtime_s": check_max_runtime(request.get("max_runtime_s")),
        "deploy": read_choice(request, "deploy", DEPLOY, "if_better"),
    }
    if table.query is not None:
        spec["query"] = table.query
    spec["split"] = choose_split_column(plpy, request, table, spec)
    spec["early_stop"] = training_arguments.early_stop(request, before, task, spec["split"])
    spec["preprocess"] = training_arguments.preprocess(request, before, table, used_columns(table, spec))
    tell_inherited(plpy, request, last, spec)
    if training_arguments.never_stops(spec):
        plpy.notice("training does not stop early, as the split's valid_size is 0")
    used = _used_names(table, spec)
    if not _needs_snapshot(request, table, used):
        require_grants(plpy, table, used)
        spec["column_numbers"] = {column.name: column.number for column in table.columns if column.name in used}
    with callers_path(plpy, _search_path(request)):
        check_rows(plpy, table, spec)
        check_split_values(plpy, table, spec)
    return spec, table


def _search_path(request: Json) -> str | None:
    """Return the caller's search_path.

    The relation is read with this path, because a view may call functions that need it.
    """
    return read_text(request, "search_path")


def _used_names(table: Table, spec: Json) -> list[str]:
    decisive = deciding_column(spec["split"])
    names = [*(column.name for column in used_columns(table, spec)), spec["target"]]
    return names if decisive is None or decisive in names else [*names, decisive]


def _needs_snapshot(request: Json, table: Table, used: Sequence[str]) -> bool:
    return table.query is not None or bool(request.get("snapshot")) or bool(reasons_against(table, used))


JOB_OF_KEY = """
select job_id from tensile.jobs
 where owner_oid = tensile.current_role_oid() and installation = tensile.installation()
   and idempotency_key = $1::text"""
ENQUEUE = """
insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec, priority, not_before,
                          idempotency_key)
values ($1::text, $2::oid, $3::text, $4::text, $5::jsonb, $6::int4, $7::timestamptz, $8::text)
on conflict (owner_oid, installation, idempotency_key) where idempotency_key is not null do nothing
returning job_id"""
DEVICE_ROOM = """
select max(d.budget_bytes - d.granted_bytes) as room_bytes, tensile.current_role_oid()::bigint as owner_oid
  from tensile.devices as d
  join tensile.workers as w using (worker_id)
 where w.stopped_at is null and w.heartbeat_at > now() - make_interval(secs => w.lease_s)"""
