"""Checks a training and enqueues it as the caller, or explains what it would need."""

import json
from collections.abc import Sequence

from . import arguments, preprocessing, service
from .divider import check_divider, choose_divider, read_shares
from .doubts import notice_doubts
from .errors import UNSUPPORTED, RefusalError
from .features import choose_features, divider_of, used_columns
from .inheritance import fitting, fitting_task, tell_inherited
from .models import last_run
from .options import DEPLOY
from .relation import Table, find_table, reasons_against, require_grants
from .request import read_choice, read_key, read_model_name, read_text
from .sample import check_rows, read_statistics
from .snapshots import make_snapshot, require_writable
from .spi import Json, Plpy, callers_path, fetch
from .target import choose_target, choose_task


def train(plpy: Plpy, request: Json) -> Json:
    """Check the request and enqueue it.

    A relation that trainers cannot read in its present form is copied into a snapshot.
    """
    require_writable(plpy)
    key = read_key(request)
    if key is not None and (existing := fetch(plpy, JOB_OF_KEY, key)):
        return {"job": existing[0]["job_id"]}
    spec, table = _resolve(plpy, request)
    with callers_path(plpy, _search_path(request)):
        notice_doubts(plpy, table, spec)
    priority = arguments.priority(request)
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
    spec, table = _resolve(plpy, request)
    arguments.priority(request)
    with callers_path(plpy, _search_path(request)):
        columns, rows = read_statistics(plpy, table, spec)
        shares = read_shares(plpy, table, spec)
    room = fetch(plpy, DEVICE_ROOM)[0]["room_bytes"]
    service_request = {"verb": "explain", "spec": spec, "columns": columns, "rows": rows, "shares": shares}
    answer = service.ask(plpy, service_request | {"limit_bytes": spec["memory_limit_bytes"], "budget_bytes": room})
    return {"rows": answer["rows"]}


def _resolve(plpy: Plpy, request: Json) -> tuple[Json, Table]:
    """Return the complete JobSpec of a request, with defaults and inherited arguments, and its table."""
    _refuse_unsupported(request)
    name = read_model_name(request)
    table = find_table(plpy, request)
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
        "architecture": arguments.architecture(request, before),
        "hyperparams": arguments.hyperparams(request, before),
        "features": features,
        "exclude": exclude,
        "preprocess": {},
        "split": arguments.split(request, before),
        "metric": arguments.metric(request, before, task),
        "early_stop": None,
        "memory_limit_bytes": arguments.memory_limit(plpy, request),
        "max_runtime_s": arguments.max_runtime(request),
        "deploy": read_choice(request, "deploy", DEPLOY, "if_better"),
    }
    spec["split"] = choose_divider(plpy, request, table, spec)
    spec["early_stop"] = arguments.early_stop(request, before, task, spec["split"])
    spec["preprocess"] = preprocessing.preprocess(request, before, table, used_columns(table, spec))
    tell_inherited(plpy, request, last, spec)
    if arguments.never_stops(spec):
        plpy.notice("training does not stop early, as the split's valid_size is 0")
    used = _used_names(table, spec)
    if not _needs_snapshot(request, table, used):
        require_grants(plpy, table, used)
    with callers_path(plpy, _search_path(request)):
        check_rows(plpy, table, spec)
        check_divider(plpy, table, spec)
    return spec, table


def _search_path(request: Json) -> str | None:
    """Return the caller's search_path.

    The relation is read with this path, because a view may call functions that need it.
    """
    return read_text(request, "search_path")


def _used_names(table: Table, spec: Json) -> list[str]:
    divider = divider_of(spec["split"])
    names = [*(column.name for column in used_columns(table, spec)), spec["target"]]
    return names if divider is None or divider in names else [*names, divider]


def _needs_snapshot(request: Json, table: Table, used: Sequence[str]) -> bool:
    return bool(request.get("snapshot")) or bool(reasons_against(table, used))


def _refuse_unsupported(request: Json) -> None:
    unsupported = (
        ("depends_on", request.get("depends_on") is not None, "Enqueue the second job when the first has ended."),
        ("init_from", request.get("init_from") is not None, "Leave it out: training starts from fresh parameters."),
    )
    for name, requested, hint in unsupported:
        if requested:
            raise RefusalError(UNSUPPORTED, f"{name} is not supported yet", hint=hint)


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
select max(d.budget_bytes - d.granted_bytes) as room_bytes
  from tensile.devices as d
  join tensile.workers as w using (worker_id)
 where w.stopped_at is null and w.heartbeat_at > now() - make_interval(secs => w.lease_s)"""
