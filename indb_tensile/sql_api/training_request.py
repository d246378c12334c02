"""Checks a training and enqueues it as the caller, or explains what it would need."""

from collections.abc import Callable, Sequence

from ..request.anomaly_rules import check_anomaly
from ..request.copyable_relation import counting
from ..request.estimator_rules import check_ensemble, check_estimator, check_targets_of_estimator, refuse_plan
from ..request.hyperparam_rules import check_schedule
from ..request.job_rules import DEPLOY, check_depends_on, check_max_runtime, check_not_before
from ..request.json_text import json_text
from ..request.loss_rules import check_loss
from ..request.pair_rules import check_pair_encodings, check_pairs
from ..request.rank_rules import check_devices
from ..request.request_fields import read_choice, read_integer, read_key, read_model_name, read_text
from ..request.split_rules import TABLE_OPTIONS, deciding_column
from ..request.task_rules import target_columns
from ..request.token_rules import check_length_buckets, check_tokens
from . import service_connection, training_arguments
from .anomaly_columns import check_columns
from .class_weights import check_class_weights
from .data_warnings import warn_about_features
from .feature_columns import check_item, choose_features, used_columns
from .feature_expressions import add_features, drop_view, naming_features, refuse_roles
from .first_rows import check_rows, read_statistics
from .forecast_columns import check_combination, choose_forecast
from .image_columns import check_image_options, check_image_values
from .inherited_arguments import LastRun, fitting, fitting_task, fitting_transform, tell_inherited
from .pinned_settings import OUTPUTS, pinned
from .query_source import describe_query
from .refusals import NOT_SUPPORTED, RefusalError
from .registered_networks import check_network_use, with_network
from .snapshot_copy import make_snapshot, require_writable
from .spi import Json, Plpy, callers_path, fetch, qualified
from .split_column import check_split_values, choose_split_column, read_shares
from .split_key import with_split_key
from .split_tables import PartTables, count_rows, find_part_tables, require_same_columns, require_targets
from .starting_version import StartingVersion, choose_start
from .stored_models import last_run
from .table_grants import check_reader
from .target_column import choose_target, choose_task
from .training_table import Table, find_table, reasons_against, require_grants
from .training_target import TrainingTarget
from .weight_column import check_weight_column

Complete = Callable[[Json, Table], None]


def train(plpy: Plpy, request: Json) -> Json:
    """Check the request and enqueue it.

    A relation that trainers cannot read in its present form is copied into a snapshot.
    """
    return enqueue(plpy, request)


def enqueue(plpy: Plpy, request: Json, last: LastRun | None = None, complete: Complete | None = None) -> Json:
    """Check the request and enqueue it. Omitted arguments are those of `last`, or of the model's last run.

    `complete` checks the resolved specification and its table, and adds further parts to the specification.
    """
    require_writable(plpy)
    existing = job_of_key(plpy, request)
    if existing is not None:
        return {"job": existing}
    depends_on = check_depends_on(request.get("depends_on"))
    spec, table, part_tables = _resolve(plpy, request, last)
    if request.get("snapshot"):
        spec["snapshot"] = True
    if complete is not None:
        complete(spec, table)
    transform = spec.get("transform")
    if spec["task"] not in ("forecast", "pairs"):  # the item follows from the query on purpose
        with naming_features(plpy, table, transform), callers_path(plpy, _search_path(request)):
            warn_about_features(plpy, table, spec)
    priority = training_arguments.priority(request)
    job, is_new = insert_job(plpy, request, spec, priority, depends_on)
    if not is_new:
        return {"job": job}
    used = _used_names(table, spec)
    if _needs_snapshot(request, table, part_tables, used):
        with naming_features(plpy, table, transform), pinned(plpy, OUTPUTS if table.origin else {}):
            make_snapshot(plpy, table, part_tables, used, job, _search_path(request))
    drop_view(plpy, table)
    return {"job": job}


def job_of_key(plpy: Plpy, request: Json) -> int | None:
    """Return the job that was enqueued with the request's idempotency key, or None if there is none.

    Notifies the client of the job, because the arguments of the request have no effect then.
    """
    key = read_key(request)
    jobs = [] if key is None else fetch(plpy, JOB_OF_KEY, key)
    if not jobs:
        return None
    job: int = jobs[0]["job_id"]
    plpy.notice(
        f'job {job} has the idempotency_key "{key}", so nothing is enqueued, whatever the other arguments are'
    )
    return job


def insert_job(
    plpy: Plpy, request: Json, spec: Json, priority: int, depends_on: Sequence[int] | None
) -> tuple[int, bool]:
    """Enqueue the job of a specification. Return its number, and whether it is new.

    It is not new if another session has used the request's key since `job_of_key`: the job is then that session's.
    """
    relation = spec["relation"]
    values = (spec["model"], relation["oid"], relation["schema"], relation["name"], json_text(spec))
    awaited = None if depends_on is None else f"{{{','.join(map(str, depends_on))}}}"
    key, retried = read_key(request), read_integer(request, "retry_of")
    not_before = check_not_before(read_text(request, "not_before"))
    enqueued = fetch(plpy, ENQUEUE, *values, priority, not_before, key, awaited, retried)
    if enqueued:
        return enqueued[0]["job_id"], True
    return fetch(plpy, JOB_OF_KEY, key)[0]["job_id"], False


def explain(plpy: Plpy, request: Json) -> Json:
    """Return what this training would need, as the service computes it, without enqueuing the training."""
    check_depends_on(request.get("depends_on"))
    spec, table, part_tables = _resolve(plpy, request)
    refuse_plan(spec["architecture"])
    training_arguments.priority(request)
    with naming_features(plpy, table, spec.get("transform")), callers_path(plpy, _search_path(request)):
        columns, rows = read_statistics(plpy, table, spec)
        shares = read_shares(plpy, table, spec)
        if part_tables:
            counted = count_rows(plpy, part_tables, spec)
            shares = {part: counted.get(part, 0) / max(rows, 1) for part in TABLE_OPTIONS}
    drop_view(plpy, table)
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


def _resolve(plpy: Plpy, request: Json, last: LastRun | None = None) -> tuple[Json, Table, PartTables]:
    """Return the complete JobSpec of a request, with defaults and inherited arguments, and the tables to read."""
    name = read_model_name(request)
    table = find_table(plpy, request) if "query" not in request else describe_query(plpy, request)
    last = last_run(plpy, name) if last is None else last
    last = fitting_transform(plpy, request, last, table)
    transform, table = add_features(plpy, request, last, table)
    with naming_features(plpy, table, transform):
        return _resolve_columns(plpy, request, last, table, transform)


def _resolve_columns(
    plpy: Plpy, request: Json, last: LastRun, table: Table, transform: Json | None
) -> tuple[Json, Table, PartTables]:
    """Return the specification of a training whose table and computed features are known."""
    start = choose_start(plpy, request)
    if start is not None:
        request, last = start.complete(request, table), start.fall_back(last)
    target = choose_target(request, last.arguments, table)
    last = fitting_task(plpy, request, last, target)
    with callers_path(plpy, _search_path(request)):
        task = choose_task(plpy, request, last.arguments, table, target)
    last = fitting(plpy, request, last, table, target, task)
    table = with_split_key(plpy, request, last.arguments, table)
    columns = _choose_columns(plpy, request, last, table, target, task)
    spec = _specification(plpy, request, last.arguments, table, columns | {"transform": transform})
    _complete_options(plpy, request, last.arguments, table, spec)
    _check_network(plpy, table, spec, start, several=target.kind in ("array", "integers"))
    if start is not None:
        start.check(spec, [column.name for column in used_columns(table, spec)])
        spec["init_from"] = start.to_spec()
    tell_inherited(plpy, request, last, spec)
    if training_arguments.never_stops(spec):
        plpy.notice("training does not stop early, as the split's valid_size is 0")
    part_tables = _add_tables(plpy, request, table, spec)
    _check_values(plpy, request, table, spec, part_tables)
    return spec, table, part_tables


def _choose_columns(
    plpy: Plpy, request: Json, last: LastRun, table: Table, target: TrainingTarget, task: str
) -> Json:
    """Return the parts of the specification that name columns to predict and to learn from, and the task."""
    targets = target.names if len(target.columns) > 1 else None
    columns: Json = {"target": target.name, "task": task, "targets": targets, "exclude": [], "forecast": None}
    if task == "forecast":
        forecast, features = choose_forecast(plpy, request, last, table, target)
        return columns | {"forecast": forecast, "features": features}
    documents = training_arguments.documents(request, last.arguments)
    with callers_path(plpy, _search_path(request)):
        chosen, exclude = choose_features(plpy, request, last.arguments, table, target.names, documents)
        if task == "pairs":
            check_item(plpy, table, target.names, documents)
    return columns | {"features": chosen, "exclude": exclude}


def _specification(plpy: Plpy, request: Json, before: Json, table: Table, columns: Json) -> Json:
    """Return the JobSpec with these columns and the arguments that follow from no other argument."""
    spec = {
        "model": read_model_name(request),
        "relation": {"oid": table.oid, "schema": table.schema, "name": table.name},
        "target": columns["target"],
        "task": columns["task"],
        "architecture": with_network(plpy, training_arguments.architecture(request, before)),
        "hyperparams": training_arguments.hyperparams(request, before),
        "features": columns["features"],
        "exclude": columns["exclude"],
        "preprocess": {},
        "split": training_arguments.split(request, before),
        "metric": training_arguments.metric(request, before, columns["task"]),
        "early_stop": None,
        "memory_limit_bytes": training_arguments.memory_limit(plpy, request),
        "max_runtime_s": check_max_runtime(request.get("max_runtime_s")),
        "deploy": read_choice(request, "deploy", DEPLOY, "if_better"),
    }
    optional = {name: columns[name] for name in ("targets", "forecast", "transform")} | {"query": table.query}
    return spec | {name: part for name, part in optional.items() if part is not None}


def _complete_options(plpy: Plpy, request: Json, before: Json, table: Table, spec: Json) -> None:
    """Check the arguments of a specification against one another, and add those that follow from the others."""
    transform, task = spec.get("transform"), spec["task"]
    _check_task(request, spec, transform)
    check_weight_column(table, spec)
    spec["split"] = choose_split_column(plpy, request, table, spec)
    check_schedule(spec["hyperparams"], spec["split"])
    refuse_roles(table, transform, spec, deciding_column(spec["split"]))
    spec["early_stop"] = training_arguments.early_stop(request, before, task, spec["split"])
    if "forecast" not in spec:
        spec["preprocess"] = training_arguments.preprocess(request, before, table, used_columns(table, spec))
    if task == "anomaly":
        check_columns(table, spec)
    if task == "pairs":
        check_pair_encodings(spec["preprocess"])
    if (devices := check_devices(request.get("devices"), spec)) > 1:
        spec["devices"] = devices


def _check_task(request: Json, spec: Json, transform: Json | None) -> None:
    """Refuse arguments that do not fit the task or one another."""
    check_combination(request, spec)
    check_anomaly(request, spec)
    check_pairs({**request, "transform": transform}, spec)
    check_loss(spec["hyperparams"], spec["task"])


def _check_values(plpy: Plpy, request: Json, table: Table, spec: Json, part_tables: PartTables) -> None:
    """Refuse first rows and tables of parts that no training could use."""
    with callers_path(plpy, _search_path(request)):
        check_rows(plpy, table, spec)
        check_class_weights(plpy, table, spec, [spec["hyperparams"].get("class_weight")])
        check_image_values(plpy, table, spec)
        check_split_values(plpy, table, spec)
        require_targets(plpy, part_tables, spec)


def _check_network(plpy: Plpy, table: Table, spec: Json, start: StartingVersion | None, *, several: bool) -> None:
    """Refuse an architecture that cannot learn this target from these columns. `several`: one row has many values."""
    check_estimator({**spec, "init_from": start})
    check_ensemble(spec["architecture"], spec["hyperparams"], starts=start is not None)
    check_targets_of_estimator(spec["architecture"], spec["task"], several=several)
    check_tokens(spec["architecture"], spec["preprocess"])
    check_length_buckets({**spec, "init_from": start})
    check_network_use(plpy, spec)
    check_image_options(table, spec)


def _add_tables(plpy: Plpy, request: Json, table: Table, spec: Json) -> PartTables:
    """Add the tables of parts to the specification, and the numbers of the columns that trainers read directly.

    Returns the tables of parts. Refuses tables that differ, and tables that trainers may not read.
    """
    used = _used_names(table, spec)
    part_tables = find_part_tables(plpy, request, spec["split"], table)
    if part_tables and table.origin:
        raise RefusalError(
            NOT_SUPPORTED,
            "split: tables of parts cannot be combined with computed features (transform)",
            hint="Compute the features in a view of each table, and train on the views.",
        )
    require_same_columns(part_tables, table, used)
    names = {part: qualified(plpy, own.schema, own.name) for part, own in part_tables.items()}
    spec["split"] = spec["split"] | names
    if part_tables:
        spec["part_tables"] = {
            part: {"oid": own.oid, "schema": own.schema, "name": own.name} for part, own in part_tables.items()
        }
    if not _needs_snapshot(request, table, part_tables, used):
        require_grants(plpy, table, used)
        spec["column_numbers"] = _numbers(table, used)
        for part, own in part_tables.items():
            check_reader(plpy, own.oid, str(own), used)
            spec["part_tables"][part]["column_numbers"] = _numbers(own, used)
    return part_tables


def _numbers(table: Table, used: Sequence[str]) -> dict[str, int]:
    return {column.name: column.number for column in table.columns if column.name in used}


def _search_path(request: Json) -> str | None:
    """Return the caller's search_path.

    The relation is read with this path, because a view may call functions that need it.
    """
    return read_text(request, "search_path")


def _used_names(table: Table, spec: Json) -> list[str]:
    others = (*target_columns(spec), deciding_column(spec["split"]), spec["hyperparams"].get("weight"))
    names = [*(column.name for column in used_columns(table, spec)), *(name for name in others if name is not None)]
    return list(dict.fromkeys(names))


def _needs_snapshot(request: Json, table: Table, part_tables: PartTables, used: Sequence[str]) -> bool:
    """Return whether trainers cannot read one of the tables. All of them are then copied into the snapshot."""
    return (
        table.query is not None
        or bool(table.origin)
        or bool(request.get("snapshot"))
        or bool(reasons_against(table, used))
        or any(counting(own.reasons, used, keyed=False) for own in part_tables.values())
    )


JOB_OF_KEY = """
select job_id from tensile.jobs
 where owner_oid = tensile.current_role_oid() and installation = tensile.installation()
   and idempotency_key = $1::text"""
ENQUEUE = """
insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec, priority, not_before,
                          idempotency_key, depends_on, retry_of)
values ($1::text, $2::oid, $3::text, $4::text, $5::jsonb, $6::int4, $7::timestamptz, $8::text, $9::text::int8[],
        $10::int8)
on conflict (owner_oid, installation, idempotency_key) where idempotency_key is not null do nothing
returning job_id"""
DEVICE_ROOM = """
select max(d.budget_bytes - d.granted_bytes) as room_bytes, tensile.current_role_oid()::bigint as owner_oid
  from tensile.devices as d
  join tensile.workers as w using (worker_id)
 where tensile.is_alive(w)"""
