"""Run ranks as threads of the test's process, connected over a store in memory."""

import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch._C._distributed_c10d import HashStore

from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.ranks.rank_group import RankGroup
from tests.executor.ranks.group_kinds import GLOO, GroupKind

_Result = TypeVar("_Result")


def on_ranks(
    ranks: int, run: Callable[[int, RankGroup], _Result], *, timeout_s: float = 60.0, kind: GroupKind = GLOO
) -> list[_Result]:
    """Run one rank in each thread, and return what each one returns. A rank's fault is raised here."""
    store = HashStore()
    results: dict[int, _Result] = {}
    faults: dict[int, BaseException] = {}

    def one(rank: int) -> None:
        torch.set_num_threads(1)  # it counts for the thread that sets it, and changes bits
        try:
            share = RankShare(rank=rank, ranks=ranks)
            with kind.joined(store, share, timeout_s) as group:
                results[rank] = run(rank, group)
        except BaseException as fault:  # noqa: BLE001 - raised by the test's thread
            faults[rank] = fault

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _, fault in sorted(faults.items()):
        raise fault
    return [results[rank] for rank in range(ranks)]
