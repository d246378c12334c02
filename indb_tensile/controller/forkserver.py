"""Processes by fork: one has imported what takes long, and trainers, service, analyst, learner are its copies.

Importing torch takes a processor seconds and hundreds of megabytes; a copy takes milliseconds, and memory only for
what it writes. The server (worker/forkserver.py) forks twice: the one between ends at once, and the copy becomes
the child of the nearest ancestor that adopts orphans, which this process is while one is being forked. So it is ours
to wait for, its id stays its own until we do, and it neither needs nor notices the server's end.

Nothing here waits: a request lies in the socket until the server has imported what it names.
"""

import ctypes
import itertools
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

log = logging.getLogger(__name__)

REQUEST_BYTES = 1 << 16  # a request is one datagram
DESCRIPTORS = 8  # that come with a request, at most
ANSWER = struct.Struct("=qi")  # the copy's number and its process id, 0 where it could not be forked
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# Turns of libgomp's loop before a thread that waits for the others of its team sleeps: 300,000 by default, so that on
# a machine with more to do than processors a team's first thread keeps its last one from the processor.
_SPINS = "10000"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One copy, as the server is asked for it."""

    number: int
    module: str  # whose `main() -> int` it runs
    environment: dict[str, str]  # beside the server's own
    descriptors: tuple[str, ...]  # the variables that name those that come along, in their order


@dataclass(slots=True, kw_only=True)
class Copy:
    """A process that was asked for. It is this process's child, in a group of its own."""

    pid: int | None = None  # not begun
    failed: bool = False  # and never will
    unwanted: bool = False

    @property
    def over(self) -> bool:
        """Whether it has ended, or will never begin."""
        return self.failed or (self.pid is not None and self.ended())

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it ended in time; it stays a zombie, so that its id and its group's stay its own."""
        assert self.pid is not None
        pidfd = os.pidfd_open(self.pid)
        try:
            return bool(select.select([pidfd], [], [], timeout_s)[0])
        finally:
            os.close(pidfd)

    def reap(self) -> int:
        """Kill it and whatever of its group is left; its exit code."""
        assert self.pid is not None
        os.killpg(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def abandon(self) -> None:
        """It was asked for in vain: if it has begun, or when it does, it is ended."""
        self.unwanted = True
        if self.pid is not None:
            self.reap()


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server: its process, our child in a group of its own, and our end of its socket."""

    pid: int
    control: socket.socket


class ForkServer:
    """Has processes forked that run `main()` of a module. Belongs to one thread.

    A server is started when one is asked and there is none; `environment` is its own, and so its copies'. What it
    imports after it has forked one, it does not share with that one: `modules` are imported before.
    """

    def __init__(
        self, environment: Mapping[str, str], modules: Sequence[str] = (), server: Server | None = None
    ) -> None:
        """`server` already runs."""
        self._environment = dict(environment)
        self._modules = tuple(modules)
        self._server: Server | None = None
        self._epoll = select.epoll()
        self._numbers = itertools.count()
        self._asked: dict[int, Copy] = {}
        if server is not None:
            self._adopt(server)

    def fileno(self) -> int:
        """Readable when there is something to receive, whichever server runs."""
        return self._epoll.fileno()

    @property
    def pid(self) -> int | None:
        """The server's process id; None where none runs."""
        return None if self._server is None else self._server.pid

    def ask(
        self, module: str, *, environment: Mapping[str, str] | None = None, descriptors: Mapping[str, int]
    ) -> Copy:
        """Have a process forked with these variables, and these descriptors under the variables' names.

        Where nobody can be asked, it has failed.
        """
        self.receive()  # one that has ended is not asked
        number, copy = next(self._numbers), Copy()
        request = Request(
            number=number, module=module, environment=dict(environment or {}), descriptors=tuple(descriptors)
        )
        self._asked[number] = copy
        try:
            _adopt_orphans(True)
            control = self._running().control
            socket.send_fds(control, [msgspec.msgpack.encode(request)], list(descriptors.values()))
        except OSError as error:
            log.error("%s cannot be forked: %s", module, error)  # noqa: TRY400 - one line says it all
            self._settle(number, 0)
        return copy

    def receive(self) -> None:
        """Hear who has begun since; with the server's end, whoever it was still asked for has failed."""
        if self._read():
            log.error("the process that others are forked from ended with code %s", self._reap())

    def close(self) -> None:
        """End the server. Whoever it forked until then lives on, and is heard of."""
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.control.setblocking(True)  # what it has forked says so within an instant, and lets go
            self._read()
            self._reap()
        self._epoll.close()

    def _read(self) -> bool:
        """Settle what was answered; whether the server has ended."""
        if self._server is None:
            return False
        try:
            while answer := self._server.control.recv(ANSWER.size):
                self._settle(*ANSWER.unpack(answer))
        except BlockingIOError:
            return False
        except ConnectionError:
            pass  # it left requests unread
        return True

    def _settle(self, number: int, pid: int) -> None:
        copy = self._asked.pop(number)
        copy.pid, copy.failed = pid or None, not pid
        if copy.unwanted and pid:
            copy.reap()
        if not self._asked:
            _adopt_orphans(False)

    def _running(self) -> Server:
        """The server there is, or a new one. Raises OSError."""
        if self._server is None:
            self._adopt(_start(self._environment, self._modules))
        assert self._server is not None
        return self._server

    def _adopt(self, server: Server) -> None:
        self._server = server
        server.control.setblocking(False)
        self._epoll.register(server.control, select.EPOLLIN)

    def _reap(self) -> int:
        assert self._server is not None
        ended, self._server = self._server, None
        os.killpg(ended.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(ended.pid, 0)[1])
        self._epoll.unregister(ended.control)
        ended.control.close()
        for number in tuple(self._asked):
            self._settle(number, 0)
        return code


def control_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends between a server and who asks it: one datagram is one request or answer, and an end is seen."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _start(environment: Mapping[str, str], modules: Sequence[str]) -> Server:
    """Start a server that has yet to import everything."""
    ours, theirs = control_pair()
    with theirs:
        process = subprocess.Popen(
            (sys.executable, "-m", "indb_tensile.worker.forkserver", str(theirs.fileno()), *modules),
            env={
                "GOMP_SPINCOUNT": _SPINS,
                **environment,
                "OPENBLAS_NUM_THREADS": "1",
            },  # a process with threads is no template
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            process_group=0,
        )
    process.returncode = 0  # whoever has the server waits for it, by its id
    return Server(pid=process.pid, control=ours)


def _adopt_orphans(adopting: bool) -> None:
    """Become the parent of every descendant whose own parent ends, or no longer. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopting), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "orphans cannot be adopted")
