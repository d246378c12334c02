"""Starts processes by fork: trainers, services, analysts and learners are copies of one process, the fork server.

Importing torch costs seconds of processor time and hundreds of megabytes. A copy takes milliseconds, and needs memory
only for the pages it writes. The server (worker/forkserver.py) forks twice. The process in between ends at once, and
the copy becomes the child of the nearest ancestor that adopts orphans: this process, while a fork is under way. So
this process waits for the copy itself, the copy's process id stays reserved until then, and the copy neither needs
nor notices the end of the server.

No function here waits: a request stays in the socket until the server has imported the module that it names.
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

from indb_tensile.device.waiting_threads import with_short_waits

log = logging.getLogger(__name__)

REQUEST_BYTES = 1 << 16  # a request is one datagram
DESCRIPTORS = 8  # the most descriptors that come with one request
ANSWER = struct.Struct("=qi")  # the number of the copy and its process id, or 0 if it could not be forked
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the server for one copy."""

    number: int
    module: str  # the copy runs its `main() -> int`
    environment: dict[str, str]  # variables that are added to the server's own
    descriptors: tuple[str, ...]  # names of variables that get the numbers of the passed descriptors, in their order


@dataclass(slots=True, kw_only=True)
class ForkedProcess:
    """A process that was requested. It is a child of this process, and leads a process group of its own."""

    pid: int | None = None  # None: not started yet
    failed: bool = False  # it will never start
    unwanted: bool = False

    @property
    def over(self) -> bool:
        """Whether the process has ended, or will never start."""
        return self.failed or (self.pid is not None and self.ended())

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Return whether the process ended within the time.

        The process stays a zombie, so that its id and its group's id are not used again.
        """
        assert self.pid is not None
        pidfd = os.pidfd_open(self.pid)
        try:
            return bool(select.select([pidfd], [], [], timeout_s)[0])
        finally:
            os.close(pidfd)

    def reap(self) -> int:
        """Kill the process and its group, and return its exit code."""
        assert self.pid is not None
        os.killpg(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def abandon(self) -> None:
        """Kill the process, at once or as soon as it starts, because it is no longer needed."""
        self.unwanted = True
        if self.pid is not None:
            self.reap()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningForkServer:
    """A running server: its process, which is a child in a group of its own, and this process's end of its socket."""

    pid: int
    control: socket.socket


class ForkServer:
    """Starts processes that run `main()` of a module. All calls come from one thread.

    A server is started when a process is requested and no server runs. `environment` is the environment of the server
    and so of its copies. `modules` are imported before the first fork: a copy shares no memory of modules that the
    server imports later.
    """

    def __init__(
        self, environment: Mapping[str, str], modules: Sequence[str] = (), server: RunningForkServer | None = None
    ) -> None:
        """`server`, if given, already runs."""
        self._environment = dict(environment)
        self._modules = tuple(modules)
        self._server: RunningForkServer | None = None
        self._epoll = select.epoll()
        self._numbers = itertools.count()
        self._pending: dict[int, ForkedProcess] = {}
        if server is not None:
            self._use_server(server)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `receive` has work.

        It stays valid when the server is restarted.
        """
        return self._epoll.fileno()

    @property
    def pid(self) -> int | None:
        """The server's process id, or None if no server runs."""
        return None if self._server is None else self._server.pid

    def ask(
        self, module: str, *, environment: Mapping[str, str] | None = None, descriptors: Mapping[str, int]
    ) -> ForkedProcess:
        """Request a process with these environment variables and descriptors.

        `descriptors` maps names of variables to descriptors; the copy finds their numbers in these variables. If the
        request cannot be sent, the returned copy has failed.
        """
        self.receive()  # a server that has ended is noticed first
        number, copy = next(self._numbers), ForkedProcess()
        request = ForkRequest(
            number=number, module=module, environment=dict(environment or {}), descriptors=tuple(descriptors)
        )
        self._pending[number] = copy
        try:
            _adopt_orphans(True)
            control = self._running_server().control
            socket.send_fds(control, [msgspec.msgpack.encode(request)], list(descriptors.values()))
        except OSError as error:
            log.error("%s cannot be forked: %s", module, error)  # noqa: TRY400 - no traceback needed
            self._resolve(number, 0)
        return copy

    def receive(self) -> None:
        """Read which copies have started. If the server has ended, all pending requests have failed."""
        if self._read_answers():
            log.error("the fork server ended with code %s", self._reap())

    def close(self) -> None:
        """End the server. Processes that it has forked until then continue and are recorded."""
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGKILL)
            # Block: a copy that is starting answers within an instant and closes its end.
            self._server.control.setblocking(True)
            self._read_answers()
            self._reap()
        self._epoll.close()

    def _read_answers(self) -> bool:
        """Read the answers of the server. Returns whether the server has ended."""
        if self._server is None:
            return False
        try:
            while answer := self._server.control.recv(ANSWER.size):
                self._resolve(*ANSWER.unpack(answer))
        except BlockingIOError:
            return False
        except ConnectionError:
            pass  # the server ended with unread requests
        return True

    def _resolve(self, number: int, pid: int) -> None:
        copy = self._pending.pop(number)
        copy.pid, copy.failed = pid or None, not pid
        if copy.unwanted and pid:
            copy.reap()
        if not self._pending:
            _adopt_orphans(False)

    def _running_server(self) -> RunningForkServer:
        """Return the running server, or start one. Raises OSError."""
        if self._server is None:
            self._use_server(_start(self._environment, self._modules))
        assert self._server is not None
        return self._server

    def _use_server(self, server: RunningForkServer) -> None:
        self._server = server
        server.control.setblocking(False)
        self._epoll.register(server.control, select.EPOLLIN)

    def _reap(self) -> int:
        assert self._server is not None
        server, self._server = self._server, None
        os.killpg(server.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(server.pid, 0)[1])
        self._epoll.unregister(server.control)
        server.control.close()
        for number in tuple(self._pending):
            self._resolve(number, 0)
        return code


def control_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of the socket between a server and its user.

    Each datagram is one request or one answer, and each end notices when the other is closed.
    """
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _start(environment: Mapping[str, str], modules: Sequence[str]) -> RunningForkServer:
    """Start a server, which has not imported anything yet."""
    own_end, server_end = control_pair()
    with server_end:
        process = subprocess.Popen(
            (sys.executable, "-m", "indb_tensile.worker.forkserver", str(server_end.fileno()), *modules),
            env={
                **with_short_waits(environment),
                "OPENBLAS_NUM_THREADS": "1",  # a fork copies only one thread, so the server must not have others
            },
            pass_fds=(server_end.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            process_group=0,
        )
    process.returncode = 0  # the owner of the server waits for it by its id, so Popen must not
    return RunningForkServer(pid=process.pid, control=own_end)


def _adopt_orphans(adopting: bool) -> None:
    """Set or clear whether this process becomes the parent of descendants whose parent ends. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopting), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become the parent of orphaned processes")
