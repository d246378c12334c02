"""Saves checkpoints when they are due. One that fails is tried again later, while the training continues."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

import psycopg

from indb_tensile.backoff import Backoff
from indb_tensile.catalog.fault_origin import server_message
from indb_tensile.errors import LostClaimError, TensileError
from indb_tensile.learning.models.artifacts import SaveableCheckpoint

from .progress_writer import ProgressWriter

log = logging.getLogger("trainer")

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class CheckpointSource(Protocol):
    """The methods of `Checkpointing` that are used here."""

    def due(self) -> bool:
        """Return whether enough time has passed since the last checkpoint."""
        ...

    def save(self, take: Callable[[], SaveableCheckpoint], *, for_all_hosts: bool = False) -> None:
        """Take a checkpoint and store it."""
        ...


class CheckpointRetry:
    """Saves checkpoints when they are due. After failures in a row the pauses become longer."""

    def __init__(
        self,
        checkpointing: CheckpointSource,
        progress_writer: ProgressWriter,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpointing = checkpointing
        self._progress_writer = progress_writer
        self._clock_s = clock_s
        self._backoff = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        self._retry_s = 0.0

    def save(self, take: Callable[[], SaveableCheckpoint], epochs_done: int) -> None:
        """Save a checkpoint if one is due. Raises LostClaimError; no other error ends the training."""
        if self._clock_s() >= self._retry_s and self._checkpointing.due():
            self.save_now(take, epochs_done)

    def save_now(
        self, take: Callable[[], SaveableCheckpoint], epochs_done: int, *, for_all_hosts: bool = False
    ) -> bool:
        """Save a checkpoint, due or not, and return whether that succeeded. Other hosts can read it `for_all_hosts`.

        Raises LostClaimError; no other error ends the training.
        """
        try:
            self._checkpointing.save(take, for_all_hosts=for_all_hosts)
        except LostClaimError:
            raise
        except (TensileError, psycopg.Error, OSError) as error:
            self._put_off(error, epochs_done)
            return False
        self._backoff.succeed()
        return True

    def _put_off(self, error: Exception, epochs_done: int) -> None:
        """Record the failure in the log and the job's history once, not at every attempt."""
        if not self._backoff.failures:
            job = self._progress_writer.job.job
            log.warning(
                "job %s: the checkpoint was not saved, and training continues: %s", job, server_message(error)
            )
            self._progress_writer.tell(
                "checkpoint_put_off", {"reason": server_message(error), "epochs_done": epochs_done}
            )
        self._retry_s = self._clock_s() + self._backoff.fail()
