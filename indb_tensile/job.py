"""Ids, states and the specification of a training job: what the queue hands to a worker."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType

JobId = NewType("JobId", int)
ModelVersionId = NewType("ModelVersionId", int)
WorkerId = NewType("WorkerId", int)
ClaimToken = NewType("ClaimToken", int)
Slot = NewType("Slot", int)  # a job's row in the device's ledger

ORPHANED = 9  # exit code of a trainer whose controller is gone


class JobState(StrEnum):
    """Equal to the SQL enum `tensile.job_state`; a test compares them."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Phase(StrEnum):
    """What a job is doing now; equal to the SQL enum `tensile.job_phase`."""

    READING = "reading"
    CAPTURING = "capturing"
    CALIBRATING = "calibrating"
    WAITING = "waiting for memory"
    TRAINING = "training"
    VALIDATING = "validating"
    PUBLISHING = "publishing"


class Blame(StrEnum):
    """What an interrupted attempt is put down to: `max_attempts` bounds the job's own faults alone."""

    JOB = "job"  # its own fault, which counts
    MEMORY = "memory"  # the kernel ended its trainer for memory: counts, and ends the job the second time in a row
    UNCLEAR = "unclear"  # its controller died or its trainer hung: counts from the second time in the same phase on
    OTHERS = "others"  # the database, the device or a signal from outside: does not count
    NOBODY = "nobody"  # it was handed back in good order: does not count, and there is no pause


class CheckpointStore(StrEnum):
    """Where a checkpoint's bytes are; equal to the SQL enum `tensile.checkpoint_store`."""

    LOCAL = "local"
    CATALOG = "catalog"


class Task(StrEnum):
    """What is learned; equal to the SQL enum `tensile.task`."""

    CLASSIFICATION = "classification"
    REGRESSION = "regression"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """The table a job trains on, as it was when the job was enqueued."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The sealed copy that a job trains on in place of its relation.

    `columns` are those that were copied, `key` those of the relation's primary key: the copy itself has no index.
    """

    relation: Relation
    columns: tuple[str, ...]
    key: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Everything the user asked for, resolved at enqueue; untrusted input to a worker.

    `architecture` is `{"type": "mlp" | "cnn" | "layers", ...}`; see `learning/architectures.py`.
    `features` is None for every column that is neither the target nor excluded.
    """

    model: str
    relation: Relation
    target: str
    task: Task
    architecture: dict[str, Any]
    hyperparams: dict[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    preprocess: dict[str, Any] = field(default_factory=dict)
    split: dict[str, Any] = field(default_factory=dict)
    metric: str | None = None
    early_stop: dict[str, Any] | None = None
    memory_limit_bytes: int | None = None
    max_runtime_s: int | None = None
    deploy: str = "if_better"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    """One claimed row of `tensile.jobs`; every later write for it must carry `claim`.

    `owner_limit_bytes` is the device memory that all jobs of its owner may be granted together; None: no limit.
    `threads` are those that its operators run on, from its first start on: other numbers give other last bits.
    """

    job: JobId
    claim: ClaimToken
    attempt: int
    owner_oid: int
    spec: JobSpec
    owner_limit_bytes: int | None = None
    threads: int = 1
