"""Reads and writes searches and their trials, for trainers and for the steward of searches (sql/58_searches.sql)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, LiteralString

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from indb_tensile.catalog import models
from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.jobs import lost_claim, query_value
from indb_tensile.catalog.queries import query
from indb_tensile.errors import MissingError, TensileError
from indb_tensile.job import ClaimedJob, JobId, JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The trial that a job trains. `rungs` are shares of its epochs, at which it is compared; the last one is 1."""

    search: JobId
    number: int
    rungs: tuple[float, ...]
    allowed_rung: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RungReport:
    """What a trial has reached at a rung, on the validation rows. `complete`: the training has ended.

    `metric` is None if it is not defined on these rows. `worked_s` are the seconds for which trainers have had the
    trial, without the time in which it was parked.
    """

    rung: int
    epoch: int
    epochs: int
    metric_name: str
    metric: float | None
    higher_is_better: bool
    valid_loss: float | None
    complete: bool = False
    worked_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveSearch:
    """A search that has not ended. `spec` is its specification, which its owner may have written.

    `running_s` are the seconds since its first trial.
    """

    search: JobId
    spec: Mapping[str, Any]
    running_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """The stored result of a trial at one rung; fields as those of `RungReport`."""

    metric: float | None
    higher_is_better: bool
    valid_loss: float | None
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrial:
    """A trial with the state of its job and its results by rung. `waits`: it waits at a rung for its search."""

    number: int
    job: JobId
    picks: Mapping[str, Any]
    allowed_rung: int
    held_rung: int
    state: JobState
    version: int | None
    pruned: bool
    waits: bool
    error: str | None
    results: Mapping[int, StoredResult] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTrial:
    """A trial to enqueue: its values, as drawn and as shown, and the specification of its job."""

    number: int
    picks: Mapping[str, Any]
    parameters: Mapping[str, Any]
    rungs: Sequence[float]
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestVersion:
    """The version of a search's best trial, as it was compared with the version `compared` that was deployed then.

    `deployed` is the version that is deployed now, and `deployed_number` its number. `deployed_metric` is its metric
    if that was computed on the same rows.
    """

    metric_name: str | None
    metric: float | None
    higher_is_better: bool | None
    compared: int | None
    incumbent_metric: float | None
    incomparable: str
    deployed: int | None
    deployed_number: int | None
    deployed_metric: float | None


def find_trial(connection: Connection, job: JobId) -> Trial | None:
    """Return the trial that this job trains, or None if the job belongs to no search."""
    row = connection.execute(query("find_trial"), {"job": job}).fetchone()
    if row is None:
        return None
    search, number, rungs, allowed_rung = row
    return Trial(search=JobId(search), number=number, rungs=tuple(rungs), allowed_rung=allowed_rung)


@dataclass(frozen=True, slots=True, kw_only=True)
class RungDecision:
    """What the search has decided for a trial: the rung up to which it may train, and the last one where it waits.

    `held` is -1 if the search has held the trial nowhere.
    """

    allowed: int
    held: int


def report_rung(connection: Connection, claimed: ClaimedJob, report: RungReport) -> RungDecision:
    """Store what the trial has reached, and return what is decided for it. Safe to repeat.

    Raises LostClaimError.
    """
    return _decision(connection, "report_rung", claimed, asdict(report))


def rung_decision(connection: Connection, claimed: ClaimedJob) -> RungDecision:
    """Return what is decided for the trial. Raises LostClaimError."""
    return _decision(connection, "allowed_rung", claimed, {})


def _decision(
    connection: Connection, name: LiteralString, claimed: ClaimedJob, values: Mapping[str, Any]
) -> RungDecision:
    keys = {"job": claimed.job, "claim": claimed.claim}
    row = connection.execute(query(name), {**keys, **values}).fetchone()
    if row is None:
        raise lost_claim(claimed.job, claimed.claim)
    return RungDecision(allowed=row[0], held=row[1])


def has_searches(connection: Connection) -> bool:
    """Return whether a search has not ended, is not paused, and does not wait for other jobs."""
    return bool(query_value(connection, "has_searches", {}))


def active_searches(connection: Connection) -> tuple[ActiveSearch, ...]:
    """Return the searches that have not ended, are not paused, and do not wait for other jobs."""
    rows = connection.execute(query("active_searches"))
    return tuple(
        ActiveSearch(search=JobId(search), spec=spec, running_s=running_s) for search, spec, running_s in rows
    )


def trials_of(connection: Connection, search: JobId) -> tuple[StoredTrial, ...]:
    """Return the trials of a search in the order of their numbers."""
    results: dict[int, dict[int, StoredResult]] = {}
    # Trials are read first: a result that comes in between belongs to a trial that is still active for this reading.
    rows = connection.execute(query("trials"), {"search": search}).fetchall()
    for number, rung, metric, higher, valid_loss, complete in connection.execute(
        query("trial_results"), {"search": search}
    ):
        result = StoredResult(metric=metric, higher_is_better=higher, valid_loss=valid_loss, complete=complete)
        results.setdefault(number, {})[rung] = result
    return tuple(
        StoredTrial(
            number=number,
            job=JobId(job),
            picks=picks,
            allowed_rung=allowed,
            held_rung=held,
            state=JobState(state),
            version=version,
            pruned=pruned,
            waits=waits,
            error=error,
            results=results.get(number, {}),
        )
        for number, job, picks, allowed, held, state, version, pruned, waits, error in rows
    )


def add_trial(connection: Connection, search: JobId, trial: NewTrial) -> bool:
    """Enqueue a trial. Safe to repeat. Returns False if the search has ended, is paused, or is locked."""
    values = {
        "search": search,
        "number": trial.number,
        "picks": Jsonb(dict(trial.picks)),
        "parameters": Jsonb(dict(trial.parameters)),
        "rungs": list(trial.rungs),
        "spec": Jsonb(dict(trial.spec)),
    }
    return query_value(connection, "add_trial", values) is not None


def allow_rung(connection: Connection, search: JobId, number: int, rung: int) -> bool:
    """Let a trial train up to this rung. Safe to repeat. Returns False if its job is locked."""
    return bool(query_value(connection, "allow_rung", {"search": search, "number": number, "rung": rung}))


def hold_trials(connection: Connection, search: JobId, numbers: Sequence[int]) -> None:
    """Tell trials that have just reached a rung to wait there."""
    connection.execute(query("hold_trials"), {"search": search, "numbers": list(numbers)})


def prune_unstarted(connection: Connection, search: JobId, reason: str) -> int:
    """End the trials that no worker has claimed yet. Returns how many."""
    return int(query_value(connection, "prune_unstarted", {"search": search, "reason": reason}))


def set_waits_for(connection: Connection, search: JobId, reason: str | None) -> None:
    """Write what keeps the search from beginning a trial, in words; None if nothing does."""
    connection.execute(query("search_waits"), {"search": search, "reason": reason})


def prune_trials(connection: Connection, search: JobId, numbers: Sequence[int], reason: str) -> int:
    """End these trials, which wait at a rung. Returns how many; those whose jobs are locked stay."""
    values = {"search": search, "numbers": list(numbers), "reason": reason}
    return int(query_value(connection, "prune_trials", values))


def end_search(connection: Connection, search: JobId, version: int, deploy: str) -> bool:
    """End a search with the version of its best trial, and deploy that if `deploy`, as requested, allows it.

    Returns False if a row is locked, or if another version was deployed since it was read: then call it again. Raises
    MissingError if the version was deleted.
    """
    best = _best_version(connection, version)
    if best is None:
        raise MissingError(
            f"the version of the best trial of search {search} was deleted before the search ended",
            hint=f"Repeat the search: select tensile_retry({search});",
        )
    obstacle = why_best_not_deployed(deploy, best)
    reason = (
        None
        if obstacle
        else f"best trial of search {search}; {models.why_deployed(deploy, best, best.deployed_number)}"
    )
    values = {
        "search": search,
        "version": version,
        "incumbent": best.deployed,
        "obstacle": obstacle,
        "reason": reason,
    }
    return bool(query_value(connection, "end_search", values))


def why_best_not_deployed(deploy: str, best: BestVersion) -> str | None:
    """Return why the version of the best trial does not replace the deployed one, or None if it does.

    If it is deployed already, the answer has no effect.
    """
    if deploy == "if_better" and best.deployed not in (None, best.compared) and best.deployed_metric is None:
        return f"it was not compared with version {best.deployed_number}, which was deployed while the search ran"
    return models.why_not_deployed(deploy, best, best.deployed_number)


def fail_search(connection: Connection, search: JobId, error: TensileError) -> bool:
    """End a search with an error. Returns False if it has ended or is locked."""
    values = {
        "search": search,
        "sqlstate": error.sqlstate,
        "message": error.message,
        "detail": error.detail or None,
        "hint": error.hint or None,
    }
    return bool(query_value(connection, "fail_search", values))


def _best_version(connection: Connection, version: int) -> BestVersion | None:
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(query("best_version"), {"version": version}).fetchone()
    if row is None:
        return None
    compared = row.pop("compared") or {}
    metric, is_same = row["metric"], compared.get("version_id") == row["deployed"]
    return BestVersion(
        **row | {"metric": None if metric is None or math.isnan(metric) else metric},
        compared=compared.get("version_id"),
        incumbent_metric=compared.get("metric") if is_same else row["deployed_metric"],
        incomparable=compared.get("incomparable", "") if is_same else "",
    )
