"""Plays the parts of trainers that do not iterate in their round: they have ended, or have never joined it.

Each part has a thread of its own. It waits in native code, without the interpreter lock, and holds no memory. The
threads end with the round.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from indb_tensile.device.round_member import PartPlayer, Passages, Seat
from indb_tensile.job import Slot
from indb_tensile.scheduler.admission.pool import TrainerId
from indb_tensile.scheduler.phases.round_part import RoundPart

log = logging.getLogger("controller")


class EndingPassages(Passages, Protocol):
    """The progress of members in the ledger, for the process that also ends rounds."""

    def end(self, number: int, /) -> None:
        """End this round: nobody waits in it any more."""
        ...


class RoundPlayers:
    """The members of the present round, and the threads that play the parts of ended ones."""

    def __init__(self, passages: EndingPassages) -> None:
        self._passages = passages
        self._number = 0
        self._seats: dict[TrainerId, Seat] = {}
        self._threads: list[threading.Thread] = []

    def begin(self, number: int, slots: Mapping[TrainerId, Slot], parts: Sequence[RoundPart]) -> None:
        """Begin a round of these trainers, in the order of their parts."""
        self._number = number
        seated = tuple(slots.values())
        self._seats = {
            trainer: Seat(number=number, part=part, slots=seated) for trainer, part in zip(slots, parts, strict=True)
        }
        log.info("round %d: trainers %s share the device in phases", number, ", ".join(map(str, slots)))

    def seat_of(self, trainer: TrainerId) -> Seat:
        """Return the seat of a trainer in the present round."""
        return self._seats[trainer]

    def has(self, trainer: TrainerId) -> bool:
        """Return whether the trainer has a seat in the present round."""
        return trainer in self._seats

    def play(self, trainer: TrainerId) -> None:
        """Play the trainer's part from where it stopped, until the round ends."""
        seat = self._seats[trainer]
        number, boundary = self._passages.progress(seat.slot)
        reached = boundary if number == seat.number else 0
        player = PartPlayer(self._passages, seat)
        log.info("round %d: the part of trainer %s is played from boundary %d on", seat.number, trainer, reached)
        thread = threading.Thread(
            target=lambda: player.play(reached, lambda: False, to_end_of_iteration=False),
            name=f"part of {trainer}",
            daemon=True,
        )
        thread.start()
        self._threads.append(thread)

    def end(self) -> None:
        """End the present round, if there is one, and its threads."""
        if self._seats:
            self._passages.end(self._number)
            log.info("round %d is over", self._number)
        for thread in self._threads:
            thread.join()
        self._seats, self._threads = {}, []
