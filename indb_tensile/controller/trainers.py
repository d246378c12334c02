"""Starts and ends trainer processes, passes messages, and reports when their device memory may be reused.

Each trainer is forked (forkserver.py) and leads a process group of its own, so that its child processes end with it.
Its end is seen through a pidfd; messages that it sent before are read before its end is reported. A process is reaped
only after its group was killed: until then no other process can get its id.

The device memory of a trainer may be reused only when no process that could write to it is left: the trainer itself,
or a process that it started. Each such process inherits one end of a pipe to which nobody writes. The kernel closes a
process's descriptors after it has released its memory, so the other end of the pipe reads as closed once the last of
these processes is gone. `TrainerGone` is reported after a further pause.
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

from indb_tensile.config import InheritedDescriptors
from indb_tensile.controller.fork_client import ForkedProcess, ForkServer
from indb_tensile.controller.oom_kills import OomKills
from indb_tensile.controller.trainer_frames import TrainerFrames
from indb_tensile.errors import InvariantError
from indb_tensile.messages import Message
from indb_tensile.scheduler.admission.admission_orders import EndMethod
from indb_tensile.scheduler.admission.events import ExitCause
from indb_tensile.scheduler.admission.pool import TrainerId

log = logging.getLogger("controller")

UNSTARTED = -1  # exit code of a trainer that could not be started
# Signals by which other processes end a process. A process that died of any other signal has caused the signal
# itself.
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
QUARANTINE_S = 0.02  # between the end of a trainer's last process and the next use of its memory


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived:
    """A trainer has sent a message."""

    trainer: TrainerId
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnded:
    """A trainer's process has ended. The receiver revokes its device memory, and then calls `reap`."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerGone:
    """A trainer and all processes that it started have ended: its memory may be reused."""

    trainer: TrainerId
    code: int
    ending: ExitCause
    peak_bytes: int | None = None  # peak host memory of its process
    memory_bytes: int | None = None  # host memory of the machine or its container


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


class Regions(Protocol):
    """The methods of a GPU's regions that trainers need."""

    handed_over: bool  # true if every trainer receives all regions; false if each trainer allocates its own

    def hand_to(self, trainer: TrainerId, taker: socket.socket) -> None:
        """Send all regions and return at once. The trainer follows their changes until `forget`."""
        ...

    def forget(self, trainer: TrainerId) -> None:
        """End the connection to a trainer that has ended."""
        ...

    def in_use_by(self, pid: int) -> bool:
        """Return whether the device's driver still lists a process that has ended."""
        ...

    def let_go(self, pid: int) -> None:
        """End the GPU work of a process that is about to be killed."""
        ...


@dataclass(slots=True, kw_only=True)
class _Trainer:
    """One trainer process and its state, from the request to fork it until it is reported as gone."""

    copy: ForkedProcess
    frames: TrainerFrames
    pipe: int  # the end of the pipe that reads as closed once no process has the other end
    pidfd: int = -1
    ended: bool = False
    code: int | None = None  # exit code; None until the process is reaped
    ending: ExitCause = ExitCause.BY_ITSELF
    peak_bytes: int | None = None
    kill_requested: bool = False
    kill_at_s: float | None = None
    free_at_s: float | None = None
    on_device: bool = False  # the driver still lists the process on the device

    @property
    def pid(self) -> int | None:
        """The process id; None until the process is watched."""
        return None if self.pidfd < 0 else self.copy.pid


class Trainers:
    """All trainers of one controller. Any thread may call `kill_all`; one thread calls the rest."""

    def __init__(
        self,
        *,
        forks: ForkServer,
        module: str,
        device_fd: int,
        grace_s: float,
        wake: _HasFileno | None = None,
        regions: Regions | None = None,
        starvation: OomKills | None = None,
    ) -> None:
        """`regions` are those of a GPU; each trainer maps them when it starts."""
        self._starvation = starvation or OomKills()
        self._forks = forks
        self._module = module
        self._device_fd = device_fd
        self._grace_s = grace_s
        self._regions = regions
        self._trainers: dict[TrainerId, _Trainer] = {}
        self._unstarted: list[ProcessEnded | TrainerGone] = []
        self._reaping = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(forks.fileno(), selectors.EVENT_READ, None)
        if wake is not None:
            self._selector.register(wake.fileno(), selectors.EVENT_READ, None)

    def spawn(self, trainer: TrainerId) -> None:
        """Start a trainer process. If that fails, `poll` reports its end."""
        own_end, trainer_end = socket.socketpair()
        pipe, pipe_of_trainer = os.pipe()
        regions = self._regions if self._regions is not None and self._regions.handed_over else None
        broker, taker = (None, None) if regions is None else socket.socketpair()
        inherited = InheritedDescriptors(
            link_fd=trainer_end.fileno(),
            device_fd=self._device_fd,
            regions_fd=None if taker is None else taker.fileno(),
        )
        copy = self._forks.ask(
            self._module, descriptors={**inherited.descriptors, "TENSILE_LIFE_FD": pipe_of_trainer}
        )
        trainer_end.close()
        os.close(pipe_of_trainer)
        if taker is not None:
            taker.close()
        self._trainers[trainer] = _Trainer(copy=copy, frames=TrainerFrames(own_end), pipe=pipe)
        if regions is not None and broker is not None:
            regions.hand_to(trainer, broker)

    def pid(self, trainer: TrainerId) -> int:
        """Return the process id, or 0 if the trainer has not started or is gone."""
        process = self._trainers.get(trainer)
        return 0 if process is None or process.ended or process.pid is None else process.pid

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of all trainers that have started and are not gone."""
        return tuple(pid for trainer in self._trainers if (pid := self.pid(trainer)))

    def send(self, trainer: TrainerId, message: Message) -> None:
        """Send a message. A trainer that is gone gets none."""
        process = self._trainers.get(trainer)
        if process is None or process.frames.closed:
            return
        process.frames.send(message)
        if process.pid is not None:
            self._watch(trainer, process)

    def end(self, trainer: TrainerId, method: EndMethod) -> None:
        """End a trainer: at once, by SIGTERM, or by itself. In any case SIGKILL follows after `grace_s`.

        A trainer that has not started, and may not for seconds, is gone at once, because it has no memory yet.
        """
        process = self._trainers.get(trainer)
        if process is None or process.ended:
            return
        if process.pid is None:
            self._abandon(trainer)
            return
        if method is EndMethod.KILL:
            self._signal(process, signal.SIGKILL)
        elif method is EndMethod.TERMINATE:
            self._signal(process, signal.SIGTERM)
        if process.kill_at_s is None:
            process.kill_at_s = time.monotonic() + self._grace_s

    def kill_all(self) -> None:
        """Send SIGKILL to every trainer's group now. `poll` reports each end."""
        for process in tuple(self._trainers.values()):
            process.kill_requested = True  # if it starts after this
            self._signal(process, signal.SIGKILL)

    def poll(self, timeout_s: float) -> list[MessageReceived | ProcessEnded | TrainerGone]:
        """Wait for reports of trainers, at most for `timeout_s`. Returns messages and ends, possibly none."""
        ready = self._selector.select(self._wait_s(timeout_s))
        self._starvation.look()
        self._watch_started()
        reports: list[MessageReceived | ProcessEnded | TrainerGone] = list(self._unstarted)
        self._unstarted.clear()
        for trainer in sorted({key.data for key, _ in ready if key.data is not None}):
            reports += self._read_events(trainer)
        reports += self._report_gone()
        self._kill_overdue()
        return reports

    def reap(self, trainer: TrainerId) -> None:
        """Kill the rest of an ended trainer's group and reap it. `poll` reports when no process of it is left."""
        process = self._trainers[trainer]
        self._signal(process, signal.SIGKILL)
        self._forget_regions(trainer)
        with self._reaping:
            assert process.pid is not None
            _, status, usage = os.wait4(process.pid, 0)
            process.code = os.waitstatus_to_exitcode(status)
        process.peak_bytes = usage.ru_maxrss * 1024
        if process.ending is ExitCause.STOPPED and -process.code not in _FROM_OUTSIDE:
            process.ending = ExitCause.BY_ITSELF  # it crashed before the signal came
        if process.ending is ExitCause.BY_ITSELF and -process.code in _FROM_OUTSIDE:
            killed = process.code == -signal.SIGKILL
            process.ending = self._starvation.judge(process.peak_bytes) if killed else ExitCause.OUTSIDE
        for descriptor in (process.frames.fileno(), process.pidfd):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        process.frames.close()
        os.close(process.pidfd)
        process.kill_at_s = time.monotonic() + self._grace_s
        self._selector.register(process.pipe, selectors.EVENT_READ, trainer)

    def close(self) -> None:
        """Kill the remaining trainers and wait for their end."""
        self._watch_started()
        for trainer in [t for t, process in self._trainers.items() if process.pid is None]:
            self._abandon(trainer)
        self.kill_all()
        for trainer, process in tuple(self._trainers.items()):
            if process.code is None:
                self.reap(trainer)
        end_s = time.monotonic() + self._grace_s
        while self._trainers and time.monotonic() < end_s:
            self.poll(max(0.0, end_s - time.monotonic()))
        for process in self._trainers.values():
            os.close(process.pipe)
        self._selector.close()

    def _watch_started(self) -> None:
        """Watch the trainers that have started since the last call."""
        self._forks.receive()
        for trainer in self._started_or_failed():
            process = self._trainers[trainer]
            if process.copy.pid is None:
                self._abandon(trainer)
                continue
            process.pidfd = os.pidfd_open(process.copy.pid)
            self._selector.register(process.pidfd, selectors.EVENT_READ, trainer)
            self._selector.register(process.frames.fileno(), selectors.EVENT_READ, trainer)
            self._watch(trainer, process)
            if process.kill_requested:
                self._signal(process, signal.SIGKILL)

    def _started_or_failed(self) -> list[TrainerId]:
        """Return the trainers that have started, or failed to start, and are not watched yet."""
        return [
            trainer
            for trainer, process in self._trainers.items()
            if process.pid is None and (process.copy.pid is not None or process.copy.failed)
        ]

    def _abandon(self, trainer: TrainerId) -> None:
        process = self._trainers.pop(trainer)
        process.copy.abandon()
        self._forget_regions(trainer)
        process.frames.close()
        os.close(process.pipe)
        self._unstarted.append(TrainerGone(trainer=trainer, code=UNSTARTED, ending=ExitCause.STOPPED))

    def _forget_regions(self, trainer: TrainerId) -> None:
        if self._regions is not None:
            self._regions.forget(trainer)

    def _read_events(self, trainer: TrainerId) -> list[MessageReceived | ProcessEnded | TrainerGone]:
        process = self._trainers[trainer]
        if process.code is not None:
            self._check_pipe(process)
            return []
        process.frames.flush()
        ended = _ended(process.pidfd)
        reports: list[MessageReceived | ProcessEnded | TrainerGone] = []
        try:
            reports += [MessageReceived(trainer=trainer, message=m) for m in process.frames.receive()]
        except InvariantError as error:
            log.error("trainer %s is killed: %s", trainer, error.message)  # noqa: TRY400 - no traceback needed
            process.frames.closed = True
            process.ending = ExitCause.INVALID_MESSAGE
        if ended and not process.ended:
            process.ended = True
            reports.append(ProcessEnded(trainer=trainer))
        elif process.frames.closed:  # it may be ending already, for any reason
            self._signal(process, signal.SIGKILL, marks=False)
        if not ended:
            self._watch(trainer, process)
        return reports

    def _check_pipe(self, process: _Trainer) -> None:
        """Note that no process of the trainer is left once the pipe is closed. Data in the pipe is ignored."""
        if not os.read(process.pipe, 4096):
            self._selector.unregister(process.pipe)
            process.free_at_s = time.monotonic() + QUARANTINE_S
            process.kill_at_s = None

    def _report_gone(self) -> list[TrainerGone]:
        now_s = time.monotonic()
        due = [
            t for t, process in self._trainers.items() if process.free_at_s is not None and process.free_at_s <= now_s
        ]
        reports = []
        for trainer in due:
            process = self._trainers[trainer]
            if self._is_on_device(process):
                process.free_at_s = now_s + QUARANTINE_S
                continue
            del self._trainers[trainer]
            os.close(process.pipe)
            assert process.code is not None
            reports.append(
                TrainerGone(
                    trainer=trainer,
                    code=process.code,
                    ending=process.ending,
                    peak_bytes=process.peak_bytes,
                    memory_bytes=self._starvation.memory_bytes,
                )
            )
        return reports

    def _is_on_device(self, process: _Trainer) -> bool:
        """Return whether the driver lists the process on the device now, or did at the last check."""
        if self._regions is None or process.pid is None:
            return False
        was_on_device, process.on_device = process.on_device, self._regions.in_use_by(process.pid)
        return was_on_device or process.on_device

    def _watch(self, trainer: TrainerId, process: _Trainer) -> None:
        """Register the events to wait for. A closed link is removed, since it would always be ready."""
        descriptor = process.frames.fileno()
        if process.frames.closed:
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if process.frames.unsent else 0)
        self._selector.modify(descriptor, events, trainer)

    def _signal(self, process: _Trainer, number: signal.Signals, *, marks: bool = True) -> None:
        with self._reaping, contextlib.suppress(ProcessLookupError):
            if process.pid is not None and process.code is None:
                if self._regions is not None and not process.ended:
                    self._regions.let_go(process.pid)
                if marks and process.ending is ExitCause.BY_ITSELF and not _ended(process.pidfd):
                    process.ending = ExitCause.STOPPED
                os.killpg(process.pid, number)

    def _kill_overdue(self) -> None:
        now_s = time.monotonic()
        for trainer, process in self._trainers.items():
            if process.kill_at_s is None or process.kill_at_s > now_s:
                continue
            process.kill_at_s = float("inf")
            if process.code is not None:
                log.error(
                    "trainer %s left a process that still has its memory: it is reserved until that process ends",
                    trainer,
                )
                continue
            log.warning("trainer %s did not end within %g s and is killed", trainer, self._grace_s)
            self._signal(process, signal.SIGKILL)

    def _wait_s(self, timeout_s: float) -> float:
        if self._unstarted or self._started_or_failed():
            return 0.0
        due_s = [at_s for t in self._trainers.values() for at_s in (t.kill_at_s, t.free_at_s) if at_s is not None]
        nearest_s = min(due_s, default=None)
        return timeout_s if nearest_s is None else max(0.0, min(timeout_s, nearest_s - time.monotonic()))


def _ended(pidfd: int) -> bool:
    """Return whether the process has ended.

    It stays a zombie, so that its id and its group's id are not used again.
    """
    return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
