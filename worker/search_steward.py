"""The steward's process: adds trials to searches, decides how far each one trains, and ends the searches.

A controller starts it when there is a search, and it ends when there has been none for a while. Several stewards, of
several controllers, do the same work without harm: every decision follows from the rows of the catalog
(indb_tensile/trials/trial_order.py), and every write is guarded and may be repeated. Exit codes are those of the
controller.
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
from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, Connection, Session, is_outage
from indb_tensile.catalog.fault_origin import server_message
from indb_tensile.catalog.notify import Listener
from indb_tensile.catalog.searches import ActiveSearch
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.errors import DatabaseError, TensileError
from indb_tensile.job import JobId
from indb_tensile.log import start_log

from .searching.search_step import SearchStep

IDLE_S = 20.0  # without a search, after which the process ends
_POLL_S = 2.0  # between two looks without a notification
_PAUSE_S = 0.02  # after a notification: results that come together are decided together

log = logging.getLogger("steward")


def main() -> int:
    """Attend to all searches until there is none. Returns the exit code."""
    settings = settings_loader.load(os.environ)
    start_log("steward", settings.log_level.upper())
    try:
        die_with_parent()
        with (
            Session(
                settings.dsn, application_name="tensile steward", lock_timeout_ms=WORK_LOCK_TIMEOUT_MS
            ) as session,
            closing(Listener(settings.dsn, application_name="tensile steward (listening)")) as listener,
        ):
            SearchSteward(session).run(listener.wait)
    except (TensileError, psycopg.Error) as error:
        log.error("searches are not attended to: %s", error)  # noqa: TRY400 - no traceback needed
        return error.exit_code if isinstance(error, TensileError) else 1
    return 0


class SearchSteward:
    """Attends to all searches of a database."""

    def __init__(self, session: Session, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock_s = clock_s
        self._failing: set[JobId] = set()  # searches of which the last step failed

    def run(self, wait: Callable[[float], object]) -> None:
        """Attend until there has been no search for a while. `wait` returns early if something has changed."""
        busy_at_s = self._clock_s()
        while self._clock_s() < busy_at_s + IDLE_S:
            if self.attend():
                busy_at_s = self._clock_s()
            if wait(_POLL_S):
                time.sleep(_PAUSE_S)

    def attend(self) -> int:
        """Take one step in every search. Returns the number of searches."""
        active = self._session.run(searches.active_searches)
        for search in active:
            self._step(search)
        self._failing &= {search.search for search in active}
        return len(active)

    def _step(self, search: ActiveSearch) -> None:
        """Take one step in a search. A search whose step fails delays no other."""
        try:
            self._session.run(SearchStep(search).take)
        except (psycopg.Error, DatabaseError) as error:
            if is_outage(error):
                raise
            self._report(search.search, server_message(error))
        except TensileError as error:
            self._session.run(partial(_fail, search=search.search, error=error))
        except Exception:
            if search.search not in self._failing:
                log.exception("search %s is looked at again later", search.search)
            self._failing.add(search.search)
        else:
            self._failing.discard(search.search)

    def _report(self, search: JobId, reason: str) -> None:
        """Log the first of several failures in a row."""
        if search not in self._failing:
            log.warning("search %s is looked at again later: %s", search, reason)
        self._failing.add(search)


def _fail(connection: Connection, search: JobId, error: TensileError) -> None:
    log.info("search %s fails: %s", search, error)
    searches.fail_search(connection, search, error)


if __name__ == "__main__":
    raise SystemExit(main())
