"""Releases and creates a GPU's shared regions while trainers run, as other programs need memory and return it.

Physical memory is free only when no process has it mapped. So a region is released in three steps: the ledger makes a
free region absent, every trainer unmaps it, and the broker gives up its handle. A region is created in the opposite
order: the broker allocates it, every trainer maps it, and only then the ledger may grant it again. A trainer that
starts meanwhile maps the regions that exist at that time, because one lock orders both.

A thread makes the changes, one after another: a trainer answers only when the device has finished its queued work. A
trainer that ends during a change needs no answer, because the driver unmaps its memory.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from indb_tensile.errors import DeviceError
from indb_tensile.scheduler.admission.pool import TrainerId

log = logging.getLogger("controller")


class Broker(Protocol):
    """The methods of `device.cuda.CudaBroker` that this module uses."""

    def present(self) -> list[int]:
        """Return the regions that have memory."""
        ...

    def greet(self, socket: int) -> None:
        """Wait until a trainer is ready to map regions."""
        ...

    def add(self, socket: int, regions: Sequence[int]) -> None:
        """Make a trainer map these regions."""
        ...

    def remove(self, socket: int, regions: Sequence[int]) -> None:
        """Make a trainer unmap these regions."""
        ...

    def create(self, regions: Sequence[int]) -> list[int]:
        """Allocate these regions. Returns those for which the device has memory."""
        ...

    def release(self, regions: Sequence[int]) -> None:
        """Give up the memory of these regions."""
        ...


class SharedRegions:
    """The regions of one broker and its connections to trainers. `close` ends the thread.

    One thread calls `release`, `create`, `take_created` and `take_refusing`; any thread may call the rest.
    """

    def __init__(self, broker: Broker, region_bytes: int) -> None:
        self._broker = broker
        self._region_bytes = region_bytes
        self._lock = threading.Lock()  # of the broker and of `_mapped`
        self._mapped: dict[TrainerId, socket.socket] = {}  # the trainers that follow changes
        self._connections: dict[TrainerId, socket.socket] = {}  # these, and trainers that are not ready yet
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="regions")
        self._change: Future[tuple[int, ...]] | None = None
        self._refusing: set[TrainerId] = set()
        self._suspected: frozenset[TrainerId] = frozenset()
        self.made_bytes = len(broker.present()) * region_bytes

    @property
    def changing(self) -> bool:
        """True from `release` or `create` until `take_created` has returned its result. `made_bytes` may be wrong."""
        return self._change is not None

    def send(self, trainer: TrainerId, connection: socket.socket) -> None:
        """Send a trainer all regions once it is ready, and let it follow changes from then on.

        Returns when the trainer has mapped them. Raises DeviceError if it ends before; the connection is then closed.
        """
        self._connections[trainer] = connection
        try:
            self._broker.greet(connection.fileno())
            with self._lock:
                self._broker.add(connection.fileno(), self._broker.present())
                self._mapped[trainer] = connection
        except BaseException:
            self._connections.pop(trainer, None)
            connection.close()
            raise

    def forget(self, trainer: TrainerId) -> None:
        """End the connection to a trainer that has ended. Nothing waits for its answers any more."""
        connection = self._connections.get(trainer)
        if connection is None:
            return
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for the trainer's answer
        with contextlib.suppress(RuntimeError):  # the thread has been ended
            self._worker.submit(self._disconnect, trainer)

    def release(self, regions: Sequence[int]) -> None:
        """Begin to release these regions, which no job may own. One change at a time may be under way."""
        self._begin(self._release, regions)

    def create(self, regions: Sequence[int]) -> None:
        """Begin to create these regions. `take_created` returns those that jobs may use then."""
        self._begin(self._create, regions)

    def take_created(self) -> tuple[int, ...]:
        """Return the regions that the last change has created, once, when it is complete; else nothing.

        A region that could not be created has no memory. After any other error the changed regions stay unused.
        """
        if self._change is None or not self._change.done():
            return ()
        change, self._change = self._change, None
        try:
            return change.result()
        except DeviceError as error:
            log.error("the device's regions cannot be changed: %s", error.message)  # noqa: TRY400 - no traceback
            return ()

    def take_refusing(self) -> frozenset[TrainerId]:
        """Return the trainers that have not followed a change, each once.

        A trainer is returned at the second call after its refusal: until then a trainer that has ended in order has
        been noticed.
        """
        refusing, self._suspected = self._suspected, frozenset(self._refusing)
        self._refusing -= self._suspected
        return refusing

    def close(self) -> None:
        """End all connections and the thread."""
        for connection in tuple(self._connections.values()):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._worker.shutdown(cancel_futures=True)
        for trainer in tuple(self._mapped):
            self._disconnect(trainer)

    def _begin(self, change: Callable[[tuple[int, ...]], tuple[int, ...]], regions: Sequence[int]) -> None:
        assert self._change is None, "one change of regions at a time"
        self._change = self._worker.submit(change, tuple(sorted(regions)))

    def _release(self, regions: tuple[int, ...]) -> tuple[int, ...]:
        with self._lock:
            self._tell_trainers(lambda connection: self._broker.remove(connection, regions))
            self._broker.release(regions)
            self.made_bytes -= len(regions) * self._region_bytes
        log.info("%d bytes of the device's memory are returned for other programs", len(regions) * self._region_bytes)
        return ()

    def _create(self, regions: tuple[int, ...]) -> tuple[int, ...]:
        with self._lock:
            created = tuple(self._broker.create(regions))
            self.made_bytes += len(created) * self._region_bytes
            if created:
                self._tell_trainers(lambda connection: self._broker.add(connection, created))
        log.info("%d bytes of the device's memory are allocated again", len(created) * self._region_bytes)
        return created

    def _tell_trainers(self, tell: Callable[[int], None]) -> None:
        """Tell every trainer of a change, and wait for each answer. A trainer without an answer is disconnected."""
        for trainer, connection in sorted(self._mapped.items()):
            try:
                tell(connection.fileno())
            except DeviceError as error:
                log.info("trainer %s does not follow the change of regions: %s", trainer, error.message)
                self._refusing.add(trainer)
                self._remove(trainer)

    def _disconnect(self, trainer: TrainerId) -> None:
        with self._lock:
            self._remove(trainer)

    def _remove(self, trainer: TrainerId) -> None:
        self._connections.pop(trainer, None)
        connection = self._mapped.pop(trainer, None)
        if connection is not None:
            connection.close()
