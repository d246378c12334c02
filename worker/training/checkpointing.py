"""Decides when a job's checkpoints are taken and where they are stored, and finds the one to resume from.

Files on this host cause no WAL. Checkpoints in the catalog can be read by every host. See `checkpoint_store` in
config.py.
"""

import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from indb_tensile.catalog import jobs, stored_checkpoints
from indb_tensile.catalog.checkpoint_files import CheckpointFiles
from indb_tensile.catalog.connection import Session, UnreachableError
from indb_tensile.catalog.stored_checkpoints import StoredCheckpoint
from indb_tensile.config import Settings
from indb_tensile.errors import DatabaseError, StorageError
from indb_tensile.job import CheckpointStore, ClaimedJob
from indb_tensile.learning.models.artifacts import Checkpoint, SaveableCheckpoint

COST_FACTOR = 9  # training between two checkpoints takes 9 times as long as one, so checkpoints take 1/10 of the time

log = logging.getLogger("trainer")


class Checkpointing:
    """Takes, stores and loads the checkpoints of one claimed job."""

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
        self._ended_s = clock_s()  # end of the last attempt to save a checkpoint, successful or not
        # Durations of the last two attempts. The shorter counts, since the other may have waited for the database.
        self._costs_s: tuple[float, ...] = ()
        self._catalog_s = self._ended_s

    def due(self) -> bool:
        """Return whether enough time has passed since the last checkpoint."""
        pause_s = max(self._settings.checkpoint_s, COST_FACTOR * min(self._costs_s, default=0.0))
        return self._clock_s() >= self._ended_s + pause_s

    def save(self, take: Callable[[], SaveableCheckpoint], *, for_all_hosts: bool = False) -> None:
        """Take a checkpoint and store it where the setting says, and `for_all_hosts` in the catalog, too.

        Raises LostClaimError, and StorageError if it cannot be stored now. The previous checkpoint then stays, and
        the next one is due as after a success.
        """
        started_s = self._clock_s()
        try:
            self._store(take(), for_all_hosts=for_all_hosts)
        except psycopg.errors.DiskFull as error:
            raise StorageError(
                f"the checkpoint of job {self._job.job} cannot be stored: {error.diag.message_primary}",
                hint="Free space on the database's disk.",
            ) from error
        finally:
            self._ended_s = self._clock_s()
            self._costs_s = (*self._costs_s[-1:], self._ended_s - started_s)

    def load(self, data_digest: str) -> Checkpoint | None:
        """Return the most advanced checkpoint that this host can read and that was taken on the same rows, or None.

        A checkpoint that cannot be used is recorded in an event of the job, and the next one is tried.
        """
        stored = self._session.run(lambda c: stored_checkpoints.checkpoints(c, self._job.job))
        candidates = [candidate for candidate in stored if candidate.position.get("data_digest") == data_digest]
        candidates.sort(
            key=lambda candidate: (
                -int(candidate.position.get("epochs_done", 0)),
                -int(candidate.position.get("steps_done", 0)),
                candidate.host != self._host,
            )
        )
        for candidate in candidates:
            try:
                checkpoint = Checkpoint.from_bytes(self._read(candidate))
            except UnreachableError:
                raise
            except (StorageError, DatabaseError) as error:
                self._record_event("checkpoint_skipped", candidate, reason=error.message)
                continue
            self._record_event("resumed", candidate)
            return checkpoint
        return None

    def _store(self, checkpoint: SaveableCheckpoint, *, for_all_hosts: bool) -> None:
        store = self._settings.checkpoint_store
        if for_all_hosts and store == "local":
            raise StorageError(
                f"no other host could read the checkpoint of job {self._job.job}",
                hint='Set checkpoint_store to "auto" or "catalog".',
            )
        failure: StorageError | None = None
        if store != "catalog":
            try:
                self._store_file(checkpoint)
            except StorageError as error:
                failure = error
        if store == "catalog" or (store == "auto" and (for_all_hosts or self._catalog_is_due(failure))):
            job, claim = self._job.job, self._job.claim
            self._session.run(
                lambda c: stored_checkpoints.save_checkpoint(c, job, claim, checkpoint.parts(), checkpoint.position)
            )
            self._catalog_s = self._clock_s()
        elif failure is not None:
            raise failure

    def _store_file(self, checkpoint: SaveableCheckpoint) -> None:
        files, job, claim = self._open_files(), self._job.job, self._job.claim
        written = files.write(job, checkpoint.parts())
        stored = StoredCheckpoint(
            store=CheckpointStore.LOCAL,
            host=self._host,
            position=checkpoint.position,
            size_bytes=written.size_bytes,
            digest=written.digest,
        )
        self._session.run(lambda c: stored_checkpoints.record_checkpoint(c, job, claim, stored))
        files.keep_only(job, stored.digest)

    def _catalog_is_due(self, failure: StorageError | None) -> bool:
        if self._clock_s() < self._catalog_s + self._settings.checkpoint_catalog_s:
            return False
        return failure is not None or self._session.run(lambda c: stored_checkpoints.has_other_hosts(c, self._host))

    def _read(self, stored: StoredCheckpoint) -> bytes:
        """Read a checkpoint. Raises StorageError or DatabaseError if it is not available on this host, or damaged."""
        if stored.store is CheckpointStore.CATALOG:
            return self._session.run(lambda c: stored_checkpoints.load_checkpoint(c, self._job.job, stored))
        if stored.host != self._host:
            raise StorageError(f"the file is on host {stored.host}, and this is {self._host}")
        return self._open_files().read(self._job.job, stored.digest, stored.size_bytes)

    def _open_files(self) -> CheckpointFiles:
        if self._files is None:
            installation = self._session.run(stored_checkpoints.installation)
            self._files = CheckpointFiles(Path(self._settings.state_dir), installation, self._host)
        return self._files

    def _record_event(self, kind: str, stored: StoredCheckpoint, **detail: str) -> None:
        log.info(
            "job %s: %s: %s %s %s", self._job.job, kind, stored.store.value, stored.host, detail.get("reason", "")
        )
        position = {name: stored.position[name] for name in ("epochs_done", "steps_done") if name in stored.position}
        about = {"store": stored.store.value, "epochs_done": None, **position, **detail}
        if stored.host:
            about["host"] = stored.host
        job, claim = self._job.job, self._job.claim
        self._session.run(lambda c: jobs.record_event(c, job, claim, kind, about))
