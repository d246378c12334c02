"""The client for asynchronous programs: the same calls on an `AsyncEngine`, to be awaited."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from sqlalchemy import Connection, Integer, Text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indb_tensile.catalog.connection import retrying_async
from indb_tensile.client import catalog_requests as requests
from indb_tensile.client.async_job import AsyncJob
from indb_tensile.client.engine_choice import check_driver, open_async_engine
from indb_tensile.client.frame_columns import as_frame
from indb_tensile.client.job_outcome import RETRY_S
from indb_tensile.client.predicted_rows import (
    STREAMED,
    AsyncPredictedRows,
    PredictedRow,
    answers_frame,
    answers_like,
    in_frame_order,
    predicted_row,
    prediction_statement,
    probability_columns,
    source_keys,
)
from indb_tensile.client.relation_source import RelationSource, relation_source
from indb_tensile.client.statement_errors import translated_errors
from indb_tensile.client.train_options import PredictIntoOptions, SearchOptions, TrainOptions
from indb_tensile.client.version_export import export_version
from indb_tensile.client.version_import import import_version
from indb_tensile.errors import RequestError

Result = TypeVar("Result")
Record = dict[str, Any]


class AsyncTensile:
    """Trains and predicts in one database; `database` and relations are those of `Tensile`.

    An engine is an `AsyncEngine`, and a connection an `AsyncConnection`.
    """

    def __init__(self, database: AsyncEngine | AsyncConnection | str | None = None) -> None:
        is_open = isinstance(database, AsyncEngine | AsyncConnection)
        self._own_engine = not is_open
        self._database: Any = database if is_open else open_async_engine(database)
        check_driver(self._database)

    def __repr__(self) -> str:
        return f"<AsyncTensile on {self._database.engine.url.render_as_string(hide_password=True)}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def engine(self) -> AsyncEngine:
        """Return the engine that this client uses."""
        engine: AsyncEngine = self._database.engine
        return engine

    async def close(self) -> None:
        """Close the connections of an engine that this client has made."""
        if self._own_engine:
            await self._database.dispose()

    # Training ---------------------------------------------------------------------------------------------------

    async def train(self, model: str, relation: object, **options: Unpack[TrainOptions]) -> AsyncJob:
        """Enqueue a training of the model on a relation, commit, and return its job.

        The options are the arguments of `tensile_train`. Raises RequestError, or one of its subclasses, for a wrong
        request.
        """
        return await self._job(requests.train(model, relation, options))

    async def search(self, model: str, relation: object, **options: Unpack[SearchOptions]) -> AsyncJob:
        """Search for the best arguments of a training, commit, and return the search's job.

        The options are the arguments of `tensile_search`.
        """
        return await self._job(requests.search(model, relation, options))

    async def retrain(self, model: str) -> AsyncJob:
        """Enqueue the last successful training of the model again, on the rows that its relation has now."""
        return await self._job(requests.retrain(model))

    async def job(self, number: int) -> AsyncJob:
        """Return the job of this number. Raises MissingError if the current role sees none."""
        await self.run(requests.job_record(number))
        return AsyncJob(self, number)

    async def jobs(self) -> list[Record]:
        """Return all jobs that the current role sees, the newest first."""
        return await self.run(requests.jobs)

    # Prediction -------------------------------------------------------------------------------------------------

    async def predict(
        self,
        model: str,
        relation: object,
        *,
        keys: Sequence[str] | None = None,
        version: int | None = None,
        probabilities: bool = False,
        frame: str | None = None,
    ) -> Any:
        """Predict as `Tensile.predict` does. In place of an iterator this returns an asynchronous one."""
        rows = self.predict_rows(model, relation, keys=keys, version=version, probabilities=probabilities)
        own = as_frame(relation)
        if own is not None:
            return answers_like(own, [row async for row in rows], probabilities=probabilities)
        if frame is None:
            return rows
        return answers_frame(frame, [row async for row in rows], probabilities=probabilities)

    def predict_rows(
        self,
        model: str,
        relation: object,
        *,
        keys: Sequence[str] | None = None,
        version: int | None = None,
        probabilities: bool = False,
    ) -> AsyncPredictedRows:
        """Return an asynchronous iterator of `PredictedRow` for any relation."""
        if isinstance(keys, str):
            raise RequestError(f"keys is the text {keys!r}", hint="Give a list of columns.")
        rows = self._stream(model, relation, keys=keys, version=version, probabilities=probabilities)
        return AsyncPredictedRows(rows, rows.aclose)

    async def predict_proba(
        self, model: str, relation: object, *, keys: Sequence[str] | None = None, version: int | None = None
    ) -> Any:
        """Return what `Tensile.predict_proba` returns. In place of an iterator this returns an asynchronous one."""
        rows = self.predict_rows(model, relation, keys=keys, version=version, probabilities=True)
        own = as_frame(relation)
        if own is not None:
            return own.like(probability_columns(in_frame_order([row async for row in rows], own.rows)))
        return (dict(row.probabilities or {}) async for row in rows)

    async def predict_into(
        self, model: str, relation: object, output: str, **options: Unpack[PredictIntoOptions]
    ) -> AsyncJob:
        """Enqueue a job that stores the predictions for all rows, which the view `output` then shows."""
        return await self._job(requests.predict_into(model, relation, output, options))

    async def evaluate(self, model: str, relation: object = None, *, version: int | None = None) -> dict[str, float]:
        """Return the metrics on all rows of a relation, or without one on the rows that the training held out."""
        rows = await self.run(
            requests.rows_of_model(
                "tensile_evaluate", requests.METRIC_COLUMNS, relation, model=model, version=version
            )
        )
        return {row["metric"]: row["value"] for row in rows}

    # Models -----------------------------------------------------------------------------------------------------

    async def models(self) -> list[Record]:
        """Return the models that the current role may predict with."""
        return await self.run(requests.models)

    async def versions(self, model: str) -> list[Record]:
        """Return the versions of a model, the newest first, with their data, hyper-parameters and metrics."""
        return await self.run(requests.rows_of_model("tensile_training_info", requests.VERSION_COLUMNS, model=model))

    async def history(self, model: str, *, version: int | None = None) -> list[Record]:
        """Return the losses and metrics of a version's training after each epoch."""
        return await self.run(
            requests.rows_of_model("tensile_training_history", requests.HISTORY_COLUMNS, model=model, version=version)
        )

    async def deploy(self, model: str, version: int | str, *, reason: str | None = None) -> int:
        """Deploy a version (its number, "best" or "previous"), commit, and return its number."""
        return await self.run(requests.deploy(model, version, reason))

    async def rollback(self, model: str, *, reason: str | None = None) -> int:
        """Deploy the version that was deployed before the present one, commit, and return its number."""
        return int(await self.run(requests.call_for_model("tensile_rollback", Integer(), model=model, reason=reason)))

    async def importance(
        self,
        model: str,
        relation: object = None,
        *,
        version: int | None = None,
        repeats: int | None = None,
        seed: int | None = None,
    ) -> list[Record]:
        """Return by how much the metric gets worse where the values of a feature are permuted among the rows."""
        return await self.run(
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

    async def confusion(self, model: str, relation: object = None, *, version: int | None = None) -> list[Record]:
        """Return how many rows of each label are predicted as each label."""
        return await self.run(
            requests.rows_of_model(
                "tensile_confusion_matrix", requests.CONFUSION_COLUMNS, relation, model=model, version=version
            )
        )

    async def roc(
        self, model: str, relation: object = None, *, label: str | None = None, version: int | None = None
    ) -> list[Record]:
        """Return points of the ROC curve of a label, or of all labels."""
        return await self.run(
            requests.rows_of_model(
                "tensile_roc_curve", requests.ROC_COLUMNS, relation, model=model, label=label, version=version
            )
        )

    async def calibration(
        self, model: str, relation: object = None, *, version: int | None = None, bins: int | None = None
    ) -> list[Record]:
        """Return the mean probability of the predicted label beside the share of right predictions, in bins."""
        return await self.run(
            requests.rows_of_model(
                "tensile_calibration",
                requests.CALIBRATION_COLUMNS,
                relation,
                model=model,
                version=version,
                bins=bins,
            )
        )

    async def export_model(self, model: str, path: str | Path, *, version: int | None = None) -> Path:
        """Write a version of a model to a file, by default the deployed one: see `Model.export`."""
        return await self.run(export_version(model, version, Path(path)))

    async def import_model(self, path: str | Path, name: str, *, deploy: bool | None = None) -> int:
        """Write a file as the next version of a model, commit, and return the version's number: see `Model.load`.

        The model belongs to the role of the connection, and is created if there is none. `deploy` None deploys the
        version if no other one is deployed.
        """
        return await self.run(import_version(Path(path), name, deploy=deploy))

    async def rename(self, model: str, new_name: str) -> None:
        """Rename a model, and commit."""
        await self.run(requests.call_for_model("tensile_rename_model", Text(), model=model, new_name=new_name))

    async def drop(self, model: str) -> None:
        """Drop a model with all its versions, and commit."""
        await self.run(requests.call_for_model("tensile_drop_model", Text(), model=model))

    async def grant(self, model: str, role: str, *, privilege: str = "predict") -> None:
        """Let a role predict with a model, or with the privilege "weights" also copy its weights; and commit."""
        await self.run(
            requests.call_for_model("tensile_grant_model", Text(), model=model, grantee=role, privilege=privilege)
        )

    async def revoke(self, model: str, role: str) -> None:
        """Take back what `grant` gave, and commit."""
        await self.run(requests.call_for_model("tensile_revoke_model", Text(), model=model, grantee=role))

    # Transactions -----------------------------------------------------------------------------------------------

    async def run(self, request: Callable[[Connection], Result]) -> Result:
        """Run a request in a transaction of its own and commit it, or in that of the given connection."""
        with translated_errors():
            async with self._transaction() as connection:
                return await connection.run_sync(request)

    async def run_retrying(self, request: Callable[[Connection], Result]) -> Result:
        """Run a request that only reads, and repeat it while the database restarts."""
        if isinstance(self._database, AsyncConnection):
            return await self.run(request)
        return await retrying_async(lambda: self.run(request), retry_s=RETRY_S)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        if isinstance(self._database, AsyncConnection):
            yield self._database
            return
        async with self._database.begin() as connection:
            yield connection

    async def _job(self, request: Callable[[Connection], int]) -> AsyncJob:
        notices: list[str] = []
        number = await self.run(requests.with_notices(request, notices))
        return AsyncJob(self, number, tuple(notices))

    async def _stream(
        self, model: str, relation: object, *, keys: Sequence[str] | None, version: int | None, probabilities: bool
    ) -> AsyncGenerator[PredictedRow, None]:
        with translated_errors():
            async with self._transaction() as connection:
                opened = ExitStack()

                def open_source(own: Connection) -> RelationSource:
                    return opened.enter_context(relation_source(own, relation, views=True, numbered=True))

                name = (await connection.run_sync(open_source)).relation
                assert name is not None
                keys = source_keys(relation, keys)
                statement = prediction_statement(model, name, keys=keys, version=version, probabilities=probabilities)
                # Not `async with`: SQLAlchemy leaves the cursor open there if an iterator is closed early.
                result = await connection.stream(statement, execution_options=STREAMED)
                try:
                    async for row in result:
                        yield predicted_row(row)
                except GeneratorExit:
                    await result.close()
                    await connection.run_sync(lambda _own: opened.close())
                    raise
                await connection.run_sync(lambda _own: opened.close())
