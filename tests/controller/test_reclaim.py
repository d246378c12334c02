"""What a lowered grant leaves in use: another job gets it when it is empty, or its owner is dead. Real processes."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from indb_tensile.device.ledger import Ledger
from indb_tensile.job import JobId
from tests.controller.fakes import MIB, Stage, stage


@contextmanager
def hoarding() -> Iterator[tuple[Stage, JobId, JobId]]:
    """A job that trains with 4 of the 16 MiB it still has something in, and one that needs 12 beside it."""
    with stage(account=Ledger.create(16 * MIB, MIB, 10**9, 10**9)) as s:
        first = s.records.enqueue("hoard", 4 * MIB)
        s.until_adopted(first)
        second = s.records.enqueue("train", 12 * MIB)
        s.until(lambda: (member := s.controller.pool.of_job(second)) is not None and member.target is not None)
        for _ in range(5):
            s.controller.turn(s.heartbeat)
        yield s, first, second


def held(s: Stage, job: JobId) -> tuple[int, int]:
    member = s.controller.pool.of_job(job)
    assert member is not None
    return member.granted_bytes // MIB, member.held_bytes // MIB


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGKILL], ids=["given back", "dead"])
def test_what_a_lowered_grant_leaves_in_use_is_anothers_once_it_is_free(number: signal.Signals) -> None:
    with hoarding() as (s, first, second):
        assert (held(s, first), held(s, second)) == ((4, 16), (0, 0))
        os.kill(s.pid_of(first), number)
        s.until_adopted(second)
        assert held(s, second) == (12, 12)
        if number is signal.SIGUSR1:
            assert held(s, first) == (4, 4)
        assert s.records.states[second] == "claimed", "nobody had to start anew"
