"""Enqueues a training again: the request of a job that failed or was cancelled, or that of a model's last training.

The stored specification becomes a request in which every argument is given, and is checked like any other request:
tables, columns and grants may have changed since.
"""

import json
from typing import Any

from ..errors import RequestError
from ..request.json_text import json_text
from ..request.request_fields import read_integer, read_model_name
from .inherited_arguments import LastRun
from .prediction_request import predict_into, repeated
from .refusals import DENIED, MISSING, MISSING_TABLE, NOT_READY, RefusalError
from .search_request import request_of, search
from .spi import Json, Plpy, Row, fetch, literal
from .training_request import enqueue

_SAME = ("model", "target", "task", "hyperparams", "exclude", "preprocess", "split", "metric", "early_stop", "deploy")


def retry(plpy: Plpy, request: Json) -> Json:
    """Enqueue the request of an ended job as a new job, and return the new job's number.

    The new job depends on the same jobs, or on their own newest repetitions.
    """
    number = read_integer(request, "job")
    if number is None:
        hint = "Give the number of a job. See your jobs: select * from tensile.stat_jobs;"
        raise RequestError("job is null", hint=hint)
    jobs = fetch(plpy, JOB, number)
    if not jobs:
        hint = "See your jobs: select * from tensile.stat_jobs;"
        raise RefusalError(MISSING, f"there is no job {number}", hint=hint)
    job = jobs[0]
    _require_repeatable(job)
    spec = _stored(job["spec"], f"job {number}")
    if job["search_deploy"] is not None:  # a trial; the repetition belongs to no search
        spec["deploy"] = job["search_deploy"]
    again: Json = {"priority": job["priority"], "retry_of": number}
    if job["depends_on"]:
        again["depends_on"] = [int(row["job_id"]) for row in fetch(plpy, NEWEST_REPETITIONS, number)]
    if spec.get("predict") is not None:
        again |= repeated(plpy, spec, _relation(plpy, spec["relation"], f"job {number}"))
        return predict_into(plpy, again | {"search_path": request.get("search_path")})
    repeated_request = _request(plpy, spec, f"job {number}", request) | again
    if spec.get("search") is not None:
        return search(plpy, repeated_request | request_of(spec["search"]), LastRun(arguments={}))
    return enqueue(plpy, repeated_request, LastRun(arguments={}))


def retrain(plpy: Plpy, request: Json) -> Json:
    """Enqueue the model's last successful training anew, on the rows that its table has now."""
    name = read_model_name(request)
    models = fetch(plpy, LAST_SPEC, name)
    if not models:
        raise RefusalError(
            MISSING, f'there is no model "{name}"', hint="See your models: select * from tensile.model_list;"
        )
    if not models[0]["own"]:
        raise RefusalError(
            DENIED,
            f'model "{name}" belongs to another role',
            detail="Only the owner of a model trains it.",
            hint="Train a model of your own on the same data: select tensile_train('model', 'table');",
        )
    if models[0]["last_spec"] is None:
        raise RefusalError(
            NOT_READY,
            f'no training of model "{name}" has succeeded yet',
            detail="tensile_retrain repeats the last training that succeeded.",
            hint=f"Train it first: select tensile_train({literal(name)}, 'table');",
        )
    title = f'the last training of model "{name}"'
    return enqueue(
        plpy, _request(plpy, _stored(models[0]["last_spec"], title), title, request), LastRun(arguments={})
    )


def _require_repeatable(job: Row) -> None:
    """Raise RefusalError for another role's job, and for a job that did not fail."""
    number, state = job["job_id"], job["state"]
    if not job["own"]:
        raise RefusalError(
            DENIED,
            f"job {number} belongs to another role",
            detail="A repetition is a job of the role that asks for it, and trains that role's model.",
            hint="Its owner can repeat it.",
        )
    if state == "succeeded":
        raise RefusalError(
            NOT_READY,
            f"job {number} has succeeded",
            detail="Only a job that failed or was cancelled can be repeated.",
            hint=f"To train its model anew: select tensile_retrain({literal(job['model_name'])});",
        )
    if state not in ("failed", "cancelled"):
        raise RefusalError(
            NOT_READY,
            f"job {number} has not ended: it is {state}",
            detail="Only a job that failed or was cancelled can be repeated.",
            hint=f"Wait for it: select tensile_wait({number}); or cancel it: select tensile_cancel({number});",
        )
    if job["repeated_by"] is not None:
        raise RefusalError(
            NOT_READY,
            f"job {number} is repeated by job {job['repeated_by']} already",
            detail="That job has not ended yet.",
            hint=f"Wait for it: select tensile_wait({job['repeated_by']});",
        )


def _request(plpy: Plpy, spec: Json, title: str, call: Json) -> Json:
    """Return the request that a specification came from. `call` has the caller's search_path."""
    request = {name: spec.get(name) for name in _SAME}
    request |= {
        "architecture": json_text(spec.get("architecture")),
        "search_path": call.get("search_path"),
        "max_runtime_s": spec.get("max_runtime_s"),
        "snapshot": spec.get("snapshot"),
        "devices": spec.get("devices"),
    }
    if spec.get("transform") is not None:
        request["transform"] = spec["transform"]["expressions"]
    if spec.get("task") == "forecast":
        request |= {"forecast": spec.get("forecast"), "features": None, "exclude": None, "preprocess": None}
    elif spec.get("features") is not None:
        request |= {"features": spec["features"], "exclude": None}
    if spec.get("memory_limit_bytes") is not None:
        request["memory_limit"] = str(spec["memory_limit_bytes"])
    if spec.get("init_from") is not None:
        request["init_from"] = _start(plpy, spec["init_from"])
    if spec.get("query") is not None:
        return request | {"query": spec["query"]}
    relation = _relation(plpy, spec["relation"], title)
    if request.get("exclude"):  # also the keys that the first call left out itself; they may have been dropped since
        present = {row["name"] for row in fetch(plpy, COLUMN_NAMES, relation)}
        request["exclude"] = [name for name in request["exclude"] or () if name in present]
    return request | {"relation": relation}


def _relation(plpy: Plpy, relation: Json, title: str) -> int:
    """Return the oid of the table, or of a table that was created with the same name since it was dropped."""
    schema, name = relation["schema"], relation["name"]
    oid = fetch(plpy, RELATION_NOW, relation["oid"], schema, name)[0]["oid"]
    if oid is None:
        raise RefusalError(
            MISSING_TABLE,
            f'table "{schema}.{name}", the table of {title}, no longer exists',
            hint="Name another table with tensile_train(...).",
        )
    return int(oid)


def _start(plpy: Plpy, stored: Json) -> str:
    """Return the argument `init_from`. The model may have got another name since."""
    names = fetch(plpy, MODEL_NAME, stored["model_id"])
    name = names[0]["name"] if names else stored["model"]
    return name if stored.get("version") is None else f"{name}@{stored['version']}"


def _stored(text: str, title: str) -> Json:
    """Read a specification. Its owner may have written any value, so the parts that are read here are checked."""
    spec: Any = json.loads(text)
    relation = spec.get("relation") if isinstance(spec, dict) else None
    start = spec.get("init_from") if isinstance(spec, dict) else None
    transform = spec.get("transform") if isinstance(spec, dict) else None
    well_formed = (
        isinstance(relation, dict)
        and isinstance(relation.get("oid"), int)
        and all(isinstance(relation.get(part), str) for part in ("schema", "name"))
        and (start is None or (isinstance(start, dict) and {"model_id", "model"} <= start.keys()))
        and (transform is None or (isinstance(transform, dict) and "expressions" in transform))
    )
    if not well_formed:
        hint = "Train anew with tensile_train(...), which writes a complete one."
        raise RequestError(f"the stored specification of {title} is not complete", hint=hint)
    return dict(spec)


JOB = """
select j.job_id, j.model_name, j.state::text as state, j.priority, j.depends_on, j.spec::text as spec,
       (select s.spec ->> 'deploy' from tensile.jobs as s
         where s.job_id = j.search_id and s.job_id <> j.job_id) as search_deploy,
       j.owner_oid = tensile.current_role_oid() and j.installation = tensile.installation() as own,
       (select min(r.job_id) from tensile.jobs as r
         where r.retry_of = j.job_id and r.owner_oid = j.owner_oid and r.installation = j.installation
           and r.state in ('queued', 'starting', 'running')) as repeated_by
  from tensile.jobs as j where j.job_id = $1::int8"""
NEWEST_REPETITIONS = """
with recursive repetitions (requested, job_id) as (
  select d.id, d.id from tensile.jobs as j, unnest(j.depends_on) as d (id) where j.job_id = $1::int8
  union
  select r.requested, j.job_id from repetitions as r join tensile.jobs as j on j.retry_of = r.job_id
   where j.owner_oid = tensile.current_role_oid() and j.installation = tensile.installation()
)
select max(r.job_id) as job_id from repetitions as r group by r.requested order by 1"""
LAST_SPEC = """
select m.last_spec::text as last_spec,
       m.owner_oid = tensile.current_role_oid() and m.installation = tensile.installation() as own
  from tensile.models as m where m.name = $1::text and m.dropped_at is null"""
RELATION_NOW = """
select coalesce((select c.oid from pg_class as c where c.oid = $1::oid),
                to_regclass(format('%I.%I', $2::text, $3::text))::oid)::int8 as oid"""
COLUMN_NAMES = """
select a.attname::text as name
  from pg_attribute as a where a.attrelid = $1::oid and a.attnum > 0 and not a.attisdropped"""
MODEL_NAME = "select m.name from tensile.models as m where m.model_id = $1::int8 and m.dropped_at is null"
