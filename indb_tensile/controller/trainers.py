"""Trainer processes: forked (forkserver.py), spoken to, and gone without a trace.

Each runs in a process group of its own, so that whatever it starts ends with it. Its end is seen by a pidfd, and
what it said before is read before its end is told. A process is reaped only after its group was killed: until then
its id cannot belong to anybody else.

What a trainer had on the device is nobody's until nothing that could write there is left of it: its own process, or
one that it started. Each inherits one end of a pipe that nobody writes to. A process closes what it has open after
it has given up its memory, so the other end reads as over once the last is gone; a grace later, `Gone` is told.
"""

import contextlib
import logging
import os
import selectors
import signal
import socket
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from indb_tensile.config import Inheritance
from indb_tensile.controller.forkserver import Copy, ForkServer
from indb_tensile.controller.frames import Frames
from indb_tensile.controller.starvation import Starvation
from indb_tensile.errors import InvariantError
from indb_tensile.link import Message
from indb_tensile.scheduler.admission.facts import Ending
from indb_tensile.scheduler.admission.orders import Manner
from indb_tensile.scheduler.admission.pool import TrainerId

log = logging.getLogger("controller")

UNSTARTED = -1  # exit code of a trainer that could not be started
# What ends a process from outside; by all other signals it has ended itself.
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
QUARANTINE_S = 0.02  # between a trainer's last process and its memory's next owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A trainer sent a message."""

    trainer: TrainerId
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A trainer's process has ended; whoever is told ends what it had, and then lets it be buried."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A trainer, and everything it had started, has ended: its memory is free for others."""

    trainer: TrainerId
    code: int
    ending: Ending
    peak_bytes: int | None = None  # of its own host memory
    memory_bytes: int | None = None  # that the machine or its container has


class _Waitable(Protocol):
    def fileno(self) -> int: ...


class Regions(Protocol):
    """A GPU's regions, as far as trainers have to do with them."""

    handed_over: bool  # each trainer is given them all; otherwise it makes memory of its own

    def hand_to(self, trainer: TrainerId, taker: socket.socket) -> None:
        """Send them all, and return at once; the socket is closed when they have gone."""
        ...

    def in_use_by(self, pid: int) -> bool:
        """Whether the device still has something of a process that has ended."""
        ...

    def let_go(self, pid: int) -> None:
        """End what a process computes, which is to be killed."""
        ...


@dataclass(slots=True, kw_only=True)
class _Trainer:
    copy: Copy
    frames: Frames
    life: int  # the end of the pipe that reads as over once no process has the other
    pidfd: int = -1
    ended: bool = False
    code: int | None = None  # not yet reaped
    ending: Ending = Ending.BY_ITSELF
    peak_bytes: int | None = None
    doomed: bool = False
    kill_at_s: float | None = None
    free_at_s: float | None = None
    lingers: bool = False  # on the device, as its driver says

    @property
    def pid(self) -> int | None:
        """None where it has not begun to be watched."""
        return None if self.pidfd < 0 else self.copy.pid


class Trainers:
    """All trainers of one controller. `kill_all` may be called from any thread, the rest from one."""

    def __init__(
        self,
        *,
        forks: ForkServer,
        module: str,
        device_fd: int,
        grace_s: float,
        wake: _Waitable | None = None,
        regions: Regions | None = None,
        starvation: Starvation | None = None,
    ) -> None:
        """`regions` are a GPU's, which each trainer maps as it starts."""
        self._starvation = starvation or Starvation()
        self._forks = forks
        self._module = module
        self._device_fd = device_fd
        self._grace_s = grace_s
        self._regions = regions
        self._trainers: dict[TrainerId, _Trainer] = {}
        self._unstarted: list[Ended | Gone] = []
        self._reaping = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(forks.fileno(), selectors.EVENT_READ, None)
        if wake is not None:
            self._selector.register(wake.fileno(), selectors.EVENT_READ, None)

    def spawn(self, trainer: TrainerId) -> None:
        """Have a process begin; where that fails, `poll` tells of its end."""
        ours, theirs = socket.socketpair()
        life, held = os.pipe()
        regions = self._regions if self._regions is not None and self._regions.handed_over else None
        broker, taker = (None, None) if regions is None else socket.socketpair()
        inherited = Inheritance(
            link_fd=theirs.fileno(), device_fd=self._device_fd, regions_fd=None if taker is None else taker.fileno()
        )
        copy = self._forks.ask(self._module, descriptors={**inherited.descriptors, "TENSILE_LIFE_FD": held})
        theirs.close()
        os.close(held)
        if taker is not None:
            taker.close()
        self._trainers[trainer] = _Trainer(copy=copy, frames=Frames(ours), life=life)
        if regions is not None and broker is not None:
            regions.hand_to(trainer, broker)

    def pid(self, trainer: TrainerId) -> int:
        """The process id; 0 for one that has not begun or is gone."""
        found = self._trainers.get(trainer)
        return 0 if found is None or found.ended or found.pid is None else found.pid

    def send(self, trainer: TrainerId, message: Message) -> None:
        """Hand over a message; one that is gone gets none."""
        found = self._trainers.get(trainer)
        if found is None or found.frames.closed:
            return
        found.frames.send(message)
        if found.pid is not None:
            self._watch(trainer, found)

    def end(self, trainer: TrainerId, manner: Manner) -> None:
        """See that it goes: at once, by SIGTERM, or by itself; by SIGKILL after the grace in any case.

        One that has not begun, and may not for seconds, is gone at once: it had nothing.
        """
        found = self._trainers.get(trainer)
        if found is None or found.ended:
            return
        if found.pid is None:
            self._give_up(trainer)
            return
        if manner is Manner.KILL:
            self._signal(found, signal.SIGKILL)
        elif manner is Manner.TERMINATE:
            self._signal(found, signal.SIGTERM)
        if found.kill_at_s is None:
            found.kill_at_s = time.monotonic() + self._grace_s

    def kill_all(self) -> None:
        """SIGKILL to every group, now; `poll` tells of each end."""
        for found in tuple(self._trainers.values()):
            found.doomed = True  # should it begin after this
            self._signal(found, signal.SIGKILL)

    def poll(self, timeout_s: float) -> list[Said | Ended | Gone]:
        """What trainers said and which of them ended, waiting until there is something or the time is over."""
        ready = self._selector.select(self._patience_s(timeout_s))
        self._starvation.look()
        self._begin()
        told: list[Said | Ended | Gone] = list(self._unstarted)
        self._unstarted.clear()
        for trainer in sorted({key.data for key, _ in ready if key.data is not None}):
            told += self._attend(trainer)
        told += self._tell_gone()
        self._kill_late()
        return told

    def bury(self, trainer: TrainerId) -> None:
        """Kill the rest of an ended trainer's group and reap it; `poll` tells when nothing is left of it."""
        found = self._trainers[trainer]
        self._signal(found, signal.SIGKILL)
        with self._reaping:
            assert found.pid is not None
            _, status, used = os.wait4(found.pid, 0)
            found.code = os.waitstatus_to_exitcode(status)
        found.peak_bytes = used.ru_maxrss * 1024
        if found.ending is Ending.STOPPED and -found.code not in _FROM_OUTSIDE:
            found.ending = Ending.BY_ITSELF  # it crashed before the signal came
        if found.ending is Ending.BY_ITSELF and -found.code in _FROM_OUTSIDE:
            killed = found.code == -signal.SIGKILL
            found.ending = self._starvation.judge(found.peak_bytes) if killed else Ending.OUTSIDE
        for descriptor in (found.frames.fileno(), found.pidfd):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        found.frames.close()
        os.close(found.pidfd)
        found.kill_at_s = time.monotonic() + self._grace_s
        self._selector.register(found.life, selectors.EVENT_READ, trainer)

    def close(self) -> None:
        """Kill what is left and wait for it."""
        self._begin()
        for trainer in [t for t, found in self._trainers.items() if found.pid is None]:
            self._give_up(trainer)
        self.kill_all()
        for trainer, found in tuple(self._trainers.items()):
            if found.code is None:
                self.bury(trainer)
        end_s = time.monotonic() + self._grace_s
        while self._trainers and time.monotonic() < end_s:
            self.poll(max(0.0, end_s - time.monotonic()))
        for found in self._trainers.values():
            os.close(found.life)
        self._selector.close()

    def _begin(self) -> None:
        """Those that were forked are watched from now on."""
        self._forks.receive()
        for trainer in self._settled():
            found = self._trainers[trainer]
            if found.copy.pid is None:
                self._give_up(trainer)
                continue
            found.pidfd = os.pidfd_open(found.copy.pid)
            self._selector.register(found.pidfd, selectors.EVENT_READ, trainer)
            self._selector.register(found.frames.fileno(), selectors.EVENT_READ, trainer)
            self._watch(trainer, found)
            if found.doomed:
                self._signal(found, signal.SIGKILL)

    def _settled(self) -> list[TrainerId]:
        """Who has begun, or never will, and was not looked at since."""
        return [
            trainer
            for trainer, found in self._trainers.items()
            if found.pid is None and (found.copy.pid is not None or found.copy.failed)
        ]

    def _give_up(self, trainer: TrainerId) -> None:
        found = self._trainers.pop(trainer)
        found.copy.abandon()
        found.frames.close()
        os.close(found.life)
        self._unstarted.append(Gone(trainer=trainer, code=UNSTARTED, ending=Ending.STOPPED))

    def _attend(self, trainer: TrainerId) -> list[Said | Ended | Gone]:
        found = self._trainers[trainer]
        if found.code is not None:
            self._look_for_life(found)
            return []
        found.frames.flush()
        ended = _ended(found.pidfd)
        told: list[Said | Ended | Gone] = []
        try:
            told += [Said(trainer=trainer, message=m) for m in found.frames.receive()]
        except InvariantError as error:
            log.error("trainer %s is killed: %s", trainer, error.message)  # noqa: TRY400 - one line says it all
            found.frames.closed = True
            found.ending = Ending.BABBLED
        if ended and not found.ended:
            found.ended = True
            told.append(Ended(trainer=trainer))
        elif found.frames.closed:  # it may be ending already, of whatever cause
            self._signal(found, signal.SIGKILL, marks=False)
        if not ended:
            self._watch(trainer, found)
        return told

    def _look_for_life(self, found: _Trainer) -> None:
        """Nothing is left of it when the pipe is over; what a stray child may have written there says nothing."""
        if not os.read(found.life, 4096):
            self._selector.unregister(found.life)
            found.free_at_s = time.monotonic() + QUARANTINE_S
            found.kill_at_s = None

    def _tell_gone(self) -> list[Gone]:
        now_s = time.monotonic()
        due = [t for t, found in self._trainers.items() if found.free_at_s is not None and found.free_at_s <= now_s]
        told = []
        for trainer in due:
            found = self._trainers[trainer]
            if self._lingers(found):
                found.free_at_s = now_s + QUARANTINE_S
                continue
            del self._trainers[trainer]
            os.close(found.life)
            assert found.code is not None
            told.append(
                Gone(
                    trainer=trainer,
                    code=found.code,
                    ending=found.ending,
                    peak_bytes=found.peak_bytes,
                    memory_bytes=self._starvation.memory_bytes,
                )
            )
        return told

    def _lingers(self, found: _Trainer) -> bool:
        """Whether the device still knows the process, or has only just forgotten it."""
        if self._regions is None or found.pid is None:
            return False
        before, found.lingers = found.lingers, self._regions.in_use_by(found.pid)
        return before or found.lingers

    def _watch(self, trainer: TrainerId, found: _Trainer) -> None:
        """Have the selector wait for what can happen: a closed link would be ready for ever."""
        descriptor = found.frames.fileno()
        if found.frames.closed:
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if found.frames.unsent else 0)
        self._selector.modify(descriptor, events, trainer)

    def _signal(self, found: _Trainer, number: signal.Signals, *, marks: bool = True) -> None:
        with self._reaping, contextlib.suppress(ProcessLookupError):
            if found.pid is not None and found.code is None:
                if self._regions is not None and not found.ended:
                    self._regions.let_go(found.pid)
                if marks and found.ending is Ending.BY_ITSELF and not _ended(found.pidfd):
                    found.ending = Ending.STOPPED
                os.killpg(found.pid, number)

    def _kill_late(self) -> None:
        now_s = time.monotonic()
        for trainer, found in self._trainers.items():
            if found.kill_at_s is None or found.kill_at_s > now_s:
                continue
            found.kill_at_s = float("inf")
            if found.code is not None:
                log.error(
                    "trainer %s left a process that still has its memory: nobody gets it until that ends", trainer
                )
                continue
            log.warning("trainer %s did not end within %g s and is killed", trainer, self._grace_s)
            self._signal(found, signal.SIGKILL)

    def _patience_s(self, timeout_s: float) -> float:
        if self._unstarted or self._settled():
            return 0.0
        due_s = [at_s for t in self._trainers.values() for at_s in (t.kill_at_s, t.free_at_s) if at_s is not None]
        nearest_s = min(due_s, default=None)
        return timeout_s if nearest_s is None else max(0.0, min(timeout_s, nearest_s - time.monotonic()))


def _ended(pidfd: int) -> bool:
    """Whether the process has ended; it stays a zombie, so that its id and its group's stay its own."""
    return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
