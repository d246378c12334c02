"""Judges the ending of each job of a chaos test, and whether the test's report is clean."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Fate(StrEnum):
    """The way in which one job ended. Only the first three are right."""

    SUCCEEDED = "succeeded"  # once, with weights equal bit for bit to the undisturbed run's
    CANCELLED = "cancelled"  # at its owner's request
    FAILED_BY_OWN_FAULT = "failed_by_own_fault"  # its owner dropped its table, and the error names that
    FAILED_WITHOUT_FAULT = "failed_without_fault"  # also: the error does not name the owner's fault
    CANCELLED_UNASKED = "cancelled_unasked"
    WRONG_BITS = "wrong_bits"
    PUBLISHED_TWICE = "published_twice"
    PUBLISHED_WRONGLY = "published_wrongly"  # a job that failed has a version, or a job that succeeded has none
    ENDED_TWICE = "ended_twice"
    LOST = "lost"  # it never ended, or its row is missing


RIGHT = (Fate.SUCCEEDED, Fate.CANCELLED, Fate.FAILED_BY_OWN_FAULT)
# SQLSTATEs of errors that the job itself causes: bad data, a missing name, a missing right, a limit. Faults of the
# machine have none of them.
OWN_CLASSES = ("22", "42", "53200")
ENDED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnding:
    """The state of one job in the catalog after the test, and its owner's actions on it."""

    job: int
    training: str  # name of the distinct training
    state: str | None  # None: its row is missing
    ends: int  # number of events in its history that say that it ended
    digests: tuple[str, ...]  # of the weights, one for each version that it published
    sqlstate: str | None = None
    message: str | None = None
    asked_to_cancel: bool = False
    spoiled: bool = False  # its owner dropped the table


def fate(ending: JobEnding, references: Mapping[str, str]) -> Fate:
    """Return how a job ended; the gravest fault wins. `references` are digests of undisturbed runs, by training."""
    if ending.state not in ENDED:
        return Fate.LOST
    if len(ending.digests) > 1:
        return Fate.PUBLISHED_TWICE
    if (ending.state == "succeeded") != (len(ending.digests) == 1):
        return Fate.PUBLISHED_WRONGLY
    if ending.ends != 1:
        return Fate.ENDED_TWICE
    if ending.state == "cancelled":
        return Fate.CANCELLED if ending.asked_to_cancel else Fate.CANCELLED_UNASKED
    if ending.state == "failed":
        own = ending.spoiled and (ending.sqlstate or "").startswith(OWN_CLASSES)
        return Fate.FAILED_BY_OWN_FAULT if own else Fate.FAILED_WITHOUT_FAULT
    return Fate.SUCCEEDED if ending.digests == (references.get(ending.training),) else Fate.WRONG_BITS


def judge(endings: Iterable[JobEnding], references: Mapping[str, str]) -> dict[str, Any]:
    """Return the report's figures: the number of jobs by fate, and the errors of those that failed."""
    fates = [(ending, fate(ending, references)) for ending in endings]
    counts = Counter(outcome for _, outcome in fates)
    return {
        "jobs": len(fates),
        **{name.value: counts[name] for name in Fate},
        "own_causes": _causes(ending for ending, outcome in fates if outcome is Fate.FAILED_BY_OWN_FAULT),
        "undue_causes": _causes(ending for ending, outcome in fates if outcome is Fate.FAILED_WITHOUT_FAULT),
        "jobs_at_fault": [ending.job for ending, outcome in fates if outcome not in RIGHT],
    }


# Figures that must be 0 in a clean report, as well as the counts of wrong fates.
BAD = (
    "invalid_jobs_denied",
    "invalid_jobs_ended_otherwise",
    "invalid_jobs_left",
    "wrong_predictions",
    "prediction_faults",
    "not_recovered",
    "controllers_that_ended_badly",
    "processes_left",
    "shared_memory_files_left",
    "state_files_left",
    "device_bytes_left",
    "catalog_rows_left",
    "descriptors_grown",
)


def is_clean(report: Mapping[str, Any]) -> bool:
    """Return whether no job was lost, changed or failed without its owner's fault, and nothing is left behind."""
    return not any(report[name.value] for name in Fate if name not in RIGHT) and not any(report[name] for name in BAD)


def _causes(endings: Iterable[JobEnding]) -> dict[str, int]:
    """Count errors by SQLSTATE and message, most frequent first. Paths and numbers are masked, since they vary."""
    return dict(Counter(f"{ending.sqlstate}: {_generic(ending.message or '')}" for ending in endings).most_common())


def _generic(message: str) -> str:
    return re.sub(r"\d+", "N", re.sub(r"/[^\s\"']+", "PATH", message))[:160]
