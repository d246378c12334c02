"""An open transaction of one user holds up nobody else: not their cancel, claim, publication or prediction.

Each statement of the attack suite that PostgreSQL lets a user run stays open in a transaction, with every lock that
it took. Meanwhile another owner and the worker do their usual work under the longest wait that is promised to them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import jobs, models, plans
from indb_tensile.catalog.jobs import Progress
from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.job import ModelVersionId
from tests.catalog.enqueue import enqueue, publication, register
from tests.conftest import Database
from tests.security.estate import OWNER, VICTIM, Estate, settle
from tests.security.siege import Outcome, State, besiege
from tests.security.surface import Attack, attacks

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]
PROMISED = "2s"  # nobody waits longer for another user
# The last: what a statement does after another one that met a lock, in the test's own transaction.
_IN_THE_WAY = (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled, psycopg.errors.InFailedSqlTransaction)


@pytest.mark.parametrize(
    "role", [pytest.param("demo", marks=pytest.mark.nightly), pytest.param("bob", marks=pytest.mark.nightly), OWNER]
)
def test_no_open_transaction_of_a_user_holds_up_anybody_else(database: Database, role: str) -> None:
    victim, estate = settle(database, VICTIM), settle(database, OWNER)
    with (
        database.connect() as attacker,
        database.connect() as owner,
        database.connect("tensile_worker") as worker,
    ):
        before = State.now(attacker)
        owner.execute(f"set session authorization {VICTIM}")
        for connection in (owner, worker):
            connection.execute(f"set lock_timeout = '{PROMISED}'; set statement_timeout = '{PROMISED}'")
        deeds = _deeds(owner, worker, victim)
        ran = [
            a
            for a in attacks(attacker, estate)
            if a.kind != "select column" and _runs(attacker, role, a, before)  # it locks what `select` does
        ]
        held_up = [
            (attack.statement, name)
            for attack in (*ran, *_uncommitted(role))
            for name in _held_up(attacker, role, attack, (owner, worker), deeds)
        ]

    assert len(ran) > 100  # there is something that holds locks
    assert held_up == []


def test_a_lock_that_does_stand_in_the_way_is_seen(database: Database) -> None:
    victim = settle(database, VICTIM)
    with database.connect() as postgres, database.connect() as owner, database.connect("tensile_worker") as worker:
        for connection in (owner, worker):
            connection.execute("set lock_timeout = '50ms'")
        deeds = _deeds(owner, worker, victim)
        everything = Attack(kind="lock", target="tensile.jobs", statement="lock table tensile.jobs, tensile.models")

        held_up = _held_up(postgres, "postgres", everything, (owner, worker), deeds)

    assert {"claim", "cancel", "publish", "enqueue", "predict"} <= set(held_up)


def test_a_lock_on_a_grant_keeps_no_job_from_being_rescued_or_claimed(database: Database) -> None:
    """The owner of a name without a version can lock the grant on it, which the name's deletion would cascade to."""
    victim = settle(database, VICTIM)
    with (
        database.connect(OWNER) as alice,
        database.connect() as postgres,
        database.connect("tensile_worker") as worker,
    ):
        worker.execute("set lock_timeout = '100ms'")
        doomed = enqueue(alice, "reserved", priority=9)
        alice.execute("select tensile_grant_model('reserved', 'public')")
        claimed = jobs.claim_job(worker, victim.worker)
        assert claimed is not None
        assert claimed.job == doomed
        alice.execute("select tensile_cancel(%s)", (doomed,))
        jobs.leave(worker, victim.worker)
        with alice.transaction():
            alice.execute("select from tensile.model_privileges for update")
            assert set(jobs.rescue(worker, ())) == {doomed, victim.running.job}

        enqueue(alice, "reserved", priority=9)
        postgres.execute(f"revoke tensile_user from {OWNER}")
        try:
            with postgres.transaction():  # what the owner locked before it lost the role
                postgres.execute("select from tensile.model_privileges for update")
                claimed = jobs.claim_job(worker, register(worker))
        finally:
            postgres.execute(f"grant tensile_user to {OWNER}")
        assert claimed is not None
        assert claimed.job == victim.queued


def test_locks_on_what_was_dropped_leave_the_rest_to_be_deleted(database: Database) -> None:
    estate, victim = settle(database, OWNER), settle(database, VICTIM)
    with (
        database.connect() as postgres,
        database.connect(OWNER) as alice,
        database.connect("tensile_worker") as worker,
    ):
        postgres.execute("update tensile.jobs set cancel_requested = true where state = 'queued'")
        for job in (estate.running, victim.running):
            jobs.cancelled(worker, job.job, job.claim)
        postgres.execute("update tensile.models set dropped_at = now()")
        with alice.transaction():
            for table in ("jobs", "model_versions", "model_privileges"):
                alice.execute(f"select from tensile.{table} for update".encode())
            for _ in range(4):
                worker.execute("select tensile.delete_dropped()")
            assert postgres.execute("select name from tensile.models").fetchall() == [(estate.model,)]
        for _ in range(4):
            worker.execute("select tensile.delete_dropped()")
        assert postgres.execute("select name from tensile.models").fetchall() == []


def _uncommitted(role: str) -> Iterator[Attack]:
    """What a user may leave uncommitted on purpose."""
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


def _runs(connection: Connection, role: str, attack: Attack, before: State) -> bool:
    return besiege(connection, role, attack, before).outcome in (Outcome.ROWS, Outcome.NOTHING)


def _held_up(
    attacker: Connection,
    role: str,
    attack: Attack,
    others: tuple[Connection, Connection],
    deeds: Mapping[str, Callable[[], object]],
) -> list[str]:
    """Which deeds wait longer than they may while this attack's transaction is open."""
    waited = []
    with attacker.transaction(force_rollback=True):
        attacker.execute(f"set local session authorization {role}")
        if attack.kind == "copy":
            with attacker.cursor().copy(attack.statement.encode()) as copy:
                for _ in copy:
                    pass
        else:
            attacker.execute(attack.statement.encode())
        for name, deed in deeds.items():
            with _undone(others):
                try:
                    deed()
                except _IN_THE_WAY:
                    waited.append(name)
    return waited


@contextmanager
def _undone(connections: tuple[Connection, Connection]) -> Iterator[None]:
    for connection in connections:
        connection.execute("begin")
    try:
        yield
    finally:
        for connection in connections:
            connection.execute("rollback")


def _deeds(owner: Connection, worker: Connection, victim: Estate) -> dict[str, Callable[[], object]]:
    """What another owner and the worker do all day; `victim` is that owner's estate."""
    running, here = victim.running, register(worker)
    use = DeviceUse(
        kind="x", capacity_bytes=9, budget_bytes=9, granted_bytes=1, used_bytes=1, high_water_bytes=1, host_bytes=0
    )
    share = JobUse(job=running.job, granted_bytes=1, used_bytes=1, high_water_bytes=1)

    def predict() -> None:
        with pytest.raises(psycopg.Error) as refused:  # no service runs here: the look-up comes before it
            owner.execute("select tensile_predict(%s, 1)", (victim.model,))
        if isinstance(refused.value, _IN_THE_WAY):
            raise refused.value

    return {
        "enqueue": lambda: enqueue(owner, "secret_model_dave"),
        "cancel": lambda: owner.execute("select tensile_cancel(%s)", (victim.queued,)),
        "predict": predict,
        "claim": lambda: jobs.claim_job(worker, here),
        "beat": lambda: jobs.beat(worker, here, {running.job: running.claim}),
        "rescue": lambda: jobs.rescue(worker),
        "report": lambda: jobs.report_progress(
            worker, running.job, running.claim, Progress(epoch=1, epochs=2, step=2, steps=3)
        ),
        "publish": lambda: models.publish_version(
            worker, running, publication(incumbent=ModelVersionId(victim.version_id), incumbent_metric=0.5)
        ),
        "load a version": lambda: models.load_version(worker, ModelVersionId(victim.version_id)),
        "record the device": lambda: plans.record_device(worker, here, use, [share]),
    }
