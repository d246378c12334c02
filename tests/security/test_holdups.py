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


@pytest.mark.parametrize("role", ["demo", "bob", OWNER])
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
        ran = [a for a in attacks(attacker, estate) if _runs(attacker, role, a, before)]
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
        "publish": lambda: models.publish_version(worker, running, publication()),
        "load a version": lambda: models.load_version(worker, ModelVersionId(victim.version_id)),
        "record the device": lambda: plans.record_device(worker, here, use, [share]),
    }
