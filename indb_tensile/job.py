"""Types of a training job: ids, states, and the specification that the queue hands to a worker."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType

from indb_tensile.request.estimator_rules import is_estimator

JobId = NewType("JobId", int)
ModelVersionId = NewType("ModelVersionId", int)
WorkerId = NewType("WorkerId", int)
ClaimToken = NewType("ClaimToken", int)
Slot = NewType("Slot", int)  # index of a job's row in the ledger of the device's memory

ORPHANED = 9  # exit code of a trainer whose controller has died


class JobState(StrEnum):
    """The state of a job, equal to the SQL enum `tensile.job_state`; a test compares the two."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED_STATES = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class Phase(StrEnum):
    """The current activity of a starting or running job, equal to the SQL enum `tensile.job_phase`."""

    READING = "reading"
    CAPTURING = "capturing"
    CALIBRATING = "calibrating"
    WAITING = "waiting for memory"
    TRAINING = "training"
    VALIDATING = "validating"
    PUBLISHING = "publishing"
    PAUSED = "paused"  # on request of its owner: its state is in host memory, and it has no device memory
    PARKED = "parked"  # the same, decided by its controller
    PREDICTING = "predicting"  # reads, computes and stores the answers of tensile_predict_into


class Blame(StrEnum):
    """The cause of an interrupted attempt. Only causes that count as the job's fault count towards `max_attempts`."""

    JOB = "job"  # the job itself: counts
    MEMORY = "memory"  # the kernel killed the trainer for lack of memory: counts, and twice in a row fails the job
    UNCLEAR = "unclear"  # the controller died or the trainer hung: counts from the second time in the same phase on
    OTHERS = "others"  # the database, the device or a signal from outside: does not count
    NOBODY = "nobody"  # the controller handed the job back in good order: does not count, and there is no pause


class CheckpointStore(StrEnum):
    """The place where a checkpoint is stored, equal to the SQL enum `tensile.checkpoint_store`."""

    LOCAL = "local"
    CATALOG = "catalog"


class Task(StrEnum):
    """The kind of learning task, equal to the SQL enum `tensile.task`."""

    CLASSIFICATION = "classification"
    REGRESSION = "regression"
    MULTILABEL = "multilabel"  # each row has a set of labels
    FORECAST = "forecast"  # the next steps of series
    ANOMALY = "anomaly"  # how unlike the others each row is
    PAIRS = "pairs"  # which items go with a query


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """The table that a job trains on: its oid and name at the time when the job was enqueued."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTable:
    """A complete, unchangeable copy of a relation's rows. The job trains on the copy in place of the relation.

    `columns` are the copied columns. `key` holds the columns that identify a row, such as the relation's primary key;
    the copy has no index from which they could be read. The last `test_rows` rows are from the table of the test
    part, and the `valid_rows` before them from the table of the validation part.
    """

    relation: Relation
    columns: tuple[str, ...]
    key: tuple[str, ...]
    rows: int
    valid_rows: int = 0
    test_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTable:
    """A table whose rows are all in one part of the split, with the numbers of its columns as in `JobSpec`."""

    oid: int
    schema: str
    name: str
    column_numbers: dict[str, int] = field(default_factory=dict)

    @property
    def relation(self) -> Relation:
        """Return the table as a relation."""
        return Relation(oid=self.oid, schema=self.schema, name=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitFrom:
    """The version whose weights a training starts from: a numbered one, or the one deployed when the job starts.

    `model` is the name of the model when the job was enqueued, for messages.
    """

    model_id: int
    model: str
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictInto:
    """What a job of `tensile_predict_into` predicts and stores, besides what every specification says.

    `version_id` is the version that predicts. `keys` are the columns that are stored with the answers, which had
    `key_types` when the job was enqueued. `output` is the quoted name of the caller's view at that time.
    """

    version_id: int
    output: str
    keys: tuple[str, ...] = ()
    key_types: tuple[str, ...] = ()
    with_probabilities: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The user's request, resolved when the job was enqueued. A worker must not trust its contents.

    `architecture` is `{"type": "mlp" | "cnn" | "layers", ...}`; see `request/network_rules.py`. `features` None
    stands for all columns except the target and those in `exclude`. `column_numbers` has PostgreSQL's number of each
    column that is read directly; a column of another number is not the one that the user named. `query` is the text
    of the query that gave the rows of the job's snapshot; `relation` then has oid 0 and an empty schema. No worker
    runs it. `part_tables` has the tables that the split names, by part: "valid" and "test". `transform` has the
    expressions of computed features and the types of the columns that they name; the snapshot has their values, and
    no worker evaluates them. A job that has `predict` trains nothing; its task, target and architecture are those of
    the version that predicts. A job that has `search` is a search, which no worker claims: its arguments have the
    first value of everything that varies, and `search` has the space and the options (request/search_rules.py).
    `targets` has the columns of a target of several; `target` is then their list as JSON, which names the target.
    `forecast` has the options of a forecast (request/forecast_rules.py). `devices` train the job together; a batch is
    then computed in at least so many parts.
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
    query: str | None = None
    init_from: InitFrom | None = None
    column_numbers: dict[str, int] = field(default_factory=dict)
    part_tables: dict[str, PartTable] = field(default_factory=dict)
    transform: dict[str, Any] | None = None
    predict: PredictInto | None = None
    search: dict[str, Any] | None = None
    targets: tuple[str, ...] = ()
    forecast: dict[str, Any] | None = None
    devices: int = 1

    @property
    def target_columns(self) -> tuple[str, ...]:
        """Return the columns to predict, or of the item of pairs: none for anomalies without labels."""
        return self.targets or ((self.target,) if self.target else ())

    @property
    def takes_device(self) -> bool:
        """Return whether the job trains a network, which is planned and takes memory of the device."""
        return self.predict is None and not is_estimator(self.architecture)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRank:
    """One of the ranks of a job that several devices train together. Rank 0 is the leader.

    `attempt_claim` is the claim of the leader: what ends one rank ends the attempt of all, under this claim.
    `connection_bytes` of its device are kept free for the connection to the other ranks, which takes them outside
    every plan.
    """

    rank: int
    ranks: int
    attempt_claim: ClaimToken
    connection_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    """One claimed row of `tensile.jobs`. Every later write for the job must carry `claim`.

    `owner_limit_bytes` is the device memory that all jobs of the owner may be granted together; None: no limit.
    `threads` is the number of threads for the job's operators. The job keeps this number from its first start on,
    because another number of threads changes the last bits of its results. Of one owner's jobs, those of a higher
    `priority` start first. `owner_weight` is the owner's weight in the division of the devices between owners.
    `worked_s` are the seconds of `max_runtime` that a trial of a search has used before its last rung. If several
    devices train the job, `gang` says which of them this one is, and `claim` is that of its rank.
    """

    job: JobId
    claim: ClaimToken
    attempt: int
    owner_oid: int
    spec: JobSpec
    owner_limit_bytes: int | None = None
    owner_weight: float = 1.0
    threads: int = 1
    priority: int = 0
    worked_s: float = 0.0
    gang: ClaimedRank | None = None

    @property
    def follows(self) -> bool:
        """Return whether another device leads the job: it validates, saves and publishes, and this one does not."""
        return self.gang is not None and self.gang.rank > 0
