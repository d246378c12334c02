"""Check with real processes that memory which a job uses above its lowered grant goes to another job only after the
first job has freed it or has died.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from indb_tensile.device.ledger import Ledger
from indb_tensile.job import JobId
from tests.controller.fakes import MIB
from tests.controller.harness import ControllerHarness, controller_harness


@contextmanager
def hoarding_job() -> Iterator[tuple[ControllerHarness, JobId, JobId]]:
    """Run a job that was granted 4 MiB but still uses 16 MiB, and a second job that waits for 12 MiB."""
    with controller_harness(ledger=Ledger.create(16 * MIB, MIB, 10**9, 10**9)) as harness:
        first = harness.records.enqueue("hoard", 4 * MIB)
        harness.until_adopted(first)
        second = harness.records.enqueue("train", 12 * MIB)
        harness.until(lambda: (member := harness.controller.pool.of_job(second)) and member.target is not None)
        for _ in range(5):
            harness.controller.turn(harness.heartbeat)
        yield harness, first, second


def granted_and_held_mib(harness: ControllerHarness, job: JobId) -> tuple[int, int]:
    member = harness.controller.pool.of_job(job)
    assert member is not None
    return member.granted_bytes // MIB, member.held_bytes // MIB


@pytest.mark.parametrize("signal_number", [signal.SIGUSR1, signal.SIGKILL], ids=["freed", "dead"])
def test_memory_above_a_lowered_grant_goes_to_another_job_after_it_is_freed(signal_number: signal.Signals) -> None:
    with hoarding_job() as (harness, first, second):
        assert (granted_and_held_mib(harness, first), granted_and_held_mib(harness, second)) == ((4, 16), (0, 0))
        os.kill(harness.pid_of(first), signal_number)
        harness.until_adopted(second)
        assert granted_and_held_mib(harness, second) == (12, 12)
        if signal_number is signal.SIGUSR1:
            assert granted_and_held_mib(harness, first) == (4, 4)
        assert harness.records.states[second] == "claimed", "the second job was not started again"
