"""Finds the version of a model to predict with.

Row-level security makes the query for a version the most expensive part of predicting one row. So a session reuses
the version of its last query while its snapshot stays the same.
"""

from ..errors import RequestError
from .refusals import MISSING, NOT_READY, RefusalError
from .spi import Plpy, Row, fetch, literal


def known_version(plpy: Plpy, name: str, number: int | None) -> tuple[Row, str]:
    """Return the version as `find_version` does, and the start time of the client's statement, which identifies the
    statement.

    The version comes from memory if the same role has asked with the same snapshot.

    Equal snapshots see the same committed rows. A transaction that has an id may have written rows of its own, and on
    a standby a snapshot does not list all that it sees; both ask the catalog.
    """
    seen = fetch(plpy, SNAPSHOT)[0]
    if not seen["unchanged"]:
        return find_version(plpy, name, number), seen["statement"]
    known_for = [seen["role"], seen["snapshot"]]
    if known_for != _known_for:
        _known.clear()
        _known_for[:] = known_for
    if (name, number) not in _known:
        _known[name, number] = find_version(plpy, name, number)
    return _known[name, number], seen["statement"]


def find_version(plpy: Plpy, name: str, number: int | None, *, forecasts: bool = False) -> Row:
    """Return a version of a model that the caller may see: the numbered version, or the deployed one.

    Refuses a version that forecasts series, unless `forecasts` says that the caller's request is for one too.
    """
    versions = fetch(plpy, VERSION, name, number)
    if not versions:
        hint = "See your models: select * from tensile.model_list. Its owner can train it with tensile_train(...)."
        raise RefusalError(MISSING, f'there is no model "{name}"', detail=_newest_training(plpy, name), hint=hint)
    if versions[0]["version_id"] is not None:
        if versions[0].get("task") == "forecast" and not forecasts:
            raise RequestError(
                f'model "{name}" forecasts the series of a relation, and answers nothing about single rows',
                hint=f"Ask for its forecasts: select * from tensile_forecast({literal(name)}, 'table').",  # noqa: S608
            )
        return versions[0]
    if number is not None:
        hint = f"See its versions: select * from tensile_training_info({literal(name)})."  # noqa: S608 - a hint
        raise RefusalError(MISSING, f'model "{name}" has no version {number}', hint=hint)
    hint = (
        "Predictions become possible when a training has succeeded: see tensile.stat_jobs. "
        "A version that is not deployed is named with version => N: "
        f"tensile_training_info({literal(name)}) lists them."
    )
    detail = _newest_training(plpy, name)
    raise RefusalError(NOT_READY, f'model "{name}" has no deployed version', detail=detail, hint=hint)


def _newest_training(plpy: Plpy, name: str) -> str:
    """Return a sentence on the caller's newest training of this model, or an empty text if there is none."""
    for job in fetch(plpy, NEWEST_TRAINING, name):
        number, state = job["job_id"], job["state"]
        if state == "failed":
            return f"Job {number}, its newest training, failed: {job['error_message']}."
        if state in ("succeeded", "cancelled"):
            return f"Job {number}, its newest training, has ended: {state}."
        return f"Job {number} is training it, and is {state}. To wait for its end: select tensile_wait({number});"
    return ""


_known_for: list[str] = []  # the role and the snapshot with which the session found the versions in _known
_known: dict[tuple[str, int | None], Row] = {}

SNAPSHOT = """
select current_user::text as role, pg_catalog.pg_current_snapshot()::text as snapshot,
       pg_catalog.statement_timestamp()::text as statement,
       pg_catalog.pg_current_xact_id_if_assigned() is null and not pg_catalog.pg_is_in_recovery() as unchanged"""
NEWEST_TRAINING = """
select j.job_id, j.state::text as state, j.error_message
  from tensile.jobs as j
 where j.model_name = $1::text and not j.spec ? 'predict' and (j.search_id is null or j.search_id = j.job_id)
 order by j.job_id desc
 limit 1"""
VERSION = """
select v.version_id, v.number, v.target, v.task::text as task, v.metric_name, v.metrics::text as metrics,
       v.training ->> 'transform' as transform, m.measure_drift
  from tensile.models as m
  left join tensile.model_versions as v
    on v.model_id = m.model_id and case when $2::int4 is null then v.deployed else v.number = $2 end
 where m.name = $1::text and m.dropped_at is null"""
