"""What the client asks of the catalog: each request is a function of one connection, for both kinds of engines.

A request runs within the connection's transaction, and neither begins nor ends one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Integer,
    Row,
    Select,
    Text,
    column,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import NullType

from indb_tensile.catalog.sqlalchemy.catalog_tables import job_events, metrics, model_versions, version_bundles
from indb_tensile.catalog.sqlalchemy.catalog_tables import jobs as jobs_table
from indb_tensile.catalog.sqlalchemy.catalog_tables import models as models_table
from indb_tensile.catalog.sqlalchemy.catalog_views import (
    model_list,
    stat_jobs,
    stat_progress_predict,
    stat_progress_train,
)
from indb_tensile.client.function_call import BIGINT, DURATION, INTEGER, RELATION, TEXT, function_call
from indb_tensile.client.relation_source import relation_source
from indb_tensile.client.train_options import (
    PREDICT_INTO_TYPES,
    SEARCH_TYPES,
    TRAIN_TYPES,
    check_options,
    sql_values,
)
from indb_tensile.errors import DataError, MissingError, RequestError

Result = TypeVar("Result")
Request = Callable[[Connection], Result]
Record = dict[str, Any]

_JOB_TYPES = {"job": BIGINT, "priority": INTEGER, "timeout": DURATION}
_MODEL_TYPES = {
    "model": TEXT,
    "name": TEXT,
    "new_name": TEXT,
    "version": INTEGER,
    "reason": TEXT,
    "relation": RELATION,
    "grantee": TEXT,
    "privilege": TEXT,
    "bins": INTEGER,
    "repeats": INTEGER,
    "seed": BIGINT,
    "label": TEXT,
}
# The columns of functions that return rows.
METRIC_COLUMNS = (Column("metric", Text), Column("value", Double))
VERSION_COLUMNS: tuple[Column[Any], ...] = (
    Column("version", Integer),
    Column("deployed", Boolean),
    Column("task", Text),
    Column("target", Text),
    Column("architecture", JSONB),
    Column("metric_name", Text),
    Column("metric", Double),
    Column("parameters", BigInteger),
    Column("weights_bytes", BigInteger),
    Column("relation", Text),
    Column("job", BigInteger),
    Column("trained_at", NullType()),
    Column("hyperparams", JSONB),
    Column("features", ARRAY(Text)),
    Column("rows", BigInteger),
    Column("split", JSONB),
    Column("settings", JSONB),
    Column("baseline", Double),
    Column("baseline_metrics", JSONB),
)
HISTORY_COLUMNS = (
    Column("epoch", Integer),
    Column("loss", Double),
    Column("valid_loss", Double),
    Column("metrics", JSONB),
    Column("published", Boolean),
)
IMPORTANCE_COLUMNS = (
    Column("feature", Text),
    Column("importance", Double),
    Column("deviation", Double),
    Column("metric", Text),
)
CONFUSION_COLUMNS = (Column("actual", Text), Column("predicted", Text), Column("rows", BigInteger))
ROC_COLUMNS = (
    Column("class", Text),
    Column("threshold", Double),
    Column("true_positive_rate", Double),
    Column("false_positive_rate", Double),
    Column("true_positives", BigInteger),
    Column("false_positives", BigInteger),
)
CALIBRATION_COLUMNS = (
    Column("bin", Integer),
    Column("mean_predicted", Double),
    Column("observed_share", Double),
    Column("rows", BigInteger),
)
TRIAL_COLUMNS: tuple[Column[Any], ...] = (
    Column("trial", Integer),
    Column("state", Text),
    Column("metric_name", Text),
    Column("metric", Double),
    Column("epoch", Integer),
    Column("rung", Integer),
    Column("parameters", JSONB),
    Column("job", BigInteger),
    Column("version", Integer),
    Column("test_metric", Double),
    Column("duration", NullType()),
    Column("error_message", Text),
)
REPORT_COLUMNS = tuple(Column(name, Text) for name in ("section", "subject", "fact", "value", "warning"))


def train(model: str, relation: object, options: Mapping[str, Any]) -> Request[int]:
    """Enqueue a training and return the job's number."""
    check_options("train", options, TRAIN_TYPES)
    return lambda connection: _enqueue(connection, "tensile_train", model, relation, options)


def search(model: str, relation: object, options: Mapping[str, Any]) -> Request[int]:
    """Start a search and return its number, which is that of a job."""
    check_options("search", options, SEARCH_TYPES)
    return lambda connection: _enqueue(connection, "tensile_search", model, relation, options)


def with_notices(request: Request[int], notices: list[str]) -> Request[int]:
    """Return the request, which also adds to `notices` what the database says meanwhile."""

    def heard(connection: Connection) -> int:
        driver: Any = connection.connection.driver_connection

        def keep(notice: Any) -> None:
            notices.append(notice.message_primary or "")

        driver.add_notice_handler(keep)
        try:
            return request(connection)
        finally:
            driver.remove_notice_handler(keep)

    return heard


def _enqueue(connection: Connection, function: str, model: str, relation: object, options: Mapping[str, Any]) -> int:
    values = {"model": model} | sql_values(options, SEARCH_TYPES)
    with relation_source(connection, relation, views=False) as source:
        if source.frame is not None and not source.frame.rows:
            raise DataError("the frame has no rows", hint="Give a frame with rows to learn from.")
        if source.query is not None:
            if values.pop("snapshot", True) is False:
                raise RequestError(
                    "snapshot is False for a select()",
                    detail="The rows of a query are always copied when it is enqueued.",
                    hint="Leave it out.",
                )
            function, values["query"] = f"{function}_query", source.query
        else:
            values["relation"] = source.relation
        call = function_call(function, SEARCH_TYPES, values, BigInteger())
        number: int = connection.execute(select(call)).scalar_one()
    return number


def retrain(model: str) -> Request[int]:
    """Enqueue the last successful training of a model again."""
    return call_for_model("tensile_retrain", BigInteger(), model=model)


def predict_into(model: str, relation: object, output: str, options: Mapping[str, Any]) -> Request[int]:
    """Enqueue a job that stores predictions, and return its number."""
    check_options("predict_into", options, PREDICT_INTO_TYPES)

    def request(connection: Connection) -> int:
        values = {"model": model, "output": output} | sql_values(options, PREDICT_INTO_TYPES)
        with relation_source(connection, relation, views=True) as source:
            values["relation"] = source.relation
            call = function_call("tensile_predict_into", PREDICT_INTO_TYPES, values, BigInteger())
            number: int = connection.execute(select(call)).scalar_one()
        return number

    return request


def call_for_job(function: str, returns: Any, **arguments: Any) -> Request[Any]:
    """Call a function that controls a job."""
    call = function_call(function, _JOB_TYPES, arguments, returns)
    return lambda connection: connection.execute(select(call)).scalar_one()


def call_for_model(function: str, returns: Any, **arguments: Any) -> Request[Any]:
    """Call a function of a model that returns one value."""
    call = function_call(function, _MODEL_TYPES, arguments, returns)
    return lambda connection: connection.execute(select(call)).scalar_one()


def deploy(model: str, version: int | str, reason: str | None) -> Request[int]:
    """Deploy a version: its number, or one of the words best and previous."""
    arguments = {"model": model, "version": str(version), "reason": reason}
    call = function_call("tensile_deploy", _MODEL_TYPES | {"version": TEXT}, arguments, Integer())
    return lambda connection: int(connection.execute(select(call)).scalar_one())


def rows_of_job(function: str, columns: Sequence[Column[Any]], job: int) -> Request[list[Record]]:
    """Call a function of a job that returns rows."""
    call = function_call(function, _JOB_TYPES, {"job": job}, NullType())
    statement = select(call.table_valued(*_copies(columns)))
    return lambda connection: _records(connection, statement)


def rows_of_model(
    function: str, columns: Sequence[Column[Any]], relation: object = None, **arguments: Any
) -> Request[list[Record]]:
    """Call a function of a model that returns rows, for a relation if one is given."""

    def request(connection: Connection) -> list[Record]:
        if relation is None:
            return _records(connection, _selected(function, columns, arguments))
        with relation_source(connection, relation, views=True) as source:
            own = arguments | {"relation": source.relation}
            return _records(connection, _selected(function, columns, own))

    return request


def _selected(function: str, columns: Sequence[Column[Any]], arguments: Mapping[str, Any]) -> Select[Any]:
    call = function_call(function, _MODEL_TYPES, arguments, NullType())
    return select(call.table_valued(*_copies(columns)))


def _copies(columns: Sequence[Column[Any]]) -> list[Any]:
    return [column(own.name, own.type) for own in columns]


def labels(model: str, version: int) -> Request[dict[str, Any]]:
    """Return the labels of a version of one's own model, by their texts, in the order of the network's outputs."""
    stored = (
        select(version_bundles.c.bundle["preprocessor"]["target"]["labels"])
        .join(model_versions, model_versions.c.version_id == version_bundles.c.version_id)
        .join(models_table, models_table.c.model_id == model_versions.c.model_id)
        .where(models_table.c.name == model, models_table.c.dropped_at.is_(None), model_versions.c.number == version)
    )

    def request(connection: Connection) -> dict[str, Any]:
        from indb_tensile.learning.encoding.targets import (
            label_text,  # with numpy, which the other requests do not need
        )

        return {label_text(label): label for label in connection.execute(stored).scalar_one()}

    return request


def models(connection: Connection) -> list[Record]:
    """Return the models that the current role may predict with."""
    return _records(connection, select(model_list).order_by(model_list.c.model))


def jobs(connection: Connection) -> list[Record]:
    """Return the jobs that the current role sees, the newest first."""
    return _records(connection, select(stat_jobs).order_by(stat_jobs.c.job_id.desc()))


def job_record(job: int) -> Request[Record]:
    """Return one job as `tensile.stat_jobs` shows it. Raises MissingError for a job that the role does not see,
    and RequestError for a number that is none.
    """
    if not isinstance(job, int):
        raise RequestError(f"the job is {job!r}, of type {type(job).__name__}", hint="Give its number, such as 7.")

    def request(connection: Connection) -> Record:
        jobs = _records(connection, select(stat_jobs).where(stat_jobs.c.job_id == job))
        if not jobs:
            raise MissingError(f"there is no job {job}", hint="See your jobs: Tensile.jobs().")
        return jobs[0]

    return request


def awaited_job(job: int) -> Request[Record]:
    """Return one job for a program that waits for it.

    Raises RequestError if the connection's own transaction has enqueued the job, since it could never start.
    """

    def request(connection: Connection) -> Record:
        record = job_record(job)(connection)
        own = select(jobs_table.c.enqueued_xact == func.pg_current_xact_id_if_assigned())
        if connection.execute(own.where(jobs_table.c.job_id == job)).scalar_one_or_none():
            raise RequestError(
                f"job {job} cannot start before this transaction commits", hint="Commit, and then wait for the job."
            )
        return record

    return request


def retry(job: int) -> Request[int]:
    """Enqueue the request of a job again."""
    return call_for_job("tensile_retry", BigInteger(), job=job)


def trials(job: int) -> Request[list[Record]]:
    """Return the trials of a search: those at the highest rung first, and of equal rungs the best first."""
    call = function_call("tensile_trial_info", {"search": BIGINT}, {"search": job}, NullType())
    statement = select(call.table_valued(*_copies(TRIAL_COLUMNS)))
    return lambda connection: _records(connection, statement)


def job_progress(job: int) -> Request[tuple[Record, Record]]:
    """Return a job, and the progress of its training or prediction; that is empty while it is not active."""

    def request(connection: Connection) -> tuple[Record, Record]:
        record = job_record(job)(connection)
        for view in (stat_progress_train, stat_progress_predict):
            progress = _records(connection, select(view).where(view.c.job_id == job))
            if progress:
                return record, progress[0]
        return record, {}

    return request


def job_history(job: int) -> Request[list[Record]]:
    """Return the losses and metrics of a job after each epoch."""

    def request(connection: Connection) -> list[Record]:
        job_record(job)(connection)
        rows = connection.execute(
            select(metrics.c.epoch, metrics.c.name, metrics.c.value)
            .where(metrics.c.job_id == job)
            .order_by(metrics.c.epoch, metrics.c.name)
        )
        epochs: dict[int, Record] = {}
        for epoch, name, value in rows:
            epochs.setdefault(epoch, {"epoch": epoch})[name] = value
        return list(epochs.values())

    return request


def job_log(job: int) -> Request[list[Record]]:
    """Return the events of a job, in their order."""

    def request(connection: Connection) -> list[Record]:
        job_record(job)(connection)
        shown = select(job_events.c.at, job_events.c.kind, job_events.c.detail)
        return _records(connection, shown.where(job_events.c.job_id == job).order_by(job_events.c.event_id))

    return request


def _records(connection: Connection, statement: Select[Any]) -> list[Record]:
    return [_record(row) for row in connection.execute(statement)]


def _record(row: Row[Any]) -> Record:
    return dict(row._mapping)  # noqa: SLF001 - the documented way of SQLAlchemy to a row by names
