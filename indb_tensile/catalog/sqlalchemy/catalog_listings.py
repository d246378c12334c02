"""The listings of the command line: jobs, queue, events, searches, trials, models, their drift, workers and devices.

The views and row-level security decide which rows a role sees. A listing adds no right and no rule of its own.
"""

from typing import Any

from sqlalchemy import ColumnElement, FromClause, Text, and_, case, func

from indb_tensile.catalog.sqlalchemy.catalog_tables import job_events, job_progress
from indb_tensile.catalog.sqlalchemy.catalog_tables import jobs as job_rows
from indb_tensile.catalog.sqlalchemy.catalog_views import (
    model_list,
    network_list,
    stat_device,
    stat_drift,
    stat_jobs,
    stat_queue,
    stat_searches,
    stat_trials,
    stat_usage,
    stat_workers,
)
from indb_tensile.catalog.sqlalchemy.listing import Listing, is_any_of, is_equal, is_since, is_until
from indb_tensile.job import JobState, Phase

_job_note = func.coalesce(
    case((stat_jobs.c.state != JobState.SUCCEEDED, stat_jobs.c.error_message)),
    "waits for " + stat_queue.c.waits_for,
    "not deployed: " + stat_jobs.c.not_deployed,
)

# A queued job has no phase, since no worker has it.
_job_phase = case(
    (and_(stat_jobs.c.paused, stat_jobs.c.state == JobState.QUEUED), Phase.PAUSED.value),
    else_=stat_jobs.c.phase.cast(Text),
)

JOBS = Listing(
    name="jobs",
    source=(
        stat_jobs.join(job_rows, job_rows.c.job_id == stat_jobs.c.job_id)
        .outerjoin(job_progress, job_progress.c.job_id == stat_jobs.c.job_id)
        .outerjoin(stat_queue, stat_queue.c.job_id == stat_jobs.c.job_id)
    ),
    columns={
        "job_id": stat_jobs.c.job_id,
        "model": stat_jobs.c.model,
        "owner": stat_jobs.c.owner,
        "relation": job_rows.c.relation_name,
        "state": stat_jobs.c.state,
        "phase": _job_phase,
        "epoch": job_progress.c.epoch,
        "epochs": job_progress.c.epochs,
        "metric_name": stat_jobs.c.metric_name,
        "metric": stat_jobs.c.metric,
        "enqueued_at": stat_jobs.c.enqueued_at,
        "took": stat_jobs.c.finished_at - stat_jobs.c.started_at,
        "note": _job_note,
    },
    names={"model": stat_jobs.c.model, "owner": stat_jobs.c.owner.cast(Text)},
    filters={
        "state": is_any_of(stat_jobs.c.state),
        "since": is_since(stat_jobs.c.enqueued_at),
        "until": is_until(stat_jobs.c.enqueued_at),
    },
    order=(stat_jobs.c.job_id.desc(),),
)


def _columns(view: FromClause) -> dict[str, ColumnElement[Any]]:
    return {column.name: column for column in view.columns}


QUEUE = Listing(
    name="the queue",
    source=stat_queue,
    columns=_columns(stat_queue),
    names={"model": stat_queue.c.model, "owner": stat_queue.c.owner.cast(Text)},
    filters={
        "since": is_since(stat_queue.c.enqueued_at),
        "until": is_until(stat_queue.c.enqueued_at),
    },
    # Jobs that a worker has claimed have no position any more: they start before all others. Queued jobs without a
    # position wait for other jobs, and paused jobs come last.
    order=(
        stat_queue.c.paused.asc(),
        case((stat_queue.c.state == JobState.QUEUED, 1), else_=0).asc(),
        stat_queue.c.position.asc().nulls_last(),
        stat_queue.c.job_id.asc(),
    ),
)

EVENTS = Listing(
    name="events",
    source=job_events.join(stat_jobs, stat_jobs.c.job_id == job_events.c.job_id),
    columns={
        "event_id": job_events.c.event_id,
        "at": job_events.c.at,
        "job_id": job_events.c.job_id,
        "model": stat_jobs.c.model,
        "owner": stat_jobs.c.owner,
        "kind": job_events.c.kind,
        "detail": job_events.c.detail,
    },
    names={
        "kind": job_events.c.kind,
        "model": stat_jobs.c.model,
        "owner": stat_jobs.c.owner.cast(Text),
    },
    filters={
        "job": is_any_of(job_events.c.job_id),
        "since": is_since(job_events.c.at),
        "until": is_until(job_events.c.at),
    },
    order=(job_events.c.event_id.desc(),),
)

SEARCHES = Listing(
    name="searches",
    source=stat_searches,
    columns={
        name: column
        for name, column in _columns(stat_searches).items()
        if name not in ("relation", "started_at", "finished_at", "paused")
    },
    names={"model": stat_searches.c.model, "owner": stat_searches.c.owner.cast(Text)},
    filters={
        "since": is_since(stat_searches.c.enqueued_at),
        "until": is_until(stat_searches.c.enqueued_at),
    },
    order=(stat_searches.c.search_id.desc(),),
)

TRIALS = Listing(
    name="trials",
    source=stat_trials,
    columns={
        name: stat_trials.c[name]
        for name in (
            *("search_id", "trial", "job_id", "state", "parameters", "epoch", "epochs", "rung", "metric_name"),
            *("metric", "version", "test_metric", "duration", "error_message"),
        )
    },
    names={
        "state": stat_trials.c.state,
        "model": stat_trials.c.model,
        "owner": stat_trials.c.owner.cast(Text),
    },
    filters={"search": is_any_of(stat_trials.c.search_id)},
    order=(stat_trials.c.search_id.desc(), stat_trials.c.trial.asc()),
)

MODELS = Listing(
    name="models",
    source=model_list,
    columns=_columns(model_list),
    names={"model": model_list.c.model, "owner": model_list.c.owner.cast(Text)},
    filters={
        "task": is_equal(model_list.c.task),
        "deployed": lambda value: model_list.c.deployed.is_not(None) if value else model_list.c.deployed.is_(None),
        "since": is_since(model_list.c.trained_at),
        "until": is_until(model_list.c.trained_at),
    },
    order=(model_list.c.model.asc(),),
)

_SHOWN_OF_DRIFT = (
    *("model", "owner", "version", "deployed", "feature", "measure", "psi", "reading"),
    *("predicted_rows", "training_rows", "first_day"),
)

DRIFT = Listing(
    name="drift",
    source=stat_drift,
    columns={name: stat_drift.c[name] for name in _SHOWN_OF_DRIFT},
    names={
        "model": stat_drift.c.model,
        "owner": stat_drift.c.owner.cast(Text),
        "feature": stat_drift.c.feature,
    },
    filters={"reading": is_any_of(stat_drift.c.reading), "deployed": is_equal(stat_drift.c.deployed)},
    order=(
        func.coalesce(stat_drift.c.psi, -1).desc(),
        stat_drift.c.model.asc(),
        stat_drift.c.version.desc(),
        stat_drift.c.feature.asc(),
    ),
)

NETWORKS = Listing(
    name="networks",
    source=network_list,
    columns=_columns(network_list),
    names={},
    filters={},
    order=(network_list.c.network.asc(),),
)

WORKERS = Listing(
    name="workers",
    source=stat_workers,
    columns=_columns(stat_workers),
    names={"host": stat_workers.c.host, "device": stat_workers.c.device},
    filters={
        "alive": is_equal(stat_workers.c.alive),
        "since": is_since(stat_workers.c.heartbeat_at),
        "until": is_until(stat_workers.c.heartbeat_at),
    },
    order=(stat_workers.c.worker_id.desc(),),
)

DEVICES = Listing(
    name="devices",
    source=stat_device,
    columns=_columns(stat_device),
    names={"host": stat_device.c.host, "device": stat_device.c.device},
    filters={"alive": is_equal(stat_device.c.alive)},
    order=(stat_device.c.worker_id.desc(),),
)

USAGE = Listing(
    name="usage",
    source=stat_usage,
    columns=_columns(stat_usage),
    names={"model": stat_usage.c.model, "owner": stat_usage.c.owner.cast(Text)},
    filters={},
    order=(stat_usage.c.device_seconds.desc(), stat_usage.c.owner.asc(), stat_usage.c.model.asc()),
)
