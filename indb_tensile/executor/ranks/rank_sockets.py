"""Finds the sockets of a process group of Gloo, and shuts them down.

`ProcessGroupGloo.abort` does not end an exchange that waits for another rank (PyTorch 2.13): only the end of its
connections or its timeout does. PyTorch has no way to close them, nor to ask on which port a rank listens, so both
are found among the open files of this process.
"""

import os
import select
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

_OPEN_FILES = Path("/proc/self/fd")
_one_listens = threading.Lock()  # ranks may be threads of one process

_Listening = TypeVar("_Listening")
Endpoint = tuple[str, int]  # the address and the port on which a rank listens


def listen(create: Callable[[], _Listening], address: str) -> tuple[_Listening, Endpoint]:
    """Return what `create` makes, and the endpoint on this address on which it has begun to listen."""
    with _one_listens:
        before = set(_listening_on(address))
        listening = create()
        (endpoint,) = set(_listening_on(address)) - before
    return listening, endpoint


def shut_down(own: Endpoint, others: Iterable[Endpoint]) -> None:
    """End all connections of the rank that listens on `own` to those that listen on `others`, in both directions.

    What waits for a message over one of them fails at once, here and in the other rank.
    """
    for connection in _between(own, others):
        with suppress(OSError):  # it has just ended
            connection.shutdown(socket.SHUT_RDWR)


def connections(own: Endpoint, others: Iterable[Endpoint]) -> int:
    """Return how many connections of this rank to the others neither side has closed.

    Connections of strangers to this rank's port are among them.
    """
    return sum(not _hung_up(connection) for connection in _between(own, others))


def _hung_up(connection: socket.socket) -> bool:
    """Return whether a side of this connection has closed it, and does not send any more."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _between(own: Endpoint, others: Iterable[Endpoint]) -> Iterator[socket.socket]:
    """Yield a duplicate of each connection between this rank and the others, open until the next one."""
    theirs = frozenset(others)
    for connection in _sockets():
        with connection, suppress(OSError):  # a socket that listens has no peer, nor has an ended connection
            if connection.getpeername()[:2] in theirs or connection.getsockname()[:2] == own:
                yield connection


def _listening_on(address: str) -> Iterator[Endpoint]:
    for candidate in _sockets():
        with candidate:
            name = candidate.getsockname()
            if candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and name[0] == address:
                yield name[:2]


def _sockets() -> Iterator[socket.socket]:
    """Yield a duplicate of each TCP socket of this process, which the caller closes."""
    for opened in _OPEN_FILES.iterdir():
        with suppress(OSError):  # closed since by another thread
            if not opened.is_socket():
                continue
            duplicate = socket.socket(fileno=os.dup(int(opened.name)))
            if duplicate.family in (socket.AF_INET, socket.AF_INET6) and duplicate.type == socket.SOCK_STREAM:
                yield duplicate
            else:
                duplicate.close()
