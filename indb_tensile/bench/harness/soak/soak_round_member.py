"""A member of rounds for `bench soak --rounds`, which the test kills: it iterates, and checks that its bytes stay.

The test starts it as the controller starts a trainer, and sends it the orders that the controller sends. It has no
tensors: it writes its own mark into every place that it takes, and checks the mark before it gives the place back.
"""

import ctypes
import mmap
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Sequence

from indb_tensile import _native, config
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.device.device import EmulatedDevice
from indb_tensile.device.ledger import Ledger
from indb_tensile.device.round_member import RoundMember, Seat
from indb_tensile.job import JobId
from indb_tensile.messages import Adopt, Adopted, LeavePhases, LeftPhases, Message, Park, Parked, TrainerLink

DAMAGED = 3  # exit code of a member that read bytes other than those it wrote
_REST_CHANCE = 0.05  # after an iteration
_REST_S = 0.12  # longer than a beat
_JOB = JobId(1)


def main() -> int:
    """Take part in rounds until the test closes the connection or kills the process."""
    die_with_parent()
    inherited = config.inherited_descriptors(os.environ)
    link = TrainerLink(socket.socket(fileno=inherited.link_fd))
    orders: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(link, orders), daemon=True).start()
    chance = random.Random(os.getpid())  # noqa: S311 - chance, not secrecy
    while isinstance(order := orders.get(), Adopt):
        assert order.seat is not None
        places = _Places(inherited.device_fd, order.seat)
        link.send(Adopted(job=_JOB, generation=order.generation))
        stop = places.iterate(orders, chance)
        if places.damaged:
            return DAMAGED
        match stop:
            case LeavePhases(number=number):
                link.send(LeftPhases(job=_JOB, number=number))
            case Park(number=number):
                link.send(Parked(job=_JOB, number=number, host_bytes=0))
            case _:
                return 0
    return 0


def _read(link: TrainerLink, orders: "queue.SimpleQueue[Message | None]") -> None:
    while (message := link.receive()) is not None:
        orders.put(message)
    orders.put(None)


class _Places:
    """The places of one seat, with a mark in each that the job has."""

    def __init__(self, fd: int, seat: Seat) -> None:
        with Ledger.attach(fd) as ledger:
            (epoch,) = (usage.epoch for usage in ledger.slots() if usage.slot == seat.slot)
        self._seat = seat
        self._device = EmulatedDevice(fd, seat.slot, epoch, 0)
        self._used_bytes = 0
        self._room = mmap.mmap(-1, max(1, seat.part.places) * seat.part.region_bytes)
        self._begin = ctypes.addressof(ctypes.c_char.from_buffer(self._room))
        self._mark = bytes([1 + os.getpid() % 255])
        self._lent = _native.LentRegions(fd, seat.slot, epoch, self._begin, max(1, seat.part.places))
        self._held: set[int] = set()
        self.damaged = False
        self._member = RoundMember(_native.Passages(fd), seat, lambda _, __: self)
        self._member.join(0)

    def take_for(self, places: Sequence[int], limit_ns: int, /) -> bool:
        """Take these places, and mark them."""
        if not self._lent.take_for(places, limit_ns):
            return False
        for place in set(places) - self._held:
            ctypes.memset(self._address(place), self._mark[0], self._seat.part.region_bytes)
        self._held.update(places)
        self._account()
        return True

    def give(self, places: Sequence[int], /) -> None:
        """Check the marks of these places, and give them back."""
        region_bytes = self._seat.part.region_bytes
        for place in places:
            read = ctypes.string_at(self._address(place), region_bytes)
            self.damaged = self.damaged or read != self._mark * region_bytes
        self._held.difference_update(places)
        self._account()
        self._lent.give(places)

    def iterate(self, orders: "queue.SimpleQueue[Message | None]", chance: random.Random) -> Message | None:
        """Iterate until an order has come, and return it. A thread then plays the part until the round is over."""
        boundaries = sorted(self._member.boundaries)
        while orders.empty() and not self.damaged:
            self._member.enter()
            for boundary in boundaries:
                self._member.pass_boundary(boundary)
            self._member.rest()
            if chance.random() < _REST_CHANCE:
                time.sleep(_REST_S)
        self._member.leave()
        self._device.move(self._used_bytes, 0)
        return None if self.damaged else orders.get()

    def _address(self, place: int) -> int:
        return self._begin + place * self._seat.part.region_bytes

    def _account(self) -> None:
        """Have the ledger count the base and all places that the job has as bytes in use."""
        part = self._seat.part
        used_bytes = part.base_bytes + len(self._held) * part.region_bytes
        self._device.move(self._used_bytes, used_bytes)
        self._used_bytes = used_bytes
