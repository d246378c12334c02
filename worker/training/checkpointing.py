"""When a job's checkpoints are taken, where they are kept, and which one an interrupted job goes on from.

Files on this host cost no WAL; what is in the catalog can be read by every host. See `checkpoint_store` in config.py.
"""

import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from indb_tensile.catalog import checkpoints, jobs
from indb_tensile.catalog.checkpoint_files import CheckpointFiles
from indb_tensile.catalog.checkpoints import StoredCheckpoint
from indb_tensile.catalog.connection import Session, UnreachableError
from indb_tensile.config import Settings
from indb_tensile.errors import DatabaseError, StorageError
from indb_tensile.job import CheckpointStore, ClaimedJob
from indb_tensile.learning.artifacts import Checkpoint, Saving

COST_FACTOR = 9  # training between two checkpoints takes nine times as long as a checkpoint: a tenth of the whole

log = logging.getLogger("trainer")


class Checkpointing:
    """The checkpoints of one claimed job."""

    def __init__(
        self,
        session: Session,
        job: ClaimedJob,
        settings: Settings,
        *,
        host: str | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._job = job
        self._settings = settings
        self._host = host or socket.gethostname()
        self._clock_s = clock_s
        self._files: CheckpointFiles | None = None
        self._ended_s = clock_s()  # the last attempt at a checkpoint, successful or not
        self._costs_s: tuple[float, ...] = ()  # of the last two: one that waited for the database is no measure
        self._catalog_s = self._ended_s

    def due(self) -> bool:
        """Whether enough has been trained since the last checkpoint."""
        pause_s = max(self._settings.checkpoint_s, COST_FACTOR * min(self._costs_s, default=0.0))
        return self._clock_s() >= self._ended_s + pause_s

    def save(self, take: Callable[[], Saving]) -> None:
        """Take a checkpoint and keep it as the setting says.

        Raises LostClaimError, and StorageError where it cannot be stored now: the previous one is still there, and
        the next is due as after a success.
        """
        started_s = self._clock_s()
        try:
            self._keep(take())
        except psycopg.errors.DiskFull as error:
            raise StorageError(
                f"the checkpoint of job {self._job.job} cannot be stored: {error.diag.message_primary}",
                hint="Free space on the database's disk.",
            ) from error
        finally:
            self._ended_s = self._clock_s()
            self._costs_s = (*self._costs_s[-1:], self._ended_s - started_s)

    def load(self, data_digest: str) -> Checkpoint | None:
        """The checkpoint furthest in the training that this host can read and that was taken on these rows.

        One that cannot be used is said in an event of the job, and the next one is tried.
        """
        stored = self._session.run(lambda c: checkpoints.checkpoints(c, self._job.job))
        fitting = [one for one in stored if one.position.get("data_digest") == data_digest]
        fitting.sort(key=lambda one: (-int(one.position.get("epochs_done", 0)), one.host != self._host))
        for one in fitting:
            try:
                checkpoint = Checkpoint.from_bytes(self._read(one))
            except UnreachableError:
                raise
            except (StorageError, DatabaseError) as error:
                self._tell("checkpoint_skipped", one, reason=error.message)
                continue
            self._tell("resumed", one)
            return checkpoint
        return None

    def _keep(self, checkpoint: Saving) -> None:
        store = self._settings.checkpoint_store
        failure: StorageError | None = None
        if store != "catalog":
            try:
                self._keep_in_file(checkpoint)
            except StorageError as error:
                failure = error
        if store == "catalog" or (store == "auto" and self._catalog_is_due(failure)):
            job, claim = self._job.job, self._job.claim
            self._session.run(
                lambda c: checkpoints.save_checkpoint(c, job, claim, checkpoint.parts(), checkpoint.position)
            )
            self._catalog_s = self._clock_s()
        elif failure is not None:
            raise failure

    def _keep_in_file(self, checkpoint: Saving) -> None:
        files, job, claim = self._open_files(), self._job.job, self._job.claim
        written = files.write(job, checkpoint.parts())
        stored = StoredCheckpoint(
            store=CheckpointStore.LOCAL,
            host=self._host,
            position=checkpoint.position,
            size_bytes=written.size_bytes,
            digest=written.digest,
        )
        self._session.run(lambda c: checkpoints.record_checkpoint(c, job, claim, stored))
        files.keep_only(job, stored.digest)

    def _catalog_is_due(self, failure: StorageError | None) -> bool:
        if self._clock_s() < self._catalog_s + self._settings.checkpoint_catalog_s:
            return False
        return failure is not None or self._session.run(lambda c: checkpoints.has_other_hosts(c, self._host))

    def _read(self, stored: StoredCheckpoint) -> bytes:
        """Raises StorageError or DatabaseError where it cannot be had here, or is damaged."""
        if stored.store is CheckpointStore.CATALOG:
            return self._session.run(lambda c: checkpoints.load_checkpoint(c, self._job.job, stored))
        if stored.host != self._host:
            raise StorageError(f"the file is on host {stored.host}, and this is {self._host}")
        return self._open_files().read(self._job.job, stored.digest, stored.size_bytes)

    def _open_files(self) -> CheckpointFiles:
        if self._files is None:
            installation = self._session.run(checkpoints.installation)
            self._files = CheckpointFiles(Path(self._settings.state_dir), installation, self._host)
        return self._files

    def _tell(self, kind: str, stored: StoredCheckpoint, **detail: str) -> None:
        log.info(
            "job %s: %s: %s %s %s", self._job.job, kind, stored.store.value, stored.host, detail.get("reason", "")
        )
        about = {"store": stored.store.value, "epochs_done": stored.position.get("epochs_done"), **detail}
        if stored.host:
            about["host"] = stored.host
        job, claim = self._job.job, self._job.claim
        self._session.run(lambda c: jobs.record_event(c, job, claim, kind, about))
