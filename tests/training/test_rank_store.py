"""Check the store by which ranks meet: what it waits for, and that it ends with the attempt."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from indb_tensile.catalog import jobs, ranks
from indb_tensile.errors import LostClaimError, RankLostError
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.ranks.rank_connection import join_ranks
from indb_tensile.job import ClaimedJob
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database
from worker.training.rank_store import CatalogStore

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]


class Clock:
    """A clock that each pause moves by its duration."""

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        self.now_s = 0.0
        self.signs = 0
        self._during = during

    def pause(self, duration_s: float) -> None:
        self.now_s += duration_s
        self._during()

    def alive(self) -> None:
        self.signs += 1


def stores(connection: Any, clock: Clock) -> tuple[list[ClaimedJob], list[CatalogStore]]:
    """Return two ranks of a job, and the store as each of them sees it."""
    session: Any = SimpleNamespace(run=lambda action: action(connection))
    workers = [register(connection) for _ in range(2)]
    job = enqueue(connection)
    connection.execute("update tensile.jobs set devices = 2 where job_id = %s", (job,))
    claimed = [claim(connection, worker) for worker in workers]
    made = [
        CatalogStore(session, job, member.claim, alive=clock.alive, pause=clock.pause, clock_s=lambda: clock.now_s)
        for member in claimed
    ]
    return claimed, made


def test_values_of_one_rank_are_read_by_the_other_who_waits_for_them(database: Database) -> None:
    with database.connect() as connection, connection.transaction(force_rollback=True):
        clock = Clock(lambda: lead.set("address", b"\x00\xff"))
        _, (lead, follower) = stores(connection, clock)
        assert (follower.get("address"), clock.signs) == (b"\x00\xff", 1)
        assert (lead.add("count", 2), follower.add("count", 3)) == (2, 5)
        assert (follower.check(["address", "count"]), follower.check(["address", "none"])) == (True, False)
        assert [lead.delete_key("address") for _ in range(2)] == [True, False]


def test_rank_waits_for_the_others_no_longer_than_it_may(database: Database) -> None:
    with database.connect() as connection, connection.transaction(force_rollback=True):
        clock = Clock()
        _, (lead, _) = stores(connection, clock)
        with pytest.raises(RuntimeError, match="no rank has stored address within 5 s"):
            lead.wait(["address"], timedelta(seconds=5))
        assert 5.0 <= clock.now_s < 6.0
        with pytest.raises(RankLostError, match="rank 0 of 2 has not met all other ranks"):
            join_ranks(lead, RankShare(rank=0, ranks=2), attempt="1", meeting_s=5.0, timeout_s=5.0)


def test_rank_that_waits_ends_with_its_attempt(database: Database) -> None:
    with database.connect() as connection, connection.transaction(force_rollback=True):
        clock = Clock(lambda: jobs.requeue(connection, claimed[0].job, claimed[0].claim, "its controller stops"))
        claimed, (_, follower) = stores(connection, clock)
        with pytest.raises(LostClaimError):
            follower.get("address")
        with pytest.raises(LostClaimError):
            join_ranks(follower, RankShare(rank=1, ranks=2), attempt="1", meeting_s=5.0, timeout_s=5.0)
        assert ranks.attempt_of(connection, claimed[1].job, claimed[1].claim) == claimed[1].claim
