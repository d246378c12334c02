"""Finds, fills and drops the tables of `tensile_predict_into` (sql/57_prediction_tables.sql)."""

from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.catalog import jobs
from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.drift import InputAmounts, add_inputs
from indb_tensile.catalog.prediction_counts import PREDICTED_ROWS
from indb_tensile.catalog.queries import query
from indb_tensile.catalog.usage import add_totals
from indb_tensile.errors import MissingError
from indb_tensile.job import ClaimedJob, ClaimToken, JobId, PredictInto

SCHEMA = "tensile_data"
_MOST_DROPPED = 20  # most tables that one statement drops, so that it takes only milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionOutput:
    """The table that a job fills. `complete` means that an earlier call has filled it and ended the job."""

    table: str
    complete: bool


def find_output(connection: Connection, claimed: ClaimedJob, wish: PredictInto) -> PredictionOutput:
    """Return the job's table.

    Raises LostClaimError, and MissingError if the table is gone or the job's owner may no longer predict with the
    version.
    """
    keys = {"job": claimed.job, "claim": claimed.claim, "version": wish.version_id}
    row = connection.execute(query("prediction_output"), keys).fetchone()
    if row is None:
        raise jobs.lost_claim(claimed.job, claimed.claim)
    table, exists, complete, model, allowed = row
    if complete:
        return PredictionOutput(table=table, complete=True)
    if not allowed:
        raise MissingError(
            f'the owner of job {claimed.job} can no longer predict with its version of model "{model}"',
            detail="The model or the version was dropped, or the privilege was revoked.",
            hint="Call tensile_predict_into again with another version.",
        )
    if not exists:
        raise MissingError(
            f"the table for the predictions of job {claimed.job} is gone: there is no table {SCHEMA}.{table}",
            hint="Call tensile_predict_into again.",
        )
    return PredictionOutput(table=table, complete=False)


def start_predicting(connection: Connection, job: JobId, claim: ClaimToken) -> None:
    """Change the job's state from starting to running. The call is safe to repeat."""
    jobs.guarded(connection, "start_predicting", job, claim)


def report(
    connection: Connection,
    job: JobId,
    claim: ClaimToken,
    *,
    rows: int,
    expected: int | None,
    rows_per_s: float,
    eta_s: float | None,
) -> None:
    """Write how many rows are predicted, and how many are expected."""
    values = {"rows": rows, "expected": expected, "samples_per_s": rows_per_s, "eta_s": eta_s}
    jobs.guarded(connection, "report_prediction", job, claim, **values)


def succeed(
    connection: Connection,
    job: JobId,
    claim: ClaimToken,
    version: int,
    rows: int,
    inputs: Sequence[InputAmounts] = (),
) -> None:
    """End the job in the transaction that has filled its table, and count its rows. Raises LostClaimError.

    `inputs` are the counts of the rows by the bins of the version's inputs, if its drift is measured.
    """
    jobs.record_event(connection, job, claim, "predicted", {"rows": rows})
    jobs.guarded(connection, "succeed", job, claim, version=version)
    add_inputs(connection, inputs)
    add_totals(connection, {PREDICTED_ROWS: float(rows)})  # last, because all services add to the same row


def drop_unused(connection: Connection, most: int = _MOST_DROPPED) -> int:
    """Drop at most `most` tables that no view shows, or whose job failed. Returns how many."""
    row = connection.execute(query("drop_prediction_tables"), {"most": most}).fetchone()
    return int(row[0]) if row else 0
