"""Connects the ranks of one job by a process group of Gloo.

Ranks find each other by a store, which the caller provides. Connections have neither a password nor encryption, so a
rank listens on an address of this machine or of a private network only. A rank that has died closes its connections,
and the others notice at once. A rank that has stopped, or a link that is cut, closes nothing: each wait ends after
`timeout_s`.
"""

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from indb_tensile.errors import RankLostError, RequestError
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.rank_sockets import Endpoint, connections, listen, shut_down
from indb_tensile.executor.ranks.receiving_threads import patient_receivers

LOOPBACK = "127.0.0.1"
_MESSAGE = 1  # the tag of all messages: those between two ranks arrive in their order


def join_ranks(
    store: Store, share: RankShare, *, attempt: str, meeting_s: float, timeout_s: float, address: str = LOOPBACK
) -> RankGroup:
    """Wait until all ranks of this attempt have joined, and return their group, whose exchanges may take `timeout_s`.

    `attempt` keeps ranks of an earlier attempt out, which may still run. Raises RankLostError if a rank does not come
    within `meeting_s`, and RequestError for an address that strangers could reach.
    """
    with patient_receivers():
        return _join(store, share, attempt, meeting_s, timeout_s, _private(address))


def _join(
    store: Store, share: RankShare, attempt: str, meeting_s: float, timeout_s: float, address: str
) -> RankGroup:
    device, own = listen(partial(ProcessGroupGloo.create_device, hostname=address), address)
    options = cast(Any, ProcessGroupGloo)._Options()  # noqa: SLF001 - torch has no public way to choose an address
    options._devices = [device]  # noqa: SLF001
    options._timeout = timedelta(seconds=meeting_s)  # noqa: SLF001
    store.set_timeout(timedelta(seconds=meeting_s))
    meeting = PrefixStore(f"ranks/{attempt}", store)
    try:
        group = _AbortableGloo(meeting, share.rank, share.ranks, options)
        meeting.set(_endpoint_of(share.rank), "{} {}".format(*own))
        group.endpoints = tuple(_endpoint(meeting.get(_endpoint_of(rank))) for rank in range(share.ranks))
    except RuntimeError as error:
        raise rank_lost(share.rank, share.ranks, error, "has not met all other ranks") from error
    group.limit = timedelta(seconds=timeout_s)
    group.set_timeout(group.limit)
    return cast(RankGroup, group)  # torch's stubs leave out a backend's operations


class _AbortableGloo(ProcessGroupGloo):
    """A process group whose `abort` ends the exchanges that are under way.

    Its all-to-alls are messages between pairs of ranks, sent by the calling thread. Gloo's own all-to-all runs on a
    thread of Gloo's, so each one takes two more changes of threads.
    """

    sends_device_memory = False
    endpoints: tuple[Endpoint, ...] = ()  # of all ranks
    limit = timedelta(0)  # of each wait for a message, which does not have that of the group

    def is_connected(self) -> bool:
        """Return whether no other rank has closed its connection to this one, as the end of a process does."""
        rank = self.rank()
        others = self.endpoints[:rank] + self.endpoints[rank + 1 :]
        return connections(self.endpoints[rank], others) >= len(others)

    def alltoall_base(
        self, received: torch.Tensor, sent: torch.Tensor, receives: list[int], sends: list[int], /
    ) -> torch.distributed.Work:
        """See `RankGroup`. Ranks that neither send nor receive anything wait for nobody."""
        own, ranks = self.rank(), self.size()
        group = cast(Any, super())
        sources, targets = torch.split(received, receives), torch.split(sent, sends)
        # Gloo sends a message once its receiver is ready, so all receivers get ready first.
        messages = [
            group.recv([sources[rank]], rank, _MESSAGE)
            for rank in (*range(own + 1, ranks), *range(own))
            if receives[rank]
        ]
        messages += [
            group.send([targets[rank]], rank, _MESSAGE)
            for rank in (*range(own + 1, ranks), *range(own))
            if sends[rank]
        ]
        if receives[own]:
            sources[own].copy_(targets[own])
        return _Messages(messages, self.limit)

    def settle(self) -> None:
        """Do nothing: whoever waits for an operation of Gloo waits until it has ended."""

    def abort(self) -> None:
        """End every exchange under way, and every later one, with an error. The other ranks notice at once."""
        rank = self.rank()
        shut_down(self.endpoints[rank], self.endpoints[:rank] + self.endpoints[rank + 1 :])


class _Messages(torch.distributed.Work):
    """Messages that are under way."""

    def __init__(self, messages: Sequence[torch.distributed.Work], limit: timedelta) -> None:
        super().__init__()
        self._messages = messages
        self._limit = limit

    def wait(self, timeout: object = None) -> bool:
        """Wait until all have arrived. Raises RuntimeError if one of them cannot, or not in time."""
        del timeout
        for message in self._messages:
            message.wait(self._limit)
        return True


def broadcast_bytes(group: RankGroup, sent: bytes) -> bytes:
    """Return the bytes that rank 0 sends; those of other ranks do not count. Raises RankLostError."""
    with while_ranks_answer(group):
        size = torch.tensor(len(sent), dtype=torch.int64)
        group.broadcast(size, 0).wait()
        if not size:
            return b""
        content = torch.empty(int(size), dtype=torch.uint8)
        if group.rank() == 0:
            content = torch.frombuffer(bytearray(sent), dtype=torch.uint8)
        group.broadcast(content, 0).wait()
    return content.numpy().tobytes()


def rank_lost(rank: int, ranks: int, error: RuntimeError, event: str) -> RankLostError:
    """Return the error of a rank whose exchange with the others has failed."""
    cause = (str(error).splitlines() or [type(error).__name__])[0]
    return RankLostError(
        f"rank {rank} of {ranks} {event}",
        detail=f"The connection says: {cause}",
        hint="The attempt of all ranks ends, and the job goes on from its last checkpoint.",
    )


@contextmanager
def while_ranks_answer(
    group: RankGroup, around: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[None]:
    """Run exchanges with the other ranks in a context of `around`. Raises RankLostError if one of them is gone."""
    try:
        with around():
            yield
    except RuntimeError as error:
        raise rank_lost(group.rank(), group.size(), error, "has lost another rank") from error


def _endpoint_of(rank: int) -> str:
    return f"endpoint of {rank}"


def _endpoint(stored: bytes) -> Endpoint:
    address, port = stored.decode().split(" ")
    return address, int(port)


def _private(address: str) -> str:
    """Return this address of a private network as sockets write it."""
    try:
        private = ipaddress.ip_address(address)
    except ValueError:
        raise RequestError(
            f'"{address}" is not an address on which ranks can listen',
            hint="Give an address by its numbers, such as 10.0.0.7.",
        ) from None
    if not private.is_private or private.is_unspecified:
        raise RequestError(
            f"ranks cannot listen on {address}, which is not an address of a private network",
            detail="Their connections have neither a password nor encryption.",
            hint="Give an address of a network that only these machines use.",
        )
    return private.compressed
