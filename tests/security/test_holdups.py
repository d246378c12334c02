"""Check that an open transaction of one user delays no other role's cancel, claim, publication or prediction.

Each attack that PostgreSQL lets a user run stays in an open transaction, with every lock that it took. Meanwhile
another owner and the worker do their usual work, with the longest allowed wait as lock_timeout.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import jobs, models, plans
from indb_tensile.catalog.jobs import Progress
from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.catalog.usage import JobUsage
from indb_tensile.job import ModelVersionId
from tests.catalog.enqueue import enqueue, publication, register
from tests.conftest import Database
from tests.nightly import nightly_unless
from tests.security.attack_runs import Outcome, State, run_attack
from tests.security.attacks import Attack, attacks
from tests.security.owned_objects import OWNER, VICTIM, OwnedObjects, create_owned_objects

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]
LONGEST_WAIT = "2s"  # the longest wait for another user's locks
# The last error is raised by a statement after another statement of the same transaction has met a lock.
_LOCK_ERRORS = (psycopg.errors.LockNotAvailable, psycopg.errors.InFailedSqlTransaction)


@pytest.mark.parametrize(
    ("role", "every"),
    nightly_unless(lambda case: case == (OWNER, 8), [("demo", 1), ("bob", 1), (OWNER, 1), (OWNER, 8)]),
)
def test_open_transaction_of_a_user_delays_no_other_role(database: Database, role: str, every: int) -> None:
    """Attacks that differ in their object only are neighbours, so every eighth attack by day has most kinds."""
    victims_objects, owners_objects = create_owned_objects(database, VICTIM), create_owned_objects(database, OWNER)
    with (
        database.connect() as attacker,
        database.connect() as owner,
        database.connect("tensile_worker") as worker,
    ):
        before = State.now(attacker)
        owner.execute(f"set session authorization {VICTIM}")
        for connection in (owner, worker):
            connection.execute(f"set lock_timeout = '{LONGEST_WAIT}'")
        actions = _usual_actions(owner, worker, victims_objects)
        successful = [
            a
            for a in list(attacks(attacker, owners_objects))[::every]
            if a.kind != "select column" and _succeeds(attacker, role, a, before)  # takes the same locks as `select`
        ]
        harmless: set[frozenset[tuple[str, ...]]] = set()
        delayed = [
            (attack.statement, name)
            for attack in (*successful, *_uncommitted(role))
            for name in _delayed_actions(attacker, role, attack, (owner, worker), actions, harmless)
        ]

    assert len(successful) > 100 // every  # enough statements that hold locks
    assert delayed == []


def test_conflicting_lock_is_detected(database: Database) -> None:
    victims_objects = create_owned_objects(database, VICTIM)
    with database.connect() as postgres, database.connect() as owner, database.connect("tensile_worker") as worker:
        for connection in (owner, worker):
            connection.execute("set lock_timeout = '50ms'")
        actions = _usual_actions(owner, worker, victims_objects)
        full_lock = Attack(kind="lock", target="tensile.jobs", statement="lock table tensile.jobs, tensile.models")

        delayed = _delayed_actions(postgres, "postgres", full_lock, (owner, worker), actions)

    assert {"claim", "cancel", "publish", "enqueue", "predict"} <= set(delayed)


def test_lock_on_a_grant_prevents_no_rescue_and_no_claim(database: Database) -> None:
    """The owner of a model without a version can lock a grant on it, to which the model's deletion cascades."""
    victims_objects = create_owned_objects(database, VICTIM)
    with (
        database.connect(OWNER) as alice,
        database.connect() as postgres,
        database.connect("tensile_worker") as worker,
    ):
        worker.execute("set lock_timeout = '60s'")  # it waits for no lock
        cancelled_job = enqueue(alice, "reserved", priority=9)
        alice.execute("select tensile_grant_model('reserved', 'public')")
        claimed = jobs.claim_job(worker, victims_objects.worker)
        assert claimed is not None
        assert claimed.job == cancelled_job
        alice.execute("select tensile_cancel(%s)", (cancelled_job,))
        jobs.leave(worker, victims_objects.worker)
        with alice.transaction():
            alice.execute("select from tensile.model_privileges for update")
            assert set(jobs.rescue(worker, ())) == {cancelled_job, victims_objects.running.job}

        enqueue(alice, "reserved", priority=9)
        postgres.execute(f"revoke tensile_user from {OWNER}")
        try:
            with postgres.transaction():  # a lock that the owner took before it lost the role
                postgres.execute("select from tensile.model_privileges for update")
                claimed = jobs.claim_job(worker, register(worker))
        finally:
            postgres.execute(f"grant tensile_user to {OWNER}")
        assert claimed is not None
        assert claimed.job == victims_objects.queued


def test_locked_rows_do_not_stop_the_deletion_of_other_dropped_rows(database: Database) -> None:
    owners_objects, victims_objects = create_owned_objects(database, OWNER), create_owned_objects(database, VICTIM)
    with (
        database.connect() as postgres,
        database.connect(OWNER) as alice,
        database.connect("tensile_worker") as worker,
    ):
        postgres.execute("update tensile.jobs set cancel_requested = true where state = 'queued'")
        for job in (owners_objects.running, victims_objects.running):
            jobs.cancelled(worker, job.job, job.claim)
        postgres.execute("update tensile.models set dropped_at = now()")
        with alice.transaction():
            for table in ("jobs", "model_versions", "model_privileges"):
                alice.execute(f"select from tensile.{table} for update".encode())
            for _ in range(4):
                worker.execute("select tensile.delete_dropped()")
            assert postgres.execute("select name from tensile.models").fetchall() == [(owners_objects.model,)]
        for _ in range(4):
            worker.execute("select tensile.delete_dropped()")
        assert postgres.execute("select name from tensile.models").fetchall() == []


def _uncommitted(role: str) -> Iterator[Attack]:
    """Yield statements that a user may leave uncommitted on purpose."""
    yield Attack(
        kind="uncommitted model", target="tensile.models", statement="select tensile_create_model('uncommitted')"
    )
    yield Attack(
        kind="uncommitted job",
        target="tensile.jobs",
        statement="""insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)
                     values ('uncommitted', 1, 'public', 't', '{"model": "uncommitted", "relation":
                       {"oid": 1, "schema": "public", "name": "t"}, "target": "y", "task": "regression",
                       "architecture": {"type": "mlp"}}')""",
    )


def _succeeds(connection: Connection, role: str, attack: Attack, before: State) -> bool:
    return run_attack(connection, role, attack, before).outcome in (Outcome.ROWS, Outcome.NOTHING)


def _delayed_actions(
    attacker: Connection,
    role: str,
    attack: Attack,
    others: tuple[Connection, Connection],
    actions: Mapping[str, Callable[[], object]],
    harmless: set[frozenset[tuple[str, ...]]] | None = None,
) -> list[str]:
    """Return the actions that wait longer than allowed while this attack's transaction is open.

    An attack that has written nothing and holds the locks of a `harmless` one delays what that one delays: nothing.
    """
    delayed_actions = []
    with attacker.transaction(force_rollback=True):
        attacker.execute(f"set local session authorization {role}")
        if attack.kind == "copy":
            with attacker.cursor().copy(attack.statement.encode()) as copy:
                for _ in copy:
                    pass
        else:
            attacker.execute(attack.statement.encode())
        locks = _locks(attacker)
        if harmless is not None and locks in harmless:
            return []
        for name, action in actions.items():
            with _rolled_back(others):
                try:
                    action()
                except _LOCK_ERRORS:
                    delayed_actions.append(name)
    if harmless is not None and locks is not None and not delayed_actions:
        harmless.add(locks)
    return delayed_actions


def _locks(attacker: Connection) -> frozenset[tuple[str, ...]] | None:
    """Return the locks of the open transaction, or None if it may have locked rows, which PostgreSQL does not list.

    A transaction has an identifier once it has written anything or locked a row.
    """
    rows = attacker.execute(
        """select concat_ws(' ', database, relation, classid, objid, objsubid), locktype, mode,
                  pg_current_xact_id_if_assigned() is not null
             from pg_locks where pid = pg_backend_pid() and locktype <> 'virtualxid'"""
    ).fetchall()
    if any(wrote for *_, wrote in rows):
        return None
    return frozenset(tuple(lock) for *lock, _ in rows)


@contextmanager
def _rolled_back(connections: tuple[Connection, Connection]) -> Iterator[None]:
    for connection in connections:
        connection.execute("begin")
    try:
        yield
    finally:
        for connection in connections:
            connection.execute("rollback")


def _usual_actions(
    owner: Connection, worker: Connection, victims_objects: OwnedObjects
) -> dict[str, Callable[[], object]]:
    """Return the usual actions of another owner and of the worker. They concern that owner's objects."""
    running, worker_id = victims_objects.running, register(worker)
    use = DeviceUse(
        kind="x", capacity_bytes=9, budget_bytes=9, granted_bytes=1, used_bytes=1, high_water_bytes=1, host_bytes=0
    )
    share = JobUse(job=running.job, granted_bytes=1, used_bytes=1, high_water_bytes=1)
    usage = JobUsage(job=running.job, device_s=1.0, byte_s=1.0, running_s=1.0)

    def predict() -> None:
        with pytest.raises(psycopg.Error) as error:  # the model is looked up before the missing service is noticed
            owner.execute("select tensile_predict(%s, 1)", (victims_objects.model,))
        if isinstance(error.value, _LOCK_ERRORS):
            raise error.value

    return {
        "enqueue": lambda: enqueue(owner, "secret_model_dave"),
        "cancel": lambda: owner.execute("select tensile_cancel(%s)", (victims_objects.queued,)),
        "predict": predict,
        "claim": lambda: jobs.claim_job(worker, worker_id),
        "beat": lambda: jobs.beat(worker, worker_id, {running.job: running.claim}),
        "rescue": lambda: jobs.rescue(worker),
        "report": lambda: jobs.report_progress(
            worker, running.job, running.claim, Progress(epoch=1, epochs=2, step=2, steps=3)
        ),
        "publish": lambda: models.publish_version(
            worker, running, publication(incumbent=ModelVersionId(victims_objects.version_id), incumbent_metric=0.5)
        ),
        "load a version": lambda: models.load_version(worker, ModelVersionId(victims_objects.version_id)),
        "record the device": lambda: plans.record_device(worker, worker_id, use, [share], [usage]),
    }
