"""Checkpoints that cannot be kept now are tried again later, while the training goes on."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

import psycopg

from indb_tensile.catalog.outage import words
from indb_tensile.errors import LostClaimError, TensileError
from indb_tensile.learning.artifacts import Saving

from .diary import Diary

log = logging.getLogger("trainer")

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class Taking(Protocol):
    """The part of `Checkpointing` that is used."""

    def due(self) -> bool:
        """Whether enough has been trained since the last checkpoint."""
        ...

    def save(self, take: Callable[[], Saving]) -> None:
        """Take a checkpoint and keep it."""
        ...


class Keeping:
    """Keeps checkpoints when they are due, and pauses longer and longer where that fails."""

    def __init__(self, checkpointing: Taking, diary: Diary, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._checkpointing = checkpointing
        self._diary = diary
        self._clock_s = clock_s
        self._pause_s = 0.0
        self._retry_s = 0.0

    def save(self, take: Callable[[], Saving], epochs_done: int) -> None:
        """Keep a checkpoint if one is due. Raises LostClaimError; no other fault ends the training."""
        if self._clock_s() < self._retry_s or not self._checkpointing.due():
            return
        try:
            self._checkpointing.save(take)
        except LostClaimError:
            raise
        except (TensileError, psycopg.Error, OSError) as error:
            self._put_off(error, epochs_done)
        else:
            self._pause_s = 0.0

    def _put_off(self, error: Exception, epochs_done: int) -> None:
        """The log and the job's history say so once, not at every attempt."""
        if not self._pause_s:
            job = self._diary.job.job
            log.warning("job %s: no checkpoint now, and the training goes on: %s", job, words(error))
            self._diary.tell("checkpoint_put_off", {"reason": words(error), "epochs_done": epochs_done})
        self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)
        self._retry_s = self._clock_s() + self._pause_s
