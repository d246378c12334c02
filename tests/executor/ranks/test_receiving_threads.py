"""The threads that receive for Gloo do not interrupt others, and no other thread's policy is changed."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.receiving_threads import NAME, patient_receivers, receivers
from tests.executor.ranks.rank_threads import on_ranks


@contextmanager
def thread_of_name(name: str) -> Iterator[int]:
    """Yield the id of a thread that has this name for the system, and waits."""
    named, ended = threading.Event(), threading.Event()

    def wait() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name, encoding="utf-8")
        named.set()
        ended.wait(60)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        assert named.wait(60)
        assert thread.native_id is not None
        yield thread.native_id
    finally:
        ended.set()
        thread.join()


def test_only_receiving_threads_that_start_in_the_context_become_patient() -> None:
    with ExitStack() as stack:
        earlier = stack.enter_context(thread_of_name(NAME))
        with patient_receivers():
            later, other = (stack.enter_context(thread_of_name(name)) for name in (NAME, "other"))
        policies = [os.sched_getscheduler(thread) for thread in (earlier, later, other, 0)]
    assert policies == [os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_OTHER, os.SCHED_OTHER]


def test_each_rank_receives_by_a_patient_thread() -> None:
    before = receivers()

    def run(rank: int, group: RankGroup) -> list[int]:
        del rank
        group.allreduce([torch.ones(1)]).wait()  # all ranks have joined
        return [os.sched_getscheduler(thread) for thread in receivers() - before]

    assert on_ranks(2, run) == [[os.SCHED_BATCH] * 2] * 2
