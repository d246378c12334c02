"""Trainers by fork: one process has imported what takes long, and each trainer starts as a copy of it.

Importing torch takes a processor seconds and hundreds of megabytes; a copy takes milliseconds, and memory only for
what it writes. The server (worker/forkserver.py) forks twice: the one between ends at once, and the trainer becomes
the child of the nearest ancestor that adopts orphans, which this process is while one is being forked. So it is ours
to wait for, its id stays its own until we do, and it neither needs nor notices the server's end.

Nothing here waits: a request lies in the socket until the server has imported everything.
"""

import ctypes
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from indb_tensile.scheduler.admission.pool import TrainerId

log = logging.getLogger("controller")

REQUEST = struct.Struct("=q")  # the trainer; beside it descriptors: its link, its life, a GPU's regions
ANSWER = struct.Struct("=qi")  # the trainer and its process id, 0 where it could not be forked
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """A trainer's process has begun; without an id it never will."""

    trainer: TrainerId
    pid: int | None


class ForkServer:
    """Forks processes that run `main()` of one module. The server is started when it is asked and there is none."""

    def __init__(self, *, module: str, environment: Mapping[str, str], device_fd: int) -> None:
        self._module = module
        self._environment = dict(environment) | {"OPENBLAS_NUM_THREADS": "1"}  # a process with threads is no template
        self._device_fd = device_fd
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._asked: list[TrainerId] = []

    @property
    def control(self) -> socket.socket | None:
        """Readable when there is something to receive; None while nothing was asked for."""
        return self._control

    @property
    def pid(self) -> int | None:
        """The server's process id."""
        return None if self._process is None else self._process.pid

    def ask(self, trainer: TrainerId, link_fd: int, life_fd: int, regions_fd: int | None = None) -> None:
        """Have a trainer forked that has these descriptors. Raises OSError where no server can be asked."""
        _adopt_orphans(True)
        if self._control is None:
            self._start()
        assert self._control is not None
        descriptors = [fd for fd in (link_fd, life_fd, regions_fd) if fd is not None]
        socket.send_fds(self._control, [REQUEST.pack(trainer)], descriptors)
        self._asked.append(trainer)

    def receive(self) -> list[Forked]:
        """Who has begun since; with the server's end, whoever it was still asked for has not."""
        found, over = self._read()
        if over:
            code = self._reap()
            log.error("the process that trainers are forked from ended with code %s", code)
            found += self._unanswered()
        if found and not self._asked:
            _adopt_orphans(False)
        return found

    def close(self) -> list[Forked]:
        """End the server. Whoever it forked until then lives on, and is told of."""
        if self._control is None or self._process is None:
            return []
        os.killpg(self._process.pid, signal.SIGKILL)
        self._control.settimeout(None)  # what it has forked says so within an instant, and lets go
        found, _ = self._read()
        self._reap()
        _adopt_orphans(False)
        return found + self._unanswered()

    def _read(self) -> tuple[list[Forked], bool]:
        """What it has answered, and whether it has ended."""
        found: list[Forked] = []
        if self._control is None:
            return found, False
        try:
            while answer := self._control.recv(ANSWER.size):
                trainer, pid = ANSWER.unpack(answer)
                self._asked.remove(trainer)
                found.append(Forked(trainer=trainer, pid=pid or None))
        except BlockingIOError:
            return found, False
        except ConnectionError:
            pass  # it left requests unread
        return found, True

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "indb_tensile.worker.forkserver", self._module, str(theirs.fileno())),
                env=self._environment | {"TENSILE_DEVICE_FD": str(self._device_fd)},
                pass_fds=(theirs.fileno(), self._device_fd),
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                process_group=0,
            )
        ours.setblocking(False)
        self._control = ours

    def _reap(self) -> int:
        assert self._process is not None
        assert self._control is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self._control.close()
        self._process = self._control = None
        return code

    def _unanswered(self) -> list[Forked]:
        asked, self._asked = self._asked, []
        return [Forked(trainer=trainer, pid=None) for trainer in asked]


def _adopt_orphans(adopting: bool) -> None:
    """Become the parent of every descendant whose own parent ends, or no longer. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopting), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "orphans cannot be adopted")
