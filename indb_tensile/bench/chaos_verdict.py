"""What became of each job of a storm, and whether the storm's report is clean."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Fate(StrEnum):
    """How one job ended. Only the first three are right."""

    SUCCEEDED = "succeeded"  # once, with the bits of the undisturbed run
    CANCELLED = "cancelled"  # as its owner asked
    FAILED_BY_OWN_FAULT = "failed_by_own_fault"  # spoiled by its owner, and the error says so
    FAILED_WITHOUT_FAULT = "failed_without_fault"  # or with an error that does not name the owner's fault
    CANCELLED_UNASKED = "cancelled_unasked"
    WRONG_BITS = "wrong_bits"
    PUBLISHED_TWICE = "published_twice"
    PUBLISHED_WRONGLY = "published_wrongly"  # a version of a job that did not succeed, or none of one that did
    ENDED_TWICE = "ended_twice"
    LOST = "lost"  # it never ended, or its row is gone


RIGHT = (Fate.SUCCEEDED, Fate.CANCELLED, Fate.FAILED_BY_OWN_FAULT)
# What an error of the job's own looks like: data, a name that is gone, a missing right, a limit. A disturbed machine
# has none of them.
OWN_CLASSES = ("22", "42", "53200")
ENDED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """One job as the catalog shows it after the storm, and what its owner did to it."""

    job: int
    training: str  # which of the distinct trainings
    state: str | None  # None: its row is gone
    ends: int  # how often its history says that it ended
    digests: tuple[str, ...]  # of the weights of each version that it published
    sqlstate: str | None = None
    message: str | None = None
    asked_to_cancel: bool = False
    spoiled: bool = False  # its owner dropped the table


def fate(ending: Ending, references: Mapping[str, str]) -> Fate:
    """What became of a job; the gravest fault first. `references` are the digests of undisturbed runs."""
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


def judge(endings: Iterable[Ending], references: Mapping[str, str]) -> dict[str, Any]:
    """Figures of a report: how many jobs had which fate, and the errors of those that failed."""
    fates = [(ending, fate(ending, references)) for ending in endings]
    counts = Counter(found for _, found in fates)
    return {
        "jobs": len(fates),
        **{name.value: counts[name] for name in Fate},
        "own_causes": _causes(ending for ending, found in fates if found is Fate.FAILED_BY_OWN_FAULT),
        "undue_causes": _causes(ending for ending, found in fates if found is Fate.FAILED_WITHOUT_FAULT),
        "jobs_at_fault": [ending.job for ending, found in fates if found not in RIGHT],
    }


# Figures that are 0 in a clean report, beside the fates that are not right.
BAD = (
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
    """Whether no job was lost, changed or failed without a fault of its own, and nothing is left behind."""
    return not any(report[name.value] for name in Fate if name not in RIGHT) and not any(report[name] for name in BAD)


def _causes(endings: Iterable[Ending]) -> dict[str, int]:
    """How often which error came: its SQLSTATE and its message, without paths and numbers, which differ each time."""
    return dict(Counter(f"{ending.sqlstate}: {_generic(ending.message or '')}" for ending in endings).most_common())


def _generic(message: str) -> str:
    return re.sub(r"\d+", "N", re.sub(r"/[^\s\"']+", "PATH", message))[:160]
