"""Run ranks as threads of the test's process, each with a process group of Gloo over a store in memory."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch._C._distributed_c10d import HashStore, PrefixStore, ProcessGroupGloo

from indb_tensile.executor.ranks.part_exchange import RankGroup

_TIMEOUT = timedelta(seconds=60)
_Result = TypeVar("_Result")


def options() -> Any:
    """Return options with which Gloo listens on the loopback address only. Torch's stubs do not know them."""
    made = cast(Any, ProcessGroupGloo)._Options()
    made._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    made._timeout = _TIMEOUT
    return made


def on_ranks(ranks: int, run: Callable[[int, RankGroup], _Result]) -> list[_Result]:
    """Run one rank in each thread, and return what each one returns. A rank's fault is raised here."""
    store = HashStore()
    results: dict[int, _Result] = {}
    faults: dict[int, BaseException] = {}

    def one(rank: int) -> None:
        torch.set_num_threads(1)  # it counts for the thread that sets it, and changes bits
        group = ProcessGroupGloo(PrefixStore("ranks", store), rank, ranks, options())
        try:
            results[rank] = run(rank, cast(RankGroup, group))  # torch's stubs leave out a backend's operations
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
