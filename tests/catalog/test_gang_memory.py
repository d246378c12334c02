"""Check gangs and single jobs of many sizes that eight workers claim at once, whose devices hold a few of them."""

import random
import threading
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import jobs, ranks
from indb_tensile.catalog.ranks import RankState
from indb_tensile.errors import LostClaimError
from indb_tensile.job import ClaimedJob, JobId, WorkerId
from tests.catalog.enqueue import enqueue, register
from tests.conftest import Database

pytestmark = pytest.mark.postgres

WORKERS = 8
CAPACITY = 100  # of each device
PATIENCE_S = 1.0  # ranks hold memory for so long while others of their job have none


@dataclass(slots=True)
class Trained:
    """What the workers have done together. Each adds to it by single calls, which threads may do."""

    total: int
    sizes: dict[JobId, int]
    iterations: dict[JobId, int]
    jobs: list[JobId] = field(default_factory=list)
    given_back: list[JobId] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return len(self.jobs) >= self.total or bool(self.faults)


@dataclass(slots=True)
class Held:
    """A job, or one of its ranks, that a worker has claimed."""

    claimed: ClaimedJob
    iterations_left: int
    state: RankState = RankState.PREPARING
    has_memory: bool = False

    def iterate(self) -> bool:
        """Train for an iteration. Return whether the job has trained all of its iterations."""
        self.iterations_left -= 1
        return self.iterations_left <= 0


@dataclass(slots=True)
class Device:
    """One worker with its device, as several trainers of one controller use them."""

    connection: psycopg.Connection[Any]
    worker: WorkerId
    trained: Trained
    free: int = CAPACITY
    held: dict[JobId, Held] = field(default_factory=dict)

    def serve(self) -> None:
        """Claim jobs until all have ended, and train those that find memory."""
        while not self.trained.is_over or self.held:
            jobs.beat(self.connection, self.worker)
            if len(self.held) < 8:
                self._claim()
            for job, held in tuple(self.held.items()):
                if self._advance(held):
                    del self.held[job]
                    self._release(held)
            self.trained.given_back += ranks.take_back_gangs(self.connection, PATIENCE_S)

    def _claim(self) -> None:
        taken = jobs.claim_job(self.connection, self.worker)
        if isinstance(taken, ClaimedJob):
            assert taken.job not in self.held
            self.held[taken.job] = Held(taken, self.trained.iterations[taken.job])

    def _advance(self, held: Held) -> bool:
        """Take the next step of a job. Return whether this worker has nothing more to do with it."""
        try:
            return self._train(held) if held.claimed.gang is None else self._train_rank(held)
        except LostClaimError:
            return True

    def _train(self, held: Held) -> bool:
        if not held.has_memory:
            self._take_memory(held)
            return False
        if not held.iterate():
            return False
        self._end(held.claimed)
        return True

    def _train_rank(self, held: Held) -> bool:
        states = ranks.states(self.connection, held.claimed.job, held.claimed.claim)
        waiting = {RankState.OFFERED, RankState.PREPARING}
        if held.state is RankState.PREPARING:
            self._enter(held, RankState.PREPARED)
        elif held.state is RankState.PREPARED and not waiting & set(states) and self._take_memory(held):
            self._enter(held, RankState.ADMITTED)
        elif held.state is RankState.ADMITTED and set(states) <= {RankState.ADMITTED, RankState.TRAINING}:
            self._enter(held, RankState.TRAINING)
        elif not held.claimed.follows and set(states) == {RankState.TRAINING} and held.iterate():
            self._end(held.claimed)
            return True
        return False

    def _enter(self, held: Held, state: RankState) -> None:
        ranks.enter_state(self.connection, held.claimed.job, held.claimed.claim, state)
        held.state = state

    def _take_memory(self, held: Held) -> bool:
        size = self.trained.sizes[held.claimed.job]
        held.has_memory = size <= self.free
        self.free -= size if held.has_memory else 0
        return held.has_memory

    def _release(self, held: Held) -> None:
        self.free += self.trained.sizes[held.claimed.job] if held.has_memory else 0

    def _end(self, claimed: ClaimedJob) -> None:
        jobs.cancelled(self.connection, claimed.job, claimed.claim)
        self.trained.jobs.append(claimed.job)


@pytest.mark.by_day("6-1")
@pytest.mark.parametrize(("count", "longest"), [(6, 1), (12, 1), (500, 1), (40, 200), (150, 200)])
def test_eight_workers_train_gangs_and_single_jobs_once_and_leave_no_half_gang_and_no_memory(
    database: Database, count: int, longest: int
) -> None:
    """Half of the jobs are gangs of 2 to 8 devices; a job takes between a tenth of a device and all of it.

    Jobs of up to 200 iterations hold their memory for seconds, so gangs wait for each other's and are given back.
    """
    chance = random.Random(count)
    with database.connect() as admin:
        admin.execute("select tensile_set_quota('postgres', jobs_running => 1000)")
        sizes, iterations = {}, {}
        for _ in range(count):
            devices = chance.choice((1, 1, 1, 1, 2, 3, 5, 8))
            job = enqueue(admin, spec={"devices": devices})
            sizes[job], iterations[job] = chance.randint(10, CAPACITY), chance.randint(1, longest)
    trained = Trained(total=count, sizes=sizes, iterations=iterations)
    devices_left = _serve_all(database, trained)
    assert trained.faults == []
    assert sorted(trained.jobs) == sorted(sizes)
    assert [device.free for device in devices_left] == [CAPACITY] * WORKERS
    with database.connect() as admin:
        for table in ("job_ranks", "rank_values"):
            assert admin.execute(f"select count(*) from tensile.{table}").fetchone() == (0,)
        assert admin.execute("select distinct state::text from tensile.jobs").fetchall() == [("cancelled",)]


def _serve_all(database: Database, trained: Trained) -> list[Device]:
    barrier, served = threading.Barrier(WORKERS), list[Device]()

    def work() -> None:
        try:
            with database.connect("tensile_worker") as connection:
                device = Device(connection, register(connection, lease_s=600.0), trained)
                served.append(device)
                barrier.wait()
                device.serve()
        except BaseException as fault:  # noqa: BLE001 - raised by the test's thread
            trained.faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return served
