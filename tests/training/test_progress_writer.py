"""What cannot be written now is written later, in order, and the training never waits for it."""

import socket
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psycopg
import pytest

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.jobs import Progress
from indb_tensile.errors import LostClaimError, StorageError
from indb_tensile.job import ClaimedJob, Phase
from indb_tensile.learning.artifacts import Checkpoint, SaveableCheckpoint
from indb_tensile.messages import Message, Progressed, TrainerLink
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database
from worker.training.checkpoint_retry import CheckpointRetry
from worker.training.patient_session import PatientSession
from worker.training.progress_signs import ProgressSigns
from worker.training.progress_writer import ProgressWriter

pytestmark = pytest.mark.postgres

Result = TypeVar("Result")
FULL = psycopg.errors.DiskFull("could not extend file: No space left on device")


class Flaky(PatientSession):
    """Raises `fault` at every attempt while there is one."""

    fault: Exception | None = None
    attempts = 0

    def attempt(self, action: Callable[[Connection], Result]) -> Result:
        self.attempts += 1
        if self.fault is not None:
            raise self.fault
        return super().attempt(action)


class SilentLink(TrainerLink):
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        super().__init__(self.ours)
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


class Scene:
    """A claimed job and its diary; the test sets the clock and the database's fault."""

    def __init__(self, database: Database, session: Flaky, job: ClaimedJob) -> None:
        self.database = database
        self.session = session
        self.job = job
        self.now_s = 0.0
        self.link = SilentLink()
        self.signs = ProgressSigns(self.link, job.job, lambda: self.now_s)
        self.diary = ProgressWriter(session, self.signs, job, lambda: self.now_s)

    def rows(self, query: Any) -> list[Any]:
        with self.database.connect() as connection:
            return connection.execute(query).fetchall()

    def epoch(self, epoch: int) -> None:
        figures = {"loss": float(epoch)}
        self.diary.report(Progress(epoch=epoch, epochs=9, step=1, steps=1, figures=figures), at_once=True)


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


def test_everything_is_written_at_once_while_the_database_works(scene: Scene) -> None:
    scene.diary.start()
    scene.epoch(1)
    scene.diary.enter(Phase.VALIDATING)
    assert scene.rows(STATE) == [("running", "validating")]
    assert scene.rows(METRICS) == [(1, 1.0)]


@pytest.mark.parametrize("fault", [FULL, psycopg.errors.UndefinedColumn("the catalog was upgraded")])
def test_what_the_database_cannot_write_now_is_written_later_and_no_epoch_is_lost(
    scene: Scene, fault: Exception
) -> None:
    scene.session.fault = fault
    scene.diary.start()
    for epoch in (1, 2, 3):
        scene.diary.enter(Phase.VALIDATING)
        scene.epoch(epoch)
        scene.diary.enter(Phase.TRAINING)
    assert (scene.rows(METRICS), scene.rows(STATE)) == ([], [("starting", None)])
    scene.session.fault = None
    scene.now_s = 60.0
    scene.epoch(4)
    assert scene.rows(METRICS) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert scene.rows(STATE) == [("running", "training")]


def test_a_database_that_does_not_work_is_asked_ever_more_seldom(scene: Scene) -> None:
    scene.session.fault = FULL
    for second in range(300):
        scene.now_s = float(second)
        scene.epoch(second)
    assert scene.session.attempts < 20


def test_a_lost_claim_ends_the_training(scene: Scene) -> None:
    scene.session.fault = LostClaimError("job 1 no longer belongs to claim 2")
    with pytest.raises(LostClaimError):
        scene.epoch(1)


def test_one_write_that_is_refused_for_good_holds_up_no_other(scene: Scene) -> None:
    scene.epoch(2**40)
    scene.epoch(2)
    assert scene.rows(METRICS) == [(2, 2.0)]


def test_before_the_job_is_published_all_that_waits_is_written(scene: Scene) -> None:
    scene.session.fault = FULL
    scene.epoch(1)
    scene.session.fault = None
    scene.diary.settle()
    assert scene.rows(METRICS) == [(1, 1.0)]


def test_latencies_that_cannot_be_written_are_dropped(scene: Scene) -> None:
    scene.session.fault = FULL
    scene.diary.remember(lambda c: c.execute("select 1"))
    assert scene.session.attempts == 1


def test_signs_of_life_go_to_the_controller_whether_or_not_the_database_works(scene: Scene) -> None:
    scene.session.fault = FULL
    for scene.now_s in (0.0, 0.2, 3.2, 3.4, 4.0):
        scene.epoch(1)
    said = [(m.step, m.longest_s) for m in scene.link.sent if isinstance(m, Progressed)]
    assert said == [(1, 0.0), (1, 3.0), (1, 3.0)]


class FakeCheckpointing:
    """Is always due; raises `fault` while there is one."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.tried = 0
        self.kept = 0

    def due(self) -> bool:
        return True

    def save(self, take: Callable[[], SaveableCheckpoint]) -> None:
        self.tried += 1
        if self.fault is not None:
            raise self.fault
        self.kept += 1


def taken() -> Checkpoint:
    raise AssertionError("the double takes none")


@pytest.mark.parametrize(
    "fault", [FULL, StorageError("the disk is full"), psycopg.OperationalError("lost"), OSError(28, "No space left")]
)
def test_a_checkpoint_that_cannot_be_kept_is_tried_again_later_and_told_once(scene: Scene, fault: Exception) -> None:
    checkpointing = FakeCheckpointing()
    keeping = CheckpointRetry(checkpointing, scene.diary, lambda: scene.now_s)
    checkpointing.fault = fault
    for second in range(30):
        scene.now_s = float(second)
        keeping.save(taken, epochs_done=second)
    assert checkpointing.tried == 5  # at 0, 1, 3, 7 and 15 s
    checkpointing.fault = None
    for scene.now_s in (31.0, 32.0):
        keeping.save(taken, epochs_done=31)
    assert checkpointing.kept == 2
    events = scene.rows("select detail ->> 'epochs_done' from tensile.job_events where kind = 'checkpoint_put_off'")
    assert events == [("0",)]


def test_a_claim_that_is_lost_while_a_checkpoint_is_kept_ends_the_training(scene: Scene) -> None:
    checkpointing = FakeCheckpointing()
    checkpointing.fault = LostClaimError("lost")
    with pytest.raises(LostClaimError):
        CheckpointRetry(checkpointing, scene.diary).save(taken, epochs_done=1)
