"""Connects ranks on GPUs by NCCL, after Gloo has connected them (rank_connection.py).

NCCL takes hundreds of megabytes of each GPU outside every plan. The controller keeps them free
(device/trainer_footprint.py), and here they are measured: the driver's free memory before NCCL connects and after its
first operations, for which NCCL allocates its buffers.

NCCL listens on ports of its own, of the interface that has the rank's address. A key that the connection begins with
is in the store by which ranks meet, so only workers know it.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import cast

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from indb_tensile.errors import DeviceError, RankLostError
from indb_tensile.executor.capture.exchange_room import PIECE_ELEMENTS
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.ranks.nccl_ranks import ControlGroup, NcclRanks
from indb_tensile.executor.ranks.network_interfaces import interface_of
from indb_tensile.executor.ranks.rank_connection import rank_lost
from indb_tensile.executor.ranks.rank_gpu import RankGpu
from indb_tensile.executor.ranks.rank_group import RankGroup

_LOOK_S = 0.2
_FIRST_ELEMENTS = 8 * PIECE_ELEMENTS  # 16 MiB: enough that NCCL uses, and allocates, all its channels

# PyTorch's thread ends the process after an error of NCCL, unless it is told to do nothing. Another one asks the
# store for faults of other ranks every second, and a third ends the process if the first one hangs.
_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
}


def refuse_without_nccl(place: torch.device, *, available: Callable[[], bool] = dist.is_nccl_available) -> None:
    """Raise DeviceError if ranks on this device cannot exchange by NCCL."""
    if place.type != "cuda":
        raise DeviceError(
            f"rank_network is nccl, and this device is not a GPU but {place.type}",
            hint="Set rank_network to host, or device to a GPU.",
        )
    if not available():
        raise DeviceError(
            f"rank_network is nccl, and PyTorch {torch.__version__} was built without NCCL",
            hint="Set rank_network to host, or install a build of PyTorch with NCCL, as for CUDA on Linux.",
        )


def refuse_shared_gpus(gpus: Sequence[str]) -> None:
    """Raise DeviceError if two ranks are on one GPU. `gpus` names that of each rank, on any host."""
    for rank, gpu in enumerate(gpus):
        if (first := gpus.index(gpu)) < rank:
            raise DeviceError(
                f"ranks {first} and {rank} of {len(gpus)} are both on {gpu}, and NCCL takes one rank of each GPU",
                hint="Give each controller a GPU of its own by its setting device, or set rank_network to host.",
            )


def await_room(
    share: RankShare,
    free_bytes: Callable[[], int],
    needed_bytes: int,
    patience_s: float,
    *,
    clock_s: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the device has so much free memory, which the controller gives back to the driver meanwhile.

    Raises RankLostError if it has not within `patience_s`: the attempt ends, and another one may succeed.
    """
    until_s = clock_s() + patience_s
    while (free := free_bytes()) < needed_bytes:
        if clock_s() >= until_s:
            raise RankLostError(
                f"rank {share.rank} of {share.ranks} has no room for NCCL on its GPU",
                detail=f"NCCL needs {needed_bytes} bytes outside the job's memory, and {free} are free.",
                hint="End other programs on the GPU, set max_jobs lower, or set rank_network to host.",
            )
        pause(_LOOK_S)


def connect_by_nccl(
    control: RankGroup,
    store: Store,
    share: RankShare,
    gpu: RankGpu,
    *,
    attempt: str,
    meeting_s: float,
    timeout_s: float,
    address: str,
) -> tuple[NcclRanks, int]:
    """Connect ranks by NCCL that are connected by Gloo, and make the first operations.

    Returns the group, and the bytes of the GPU that NCCL has taken, as far as the driver's free memory tells. Raises
    RankLostError if that fails or takes longer than `meeting_s`.
    """
    _prepare_process(address)
    store.set_timeout(timedelta(seconds=meeting_s))
    meeting = _MeetingStore(store)
    sent, received = gpu.zeros(_FIRST_ELEMENTS), gpu.zeros(_FIRST_ELEMENTS)
    before_bytes = gpu.free_bytes()
    connected: list[NcclRanks] = []

    def connect() -> None:
        gpu.use()
        collectives = gpu.collectives(PrefixStore(f"nccl/{attempt}", meeting), share, f"ranks of attempt {attempt}")
        group = NcclRanks(
            cast(ControlGroup, control),
            collectives,
            gpu.place,
            timeout_s=timeout_s,
            mark=gpu.mark,
            store=meeting,
        )
        group.allreduce([sent]).wait()
        each = [sent.numel() // share.ranks] * share.ranks
        group.alltoall_base(received[: sum(each)], sent[: sum(each)], each, each).wait()
        group.settle()
        connected.append(group)

    try:
        _within(meeting_s, share, connect)
    finally:
        meeting.close()
    return connected[0], before_bytes - gpu.free_bytes()


class _MeetingStore(Store):
    """The store by which ranks meet, until they have met.

    A thread of PyTorch writes to its group's store after an error, whenever that is. The store of ranks is of the
    thread that trains, so it is not called then.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store: Store | None = store

    def close(self) -> None:
        """Pass nothing on any more."""
        self._store = None

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value, or drop it."""
        if (store := self._store) is not None:
            store.set(key, value)  # type: ignore[arg-type]  # torch's stubs leave out bytes

    def get(self, key: str) -> bytes:
        """Return a value, and wait until it has been stored."""
        if (store := self._store) is None:
            raise RuntimeError(f"the value of {key} is asked for after all ranks have met")
        return store.get(key)

    def check(self, keys: list[str]) -> bool:
        """Return whether all these values have been stored."""
        return (store := self._store) is not None and store.check(keys)


def _prepare_process(address: str) -> None:
    """Set what NCCL and PyTorch's group of it read from the environment."""
    os.environ.update(_ENVIRONMENT)
    if (interface := interface_of(address)) is not None:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # NCCL listens where Gloo does


def _within(limit_s: float, share: RankShare, act: Callable[[], None]) -> None:
    """Do this on a thread, because NCCL waits for all ranks without a limit when it connects them."""
    faults: list[Exception] = []

    def run() -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - raised by the waiting thread
            faults.append(error)

    thread = threading.Thread(target=run, name="connecting by NCCL", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        faults.append(RuntimeError(f"NCCL has not connected all ranks within {limit_s:g} s"))
    for fault in faults:
        if isinstance(fault, RuntimeError):
            raise rank_lost(share.rank, share.ranks, fault, "could not connect to the others by NCCL") from fault
        raise fault
