"""A member of a round: it passes the gates of its part, and takes and gives back the round's regions.

Jobs in a round wait for each other in the device's shared ledger (native/device/passages.hpp). A job that does not
iterate must not make the others wait: it may be validating, storing a checkpoint, leaving the round, or dead. Its
gates cannot just be opened, because a gate that another gate implies is left out: a third job may wait only for this
one, and this one for the second. So its part is *played*: `PartPlayer` passes the gates in order and reports
progress, and holds nothing. A trainer plays its own part whenever it has been between two iterations for `BEAT_S`;
the controller plays the parts of trainers that have ended.

On a GPU too the host passes the gates, between two segments. The host is ahead of the GPU there, so a member waits
for the GPU before it gives places back, and before it waits for others.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from indb_tensile import _native
from indb_tensile.job import Slot
from indb_tensile.scheduler.phases.round_part import RoundPart

BEAT_S = 0.05  # time between two iterations after which a member plays its part
# A wait is divided into slices, so that signals are handled and the round's end is noticed.
_SLICE_NS = 100_000_000
_PAUSE_S = 0.002  # pause after each played iteration, so that members that all play do not compete for the processor
_SPINS = 2000  # polls before a wait sleeps, some microseconds; only where there are more cores than members
_LAST = 1 << 43  # a boundary that no round reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A member's place in a round: the round's number, the member's part, and the slots of all members."""

    number: int
    part: RoundPart
    slots: tuple[Slot, ...]

    @property
    def slot(self) -> Slot:
        """The member's own slot."""
        return self.slots[self.part.position]


class Passages(Protocol):
    """The progress of all members of rounds, in the device's ledger."""

    def advance(self, slot: int, number: int, boundary: int, /) -> None:
        """Raise the progress of a slot in this round."""
        ...

    def wait_for(self, slot: int, number: int, boundary: int, limit_ns: int, spins: int = 0, /) -> bool:
        """Wait until a slot has passed a boundary of this round, or the round is over. False after `limit_ns`."""
        ...

    def progress(self, slot: int, /) -> tuple[int, int]:
        """Return the number of a slot's last round, and the boundaries that it has passed there."""
        ...

    def is_over(self, number: int, /) -> bool:
        """Return whether this round is over."""
        ...


class Lender(Protocol):
    """The regions of a round, as the places of one member's block."""

    def take_for(self, places: Sequence[int], limit_ns: int, /) -> bool:
        """Take these places, except those that the member has. False if that takes longer than `limit_ns`."""
        ...

    def give(self, places: Sequence[int], /) -> None:
        """Give these places back, after the device has finished what it was given to do there."""
        ...


class QueueingDevice(Protocol):
    """A device that computes what it is given later, such as a GPU."""

    def lent_regions(self, begin: int, places: int, /) -> Lender:
        """Return the places of a member from the address `begin` on."""
        ...

    def finish(self) -> None:
        """Wait until the device has finished all computation that it was given."""
        ...


class PartPlayer:
    """Plays a part of a round: it passes the gates in order and reports progress, without any memory."""

    def __init__(self, passages: Passages, seat: Seat, *, pause_s: float = _PAUSE_S) -> None:
        self._passages = passages
        self._seat = seat
        self._pause_s = pause_s
        self._gates = _gates_of(seat.part)

    def play(self, boundary: int, stopped: Callable[[], bool], *, to_end_of_iteration: bool = True) -> int:
        """Play from this boundary until `stopped` or the end of the round, and return the boundary that was reached.

        If `to_end_of_iteration`, only the end of an iteration is such a boundary.
        """
        part, number, slot = self._seat.part, self._seat.number, self._seat.slot
        starts = [*(segment.operator for segment in part.segments), part.operators]
        while not self._passages.is_over(number):
            iteration, done = divmod(boundary, part.operators)
            if stopped() and (done == 0 or not to_end_of_iteration):
                break
            after = next(start for start in starts if start > done)
            if done in starts and not self._passed(iteration, done):
                continue
            boundary = iteration * part.operators + after
            self._passages.advance(slot, number, min(boundary, _LAST))
            if after == part.operators:
                time.sleep(self._pause_s)
        return boundary

    def _passed(self, iteration: int, operator: int) -> bool:
        """Wait at the gates before an operator for a while, and return whether they are open."""
        waits = self._gates(iteration, operator)
        return all(
            self._passages.wait_for(self._seat.slots[position], self._seat.number, target, _SLICE_NS)
            for position, target in waits
        )


class RoundMember:
    """The job's side of a round, for the thread that runs its iterations. `alive` is called while it waits.

    `enter`, `pass_boundary` for each segment and the end, and `rest` make one iteration. Outside of iterations a
    thread plays the job's part after `beat_s`. After `leave` it does so until the round is over, or until `close`.
    """

    def __init__(
        self,
        passages: Passages,
        seat: Seat,
        lend: Callable[[int, int], Lender],
        *,
        finish: Callable[[], None] | None = None,
        alive: Callable[[], None] = lambda: None,
        beat_s: float = BEAT_S,
    ) -> None:
        """`lend` gets the address at which the job's places begin, and their number.

        `finish` waits until the device has finished what it was given; None if this thread itself computes.
        """
        self._passages = passages
        self._lend = lend
        self._finish = finish
        self._alive = alive
        self._beat_s = beat_s
        self._segments = {segment.operator: segment for segment in seat.part.segments}
        self._gates = _gates_of(seat.part)
        self._spins = _SPINS if (os.cpu_count() or 1) > len(seat.slots) else 0
        self._lender: Lender | None = None
        self.seat = seat
        self._player = PartPlayer(passages, seat)
        self._thread = threading.Thread(target=self._play_if_idle, name="round", daemon=True)
        self._turns = threading.Condition()  # protects what follows
        self._iteration = 0
        self._running = False  # an iteration runs, or is about to
        self._playing = False
        self._rested_s = 0.0
        self._left = False
        self._closed = False

    @property
    def number(self) -> int:
        """The number of the round."""
        return self.seat.number

    @property
    def boundaries(self) -> frozenset[int]:
        """The operators before which, and the end of the iteration at which `pass_boundary` is to be called."""
        return frozenset((*self._segments, self.seat.part.operators))

    def join(self, block_address: int) -> None:
        """Begin with iteration 0. The job's block of addresses, of which it has the base, begins at `block_address`.

        0 stands for a block in ordinary memory: then regions are only counted.
        """
        part = self.seat.part
        self._lender = self._lend(block_address + part.base_bytes if block_address else 0, part.places)
        self._passages.advance(self.seat.slot, self.number, 0)
        self._rested_s = time.monotonic()
        self._thread.start()

    def enter(self) -> None:
        """Begin an iteration: at once, or when the played iteration is over."""
        with self._turns:
            self._running = True
            while self._playing:
                self._turns.wait(self._beat_s)
                self._alive()

    def rest(self) -> None:
        """End the iteration."""
        with self._turns:
            self._running = False
            self._rested_s = time.monotonic()

    def pass_boundary(self, operator: int) -> int:
        """Give places back, report progress, wait at the gates and take places.

        Return the nanoseconds for which the device stood still meanwhile.
        """
        assert self._lender is not None
        operators = self.seat.part.operators
        if operator == operators:
            self._lender.give(self.seat.part.kept)
            self._iteration += 1
            self._passages.advance(self.seat.slot, self.number, self._iteration * operators)
            return 0
        segment = self._segments[operator]
        if segment.returned:
            self._lender.give(segment.returned)
        if operator:
            self._passages.advance(self.seat.slot, self.number, self._iteration * operators + operator)
        idle = _IdleTime(None if segment.returned else self._finish)
        for position, target in self._gates(self._iteration, operator):
            self._wait_for(self.seat.slots[position], target, idle)
        if segment.taken and not self._lender.take_for(segment.taken, 0):
            idle.begin()
            while not self._lender.take_for(segment.taken, _SLICE_NS):
                self._alive()
        return idle.passed_ns()

    def _wait_for(self, slot: Slot, boundary: int, idle: "_IdleTime") -> None:
        if self._passages.wait_for(slot, self.number, boundary, 0, self._spins):
            return
        idle.begin()
        while not self._passages.wait_for(slot, self.number, boundary, _SLICE_NS):
            self._alive()

    def leave(self) -> None:
        """Run no further iteration, and give up the addresses. The part is played until the round is over."""
        with self._turns:
            self._lender = None
            self._running, self._left = False, True
            self._turns.notify_all()

    def close(self) -> None:
        """End the thread. The round must be over, or nobody waits for this member any more."""
        self.leave()
        with self._turns:
            self._closed = True
            self._turns.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _play_if_idle(self) -> None:
        """Play the part whenever the job has been between two iterations for `beat_s`, until the round is over."""
        while self._may_play():
            reached = self._player.play(
                self._iteration * self.seat.part.operators, lambda: self._running or self._closed
            )
            with self._turns:
                self._iteration = reached // self.seat.part.operators
                self._playing = False
                self._turns.notify_all()

    def _may_play(self) -> bool:
        """Wait until the part is to be played; False if it is never to be played again."""
        with self._turns:
            while not self._closed and not self._passages.is_over(self.number):
                rested = not self._running and time.monotonic() - self._rested_s >= self._beat_s
                if self._left or rested:
                    self._playing = True
                    return True
                self._turns.wait(self._beat_s)
        return False


def _gates_of(part: RoundPart) -> Callable[[int, int], tuple[tuple[int, int], ...]]:
    """Return a function that gives the gates before an operator as `RoundPart.before`, by look-up."""
    known: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for wait in part.waits:
        known.setdefault((wait.iteration, wait.operator), []).append((wait.position, wait.boundary, wait.each))

    def before(iteration: int, operator: int) -> tuple[tuple[int, int], ...]:
        rounds, own = divmod(iteration, part.iterations)
        waits = known.get((own, operator), ())
        return tuple(
            (position, first + rounds * each) for position, first, each in waits if first + rounds * each > 0
        )

    return before


class _IdleTime:
    """The time at a boundary for which the device has nothing to do.

    With `finish` the device is still computing at first: then the time begins when the host has to wait, and the
    device has finished. Otherwise a latency that is measured across the boundary would be reduced by a wait that the
    device did not notice.
    """

    def __init__(self, finish: Callable[[], None] | None) -> None:
        self._finish = finish
        self._start_ns = time.monotonic_ns() if finish is None else None

    def begin(self) -> None:
        """The host has to wait from now on."""
        if self._start_ns is None and self._finish is not None:
            self._finish()
            self._start_ns = time.monotonic_ns()

    def passed_ns(self) -> int:
        """Return the nanoseconds so far."""
        return 0 if self._start_ns is None else time.monotonic_ns() - self._start_ns


def open_member(
    fd: int,
    slot: Slot,
    epoch: int,
    seat: Seat,
    alive: Callable[[], None],
    device: QueueingDevice | None = None,
) -> RoundMember:
    """Return the member for a claim of the ledger behind `fd`.

    `device` is the claim's device if it computes later than it is told to, as a GPU does. Otherwise the memory of the
    places is that of the ledger.
    """

    def lend(begin: int, places: int) -> Lender:
        return _native.LentRegions(fd, slot, epoch, begin, places)

    passages = _native.Passages(fd)
    if device is None:
        return RoundMember(passages, seat, lend, alive=alive)
    return RoundMember(passages, seat, device.lent_regions, finish=device.finish, alive=alive)
