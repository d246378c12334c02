"""Follows the controller's orders between two iterations: adopts plans, leaves the device, and comes back to it."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from indb_tensile.device.hardware import trim_heap
from indb_tensile.device.round_member import RoundMember, Seat
from indb_tensile.errors import DeviceMemoryError, HandedOverError, InvariantError, NoRoomToParkError
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.runner import Runner
from indb_tensile.job import JobId
from indb_tensile.messages import (
    Adopt,
    Adopted,
    LeavePhases,
    LeftPhases,
    Lend,
    Lent,
    Message,
    Misplaced,
    Park,
    Parked,
    TrainerLink,
)
from indb_tensile.scheduler.timing.recorded_iterations import PauseKind

from .progress_writer import ProgressWriter

log = logging.getLogger("trainer")


class OrderSource(Protocol):
    """The methods of `Inbox` that are used here."""

    def poll(self) -> Message | None:
        """Return the next message, or None if there is none."""
        ...

    def next(self) -> Message:
        """Wait for the next message and return it."""
        ...


class ControllerOrders:
    """The orders to one job that trains.

    `save` saves a checkpoint and returns whether that succeeded: if its argument is true, one for every host.
    `steps_for` returns the steps with the workspaces of that correction, for which plans were made; None if the
    runner has them. `join` makes the job a member of a round. `pause` gets the kind and the start of each time in
    which the job does not train.
    """

    def __init__(
        self,
        runner: Runner,
        link: TrainerLink,
        inbox: OrderSource,
        progress_writer: ProgressWriter,
        save: Callable[[bool], bool],
        clock_s: Callable[[], float] = time.monotonic,
        *,
        steps_for: Callable[[int], tuple[CapturedStep, ...] | None] = lambda _: None,
        join: Callable[[Seat], RoundMember] | None = None,
        pause: Callable[[PauseKind, int], None] = lambda kind, start_ns: None,
    ) -> None:
        self._runner = runner
        self._link = link
        self._inbox = inbox
        self._progress_writer = progress_writer
        self._save = save
        self._clock_s = clock_s
        self._steps_for = steps_for
        self._join = join
        self._pause = pause
        self._job = progress_writer.job.job
        self._loan = 0  # the number of the last order to lend

    def follow(self) -> float:
        """Follow every order that has arrived. Returns the seconds for which the job did not train.

        Raises NoRoomToParkError if the job had to leave the device and could not wait in the host pool, and
        HandedOverError if another device shall go on with it.
        """
        parked_s = 0.0
        while (message := self._inbox.poll()) is not None:
            match message:
                case Adopt():
                    self._adopt(message)
                case Park():
                    parked_s += self._park(message)
                case Lend():
                    self._borrow(message)
                case LeavePhases():
                    parked_s += self._leave_round(message)
                case _:
                    raise _unexpected(message, "trains")
        return parked_s

    def _adopt(self, order: Adopt) -> None:
        start_ns = time.perf_counter_ns()
        steps = self._steps_for(order.correction)
        member = None if order.seat is None or self._join is None else self._join(order.seat)
        self._runner.adopt(order.plans, order.generation, order.grant_bytes, member, steps=steps)
        trim_heap()
        answer_adopted(self._link, self._job, self._runner)
        self._pause(PauseKind.PLAN, start_ns)

    def _borrow(self, order: Lend) -> None:
        """Use the memory that is lent for the next batch, or give it back. An answer is due unless it is used."""
        self._loan = order.number
        lent_bytes = self._runner.lend_for_batch(order.size_bytes)
        log.info("job %s: has %d bytes beside its plan for its next batch", self._job, lent_bytes)
        if not lent_bytes:
            self._link.send(Lent(job=self._job, number=order.number, size_bytes=0))

    def give_loan_back(self) -> None:
        """Give back the memory that is lent for the next batch: there is none any more."""
        if self._runner.lent_for_batch:
            self._runner.lend_for_batch(0)
            self._link.send(Lent(job=self._job, number=self._loan, size_bytes=0))

    def _park(self, order: Park) -> float:
        """Leave the device, wait for the next plans and adopt them. Everything else of the job stays as it is.

        The generators of random numbers, the batch that was gathered ahead and the sums of the losses are in this
        process's own memory already.
        """
        started_s, start_ns = self._clock_s(), time.perf_counter_ns()
        host_bytes = self._leave(order)
        trim_heap()
        log.info("job %s: parked %d bytes in %.3g s", self._job, host_bytes, self._clock_s() - started_s)
        self._link.send(Parked(job=self._job, number=order.number, host_bytes=host_bytes))
        message = self._inbox.next()
        if not isinstance(message, Adopt):
            raise _unexpected(message, "is parked")
        self._pause(PauseKind.PARKED, start_ns)
        self._adopt(message)
        self._progress_writer.enter_again()
        self._progress_writer.signs.begin()
        return self._clock_s() - started_s

    def _leave_round(self, order: LeavePhases) -> float:
        """Leave the round, and wait for the next order. Until then a thread plays the job's part."""
        started_s, start_ns = self._clock_s(), time.perf_counter_ns()
        self._runner.leave_round()
        self._link.send(LeftPhases(job=self._job, number=order.number))
        message = self._inbox.next()
        self._pause(PauseKind.ROUND, start_ns)
        match message:
            case Adopt():
                self._adopt(message)
                self._progress_writer.signs.begin()
                return self._clock_s() - started_s
            case Park():
                return self._clock_s() - started_s + self._park(message)
            case _:
                raise _unexpected(message, "has left its round")

    def _leave(self, order: Park) -> int:
        """Move the state to the host pool and return its bytes there. If that is impossible, save a checkpoint."""
        if order.elsewhere and self._save(True):
            raise HandedOverError(
                f"job {self._job} left its device for one that has nothing to do",
                detail="It continues there from the checkpoint that it has just saved.",
                hint="No action is needed.",
            )
        reason = "its controller keeps as many jobs parked in host memory as it may"
        if order.in_memory:
            try:
                return self._runner.park()
            except DeviceMemoryError as error:
                reason = error.message
        saved = self._save(False)
        where = "from the checkpoint that it has just saved" if saved else "from its last checkpoint"
        raise NoRoomToParkError(
            f"job {self._job} left the device and continues later {where}",
            detail=f"It could not be parked in host memory: {reason}.",
            hint="Raise host_pool_bytes or parked_jobs if such jobs should wait in host memory.",
        )


def answer_adopted(link: TrainerLink, job: JobId, runner: Runner) -> None:
    """Tell the controller that the runner follows its newest plans, and whether their block has its place."""
    link.send(Adopted(job=job, generation=runner.generation))
    if runner.unplaced_bytes:
        link.send(Misplaced(job=job, generation=runner.generation, block_bytes=runner.unplaced_bytes))


def _unexpected(message: Message, state: str) -> InvariantError:
    return InvariantError(f"the controller sent {type(message).__name__} to a job that {state}")
