"""A trainer's database connection: waits for an unreachable database as long as the job's claim lasts.

There is no time limit: when the lease ends, the controller kills its trainers, and if another worker has the claim by
then, the next write raises LostClaimError. Work that the training does not need is tried once (`attempt`); if that
fails, the caller tries again later.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, Connection, Session, is_blocked, is_transient
from indb_tensile.catalog.fault_origin import server_message
from indb_tensile.errors import DatabaseError

log = logging.getLogger("trainer")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

Result = TypeVar("Result")


class RetryingSession(Session):
    """A connection that is opened again as often as needed. `alive` is called between two attempts."""

    def __init__(
        self,
        dsn: str,
        *,
        application_name: str,
        alive: Callable[[], None] = lambda: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._alive = alive
        self._pause = pause
        self.waiting(
            lambda: Session.__init__(
                self,
                dsn,
                application_name=application_name,
                retry_s=0.0,
                lock_timeout_ms=WORK_LOCK_TIMEOUT_MS,
            )
        )

    def run(self, action: Callable[[Connection], Result], *, wait_for_locks: bool = True) -> Result:
        """Do `action` until the database can do it. It must be safe to repeat. Other errors are raised at once."""
        return self.waiting(lambda: self.attempt(action), wait_for_locks=wait_for_locks)

    def attempt(self, action: Callable[[Connection], Result]) -> Result:
        """Do `action` once. Raises UnreachableError, or the errors of psycopg."""
        return Session.run(self, action, wait_for_locks=False)

    def waiting(self, action: Callable[[], Result], *, wait_for_locks: bool = True) -> Result:
        """Do `action` until it raises no transient error of the database. It must be safe to repeat."""
        attempts = Retrying(
            retry=retry_if_exception(lambda e: is_transient(e) and (wait_for_locks or not is_blocked(e))),
            wait=wait_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S),
            before_sleep=self._before_pause,
            sleep=self._pause,
            reraise=True,
        )
        result = attempts(action)
        if attempts.statistics["attempt_number"] > 1:
            log.info("the database is back")
        return result

    def _before_pause(self, state: RetryCallState) -> None:
        """Log the failure, the first one for everybody, and call `alive`."""
        assert state.outcome is not None
        error = state.outcome.exception()
        assert isinstance(error, psycopg.Error | DatabaseError)
        level = logging.WARNING if state.attempt_number == 1 else logging.DEBUG
        log.log(level, "waiting for the database: %s", server_message(error))
        self._alive()

    @property
    def once(self) -> Session:
        """The same connection as a session whose `run` tries once and does not wait."""
        return _Once(self)


class _Once(Session):
    """A session that tries every action once."""

    def __init__(self, steady: RetryingSession) -> None:
        self._steady = steady

    def run(self, action: Callable[[Connection], Result], *, wait_for_locks: bool = True) -> Result:
        return self._steady.attempt(action)

    def close(self) -> None:
        self._steady.close()
