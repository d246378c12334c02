"""Runs one job of tensile_predict_into: reads the relation by COPY, predicts block by block, and fills its table.

The job needs no device (docs/developer/decisions.md says why). This thread receives blocks of rows, and a second
thread decodes, predicts and writes them, so reading overlaps with computing and writing.
"""

import logging
import time
from functools import partial

import psycopg
from psycopg import sql

from indb_tensile import config
from indb_tensile.catalog import drift, models, prediction_tables, snapshots
from indb_tensile.catalog.connection import Connection, UnreachableError
from indb_tensile.catalog.drift import InputAmounts
from indb_tensile.catalog.reader_connection import open_reader, reader_dsn
from indb_tensile.errors import MissingError
from indb_tensile.job import ClaimedJob, ModelVersionId, PredictInto, SnapshotTable
from indb_tensile.learning.decoding.copybinary import Fields, SegmentSink
from indb_tensile.learning.decoding.copyrows import Segment
from indb_tensile.learning.evaluation.input_bins import InputCounter, read_bins
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.relation.relation_scan import ScannedColumns, scan
from indb_tensile.messages import TrainerLink

from ..stored_predictors import predictor_of
from ..training import niceness
from ..training.progress_signs import ProgressSigns
from ..training.retrying_session import RetryingSession
from .block_predictor import BlockPredictor
from .output_table import OutputError, OutputTable

log = logging.getLogger("trainer")

REPORT_S = 0.5  # time between two reports of progress


class PredictionRun:
    """Predicts the rows of one job's relation. Every write carries the job's claim."""

    def __init__(self, settings: config.Settings, link: TrainerLink, job: ClaimedJob) -> None:
        assert job.spec.predict is not None
        self._settings = settings
        self._job = job
        self._request: PredictInto = job.spec.predict
        self._signs = ProgressSigns(link, job.job)
        self._name = f"tensile trainer {job.job}"

    def run(self) -> None:
        """Run the job. Raises TensileError; the job's row then still belongs to the claim."""
        niceness.train()
        with RetryingSession(self._settings.dsn, application_name=self._name, alive=self._signs.give) as session:
            claim = (self._job.job, self._job.claim)
            session.run(lambda c: prediction_tables.start_predicting(c, *claim))
            find = partial(prediction_tables.find_output, claimed=self._job, wish=self._request)
            if session.run(find).complete:
                return
            snapshot = session.run(lambda c: snapshots.find_snapshot(c, self._job.job))
            stored = session.run(lambda c: models.load_version(c, ModelVersionId(self._request.version_id)))
            predictor = predictor_of(stored)
            with RetryingSession(self._settings.dsn, application_name=f"{self._name} (writing)") as writer:
                # A locked table is not waited for: the job returns to the queue.
                session.waiting(
                    lambda: writer.attempt(lambda c: self._fill(c, session, predictor, snapshot)),
                    wait_for_locks=False,
                )

    def _fill(
        self,
        connection: Connection,
        session: RetryingSession,
        predictor: ModelPredictor,
        snapshot: SnapshotTable | None,
    ) -> None:
        """Fill the table and end the job, in one transaction. Safe to repeat after an outage."""
        existing = prediction_tables.find_output(connection, self._job, self._request)
        if existing.complete:
            return
        table = sql.Identifier(prediction_tables.SCHEMA, existing.table)
        with OutputTable(connection, table) as output:
            bins = drift.load_measured_bins(connection, ModelVersionId(self._request.version_id))
            inputs = None if bins is None else InputCounter(read_bins(bins))
            attempt = _Attempt(session, self._signs, self._job, predictor, output, inputs)
            try:
                self._scan(predictor, snapshot, attempt)
            except OutputError as error:
                raise error.cause from error
            rows = attempt.rows
            if snapshot is not None and rows != snapshot.rows:
                raise MissingError(
                    f"the job's snapshot table has {rows} rows, and had {snapshot.rows} when the job was enqueued",
                    detail="In a database that was restored without the rows of schema tensile_data, the tables are "
                    "empty.",
                    hint="Call tensile_predict_into again.",
                )
            end = partial(
                prediction_tables.succeed,
                job=self._job.job,
                claim=self._job.claim,
                version=self._request.version_id,
                rows=rows,
                inputs=attempt.input_amounts,
            )
            output.commit(end)
            log.info("job %s: predicted %d rows", self._job.job, rows)

    def _scan(self, predictor: ModelPredictor, snapshot: SnapshotTable | None, attempt: "_Attempt") -> None:
        spec, keys = self._job.spec, self._request.keys
        columns = ScannedColumns(
            features=tuple(predictor.preprocessor.feature_kinds),
            keys=keys,
            numbers=spec.column_numbers if snapshot is None else {},
            types=dict(zip(keys, self._request.key_types, strict=False)) if snapshot is None else {},
        )
        with open_reader(reader_dsn(self._settings), application_name=f"{self._name} (reading)") as reader:
            scan(
                reader,
                spec.relation if snapshot is None else snapshot.relation,
                columns,
                partial(attempt.begin, columns),
                role_oid=self._job.owner_oid if snapshot is None else None,
                primary_key=None if snapshot is None else snapshot.key,
            )


class _Attempt:
    """One transaction that fills the table, and its progress."""

    def __init__(
        self,
        session: RetryingSession,
        signs: ProgressSigns,
        job: ClaimedJob,
        predictor: ModelPredictor,
        output: OutputTable,
        inputs: InputCounter | None,
    ) -> None:
        assert job.spec.predict is not None
        self._inputs = inputs
        self._session = session
        self._signs = signs
        self._job = job
        self._request = job.spec.predict
        self._predictor = predictor
        self._output = output
        self.rows = 0

    @property
    def input_amounts(self) -> list[InputAmounts]:
        """The counts of the rows by the bins of their inputs, if they were counted."""
        if self._inputs is None:
            return []
        version = ModelVersionId(self._request.version_id)
        return [InputAmounts(version=version, rows=self._inputs.rows, counts=self._inputs.counts.tolist())]

    def begin(self, columns: ScannedColumns, fields: Fields, expected: int | None) -> SegmentSink:
        """Begin to write, and return the function that takes the rows.

        Called again if the relation was changed while it was read: then all rows come again.
        """
        predict = BlockPredictor(
            self._predictor,
            fields,
            columns,
            with_probabilities=self._request.with_probabilities,
            inputs=self._inputs,
        )
        if self._inputs is not None:
            self._inputs.take()  # what an interrupted scan has counted
        places = [f"key_{place}" for place in range(1, len(columns.keys) + 1)]
        self._output.begin([*places, *predict.columns])
        self.rows = 0
        self._started_s = self._due_s = time.monotonic()
        self._expected = expected

        def sink(segments: list[Segment]) -> None:
            for rows, encoded in predict.blocks(segments, self.rows):
                self._output.write(encoded)
                self.rows += rows
                self._report()

        return sink

    def _report(self) -> None:
        self._signs.give()
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + REPORT_S
        rows_per_s = self.rows / max(now_s - self._started_s, 1e-6)
        left = None if self._expected is None else max(0, self._expected - self.rows)
        write = partial(
            prediction_tables.report,
            job=self._job.job,
            claim=self._job.claim,
            rows=self.rows,
            expected=self._expected,
            rows_per_s=rows_per_s,
            eta_s=None if left is None else left / rows_per_s,
        )
        try:
            self._session.attempt(write)
        except (psycopg.Error, UnreachableError) as error:  # progress is written with the next report, or never
            log.info("job %s: progress is not written: %s", self._job.job, str(error).strip())
