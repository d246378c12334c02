"""Progress that cannot be written now is written later, in order, and training never waits for the write."""

import socket
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psycopg
import pytest

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.jobs import Progress
from indb_tensile.errors import LostClaimError, StorageError
from indb_tensile.job import ClaimedJob, Phase
from indb_tensile.learning.models.artifacts import Checkpoint, SaveableCheckpoint
from indb_tensile.messages import Message, Progressed, TrainerLink
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database
from worker.training.checkpoint_retry import CheckpointRetry
from worker.training.progress_signs import ProgressSigns
from worker.training.progress_writer import ProgressWriter
from worker.training.retrying_session import RetryingSession
from worker.training.silent_writer import SilentWriter

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

Result = TypeVar("Result")
FULL = psycopg.errors.DiskFull("could not extend file: No space left on device")


class Flaky(RetryingSession):
    """Raises `fault` at every attempt while `fault` is set."""

    fault: Exception | None = None
    attempts = 0

    def attempt(self, action: Callable[[Connection], Result]) -> Result:
        self.attempts += 1
        if self.fault is not None:
            raise self.fault
        return super().attempt(action)


class SilentLink(TrainerLink):
    """Records the messages that are sent."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        super().__init__(self.ours)
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


class Scene:
    """A claimed job and its progress writer. The test sets the clock and the database's fault."""

    def __init__(self, database: Database, session: Flaky, job: ClaimedJob) -> None:
        self.database = database
        self.session = session
        self.job = job
        self.now_s = 0.0
        self.link = SilentLink()
        self.signs = ProgressSigns(self.link, job.job, lambda: self.now_s)
        self.writer = ProgressWriter(session, self.signs, job, lambda: self.now_s)

    def rows(self, query: Any) -> list[Any]:
        with self.database.connect() as connection:
            return connection.execute(query).fetchall()

    def epoch(self, epoch: int) -> None:
        figures = {"loss": float(epoch)}
        self.writer.report(Progress(epoch=epoch, epochs=9, step=1, steps=1, figures=figures), at_once=True)


@pytest.fixture
def scene(database: Database) -> Iterator[Scene]:
    with database.connect("alice") as alice, database.connect("tensile_worker") as worker:
        enqueue(alice)
        job = claim(worker, register(worker))
    with Flaky(database.dsn("tensile_worker"), application_name="test", pause=lambda _: None) as session:
        made = Scene(database, session, job)
        yield made
        for end in (made.link.ours, made.link.theirs):
            end.close()


METRICS = "select epoch, value from tensile.metrics order by epoch"
STATE = "select state::text, phase::text from tensile.jobs"


def test_progress_is_written_at_once_while_the_database_is_available(scene: Scene) -> None:
    scene.writer.start()
    scene.epoch(1)
    scene.writer.enter(Phase.VALIDATING)
    assert scene.rows(STATE) == [("running", "validating")]
    assert scene.rows(METRICS) == [(1, 1.0)]


@pytest.mark.parametrize("fault", [FULL, psycopg.errors.UndefinedColumn("the catalog was upgraded")])
def test_progress_refused_by_the_database_is_written_later_and_no_epoch_is_lost(
    scene: Scene, fault: Exception
) -> None:
    scene.session.fault = fault
    scene.writer.start()
    for epoch in (1, 2, 3):
        scene.writer.enter(Phase.VALIDATING)
        scene.epoch(epoch)
        scene.writer.enter(Phase.TRAINING)
    assert (scene.rows(METRICS), scene.rows(STATE)) == ([], [("starting", None)])
    scene.session.fault = None
    scene.now_s = 60.0
    scene.epoch(4)
    assert scene.rows(METRICS) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert scene.rows(STATE) == [("running", "training")]


def test_an_unavailable_database_is_tried_ever_less_often(scene: Scene) -> None:
    scene.session.fault = FULL
    for second in range(300):
        scene.now_s = float(second)
        scene.epoch(second)
    assert scene.session.attempts < 20


def test_a_rank_that_follows_writes_nothing_about_its_job_and_tells_its_controller(scene: Scene) -> None:
    scene.writer = SilentWriter(scene.session, scene.signs, scene.job, lambda: scene.now_s)
    scene.writer.start()
    scene.writer.enter(Phase.TRAINING)
    scene.writer.tell("noted", {})
    scene.epoch(1)
    scene.writer.settle()
    assert (scene.session.attempts, scene.rows(METRICS), scene.rows(STATE)) == (0, [], [("starting", None)])
    (sign,) = scene.link.sent
    assert isinstance(sign, Progressed)
    assert (sign.phase, sign.epoch) == (Phase.TRAINING, 1)


def test_a_lost_claim_ends_the_training(scene: Scene) -> None:
    scene.session.fault = LostClaimError("job 1 no longer belongs to claim 2")
    with pytest.raises(LostClaimError):
        scene.epoch(1)


def test_a_permanently_refused_write_does_not_block_other_writes(scene: Scene) -> None:
    scene.epoch(2**40)
    scene.epoch(2)
    assert scene.rows(METRICS) == [(2, 2.0)]


def test_all_pending_progress_is_written_before_the_job_is_published(scene: Scene) -> None:
    scene.session.fault = FULL
    scene.epoch(1)
    scene.session.fault = None
    scene.writer.settle()
    assert scene.rows(METRICS) == [(1, 1.0)]


def test_latencies_that_cannot_be_written_are_dropped(scene: Scene) -> None:
    scene.session.fault = FULL
    scene.writer.remember(lambda c: c.execute("select 1"))
    assert scene.session.attempts == 1


def test_signs_of_life_are_sent_to_the_controller_even_without_the_database(scene: Scene) -> None:
    scene.session.fault = FULL
    for scene.now_s in (0.0, 0.2, 3.2, 3.4, 4.0):
        scene.epoch(1)
    signs = [(m.step, m.longest_s) for m in scene.link.sent if isinstance(m, Progressed)]
    assert signs == [(1, 0.0), (1, 3.0), (1, 3.0)]


class FakeCheckpointing:
    """Is always due. Raises `fault` while `fault` is set."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.tried = 0
        self.saved = 0

    def due(self) -> bool:
        return True

    def save(self, take: Callable[[], SaveableCheckpoint], *, for_all_hosts: bool = False) -> None:
        self.tried += 1
        if self.fault is not None:
            raise self.fault
        self.saved += 1


def take_none() -> Checkpoint:
    raise AssertionError("the double takes no checkpoint")


@pytest.mark.parametrize(
    "fault", [FULL, StorageError("the disk is full"), psycopg.OperationalError("lost"), OSError(28, "No space left")]
)
def test_a_checkpoint_that_cannot_be_saved_is_retried_later_and_reported_once(scene: Scene, fault: Exception) -> None:
    checkpointing = FakeCheckpointing()
    retry = CheckpointRetry(checkpointing, scene.writer, lambda: scene.now_s)
    checkpointing.fault = fault
    for second in range(30):
        scene.now_s = float(second)
        retry.save(take_none, epochs_done=second)
    assert checkpointing.tried == 5  # at 0, 1, 3, 7 and 15 s
    checkpointing.fault = None
    for scene.now_s in (31.0, 32.0):
        retry.save(take_none, epochs_done=31)
    assert checkpointing.saved == 2
    events = scene.rows("select detail ->> 'epochs_done' from tensile.job_events where kind = 'checkpoint_put_off'")
    assert events == [("0",)]


def test_a_claim_lost_while_a_checkpoint_is_saved_ends_the_training(scene: Scene) -> None:
    checkpointing = FakeCheckpointing()
    checkpointing.fault = LostClaimError("lost")
    with pytest.raises(LostClaimError):
        CheckpointRetry(checkpointing, scene.writer).save(take_none, epochs_done=1)
