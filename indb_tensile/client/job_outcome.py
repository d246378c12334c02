"""How a job stands: whether it has ended, with which result or error, and how often to look."""

from collections.abc import Iterator
from typing import Any

from indb_tensile.client.statement_errors import error_with
from indb_tensile.errors import CancelledJobError, WaitTimeoutError
from indb_tensile.job import JobState

RETRY_S = 60.0  # how long a waiting program waits for a database that restarts
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _GROWTH = 0.02, 0.5, 1.3


def raise_fault(record: dict[str, Any]) -> None:
    """Raise the error of a job that failed, or CancelledJobError for one that was cancelled."""
    number = record["job_id"]
    if record["state"] == JobState.FAILED:
        raise error_with(
            record["error_sqlstate"] or "XX000",
            f"job {number} failed: {record['error_message']}",
            record["error_detail"],
            record["error_hint"],
        )
    if record["state"] == JobState.CANCELLED:
        raise CancelledJobError(f"job {number} was cancelled", detail=record["error_message"] or "")


def timed_out(job: int, timeout_s: float) -> WaitTimeoutError:
    """Return the error that a job has not ended within the time that a program waits."""
    return WaitTimeoutError(
        f"job {job} has not ended within {timeout_s:g} s",
        hint="It goes on. Wait longer, or cancel it: job.cancel().",
    )


def pauses() -> Iterator[float]:
    """Yield the seconds between two looks at a job. The first are short, so that short jobs are noticed quickly."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(pause_s * _GROWTH, _LONGEST_PAUSE_S)
