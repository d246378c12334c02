"""Cleans up once a minute: old rows of the catalog, stale checkpoints and long logs.

It has its own thread and database session, so no claim, heartbeat or trainer waits for it. Every step is bounded and
skips rows that other sessions have locked. Several controllers may run the same step at the same time. A step that
fails is logged and tried again in the next round.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from indb_tensile.catalog import jobs, models, prediction_tables, retention, searches, snapshots, stored_checkpoints
from indb_tensile.catalog.checkpoint_files import CheckpointFiles
from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, Connection, Session
from indb_tensile.controller.logrotation import rotate
from indb_tensile.controller.service_sockets import remove_left_sockets
from indb_tensile.errors import TensileError

log = logging.getLogger("controller")

PERIOD_S = 60.0
_DEPENDENT_STATEMENTS = 20  # statements in one round; each settles up to 1,200 jobs
_SNAPSHOT_STATEMENTS = 50  # statements in one round; the next round continues
_SAMPLES = 5000  # samples that one round thins; a controller adds 30 in a minute
ROWS = 1000  # rows of one step, which take the database some tens of milliseconds
LOGS = ("controller*.log", "postgres.log")  # log files of `tensile up`, one for each controller


@dataclass(frozen=True, slots=True, kw_only=True)
class HousekeepingStep:
    """One clean-up step. `do` returns a description of what was done, or an empty text."""

    name: str
    do: Callable[[], str]


class Housekeeping:
    """Runs every step at the start and then once a period, in the given order, until it is closed."""

    def __init__(self, steps: Sequence[HousekeepingStep], *, period_s: float = PERIOD_S) -> None:
        self._steps = steps
        self._period_s = period_s
        self._failing: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the step that runs now."""
        self._closed.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while not self._closed.is_set():
            for step in self._steps:
                if self._closed.is_set():
                    return
                self._do(step)
            self._closed.wait(self._period_s)

    def _do(self, step: HousekeepingStep) -> None:
        try:
            outcome = step.do()
        except (TensileError, psycopg.Error, OSError) as error:
            level = logging.DEBUG if step.name in self._failing else logging.WARNING
            log.log(level, "housekeeping, %s: %s", step.name, str(error).strip())
            self._failing.add(step.name)
        except Exception:
            log.exception("housekeeping, %s", step.name)
        else:
            self._failing.discard(step.name)
            if outcome:
                log.info("housekeeping, %s: %s", step.name, outcome)


class CatalogSteps:
    """Makes steps that work on the catalog. Their session is opened when it is first needed."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._session: Session | None = None

    def step(self, name: str, action: Callable[[Connection], str]) -> HousekeepingStep:
        """Return a step that runs this action on the session."""
        return HousekeepingStep(name=name, do=lambda: self._open().run(action))

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.close()

    def _open(self) -> Session:
        if self._session is None:
            self._session = Session(
                self._dsn,
                application_name="tensile housekeeping",
                retry_s=0.0,
                lock_timeout_ms=WORK_LOCK_TIMEOUT_MS,
            )
        return self._session


def steps(
    chores: CatalogSteps,
    *,
    state_directory: Path,
    service_directory: Path | None,
    host: str,
    log_bytes: int,
    log_files: int,
    call_steward: Callable[[], None],
) -> tuple[HousekeepingStep, ...]:
    """Return all steps of a controller. `call_steward` starts the steward of searches."""
    return (
        chores.step("old rows", remove_old_rows),
        chores.step("samples", thin_samples),
        chores.step("dropped models", delete_dropped_models),
        chores.step("dependent jobs", settle_dependent_jobs),
        chores.step("searches", lambda c: call_for_searches(c, call_steward)),
        chores.step("snapshots", drop_snapshots),
        chores.step("predictions", drop_predictions),
        chores.step("checkpoints", lambda c: remove_stale_checkpoints(c, state_directory, host)),
        chores.step("sockets", lambda c: remove_left_sockets(c, service_directory)),
        HousekeepingStep(name="logs", do=lambda: rotate_logs(state_directory, log_bytes, log_files)),
    )


def remove_old_rows(connection: Connection) -> str:
    """Remove some rows that are older than their retention."""
    removed = retention.vacuum_step(connection, ROWS)
    return "removed " + ", ".join(f"{count} {kind}" for kind, count in removed.items()) if removed else ""


def thin_samples(connection: Connection) -> str:
    """Keep fewer samples of the devices' memory the older they are."""
    retention.thin_samples(connection, _SAMPLES)
    return ""


def delete_dropped_models(connection: Connection) -> str:
    """Delete some of the models that users dropped.

    Their bytes and grants are deleted too, and names that no training needs any more.
    """
    deleted = models.delete_dropped(connection, ROWS)
    return f"deleted {deleted}" if deleted else ""


def settle_dependent_jobs(connection: Connection) -> str:
    """Start or fail jobs whose awaited jobs have ended, where the end of those could not do it."""
    settled = 0
    for _ in range(_DEPENDENT_STATEMENTS):
        count = jobs.settle_dependents(connection)
        settled += count
        if not count:
            break
    return f"settled {settled}" if settled else ""


def call_for_searches(connection: Connection, call_steward: Callable[[], None]) -> str:
    """Start the steward if there are searches. Usually a notification has done that."""
    if searches.has_searches(connection):
        call_steward()
    return ""


def drop_snapshots(connection: Connection) -> str:
    """Drop snapshot tables of jobs that have ended or are gone, a few in each statement."""
    return _dropped(snapshots.drop_ended, connection)


def drop_predictions(connection: Connection) -> str:
    """Drop tables of predictions that no view shows, or whose job failed, a few in each statement."""
    return _dropped(prediction_tables.drop_unused, connection)


def _dropped(drop: Callable[[Connection], int], connection: Connection) -> str:
    dropped = 0
    for _ in range(_SNAPSHOT_STATEMENTS):
        count = drop(connection)
        dropped += count
        if not count:
            break
    return f"dropped {dropped}" if dropped else ""


def remove_stale_checkpoints(connection: Connection, state_directory: Path, host: str) -> str:
    """Remove this host's checkpoint files of jobs that have ended, here or on another host after a rescue."""
    files = CheckpointFiles(state_directory, stored_checkpoints.installation(connection), host)
    removed = files.remove_stale(stored_checkpoints.host_checkpoints(connection, host))
    return f"removed {removed} files" if removed else ""


def rotate_logs(state_directory: Path, log_bytes: int, log_files: int) -> str:
    """Rotate each log file that has reached its size limit."""
    logs = sorted(path for pattern in LOGS for path in state_directory.glob(pattern))
    rotated = [path.name for path in logs if rotate(path, log_bytes, log_files)]
    return f"rotated {', '.join(rotated)}" if rotated else ""
