"""The client for programs that call and wait."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from sqlalchemy import Connection, Engine, Integer, Text

from indb_tensile.catalog.connection import retrying
from indb_tensile.client import catalog_requests as requests
from indb_tensile.client.engine_choice import check_driver, open_engine
from indb_tensile.client.frame_columns import as_frame
from indb_tensile.client.job_outcome import RETRY_S
from indb_tensile.client.predicted_rows import (
    STREAMED,
    PredictedRow,
    PredictedRows,
    answers_frame,
    answers_like,
    in_frame_order,
    predicted_row,
    prediction_statement,
    probability_columns,
    source_keys,
)
from indb_tensile.client.relation_source import relation_source
from indb_tensile.client.statement_errors import translated_errors
from indb_tensile.client.sync_job import Job
from indb_tensile.client.train_options import PredictIntoOptions, SearchOptions, TrainOptions
from indb_tensile.client.version_export import export_version
from indb_tensile.client.version_import import import_version
from indb_tensile.errors import RequestError

Result = TypeVar("Result")
Record = dict[str, Any]


class Tensile:
    """Trains and predicts in one database.

    `database` is an engine of SQLAlchemy, a URL, a connection string of libpq, or nothing: the database of
    TENSILE_DSN, of libpq's variables, or the embedded one of `tensile up`. With an engine each call is a transaction
    of its own, which is committed. A `Connection` may be given too: calls then belong to its transaction, and its
    owner commits.

    A relation is the name of a table or view as SQL writes it, a `Table`, a `select()`, or a DataFrame of pandas,
    polars or pyarrow, which is copied into a private table.
    """

    def __init__(self, database: Engine | Connection | str | None = None) -> None:
        is_open = isinstance(database, Engine | Connection)
        self._own_engine = not is_open
        self._database: Engine | Connection = database if is_open else open_engine(database)  # type: ignore[assignment]
        check_driver(self._database)

    def __repr__(self) -> str:
        return f"<Tensile on {self._database.engine.url.render_as_string(hide_password=True)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def engine(self) -> Engine:
        """Return the engine that this client uses."""
        return self._database.engine

    def close(self) -> None:
        """Close the connections of an engine that this client has made."""
        if self._own_engine:
            self._database.engine.dispose()

    # Training ---------------------------------------------------------------------------------------------------

    def train(self, model: str, relation: object, **options: Unpack[TrainOptions]) -> Job:
        """Enqueue a training of the model on a relation, commit, and return its job.

        The options are the arguments of `tensile_train`. Raises RequestError, or one of its subclasses, for a wrong
        request.
        """
        return self._job(requests.train(model, relation, options))

    def search(self, model: str, relation: object, **options: Unpack[SearchOptions]) -> Job:
        """Search for the best arguments of a training, commit, and return the search's job.

        The options are the arguments of `tensile_search`.
        """
        return self._job(requests.search(model, relation, options))

    def retrain(self, model: str) -> Job:
        """Enqueue the last successful training of the model again, on the rows that its relation has now."""
        return self._job(requests.retrain(model))

    def job(self, number: int) -> Job:
        """Return the job of this number. Raises MissingError if the current role sees none."""
        self.run(requests.job_record(number))
        return Job(self, number)

    def jobs(self) -> list[Record]:
        """Return all jobs that the current role sees, the newest first."""
        return self.run(requests.jobs)

    # Prediction -------------------------------------------------------------------------------------------------

    def predict(
        self,
        model: str,
        relation: object,
        *,
        keys: Sequence[str] | None = None,
        version: int | None = None,
        probabilities: bool = False,
        frame: str | None = None,
    ) -> Any:
        """Predict for all rows of a relation.

        Returns an iterator of `PredictedRow`, which reads through a cursor on the server, so that no more than some
        thousand rows are in memory. For a DataFrame returns a frame of the same library, with the column `prediction`
        in the order of its rows. `frame` ("pandas", "polars" or "pyarrow") returns such a frame for any relation,
        with the columns of the keys.

        `keys` are the columns that name a row: by default the primary key, and for a `select()` all columns.
        `probabilities` adds the probability of each label.
        """
        rows = self.predict_rows(model, relation, keys=keys, version=version, probabilities=probabilities)
        own = as_frame(relation)
        if own is not None:
            return answers_like(own, rows, probabilities=probabilities)
        return rows if frame is None else answers_frame(frame, rows, probabilities=probabilities)

    def predict_rows(
        self,
        model: str,
        relation: object,
        *,
        keys: Sequence[str] | None = None,
        version: int | None = None,
        probabilities: bool = False,
    ) -> PredictedRows:
        """Return an iterator of `PredictedRow` for any relation, as `predict` does for those that are no frames."""
        if isinstance(keys, str):
            raise RequestError(f"keys is the text {keys!r}", hint="Give a list of columns.")
        rows = self._stream(model, relation, keys=keys, version=version, probabilities=probabilities)
        return PredictedRows(rows, rows.close)

    def predict_proba(
        self, model: str, relation: object, *, keys: Sequence[str] | None = None, version: int | None = None
    ) -> Any:
        """Return the probability of each label for all rows of a relation.

        Returns an iterator of dicts by label; for a DataFrame a frame of its library with a column for each label.
        """
        rows = self.predict_rows(model, relation, keys=keys, version=version, probabilities=True)
        own = as_frame(relation)
        if own is not None:
            return own.like(probability_columns(in_frame_order(rows, own.rows)))
        return (dict(row.probabilities or {}) for row in rows)

    def predict_into(self, model: str, relation: object, output: str, **options: Unpack[PredictIntoOptions]) -> Job:
        """Enqueue a job that stores the predictions for all rows, which the view `output` then shows."""
        return self._job(requests.predict_into(model, relation, output, options))

    def evaluate(self, model: str, relation: object = None, *, version: int | None = None) -> dict[str, float]:
        """Return the metrics on all rows of a relation, or without one on the rows that the training held out."""
        rows = self.run(
            requests.rows_of_model(
                "tensile_evaluate", requests.METRIC_COLUMNS, relation, model=model, version=version
            )
        )
        return {row["metric"]: row["value"] for row in rows}

    # Models -----------------------------------------------------------------------------------------------------

    def models(self) -> list[Record]:
        """Return the models that the current role may predict with."""
        return self.run(requests.models)

    def versions(self, model: str) -> list[Record]:
        """Return the versions of a model, the newest first, with their data, hyper-parameters and metrics."""
        return self.run(requests.rows_of_model("tensile_training_info", requests.VERSION_COLUMNS, model=model))

    def history(self, model: str, *, version: int | None = None) -> list[Record]:
        """Return the losses and metrics of a version's training after each epoch."""
        return self.run(
            requests.rows_of_model("tensile_training_history", requests.HISTORY_COLUMNS, model=model, version=version)
        )

    def deploy(self, model: str, version: int | str, *, reason: str | None = None) -> int:
        """Deploy a version (its number, "best" or "previous"), commit, and return its number."""
        return self.run(requests.deploy(model, version, reason))

    def rollback(self, model: str, *, reason: str | None = None) -> int:
        """Deploy the version that was deployed before the present one, commit, and return its number."""
        return int(self.run(requests.call_for_model("tensile_rollback", Integer(), model=model, reason=reason)))

    def importance(
        self,
        model: str,
        relation: object = None,
        *,
        version: int | None = None,
        repeats: int | None = None,
        seed: int | None = None,
    ) -> list[Record]:
        """Return by how much the metric gets worse where the values of a feature are permuted among the rows."""
        return self.run(
            requests.rows_of_model(
                "tensile_feature_importance",
                requests.IMPORTANCE_COLUMNS,
                relation,
                model=model,
                version=version,
                repeats=repeats,
                seed=seed,
            )
        )

    def confusion(self, model: str, relation: object = None, *, version: int | None = None) -> list[Record]:
        """Return how many rows of each label are predicted as each label."""
        return self.run(
            requests.rows_of_model(
                "tensile_confusion_matrix", requests.CONFUSION_COLUMNS, relation, model=model, version=version
            )
        )

    def roc(
        self, model: str, relation: object = None, *, label: str | None = None, version: int | None = None
    ) -> list[Record]:
        """Return points of the ROC curve of a label, or of all labels."""
        return self.run(
            requests.rows_of_model(
                "tensile_roc_curve", requests.ROC_COLUMNS, relation, model=model, label=label, version=version
            )
        )

    def calibration(
        self, model: str, relation: object = None, *, version: int | None = None, bins: int | None = None
    ) -> list[Record]:
        """Return the mean probability of the predicted label beside the share of right predictions, in bins."""
        return self.run(
            requests.rows_of_model(
                "tensile_calibration",
                requests.CALIBRATION_COLUMNS,
                relation,
                model=model,
                version=version,
                bins=bins,
            )
        )

    def export_model(self, model: str, path: str | Path, *, version: int | None = None) -> Path:
        """Write a version of a model to a file, by default the deployed one: see `Model.export`."""
        return self.run(export_version(model, version, Path(path)))

    def import_model(self, path: str | Path, name: str, *, deploy: bool | None = None) -> int:
        """Write a file as the next version of a model, commit, and return the version's number: see `Model.load`.

        The model belongs to the role of the connection, and is created if there is none. `deploy` None deploys the
        version if no other one is deployed.
        """
        return self.run(import_version(Path(path), name, deploy=deploy))

    def rename(self, model: str, new_name: str) -> None:
        """Rename a model, and commit."""
        self.run(requests.call_for_model("tensile_rename_model", Text(), model=model, new_name=new_name))

    def drop(self, model: str) -> None:
        """Drop a model with all its versions, and commit."""
        self.run(requests.call_for_model("tensile_drop_model", Text(), model=model))

    def grant(self, model: str, role: str, *, privilege: str = "predict") -> None:
        """Let a role predict with a model, or with the privilege "weights" also copy its weights; and commit."""
        self.run(
            requests.call_for_model("tensile_grant_model", Text(), model=model, grantee=role, privilege=privilege)
        )

    def revoke(self, model: str, role: str) -> None:
        """Take back what `grant` gave, and commit."""
        self.run(requests.call_for_model("tensile_revoke_model", Text(), model=model, grantee=role))

    # Transactions -----------------------------------------------------------------------------------------------

    def run(self, request: Callable[[Connection], Result]) -> Result:
        """Run a request in a transaction of its own and commit it, or in that of the given connection."""
        with translated_errors(), self._transaction() as connection:
            return request(connection)

    def run_retrying(self, request: Callable[[Connection], Result]) -> Result:
        """Run a request that only reads, and repeat it while the database restarts."""
        if isinstance(self._database, Connection):
            return self.run(request)
        return retrying(lambda: self.run(request), retry_s=RETRY_S)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        if isinstance(self._database, Connection):
            yield self._database
            return
        with self._database.begin() as connection:
            yield connection

    def _job(self, request: Callable[[Connection], int]) -> Job:
        notices: list[str] = []
        number = self.run(requests.with_notices(request, notices))
        return Job(self, number, tuple(notices))

    def _stream(
        self, model: str, relation: object, *, keys: Sequence[str] | None, version: int | None, probabilities: bool
    ) -> Generator[PredictedRow, None, None]:
        with (
            translated_errors(),
            self._transaction() as connection,
            relation_source(connection, relation, views=True, numbered=True) as source,
        ):
            assert source.relation is not None
            statement = prediction_statement(
                model,
                source.relation,
                keys=source_keys(relation, keys),
                version=version,
                probabilities=probabilities,
            )
            with connection.execute(statement, execution_options=STREAMED) as result:
                for row in result:
                    yield predicted_row(row)
