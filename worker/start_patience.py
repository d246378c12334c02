"""Starts a controller as soon as its database answers."""

import logging
from collections.abc import Callable

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_fixed

from indb_tensile.catalog.connection import UnreachableError, answers
from indb_tensile.config import Settings
from indb_tensile.errors import TensileError

_START_PAUSE_S = 2.0

log = logging.getLogger("controller")


def with_patience(run: Callable[[Settings], None], settings: Settings) -> None:
    """Run the controller. If the database goes away before all objects are built, wait for it and start again."""
    attempts = Retrying(
        retry=retry_if_exception_type(UnreachableError),
        stop=_StartPatience(settings).is_over,
        wait=wait_fixed(_START_PAUSE_S),
        before_sleep=_log_unreachable,
        reraise=True,
    )
    attempts(run, settings)


class _StartPatience:
    """Decides after each failed start whether to wait for the database.

    A server that starts up or shuts down is waited for without limit, and a server that does not answer for at most
    `start_patience_s`. A server that accepts connections and still refuses this role, password or database is not
    waited for.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._silent_s = 0.0
        self._refusals = 0

    def is_over(self, _: RetryCallState) -> bool:
        """Return whether to give up."""
        answer = answers(self._settings.dsn)
        self._silent_s = self._silent_s + _START_PAUSE_S if answer is None else 0.0
        self._refusals += answer is True  # the first refusal may come from a server that has just restarted
        return self._silent_s > self._settings.start_patience_s or self._refusals > 1


def _log_unreachable(state: RetryCallState) -> None:
    assert state.outcome is not None
    error = state.outcome.exception()
    assert isinstance(error, UnreachableError)
    log.warning("%s Trying again until the database answers.", sentences(error))


def sentences(error: TensileError) -> str:
    """Return an error's message, detail and hint as sentences of one line."""
    return " ".join(f"{part.rstrip('.')}." for part in (error.message, error.detail, error.hint) if part)
