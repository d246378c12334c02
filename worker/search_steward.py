"""The steward's process: adds trials to searches, decides how far each one trains, and ends the searches.

A controller starts it when there is a search, and it ends when there has been none for a while. Several stewards, of
several controllers, can work on the same searches without conflicts: every decision follows from the rows of the
catalog (indb_tensile/trials/trial_order.py), and every write takes effect only if the row is still as it was read, so
it may be repeated. An outage of the database ends the process, and the controller starts it again later. Exit codes
are those of the controller.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

import psycopg

from indb_tensile import settings_loader
from indb_tensile.catalog import searches
from indb_tensile.catalog.connection import Session, is_outage, is_transient
from indb_tensile.catalog.fault_origin import server_message
from indb_tensile.catalog.notify import Listener
from indb_tensile.catalog.searches import ActiveSearch
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.errors import TensileError
from indb_tensile.job import JobId
from indb_tensile.log import start_log

from .searching.search_steps import SearchSteps

IDLE_S = 20.0  # the process ends after so long without a search
_LOCK_TIMEOUT_MS = 100  # if a user has locked a row of a search, the step is tried again later and delays no other
_MOST_FAULTS = 3  # a search fails after this many unexpected errors in a row
_POLL_S = 2.0  # time between two steps of every search if no notification comes
_PAUSE_S = 0.02  # pause after a notification, so that results that come together are decided together

log = logging.getLogger("steward")


def main() -> int:
    """Attend to all searches until there has been none for IDLE_S. Returns the exit code."""
    settings = settings_loader.load(os.environ)
    start_log("steward", settings.log_level.upper())
    try:
        die_with_parent()
        with (
            Session(settings.dsn, application_name="tensile steward", lock_timeout_ms=_LOCK_TIMEOUT_MS) as session,
            closing(Listener(settings.dsn, application_name="tensile steward (listening)")) as listener,
        ):
            SearchSteward(session).run(listener.wait)
    except (TensileError, psycopg.Error) as error:
        log.error("the steward stops: %s", error)  # noqa: TRY400 - no traceback needed
        return error.exit_code if isinstance(error, TensileError) else 1
    return 0


class SearchSteward:
    """Attends to all searches of a database."""

    def __init__(self, session: Session, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock_s = clock_s
        # Cached, because checking a search and counting its grid take time.
        self._steps: dict[JobId, SearchSteps] = {}
        self._faults: dict[JobId, int] = {}  # by search: unexpected errors in a row

    def run(self, wait: Callable[[float], object]) -> None:
        """Attend until there has been no search for IDLE_S.

        `wait` waits up to this many seconds, and returns early, and something true, if a notification has come.
        """
        busy_at_s = self._clock_s()
        while self._clock_s() < busy_at_s + IDLE_S:
            if self.attend():
                busy_at_s = self._clock_s()
            if wait(_POLL_S):
                time.sleep(_PAUSE_S)

    def attend(self) -> int:
        """Take one step in every search. Returns the number of searches."""
        active = self._session.run(searches.active_searches)  # `search` is its number, a JobId: it has a job's row
        for search in active:
            self._step(search)
        numbers = {search.search for search in active}
        self._faults = {number: faults for number, faults in self._faults.items() if number in numbers}
        self._steps = {number: steps for number, steps in self._steps.items() if number in numbers}
        return len(active)

    def _step(self, search: ActiveSearch) -> None:
        """Take one step in a search. A search whose step fails delays no other."""
        number = search.search
        try:
            steps = self._steps_of(search)
            self._session.run(partial(steps.take, running_s=search.running_s), wait_for_locks=False)
        except TensileError as error:
            if is_outage(error):
                raise
            self._end(number, error)
        except psycopg.Error as error:
            if is_outage(error):
                raise
            if is_transient(error):
                log.info("search %s is tried again later: %s", number, server_message(error))
            else:
                self._end(number, TensileError(f"search {number} failed: {server_message(error)}"))
        except Exception as error:
            log.exception("search %s", number)
            self._steps.pop(number, None)
            self._faults[number] = self._faults.get(number, 0) + 1
            if self._faults[number] >= _MOST_FAULTS:
                self._end(number, TensileError(f"search {number} failed: {type(error).__name__}: {error}"))
        else:
            self._faults.pop(number, None)

    def _steps_of(self, search: ActiveSearch) -> SearchSteps:
        steps = self._steps.get(search.search)
        if steps is None or steps.spec != search.spec:
            steps = self._steps[search.search] = SearchSteps(search)
        return steps

    def _end(self, search: JobId, error: TensileError) -> None:
        log.info("search %s has failed: %s", search, error)
        try:
            self._session.run(partial(searches.fail_search, search=search, error=error), wait_for_locks=False)
        except psycopg.Error as obstacle:
            if is_outage(obstacle):
                raise
            log.info(
                "search %s could not be marked as failed, and will be tried again: %s",
                search,
                server_message(obstacle),
            )


if __name__ == "__main__":
    raise SystemExit(main())
