"""Models: a version is published in one transaction guarded by the claim; checkpoints; what is stored comes back."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, LiteralString

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.jobs import lost_claim
from indb_tensile.catalog.queries import query
from indb_tensile.errors import DatabaseError, MissingError, PrivilegeError
from indb_tensile.job import ClaimedJob, ClaimToken, JobId, ModelVersionId, Task

CHUNK_BYTES = 8 * 1024 * 1024  # a bytea value is built in memory several times over on its way


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What a finished training gives to its model.

    `weights` is safetensors; `bundle` is whatever turns a row into a prediction, as JSON. `incumbent` is the
    version that was deployed when the caller judged, and `incumbent_metric` its metric on this job's held-out
    rows: None where it could not be judged on them.
    """

    task: Task
    target: str
    architecture: Mapping[str, Any]
    bundle: Mapping[str, Any]
    weights: bytes
    parameters: int
    metric_name: str | None = None
    metric: float | None = None
    higher_is_better: bool | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    incumbent: ModelVersionId | None = None
    incumbent_metric: float | None = None
    data_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVersion:
    """A version as it is in the catalog."""

    version: ModelVersionId
    model_id: int
    model: str
    owner_oid: int
    number: int
    task: Task
    target: str
    architecture: dict[str, Any]
    bundle: dict[str, Any]
    weights: bytes
    parameters: int
    metric_name: str | None
    metric: float | None
    higher_is_better: bool | None
    metrics: dict[str, float]
    data_digest: str | None
    deployed: bool


def publish_version(connection: Connection, claimed: ClaimedJob, publication: Publication) -> ModelVersionId:
    """Store the version, deploy it as the job's `deploy` says, and end the job, all or nothing.

    Makes the model if it is new. Safe to repeat after an outage: what was published is returned again. Raises
    LostClaimError, or PrivilegeError where the model's name belongs to another owner by now.
    """
    keys = {"job": claimed.job, "claim": claimed.claim}
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        job = cursor.execute(query("lock_claimed"), keys).fetchone()
        if job is None:
            return _published_before(connection, claimed)
        model = _own_model(connection, job)
        deploy = _decide(connection, model, claimed.spec.deploy, publication)
        if deploy:
            connection.execute(query("undeploy"), {"model": model})
        version = _insert_version(connection, claimed, publication, job, model=model, deployed=deploy)
        _write_chunks(connection, "insert_version_chunk", version, publication.weights)
        connection.execute(query("remember_spec"), {"model": model, "spec": Jsonb(job["spec"])})
        if connection.execute(query("succeed"), {**keys, "version": version}).fetchone() is None:
            raise lost_claim(claimed.job, claimed.claim)
    return version


def should_deploy(
    wish: str, *, has_incumbent: bool, incumbent_metric: float | None, publication: Publication
) -> bool:
    """Whether a new version takes the incumbent's place.

    `if_better` means strictly better on the same rows. An incumbent that cannot be judged on them gives way; a
    metric that is missing or not a number never wins.
    """
    if wish in ("always", "never"):
        return wish == "always"
    if not has_incumbent:
        return True
    if publication.metric is None or math.isnan(publication.metric):
        return False
    if incumbent_metric is None or math.isnan(incumbent_metric):
        return True
    if publication.higher_is_better:
        return publication.metric > incumbent_metric
    return publication.metric < incumbent_metric


def load_version(connection: Connection, version: ModelVersionId) -> StoredVersion:
    """The version with its weights. Raises MissingError."""
    with connection.transaction():  # so that a version dropped in between is missing, not cut short
        with connection.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute(query("load_version"), {"version": version}).fetchone()
        if row is None:
            raise MissingError(f"model version {version} is not there", hint="tensile.model_list lists the models.")
        weights = _read_chunks(connection, "version_chunks", version, row["weights_bytes"])
    return StoredVersion(
        version=ModelVersionId(row["version_id"]),
        model=row["name"],
        task=Task(row["task"]),
        weights=weights,
        **{name: row[name] for name in _SAME_NAMES},
    )


def bound_lock_wait(connection: Connection) -> None:
    """Within a transaction: from now on a lock that another session holds is waited for no longer than 2 s."""
    connection.execute(query("bound_lock_wait"))


def deployed_version(connection: Connection, model: str) -> ModelVersionId | None:
    """The version with which the model of that name predicts, or None."""
    row = connection.execute(query("deployed_version"), {"name": model}).fetchone()
    return None if row is None else ModelVersionId(row[0])


def save_checkpoint(
    connection: Connection, job: JobId, claim: ClaimToken, data: bytes, position: Mapping[str, Any]
) -> None:
    """Replace the job's checkpoint, all or nothing. Raises LostClaimError."""
    with connection.transaction():
        if connection.execute(query("lock_claimed"), {"job": job, "claim": claim}).fetchone() is None:
            raise lost_claim(job, claim)
        connection.execute(query("delete_checkpoint_chunks"), {"job": job})
        values = {"job": job, "position": Jsonb(dict(position)), "size_bytes": len(data)}
        connection.execute(query("save_checkpoint"), values)
        _write_chunks(connection, "insert_checkpoint_chunk", job, data)


def load_checkpoint(connection: Connection, job: JobId) -> tuple[bytes, dict[str, Any]] | None:
    """The job's checkpoint and its position, or None."""
    with connection.transaction():
        row = connection.execute(query("load_checkpoint"), {"job": job}).fetchone()
        if row is None:
            return None
        position, size_bytes = row
        return _read_chunks(connection, "checkpoint_chunks", job, size_bytes), position


_SAME_NAMES = (
    "model_id",
    "owner_oid",
    "number",
    "target",
    "architecture",
    "bundle",
    "parameters",
    "metric_name",
    "metric",
    "higher_is_better",
    "metrics",
    "data_digest",
    "deployed",
)


def _published_before(connection: Connection, claimed: ClaimedJob) -> ModelVersionId:
    """The connection may have broken after the commit: then the same claim has succeeded already."""
    keys = {"job": claimed.job, "claim": claimed.claim}
    row = connection.execute(query("published_version"), keys).fetchone()
    if row is None:
        raise lost_claim(claimed.job, claimed.claim)
    return ModelVersionId(row[0])


def _own_model(connection: Connection, job: Mapping[str, Any]) -> int:
    """The job's model, locked, made if it is new."""
    name = job["model_name"]
    owner = {"name": name, "owner_oid": job["owner_oid"], "owner_name": job["owner_name"]}
    connection.execute(query("create_model"), owner)
    row = connection.execute(query("lock_model"), {"name": name}).fetchone()
    if row is None or (row[1], row[2]) != (job["owner_oid"], job["owner_name"]):
        raise PrivilegeError(
            f'model "{name}" belongs to another role, not to "{job["owner_name"]}"',
            hint="Model names are unique in the database: train under another name.",
        )
    return int(row[0])


def _decide(connection: Connection, model: int, wish: str, publication: Publication) -> bool:
    row = connection.execute(query("incumbent"), {"model": model}).fetchone()
    if row is None:
        return should_deploy(wish, has_incumbent=False, incumbent_metric=None, publication=publication)
    version, metric_name, metric = row
    judged = publication.incumbent_metric
    if publication.incumbent != version and (publication.incumbent is not None or judged is None):
        # Another version was deployed since the caller judged: what that one scored on its own rows is the best
        # that is known of it.
        judged = metric if metric_name == publication.metric_name else None
    return should_deploy(wish, has_incumbent=True, incumbent_metric=judged, publication=publication)


def _insert_version(
    connection: Connection,
    claimed: ClaimedJob,
    publication: Publication,
    job: Mapping[str, Any],
    *,
    model: int,
    deployed: bool,
) -> ModelVersionId:
    values = {
        "model": model,
        "job": claimed.job,
        "task": publication.task.value,
        "target": publication.target,
        "architecture": Jsonb(dict(publication.architecture)),
        "bundle": Jsonb(dict(publication.bundle)),
        "metric_name": publication.metric_name,
        "metric": publication.metric,
        "higher_is_better": publication.higher_is_better,
        "metrics": Jsonb({name: value for name, value in publication.metrics.items() if math.isfinite(value)}),
        "parameters": publication.parameters,
        "weights_bytes": len(publication.weights),
        "relation_oid": job["relation_oid"],
        "relation_schema": job["relation_schema"],
        "relation_name": job["relation_name"],
        "data_digest": publication.data_digest,
        "deployed": deployed,
    }
    row = connection.execute(query("insert_version"), values).fetchone()
    assert row is not None
    return ModelVersionId(row[0])


def _write_chunks(connection: Connection, name: LiteralString, owner: int, data: bytes) -> None:
    view = memoryview(data)
    for chunk_no, chunk in enumerate(_chunks(view)):
        connection.execute(query(name), {"owner": owner, "chunk_no": chunk_no, "chunk": chunk})


def _chunks(view: memoryview) -> Iterator[bytes]:
    for start in range(0, len(view), CHUNK_BYTES):
        yield bytes(view[start : start + CHUNK_BYTES])


def _read_chunks(connection: Connection, name: LiteralString, owner: int, size_bytes: int) -> bytes:
    """All chunks, fetched one by one in binary, so that no more than one is in memory beside the whole."""
    data = bytearray()
    with connection.cursor(binary=True) as cursor:
        for (chunk,) in cursor.stream(query(name), {"owner": owner}):
            data += chunk
    if len(data) != size_bytes:
        raise DatabaseError(
            f"the bytes stored for {name.removesuffix('_chunks')} {owner} are {len(data)}, not {size_bytes}",
            hint="Restore the database from a dump, or train again.",
        )
    return bytes(data)
