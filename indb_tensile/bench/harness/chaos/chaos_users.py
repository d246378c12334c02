"""Disturbs a chaos test with an ordinary role's rights: locks, floods, invalid or cancelled jobs, dropped tables."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psycopg
from psycopg import sql

from indb_tensile.bench.harness.chaos.chaos_events import ChaosEvent, ChaosEventKind
from indb_tensile.bench.harness.chaos.chaos_faults import Action, ActionOutcome
from indb_tensile.bench.harness.chaos.chaos_jobs import OWNERS, SPOILED, Jobs
from indb_tensile.bench.harness.chaos.chaos_rig import PURPOSE, SQL, ChaosRig
from indb_tensile.catalog.connection import connect

_FLOOD = 100  # executions of a statement that sends eight notifications
INVALID_JOBS = (100, 3000)  # fewest and most invalid jobs that a user enqueues


class Users:
    """Disturbances by owners with their own rights. A denied statement disturbs nothing and is counted as denied."""

    def __init__(self, rig: ChaosRig, jobs: Jobs) -> None:
        self._rig = rig
        self._jobs = jobs
        self.denied: dict[ChaosEventKind, int] = {}

    def actions(self) -> Mapping[ChaosEventKind, Action]:
        """Return the action for each kind of event."""
        return {
            ChaosEventKind.LOCK_JOBS: lambda event: self._hold_transaction(event, SQL["lock_jobs"]),
            ChaosEventKind.LOCK_TABLE: self._lock_table,
            ChaosEventKind.LOCK_MODELS: lambda event: self._hold_transaction(event, SQL["lock_models"]),
            ChaosEventKind.FLOOD_NOTIFY: self._flood_notify,
            ChaosEventKind.UNCOMMITTED_MODEL: self._uncommitted_model,
            ChaosEventKind.INVALID_JOBS: self._invalid_jobs,
            ChaosEventKind.CANCEL_JOB: self._cancel_job,
            ChaosEventKind.DROP_TABLE: self._drop_table,
        }

    def invalid_job_figures(self) -> dict[str, int]:
        """Return how many invalid jobs failed with the error of their fault, and how many did not.

        An insert that is denied tests nothing: the catalog has come to refuse these specifications earlier.
        """
        ((failed, otherwise, left),) = self._jobs.run("invalid_jobs_ended")
        return {
            "invalid_jobs_failed": failed,
            "invalid_jobs_denied": self.denied.get(ChaosEventKind.INVALID_JOBS, 0),
            "invalid_jobs_ended_otherwise": otherwise,
            "invalid_jobs_left": left,
        }

    def _owner(self, event: ChaosEvent) -> str:
        return OWNERS[event.pick(len(OWNERS))]

    def _lock_table(self, event: ChaosEvent) -> ActionOutcome:
        """Lock a table and enqueue a training on it, which has to wait for the lock."""
        owner = self._owner(event)
        training = next(training for training in self._jobs.trainings if training.owner == owner)
        locking = sql.SQL(SQL["lock_table"]).format(sql.Identifier(*training.table.split(".")))
        return {"job": self._jobs.enqueue(training), **self._hold_transaction(event, locking)}

    def _hold_transaction(
        self, event: ChaosEvent, statement: str | sql.Composed, values: Mapping[str, str] | None = None
    ) -> ActionOutcome:
        """Execute a statement in an owner's transaction, and roll that back when the event is over."""
        owner = self._owner(event)
        with connect(self._rig.dsn(owner), application_name=PURPOSE) as connection:
            connection.execute(SQL["bound_lock_wait"])
            connection.execute(SQL["begin"])
            outcome: ActionOutcome = {"owner": owner}
            try:
                connection.execute(statement.encode() if isinstance(statement, str) else statement, values)
                time.sleep(event.hold_s)
            except (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable) as error:
                self._deny(event)
                outcome = {"owner": owner, "denied": str(error).splitlines()[0]}
            with suppress(psycopg.OperationalError):
                connection.execute(SQL["rollback"])
        return outcome

    def _flood_notify(self, event: ChaosEvent) -> ActionOutcome:
        owner = self._owner(event)
        ((count,),) = self._jobs.run("flood", owner, times=_FLOOD)
        return {"owner": owner, "notifications": count}

    def _uncommitted_model(self, event: ChaosEvent) -> ActionOutcome:
        """Insert a model's name in a transaction that is rolled back, while another owner trains that model."""
        owner = self._owner(event)
        training = next(training for training in self._jobs.trainings if training.owner != owner)
        name = f"chaos_new_{event.number}"
        with connect(self._rig.dsn(owner), application_name=PURPOSE) as connection:
            connection.execute(SQL["begin"])
            outcome = {"owner": owner, "model": name}
            try:
                connection.execute(SQL["reserve_model"].encode(), {"model": name})
                outcome["job"] = str(self._jobs.enqueue(training, model=name))
            except (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable) as error:
                self._deny(event)
                outcome["denied"] = str(error).splitlines()[0]
            time.sleep(event.hold_s)
            with suppress(psycopg.OperationalError):
                connection.execute(SQL["rollback"])
        return outcome

    def _invalid_jobs(self, event: ChaosEvent) -> ActionOutcome:
        lowest, highest = INVALID_JOBS
        count = lowest + int(event.choice * (highest - lowest))
        try:
            self._jobs.run("invalid_jobs", self._owner(event), count=count)
        except (psycopg.IntegrityError, psycopg.ProgrammingError, psycopg.DataError) as error:
            self._deny(event)
            return {"count": count, "denied": str(error).splitlines()[0]}
        return {"count": count}

    def _cancel_job(self, event: ChaosEvent) -> ActionOutcome:
        jobs = self._victims()
        if not jobs:
            return {"nobody": True}
        job = jobs[event.pick(len(jobs))]
        self._jobs.cancelled.add(job)  # before the request, since its answer may be lost
        ((accepted,),) = self._jobs.run("cancel", self._jobs.asked[job].owner, job=job)
        return {"job": job, "taken": accepted}

    def _victims(self) -> Sequence[int]:
        return [job for job in self._jobs.unended() if job in self._jobs.asked]

    def _drop_table(self, event: ChaosEvent) -> ActionOutcome:
        """Enqueue a training on a table, and drop the table before, during or after its reading."""
        owner = self._owner(event)
        table = f"{owner}.dropped_{event.number}"
        salt = OWNERS.index(owner) + 1
        training = next(training for training in self._jobs.trainings if training.owner == owner)
        self._jobs.make_table(table, salt)
        job = self._jobs.enqueue(training, table=table, model=f"{SPOILED}{event.number}")
        self._jobs.run_on("drop_table", owner, table)
        return {"job": job, "table": table}

    def _deny(self, event: ChaosEvent) -> None:
        self.denied[event.kind] = self.denied.get(event.kind, 0) + 1
