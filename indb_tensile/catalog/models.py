"""Publishes versions of models, and loads them. One transaction, guarded by the job's claim, publishes a version."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from indb_tensile.catalog import jobs
from indb_tensile.catalog.chunks import read_chunks, write_chunks
from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.catalog.stored_networks import StoredNetwork, load_network_of_version
from indb_tensile.errors import DatabaseError, MissingError, OvertakenError, PrivilegeError
from indb_tensile.job import ClaimedJob, InitFrom, ModelVersionId, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The result of a finished training, to be published as a new version of its model.

    `weights` is in the safetensors format. `bundle` is JSON with the preprocessing and labels that a prediction
    needs. `incumbent` is the version that was deployed when the caller compared versions, and `incumbent_metric` is
    its metric on this job's held-out rows. If these metrics do not tell which version is better, `incomparable` gives
    the reason, as a clause without a full stop. `report` describes the data of the job's table. `training` describes
    how the version was trained, including the settings that were chosen automatically. `figures` are of the held-out
    rows, by name.
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
    incomparable: str = ""
    data_digest: str | None = None
    report: Sequence[Mapping[str, str | None]] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Comparison(Protocol):
    """The figures that decide whether a new version replaces the deployed one; `Publication` has all of them."""

    @property
    def metric_name(self) -> str | None:
        """Name of the metric."""
        ...

    @property
    def metric(self) -> float | None:
        """The new version's metric."""
        ...

    @property
    def higher_is_better(self) -> bool | None:
        """Whether a larger metric is better."""
        ...

    @property
    def incumbent_metric(self) -> float | None:
        """The deployed version's metric on the same rows."""
        ...

    @property
    def incomparable(self) -> str:
        """Why the metrics cannot be compared, or an empty text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVersion:
    """One version of a model, loaded from the catalog. `network` is the registered network that it needs, if any."""

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
    imported: bool = False  # out of a file, so that nothing is known of its weights and its bundle
    network: StoredNetwork | None = None


def publish_version(connection: Connection, claimed: ClaimedJob, publication: Publication) -> ModelVersionId:
    """Store the version, deploy it if the job's `deploy` allows it, and end the job, all in one transaction.

    The model exists since the job was enqueued. The call is safe to repeat after an outage: it returns the version
    that was published. Raises LostClaimError; PrivilegeError if the job's owner no longer has a model of this name;
    OvertakenError if `deploy` is if_better and another version is deployed than `publication.incumbent`.
    """
    keys = {"job": claimed.job, "claim": claimed.claim}
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        job = cursor.execute(query("lock_claimed"), keys).fetchone()
        if job is None:
            return _published_before(connection, claimed)
        model = _own_model(connection, job)
        incumbent = connection.execute(query("incumbent"), {"model": model}).fetchone()
        deployed, number = (None, None) if incumbent is None else incumbent
        if deployed != publication.incumbent and claimed.spec.deploy == "if_better":
            raise OvertakenError(
                f'job {claimed.job} was judged by a version of model "{claimed.spec.model}" that is not deployed now',
                hint="Compare with the version that is deployed now.",
            )
        obstacle = why_not_deployed(claimed.spec.deploy, publication, number)
        if obstacle is None:
            connection.execute(query("undeploy"), {"model": model})
        else:
            event = {**keys, "kind": "not_deployed", "detail": Jsonb({"reason": obstacle})}
            connection.execute(query("record_event"), event)
        why = why_deployed(claimed.spec.deploy, publication, number) if obstacle is None else None
        version = _insert_version(
            connection, claimed, publication, job, model=model, not_deployed=obstacle, deployed_why=why
        )
        write_chunks(connection, "insert_version_chunk", version, [publication.weights])
        if publication.report:
            jobs.save_report(connection, claimed.job, claimed.claim, publication.report)
        connection.execute(query("remember_spec"), {"model": model, "job": claimed.job})
        if connection.execute(query("succeed"), {**keys, "version": version}).fetchone() is None:
            raise jobs.lost_claim(claimed.job, claimed.claim)
    return version


def why_not_deployed(wish: str, publication: Comparison, incumbent: int | None) -> str | None:
    """Return why a new version does not replace the deployed one, or None if it does.

    `wish` is the job's `deploy`, and `incumbent` the number of the deployed version. `if_better` means strictly
    better on the same rows. If the two cannot be compared, or the metric is not defined on these rows, the deployed
    version stays.
    """
    if wish == "always":
        return None
    if wish == "never":
        return "deploy is never"
    if incumbent is None:
        return None
    metric, incumbent_metric, name = publication.metric, publication.incumbent_metric, publication.metric_name
    deployed = f"version {incumbent}, which stays deployed"
    if publication.incomparable:
        return f"it cannot be compared with {deployed}: {publication.incomparable}"
    if metric is None or math.isnan(metric):
        return f"it cannot be compared with {deployed}: its {name} is not defined on the test rows"
    if incumbent_metric is None or math.isnan(incumbent_metric):
        return f"it cannot be compared with {deployed}: the {name} of that is not defined on the test rows"
    if metric > incumbent_metric if publication.higher_is_better else metric < incumbent_metric:
        return None
    return f"its {name} on the test rows, {metric:.6g}, is not better than the {incumbent_metric:.6g} of {deployed}"


def why_deployed(wish: str, publication: Comparison, incumbent: int | None) -> str:
    """Return why a new version is deployed, for the history of deployments. For arguments see `why_not_deployed`."""
    if wish == "always":
        return "deploy is always"
    if incumbent is None:
        return "no version was deployed"
    own, other = publication.metric, publication.incumbent_metric
    return f"its {publication.metric_name} on the test rows, {own:.6g}, is better than the {other:.6g} of {incumbent}"


def load_version(connection: Connection, version: ModelVersionId) -> StoredVersion:
    """Load a version with its weights, and with the registered network that it needs.

    Raises MissingError if one of them does not exist, or DatabaseError if the weights were changed.
    """
    with connection.transaction():  # so that a version dropped meanwhile is missing as a whole, not in part
        with connection.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute(query("load_version"), {"version": version}).fetchone()
        if row is None:
            raise MissingError(f"model version {version} does not exist", hint="tensile.model_list lists the models.")
        weights = read_chunks(connection, "version_chunks", version, row["weights_bytes"])
    if row["weights_digest"] is not None and row["weights_digest"] != _digest(weights):
        raise DatabaseError(
            f'the weights of version {row["number"]} of model "{row["name"]}" are not those that were published',
            detail=f"Their SHA-256 is {_digest(weights)}, not {row['weights_digest']} (version_id {version}).",
            hint="Rows of tensile.artifacts were changed: restore them from a dump, or train the model again.",
        )
    title = f'version {row["number"]} of model "{row["name"]}"'
    network = load_network_of_version(connection, title, row["architecture"])
    return StoredVersion(
        network=network,
        version=ModelVersionId(row["version_id"]),
        model=row["name"],
        task=Task(row["task"]),
        weights=weights,
        **{name: row[name] for name in _SAME_NAMES},
    )


def load_init_version(connection: Connection, claimed: ClaimedJob, wish: InitFrom) -> StoredVersion:
    """Load the version that a job starts from, and note it with the job, whose later attempts start from the same.

    Raises MissingError if there is no such version that the job's owner may start from, and the errors of
    `load_version`.
    """
    keys = {"job": claimed.job, "claim": claimed.claim, "model": wish.model_id, "number": wish.version}
    row = connection.execute(query("choose_init_version"), keys).fetchone()
    if row is None:
        which = "a deployed version" if wish.version is None else f"version {wish.version}"
        raise MissingError(
            f'init_from: the owner of job {claimed.job} has no model "{wish.model}" with {which} to start from',
            detail="The model or the version was dropped, no version is deployed, or the privilege was revoked.",
            hint="See the versions in tensile_training_info. The model's owner can allow the use of its weights: "
            "select tensile_grant_model('model', 'role', 'weights');",
        )
    return load_version(connection, ModelVersionId(row[0]))


def bound_lock_wait(connection: Connection) -> None:
    """Limit the wait for a lock to 2 s for the rest of the current transaction."""
    connection.execute(query("bound_lock_wait"))


def deployed_version(connection: Connection, model: str) -> ModelVersionId | None:
    """Return the version with which the model predicts, or None if no version is deployed."""
    row = connection.execute(query("deployed_version"), {"name": model}).fetchone()
    return None if row is None else ModelVersionId(row[0])


def delete_dropped(connection: Connection, most: int) -> int:
    """Delete at most `most` rows and chunks of weights of dropped models and revoked grants. Returns their count."""
    row = connection.execute(query("delete_dropped"), {"most": most}).fetchone()
    return int(row[0]) if row else 0


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
    "imported",
)


def _published_before(connection: Connection, claimed: ClaimedJob) -> ModelVersionId:
    """Return the version that this claim has published before. Raises LostClaimError if there is none.

    A connection that broke after the commit makes the caller publish again.
    """
    keys = {"job": claimed.job, "claim": claimed.claim}
    row = connection.execute(query("published_version"), keys).fetchone()
    if row is None:
        raise jobs.lost_claim(claimed.job, claimed.claim)
    return ModelVersionId(row[0])


def _own_model(connection: Connection, job: Mapping[str, Any]) -> int:
    """Lock the job's model against other publications, and return its id. Raises PrivilegeError."""
    name = job["model_name"]
    key = {"name": name, "owner_oid": job["owner_oid"], "installation": job["installation"]}
    row = connection.execute(query("lock_model"), key).fetchone()
    if row is None:
        raise PrivilegeError(
            f'role "{job["owner_name"]}" has no model "{name}" to publish to',
            detail="Enqueuing the training reserved the name for this role, and the model was deleted since then.",
            hint="Train again, or use another name.",
        )
    return int(row[0])


def _insert_version(
    connection: Connection,
    claimed: ClaimedJob,
    publication: Publication,
    job: Mapping[str, Any],
    *,
    model: int,
    not_deployed: str | None,
    deployed_why: str | None,
) -> ModelVersionId:
    values = {
        "model": model,
        "job": claimed.job,
        "task": publication.task.value,
        "target": publication.target,
        "architecture": Jsonb(dict(publication.architecture)),
        "metric_name": publication.metric_name,
        "metric": publication.metric,
        "higher_is_better": publication.higher_is_better,
        "metrics": Jsonb({name: value for name, value in publication.metrics.items() if math.isfinite(value)}),
        "parameters": publication.parameters,
        "weights_bytes": len(publication.weights),
        "weights_digest": _digest(publication.weights),
        "relation_oid": job["relation_oid"],
        "relation_schema": job["relation_schema"],
        "relation_name": job["relation_name"],
        "data_digest": publication.data_digest,
        "training": Jsonb(dict(publication.training)),
        "deployed": not_deployed is None,
        "not_deployed": not_deployed,
        "deployed_why": deployed_why,
    }
    row = connection.execute(query("insert_version"), values).fetchone()
    assert row is not None
    connection.execute(query("insert_bundle"), {"version": row[0], "bundle": Jsonb(dict(publication.bundle))})
    for name, figure in publication.figures.items():
        connection.execute(query("insert_figure"), {"version": row[0], "name": name, "figure": Jsonb(dict(figure))})
    return ModelVersionId(row[0])


def add_figure(connection: Connection, version: ModelVersionId, name: str, figure: Mapping[str, Any]) -> None:
    """Store a figure of a published version, unless the version was dropped or has this figure."""
    connection.execute(query("add_figure"), {"version": version, "name": name, "figure": Jsonb(dict(figure))})


def repeat_baseline(connection: Connection, version: ModelVersionId, digest: str) -> bool:
    """Copy the baseline that another version of the model has for the rows of this digest. Returns whether one has.

    The digest is noted for the versions that follow.
    """
    add_figure(connection, version, "baseline_rows", {"digest": digest})
    return connection.execute(query("repeat_baseline"), {"version": version, "digest": digest}).rowcount > 0


def judged_version(connection: Connection, version: ModelVersionId) -> dict[str, Any] | None:
    """Return a version's metric beside the figure of its baseline, or None if it lacks one of both."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query("judged_version"), {"version": version}).fetchone()


def warn_of_version(connection: Connection, version: ModelVersionId, detail: Mapping[str, Any]) -> None:
    """Add a warning to the history of the job that trained the version, if that job was not deleted."""
    connection.execute(query("warn_of_version"), {"version": version, "detail": Jsonb(dict(detail))})


def _digest(weights: bytes) -> str:
    return hashlib.sha256(weights).hexdigest()
