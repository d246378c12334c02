"""Lets ranks on GPUs exchange gradients by NCCL, from and into the memory of their devices.

`NcclRanks` is a second connection beside that of Gloo, which ranks have anyway. Gloo stays what it is for: the proof
of who is connected, words and checkpoints of rank 0, the measurement of the network, and the news that a rank has
gone. Values on the GPU go by NCCL, and all others by Gloo.

NCCL's kernels spin on the GPU until all ranks have called the same operation. They do not end by themselves if one of
them has gone, and PyTorch's own answer to that is to end the process from a thread of its own. So this class looks
after them: the host asks the driver for the end of each operation, and ends all of them if a connection of Gloo is
closed or nothing has ended for `timeout_s`. This ends the connection of Gloo, too, so the other ranks notice at once
and do the same, which NCCL requires of all ranks.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import ErrorType, Store

from indb_tensile.executor.ranks.exchange_streams import StreamMark
from indb_tensile.executor.ranks.rank_group import RankGroup

log = logging.getLogger("executor")

_ABORT_S = 30.0  # for the end of NCCL's kernels; the process ends in any case
_LOOK_S = 0.2  # between two looks at the connections: each takes a fraction of a millisecond
_SPIN_S, _SPIN_PAUSE_S, _PAUSE_S = 0.02, 0.00005, 0.001  # most exchanges take milliseconds


class Collectives(Protocol):
    """What is used of PyTorch's ProcessGroupNCCL."""

    def alltoall_base(self, received: Tensor, sent: Tensor, receives: list[int], sends: list[int], /) -> dist.Work:
        """See `RankGroup`."""
        ...

    def broadcast(self, tensor: Tensor, root: int, /) -> dist.Work:
        """See `RankGroup`."""
        ...

    def allreduce(self, tensors: list[Tensor], /) -> dist.Work:
        """See `RankGroup`."""
        ...

    def get_error(self) -> ErrorType:
        """Return what PyTorch has found wrong with operations of NCCL, such as a broken connection between hosts."""
        ...

    def abort(self) -> None:
        """End all kernels under way, and free the memory of the connection."""
        ...


class ControlGroup(RankGroup, Protocol):
    """A connection in host memory that tells whether the other ranks are there."""

    def is_connected(self) -> bool:
        """Return whether no other rank has closed its connection."""
        ...


class NcclRanks:
    """The ranks of a job, connected by `collectives` for values on `place`, and by `control` for all others.

    `mark` marks the end of what this thread has queued on the device. Operations on the device belong to one thread,
    and `abort` to any. `store` is kept as long as threads of PyTorch may call it.
    """

    sends_device_memory = True

    def __init__(
        self,
        control: ControlGroup,
        collectives: Collectives,
        place: torch.device,
        *,
        timeout_s: float,
        mark: Callable[[], StreamMark],
        store: Store | None = None,
        abort_s: float = _ABORT_S,
        clock_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._control = control
        self._collectives = collectives
        self._place = place
        self._timeout_s = timeout_s
        self._mark = mark
        self._store = store
        self._abort_s = abort_s
        self._clock_s = clock_s
        self._pause = pause
        self._under_way: deque[StreamMark] = deque()  # the ends of operations that may not have ended
        self._ended: str | None = None  # why there are no further operations
        self._ending = threading.Lock()

    def size(self) -> int:
        """See `RankGroup`."""
        return self._control.size()

    def rank(self) -> int:
        """See `RankGroup`."""
        return self._control.rank()

    def alltoall_base(self, received: Tensor, sent: Tensor, receives: list[int], sends: list[int], /) -> dist.Work:
        """See `RankGroup`."""
        if not self._is_here(sent):
            return self._control.alltoall_base(received, sent, receives, sends)
        return self._started(lambda: self._collectives.alltoall_base(received, sent, receives, sends))

    def broadcast(self, tensor: Tensor, root: int, /) -> dist.Work:
        """See `RankGroup`."""
        if not self._is_here(tensor):
            return self._control.broadcast(tensor, root)
        return self._started(lambda: self._collectives.broadcast(tensor, root))

    def allreduce(self, tensors: list[Tensor], /) -> dist.Work:
        """See `RankGroup`."""
        if not self._is_here(tensors[0]):
            return self._control.allreduce(tensors)
        return self._started(lambda: self._collectives.allreduce(tensors))

    def settle(self) -> None:
        """See `RankGroup`."""
        self._note_end()
        while self._under_way:
            self._await(self._under_way[0])
            self._under_way.popleft()

    def abort(self) -> None:
        """See `RankGroup`."""
        self._end("this rank has ended its exchanges")

    def leave(self) -> None:
        """Free NCCL's memory, once all ranks have made all their exchanges, or one of them is gone."""
        try:
            self._control.allreduce([torch.zeros(1)]).wait()
        except RuntimeError:  # nothing is exchanged any more, so nobody is missed
            self.abort()
            return
        with self._ending:
            if self._ended is not None:
                return
            self._ended = "this rank has left the others"
        self._abort_collectives()

    def _is_here(self, value: Tensor) -> bool:
        return value.device == self._place

    def _started(self, start: Callable[[], dist.Work]) -> dist.Work:
        if self._ended is not None:
            raise RuntimeError(self._ended)
        return _DeviceOperation(start(), self._note_end)

    def _note_end(self) -> None:
        self._under_way.append(self._mark())

    def _await(self, end: StreamMark) -> None:
        """Wait until the device is there. The time begins anew with each operation."""
        began_s = looked_s = self._clock_s()
        while self._ended is None and not end.query():
            now_s = self._clock_s()
            if now_s - began_s >= self._timeout_s:
                self._end(f"an operation of NCCL has not ended within {self._timeout_s:g} s")
            elif now_s - looked_s >= _LOOK_S:
                looked_s = now_s
                self._end_if_broken()
            self._pause(_SPIN_PAUSE_S if now_s - began_s < _SPIN_S else _PAUSE_S)
        if self._ended is not None:
            raise RuntimeError(self._ended)

    def _end_if_broken(self) -> None:
        if not self._control.is_connected():
            self._end("another rank has closed its connection")
        elif (error := self._collectives.get_error()) != ErrorType.SUCCESS:
            self._end(f"NCCL reports {error.name}")

    def _end(self, reason: str) -> None:
        """End all operations, of Gloo first: then the other ranks end theirs, which NCCL waits for."""
        with self._ending:
            if self._ended is not None:
                return
            self._ended = reason
        self._control.abort()
        self._abort_collectives()

    def _abort_collectives(self) -> None:
        """End NCCL's kernels, and wait for that only as long as it may take: NCCL itself may wait for ever."""
        ending = threading.Thread(target=self._abort_quietly, name="ending NCCL", daemon=True)
        ending.start()
        ending.join(self._abort_s)
        if ending.is_alive():
            log.warning("NCCL has not ended its operations within %g s; they end with this process", self._abort_s)

    def _abort_quietly(self) -> None:
        try:
            self._collectives.abort()
        except RuntimeError as error:
            log.warning("NCCL did not end its operations in order: %s", error)


@contextmanager
def leaving(group: RankGroup, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> Iterator[None]:
    """Free NCCL's memory when the context ends, if the group has any: after all ranks have made all exchanges.

    That is waited for in a context of `around`. An error ends the exchanges of all ranks at once.
    """
    if not isinstance(group, NcclRanks):
        yield
        return
    try:
        yield
        with around():
            group.leave()
    finally:
        group.abort()  # nothing more if it has left


class _DeviceOperation(dist.Work):
    """An operation on the device. `wait` lets the device wait for its end, and not the host."""

    def __init__(self, work: dist.Work, note_end: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self._note_end = note_end

    def wait(self, timeout: object = None) -> bool:
        del timeout
        self._work.wait()
        self._note_end()
        return True
