"""Disturbs the processes, server, disk, connections and clocks of a chaos test."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg

from indb_tensile.bench.harness.chaos.chaos_events import ChaosEvent, ChaosEventKind
from indb_tensile.bench.harness.chaos.chaos_jobs import OWNERS, Jobs
from indb_tensile.bench.harness.chaos.chaos_rig import PURPOSE, ChaosRig, ControllerProcess
from indb_tensile.catalog.connection import connect
from indb_tensile.errors import DatabaseError

_HOUR_S = 3600
_MOST_CONNECTIONS = 100

ActionOutcome = Mapping[str, Any]
Action = Callable[[ChaosEvent], ActionOutcome]


class Faults:
    """Faults of the infrastructure. Each action returns after the fault is over, and reports the victims."""

    def __init__(self, rig: ChaosRig, jobs: Jobs) -> None:
        self._rig = rig
        self._jobs = jobs

    def actions(self) -> Mapping[ChaosEventKind, Action]:
        """Return the action for each kind of event."""
        return {
            ChaosEventKind.KILL_TRAINER: lambda event: _kill(event, self._rig.controller_children("trainer")),
            ChaosEventKind.STOP_TRAINER: lambda event: _stop(event, self._rig.controller_children("trainer")),
            ChaosEventKind.KILL_CONTROLLER: self._kill_controller,
            ChaosEventKind.STOP_CONTROLLER: lambda event: _stop(
                event, [c.pid for c in self._rig.controllers if c.pid]
            ),
            ChaosEventKind.END_CONTROLLER: self._end_controller,
            ChaosEventKind.KILL_SERVICE: lambda event: _kill(event, self._rig.controller_children("service")),
            ChaosEventKind.STOP_SERVICE: lambda event: _stop(event, self._rig.controller_children("service")),
            ChaosEventKind.KILL_BACKEND: lambda event: _kill(event, self._rig.backends()),
            ChaosEventKind.STOP_BACKEND: lambda event: _stop(event, self._rig.backends()),
            ChaosEventKind.TERMINATE_BACKENDS: self._terminate_backends,
            ChaosEventKind.KILL_POSTMASTER: self._kill_postmaster,
            ChaosEventKind.RESTART_SERVER: self._restart_server,
            ChaosEventKind.FILL_DISK: self._fill_disk,
            ChaosEventKind.CUT_CONNECTIONS: lambda event: {"connections": self._controller(event).forwarder.cut()},
            ChaosEventKind.STALL_CONNECTIONS: self._stall_connections,
            ChaosEventKind.REFUSE_CONNECTIONS: self._refuse_connections,
            ChaosEventKind.EXHAUST_CONNECTIONS: self._exhaust_connections,
            ChaosEventKind.STEP_CONTROLLER_CLOCK: self._step_controller_clock,
            ChaosEventKind.STEP_SERVER_CLOCK: self._step_server_clock,
        }

    def _controller(self, event: ChaosEvent) -> ControllerProcess:
        return self._rig.controllers[event.pick(len(self._rig.controllers))]

    def _kill_controller(self, event: ChaosEvent) -> ActionOutcome:
        """Kill a controller and wait. Beyond one lease another controller takes its jobs over."""
        controller = self._controller(event)
        pid = controller.pid
        controller.kill()
        time.sleep(event.hold_s)
        return {"pid": pid}

    def _end_controller(self, event: ChaosEvent) -> ActionOutcome:
        controller = self._controller(event)
        pid = controller.pid
        controller.end()
        return {"pid": pid}

    def _terminate_backends(self, event: ChaosEvent) -> ActionOutcome:
        """Terminate one backend that works for controllers, or with a probability of 0.3 all of them."""
        pids = [int(row[0]) for row in self._jobs.run("worker_backends")]
        victims = pids if event.choice < 0.3 else pids[event.pick(len(pids)) :][:1] if pids else []
        for pid in victims:
            self._jobs.run("terminate", pid=pid)
        return {"pids": victims}

    def _kill_postmaster(self, event: ChaosEvent) -> ActionOutcome:
        pid = self._rig.postmaster()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(event.hold_s)
        return {"pid": pid}

    def _restart_server(self, event: ChaosEvent) -> ActionOutcome:
        mode = ("fast", "immediate")[event.pick(2)]
        self._rig.cluster.stop(mode)
        time.sleep(event.hold_s)
        return {"mode": mode}

    def _fill_disk(self, event: ChaosEvent) -> ActionOutcome:
        disk = self._rig.disk
        assert disk is not None  # the test draws no events that the rig leaves out
        try:
            size_bytes = disk.fill()
            time.sleep(event.hold_s)
        finally:
            disk.empty()
        return {"bytes": size_bytes}

    def _stall_connections(self, event: ChaosEvent) -> ActionOutcome:
        forwarder = self._controller(event).forwarder
        forwarder.stall()
        try:
            time.sleep(event.hold_s)
        finally:
            forwarder.heal()
        return {}

    def _refuse_connections(self, event: ChaosEvent) -> ActionOutcome:
        forwarder = self._controller(event).forwarder
        try:
            count = forwarder.refuse()
            time.sleep(event.hold_s)
        finally:
            forwarder.heal()
        return {"connections": count}

    def _exhaust_connections(self, event: ChaosEvent) -> ActionOutcome:
        """Let a user take all connections after breaking those of controllers, which then cannot connect."""
        owner, count = OWNERS[event.pick(len(OWNERS))], 0
        with ExitStack() as stack:
            with suppress(DatabaseError, psycopg.Error):
                for pid in self._rig.backends()[:3]:
                    self._jobs.run("terminate", pid=pid)
                for _ in range(_MOST_CONNECTIONS):
                    stack.enter_context(connect(self._rig.dsn(owner), application_name=PURPOSE))
                    count += 1
            time.sleep(event.hold_s)
        return {"connections": count}

    def _step_controller_clock(self, event: ChaosEvent) -> ActionOutcome:
        clock = self._controller(event).clock
        assert clock is not None
        return _step(event, clock.step)

    def _step_server_clock(self, event: ChaosEvent) -> ActionOutcome:
        assert self._rig.clock is not None
        return _step(event, self._rig.clock.step)


def _kill(event: ChaosEvent, pids: Sequence[int]) -> ActionOutcome:
    if not pids:
        return {"nobody": True}
    pid = pids[event.pick(len(pids))]
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return {"pid": pid}


def _stop(event: ChaosEvent, pids: Sequence[int]) -> ActionOutcome:
    if not pids:
        return {"nobody": True}
    pid = pids[event.pick(len(pids))]
    with _stopped(pid):
        time.sleep(event.hold_s)
    return {"pid": pid}


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _step(event: ChaosEvent, step: Callable[[int], None]) -> ActionOutcome:
    """Step a clock an hour forwards or back, and then back to the right time. Both are steps."""
    ahead_s = (_HOUR_S, -_HOUR_S)[event.pick(2)]
    step(ahead_s)
    try:
        time.sleep(max(2.0, event.hold_s))  # libfaketime reads the clock's file once a second
    finally:
        step(0)
    return {"ahead_s": ahead_s}
