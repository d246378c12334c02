"""When checkpoints are taken, where they are stored, and from which of them a job resumes."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import torch

from indb_tensile.catalog import jobs, stored_checkpoints
from indb_tensile.catalog.connection import Session
from indb_tensile.config import Settings
from indb_tensile.errors import StorageError
from indb_tensile.job import ClaimedJob
from indb_tensile.learning.models.artifacts import Checkpoint
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database
from worker.training.checkpointing import Checkpointing

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Trainer:
    """A claimed job on one host. Each checkpoint takes `cost_s`."""

    def __init__(self, database: Database, session: Session, state_dir: Path, **settings: Any) -> None:
        self.clock = Clock()
        self.database = database
        self.session = session
        self.settings = Settings(state_dir=str(state_dir), **settings)
        self.claimed = session.run(_claimed)

    def on(self, host: str) -> Checkpointing:
        return Checkpointing(self.session, self.claimed, self.settings, host=host, clock_s=self.clock)

    def take(self, epochs_done: int, cost_s: float = 0.0) -> Callable[[], Checkpoint]:
        def taken() -> Checkpoint:
            self.clock.now_s += cost_s
            return Checkpoint(
                weights={"w": torch.tensor([float(epochs_done)])},
                optimizer={},
                random={},
                position={"epochs_done": epochs_done, "data_digest": "rows"},
            )

        return taken

    def stores(self) -> set[tuple[str, str, int]]:
        stored = self.session.run(lambda c: stored_checkpoints.checkpoints(c, self.claimed.job))
        return {(row.store.value, row.host, row.position["epochs_done"]) for row in stored}

    def events(self) -> list[tuple[str, Any]]:
        with self.database.connect() as connection:
            return connection.execute(
                "select kind, detail from tensile.job_events where kind in ('resumed', 'checkpoint_skipped')"
                " order by event_id"
            ).fetchall()


def _claimed(connection: psycopg.Connection) -> ClaimedJob:
    claimed = claim(connection, register(connection))  # a worker of the host named "host"
    jobs.start_running(connection, claimed.job, claimed.claim)
    return claimed


@pytest.fixture
def make(database: Database, tmp_path: Path) -> Any:
    with database.connect("alice") as alice:
        enqueue(alice)
    sessions = []

    def made(**settings: Any) -> Trainer:
        sessions.append(Session(database.dsn("tensile_worker"), application_name="test"))
        return Trainer(database, sessions[-1], tmp_path / "state", **settings)

    yield made
    for session in sessions:
        session.close()


def epochs_done(checkpoint: Checkpoint | None) -> int | None:
    return None if checkpoint is None else int(checkpoint.position["epochs_done"])


def test_at_most_a_tenth_of_the_time_is_spent_on_checkpoints(make: Callable[..., Trainer]) -> None:
    trainer = make(checkpoint_s=2.0, checkpoint_store="local")
    checkpointing = trainer.on("host")
    assert not checkpointing.due()
    trainer.clock.now_s += 2.0
    assert checkpointing.due()
    checkpointing.save(trainer.take(1, cost_s=4.0))
    trainer.clock.now_s += 35.9
    assert not checkpointing.due()
    trainer.clock.now_s += 0.1
    assert checkpointing.due()
    checkpointing.save(trainer.take(2, cost_s=60.0))
    trainer.clock.now_s += 36.0
    assert checkpointing.due(), "a single slow checkpoint, which may have waited for the database, does not count"
    checkpointing.save(trainer.take(3, cost_s=60.0))
    trainer.clock.now_s += 539.9
    assert not checkpointing.due(), "two checkpoints of the same cost count"
    checkpointing.save(trainer.take(4, cost_s=0.0))
    trainer.clock.now_s += 2.0
    assert checkpointing.due()


def test_auto_stores_only_files_if_no_other_host_can_take_over(
    make: Callable[..., Trainer],
) -> None:
    trainer = make()
    checkpointing = trainer.on("host")
    trainer.clock.now_s += 601.0
    checkpointing.save(trainer.take(1))
    assert trainer.stores() == {("local", "host", 1)}


def test_checkpoint_for_all_hosts_is_in_the_catalog_though_none_is_due(make: Callable[..., Trainer]) -> None:
    trainer = make()
    trainer.on("mine").save(trainer.take(2), for_all_hosts=True)
    assert trainer.stores() == {("local", "mine", 2), ("catalog", "", 2)}
    assert epochs_done(trainer.on("other").load("rows")) == 2


@pytest.mark.own_database
def test_files_alone_are_no_checkpoint_for_all_hosts(make: Callable[..., Trainer]) -> None:
    trainer = make(checkpoint_store="local")
    with pytest.raises(StorageError, match="no other host could read the checkpoint of job 1"):
        trainer.on("mine").save(trainer.take(2), for_all_hosts=True)
    assert trainer.stores() == set()


def test_auto_also_writes_to_the_catalog_but_seldom_while_another_host_has_a_controller(
    make: Callable[..., Trainer],
) -> None:
    trainer = make()
    checkpointing = trainer.on("mine")  # the registered controller is on "host"
    checkpointing.save(trainer.take(1))
    assert trainer.stores() == {("local", "mine", 1)}
    trainer.clock.now_s += 600.0
    checkpointing.save(trainer.take(2))
    trainer.clock.now_s += 599.0
    checkpointing.save(trainer.take(3))
    assert trainer.stores() == {("local", "mine", 3), ("catalog", "", 2)}


@pytest.mark.parametrize(("store", "expected"), [("local", ("local", "mine", 1)), ("catalog", ("catalog", "", 1))])
def test_an_explicit_store_is_the_only_store(
    make: Callable[..., Trainer], store: str, expected: tuple[str, str, int]
) -> None:
    trainer = make(checkpoint_store=store, checkpoint_catalog_s=0.0)
    trainer.on("mine").save(trainer.take(1))
    assert trainer.stores() == {expected}


def test_a_job_resumes_from_the_newest_checkpoint_that_its_host_can_read(make: Callable[..., Trainer]) -> None:
    trainer = make(checkpoint_catalog_s=0.0)
    trainer.on("mine").save(trainer.take(4))  # in a file and in the catalog
    trainer.on("host").save(trainer.take(5))  # only in a file of the other host
    assert epochs_done(trainer.on("host").load("rows")) == 5
    assert epochs_done(trainer.on("mine").load("rows")) == 4
    kinds = [(kind, detail.get("host"), detail["epochs_done"]) for kind, detail in trainer.events()]
    assert kinds == [("resumed", "host", 5), ("checkpoint_skipped", "host", 5), ("resumed", "mine", 4)]
    assert trainer.events()[1][1]["reason"] == "the file is on host host, and this is mine"
    assert trainer.on("mine").load("other rows") is None


@pytest.mark.parametrize("fault", ["lost", "damaged"])
def test_without_a_usable_file_a_job_resumes_from_the_catalog_and_else_starts_again(
    make: Callable[..., Trainer], tmp_path: Path, fault: str
) -> None:
    trainer = make(checkpoint_catalog_s=0.0)
    trainer.on("mine").save(trainer.take(4))
    trainer.settings = Settings(state_dir=str(tmp_path / "state"), checkpoint_store="local")
    trainer.on("mine").save(trainer.take(6))
    if fault == "lost":
        shutil.rmtree(tmp_path / "state")
    else:
        for path in (tmp_path / "state").rglob("*.ckpt"):
            path.write_bytes(bytes(path.stat().st_size))
    assert epochs_done(trainer.on("mine").load("rows")) == 4
    with trainer.database.connect() as postgres:
        postgres.execute("delete from tensile.checkpoint_chunks")
    assert trainer.on("mine").load("rows") is None
    skipped = [(detail["store"], detail["epochs_done"]) for kind, detail in trainer.events() if "skip" in kind]
    assert skipped == [("local", 6), ("local", 6), ("catalog", 4)]


def test_if_no_file_can_be_written_auto_uses_the_catalog_when_it_is_due_and_else_raises(
    make: Callable[..., Trainer], tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("no directory")
    trainer = make(checkpoint_s=0.0)
    checkpointing = trainer.on("host")
    with pytest.raises(StorageError, match="cannot be written"):
        checkpointing.save(trainer.take(1, cost_s=1.0))
    assert not checkpointing.due(), "a failed attempt counts as spent time"
    trainer.clock.now_s += 600.0
    checkpointing.save(trainer.take(2))
    assert trainer.stores() == {("catalog", "", 2)}
