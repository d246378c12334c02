"""When checkpoints are taken, in which store, and which of them a job goes on from."""

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
from indb_tensile.learning.artifacts import Checkpoint
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database
from worker.training.checkpointing import Checkpointing

pytestmark = pytest.mark.postgres


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Trainer:
    """One claimed job on one host, whose checkpoints take `cost_s`."""

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
        return {(one.store.value, one.host, one.position["epochs_done"]) for one in stored}

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


def test_at_most_a_tenth_of_the_time_goes_into_checkpoints(make: Callable[..., Trainer]) -> None:
    trainer = make(checkpoint_s=2.0, checkpoint_store="local")
    kept = trainer.on("host")
    assert not kept.due()
    trainer.clock.now_s += 2.0
    assert kept.due()
    kept.save(trainer.take(1, cost_s=4.0))
    trainer.clock.now_s += 35.9
    assert not kept.due()
    trainer.clock.now_s += 0.1
    assert kept.due()
    kept.save(trainer.take(2, cost_s=60.0))
    trainer.clock.now_s += 36.0
    assert kept.due(), "one that waited for the database is no measure of the next"
    kept.save(trainer.take(3, cost_s=60.0))
    trainer.clock.now_s += 539.9
    assert not kept.due(), "two of the same cost are"
    kept.save(trainer.take(4, cost_s=0.0))
    trainer.clock.now_s += 2.0
    assert kept.due()


def test_auto_keeps_files_and_nothing_in_the_catalog_where_nobody_else_could_take_over(
    make: Callable[..., Trainer],
) -> None:
    trainer = make()
    kept = trainer.on("host")
    trainer.clock.now_s += 601.0
    kept.save(trainer.take(1))
    assert trainer.stores() == {("local", "host", 1)}


def test_auto_writes_to_the_catalog_as_well_but_seldom_while_another_host_has_a_controller(
    make: Callable[..., Trainer],
) -> None:
    trainer = make()
    kept = trainer.on("mine")  # the registered controller is on "host"
    kept.save(trainer.take(1))
    assert trainer.stores() == {("local", "mine", 1)}
    trainer.clock.now_s += 600.0
    kept.save(trainer.take(2))
    trainer.clock.now_s += 599.0
    kept.save(trainer.take(3))
    assert trainer.stores() == {("local", "mine", 3), ("catalog", "", 2)}


@pytest.mark.parametrize(("store", "kept"), [("local", ("local", "mine", 1)), ("catalog", ("catalog", "", 1))])
def test_a_store_that_is_set_is_the_only_one(
    make: Callable[..., Trainer], store: str, kept: tuple[str, str, int]
) -> None:
    trainer = make(checkpoint_store=store, checkpoint_catalog_s=0.0)
    trainer.on("mine").save(trainer.take(1))
    assert trainer.stores() == {kept}


def test_a_job_goes_on_from_the_newest_checkpoint_that_this_host_can_read(make: Callable[..., Trainer]) -> None:
    trainer = make(checkpoint_catalog_s=0.0)
    trainer.on("mine").save(trainer.take(4))  # in a file and in the catalog
    trainer.on("host").save(trainer.take(5))  # in a file of another host alone
    assert epochs_done(trainer.on("host").load("rows")) == 5
    assert epochs_done(trainer.on("mine").load("rows")) == 4
    kinds = [(kind, detail.get("host"), detail["epochs_done"]) for kind, detail in trainer.events()]
    assert kinds == [("resumed", "host", 5), ("checkpoint_skipped", "host", 5), ("resumed", "mine", 4)]
    assert trainer.events()[1][1]["reason"] == "the file is on host host, and this is mine"
    assert trainer.on("mine").load("other rows") is None


@pytest.mark.parametrize("fault", ["lost", "damaged"])
def test_a_file_that_cannot_be_used_gives_way_to_the_catalog_and_then_to_the_start(
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


def test_where_no_file_can_be_written_auto_keeps_it_in_the_catalog_when_that_is_due_and_else_says_so(
    make: Callable[..., Trainer], tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("no directory")
    trainer = make(checkpoint_s=0.0)
    kept = trainer.on("host")
    with pytest.raises(StorageError, match="cannot be written"):
        kept.save(trainer.take(1, cost_s=1.0))
    assert not kept.due(), "the failure cost time, too"
    trainer.clock.now_s += 600.0
    kept.save(trainer.take(2))
    assert trainer.stores() == {("catalog", "", 2)}
