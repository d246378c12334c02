"""Check that shared regions are released and created in an order in which no job uses a region without memory."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pytest

from indb_tensile.controller.shared_regions import SharedRegions
from indb_tensile.errors import DeviceError
from indb_tensile.scheduler.admission.pool import TrainerId
from tests.native.ledger_trainers import wait_until

FIRST, SECOND = TrainerId(1), TrainerId(2)


class FakeBroker:
    """A broker of eight regions. A trainer answers each message with one byte, and closes its socket if it ends."""

    def __init__(self) -> None:
        self.regions = set(range(8))
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.room = 8

    def present(self) -> list[int]:
        return sorted(self.regions)

    def greet(self, socket: int) -> None:
        _wait_for_answer(socket)

    def add(self, socket: int, regions: Sequence[int]) -> None:
        self.calls.append(("add", tuple(regions)))
        _wait_for_answer(socket)

    def remove(self, socket: int, regions: Sequence[int]) -> None:
        self.calls.append(("remove", tuple(regions)))
        _wait_for_answer(socket)

    def create(self, regions: Sequence[int]) -> list[int]:
        created = list(regions)[: self.room - len(self.regions)]
        self.calls.append(("create", tuple(regions)))
        self.regions.update(created)
        return created

    def release(self, regions: Sequence[int]) -> None:
        self.calls.append(("release", tuple(regions)))
        self.regions.difference_update(regions)


def _wait_for_answer(descriptor: int) -> None:
    with socket.socket(fileno=socket.dup(descriptor)) as connection:
        if not connection.recv(1):
            raise DeviceError("the trainer has ended")


@contextmanager
def connected(shared: SharedRegions, trainer: TrainerId) -> Iterator[socket.socket]:
    """Connect a trainer that has mapped all regions."""
    own_end, trainer_end = socket.socketpair()
    with trainer_end:
        trainer_end.send(b"dd")
        shared.send(trainer, own_end)
        yield trainer_end


def settle(shared: SharedRegions) -> tuple[int, ...]:
    """Wait until the change is complete. Returns the created regions."""
    assert shared._change is not None
    shared._change.exception()
    return shared.take_created()


def test_memory_is_released_after_every_trainer_has_unmapped_it() -> None:
    broker = FakeBroker()
    with (
        closing(SharedRegions(broker, 100)) as shared,
        connected(shared, FIRST) as first,
        connected(shared, SECOND) as second,
    ):
        broker.calls.clear()
        shared.release([7, 6])
        first.send(b"d")
        wait_until(lambda: len(broker.calls) == 2, goal="the second trainer is told")
        assert (shared.changing, shared.made_bytes, shared.take_created()) == (True, 800, ())
        second.send(b"d")
        assert settle(shared) == ()
        assert broker.calls == [("remove", (6, 7)), ("remove", (6, 7)), ("release", (6, 7))]
        assert (shared.changing, shared.made_bytes) == (False, 600)


def test_created_regions_are_usable_after_every_trainer_has_mapped_them() -> None:
    broker = FakeBroker()
    with closing(SharedRegions(broker, 100)) as shared, connected(shared, FIRST) as first:
        shared.release([5, 6, 7])
        first.send(b"d")
        settle(shared)
        broker.calls.clear()
        broker.room = 7
        shared.create([5, 6, 7])
        wait_until(lambda: len(broker.calls) == 2, goal="the trainer is told")
        assert shared.take_created() == ()
        first.send(b"d")
        assert settle(shared) == (5, 6)
        assert broker.calls == [("create", (5, 6, 7)), ("add", (5, 6))]
        assert shared.made_bytes == 700


def test_trainer_that_crashes_during_a_change_does_not_delay_it() -> None:
    broker = FakeBroker()
    with (
        closing(SharedRegions(broker, 100)) as shared,
        connected(shared, FIRST) as first,
        connected(shared, SECOND) as second,
    ):
        shared.release([7])
        first.close()
        second.send(b"d")
        settle(shared)
        assert shared.made_bytes == 700
        assert shared.take_refusing() == frozenset()  # it may have ended in order
        assert shared.take_refusing() == {FIRST}
        assert shared.take_refusing() == frozenset()


def test_answer_of_a_trainer_that_the_controller_has_reaped_is_not_waited_for() -> None:
    broker = FakeBroker()
    with closing(SharedRegions(broker, 100)) as shared, connected(shared, FIRST):
        broker.calls.clear()
        shared.release([7])
        wait_until(lambda: bool(broker.calls), goal="the trainer is told")
        shared.forget(FIRST)
        settle(shared)
        assert shared.made_bytes == 700


def test_trainer_that_starts_during_a_change_receives_the_regions_that_exist_after_it() -> None:
    broker = FakeBroker()
    with closing(SharedRegions(broker, 100)) as shared, connected(shared, FIRST) as first:
        own_end, later = socket.socketpair()
        sender = threading.Thread(target=shared.send, args=(SECOND, own_end))
        shared.release([7])
        wait_until(lambda: broker.calls[-1] == ("remove", (7,)), goal="the first trainer is told")
        with later:
            sender.start()
            later.send(b"dd")
            first.send(b"d")
            sender.join()
        settle(shared)
        assert broker.calls[-2:] == [("release", (7,)), ("add", (0, 1, 2, 3, 4, 5, 6))]


def test_spare_trainer_that_is_not_ready_delays_no_change() -> None:
    broker = FakeBroker()
    with closing(SharedRegions(broker, 100)) as shared:
        own_end, spare = socket.socketpair()
        failed: list[str] = []

        def send() -> None:
            try:
                shared.send(FIRST, own_end)
            except DeviceError as error:
                failed.append(error.message)

        sender = threading.Thread(target=send)
        sender.start()
        shared.release([7])
        settle(shared)
        assert shared.made_bytes == 700
        with spare:
            wait_until(lambda: FIRST in shared._connections, goal="the connection is known")
            shared.forget(FIRST)
            sender.join()
        assert failed == ["the trainer has ended"]


def test_error_of_the_driver_leaves_the_regions_unused(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenBroker(FakeBroker):
        def create(self, regions: Sequence[int]) -> list[int]:
            raise DeviceError("the device is gone")

    with closing(SharedRegions(BrokenBroker(), 100)) as shared:
        shared.create([7])
        assert settle(shared) == ()
        assert "the device's regions cannot be changed: the device is gone" in caplog.text
