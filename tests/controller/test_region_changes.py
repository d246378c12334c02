"""Any sequence of starts, ends, grants and changes of regions keeps memory behind every region that jobs may use.

The ledger, `DeviceMemory` and `SharedRegions` are the real ones. The broker and the trainers' mappings are a model of
the driver's memory: physical memory is free when neither the broker nor a process has it. A change advances by one
call to the driver at a time, so everything else happens between any two of its calls.
"""

import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.controller.device_room import Headroom, RoomLimits
from indb_tensile.controller.load_gauge import DeviceLoad
from indb_tensile.controller.shared_regions import SharedRegions
from indb_tensile.device.ledger import Ledger
from indb_tensile.device.nvml import Reading
from indb_tensile.errors import DeviceError, DeviceMemoryError
from indb_tensile.scheduler.admission.pool import TrainerId

COUNT, REGION_BYTES = 6, 64
MOST_TRAINERS = 3
LIMITS = RoomLimits(
    budget_bytes=COUNT * REGION_BYTES,
    capacity_bytes=COUNT * REGION_BYTES,
    region_bytes=REGION_BYTES,
    max_jobs=MOST_TRAINERS,
    shared=True,
)
TIMEOUT_S = 60

Block = int  # one physical allocation


@dataclass
class Mappings:
    """The regions that one trainer has mapped. A dead one has none, because the driver has unmapped them."""

    blocks: dict[int, Block] = field(default_factory=dict)
    alive: bool = True
    refuses: bool = False

    def die(self) -> None:
        self.alive = False
        self.blocks.clear()

    @property
    def follows(self) -> bool:
        return self.alive and not self.refuses


class Gate:
    """Stops the thread of changes at each call to the driver, until the test lets it pass."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._waiting = False
        self._passing = False
        self._open = False

    def wait(self) -> None:
        if not threading.current_thread().name.startswith("regions"):
            return
        with self._state:
            self._waiting = True
            self._state.notify_all()
            assert self._state.wait_for(lambda: self._passing or self._open, TIMEOUT_S)
            self._waiting = self._passing = False
            self._state.notify_all()

    def open(self) -> None:
        """Stop no call any more."""
        with self._state:
            self._open = True
            self._state.notify_all()

    def ended(self) -> None:
        with self._state:
            self._state.notify_all()

    def settle(self, shared: SharedRegions) -> bool:
        """Return when the change waits at a call or has ended: False and True. True if there is none."""
        change = shared._change
        if change is not None:
            change.add_done_callback(lambda _: self.ended())
            with self._state:
                assert self._state.wait_for(lambda: self._waiting or change.done(), TIMEOUT_S)
        return change is None or change.done()

    def let_pass(self, shared: SharedRegions) -> None:
        """Let one call pass, and return when the change waits at the next one or has ended."""
        change = shared._change
        assert change is not None
        change.add_done_callback(lambda _: self.ended())
        with self._state:
            assert self._state.wait_for(lambda: self._waiting or change.done(), TIMEOUT_S)
            if change.done():
                return
            self._passing = True
            self._state.notify_all()
            assert self._state.wait_for(lambda: not self._passing, TIMEOUT_S)
            assert self._state.wait_for(lambda: self._waiting or change.done(), TIMEOUT_S)


class ModelBroker:
    """The driver's memory, and the broker's calls."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._next_block = COUNT
        self.handles: dict[int, Block] = {region: region for region in range(COUNT)}
        self.processes: list[Mappings] = []
        self.mappings: dict[int, Mappings] = {}  # by the descriptor of the broker's end, which may be used again
        self.others = 0  # allocations of other programs

    @property
    def used(self) -> int:
        blocks = set(self.handles.values())
        for mappings in self.processes:
            blocks |= set(mappings.blocks.values())
        return len(blocks) + self.others

    def present(self) -> list[int]:
        return sorted(self.handles)

    def greet(self, socket: int) -> None:
        self._of(socket)

    def add(self, socket: int, regions: Sequence[int]) -> None:
        self._gate.wait()
        mappings = self._of(socket)
        for region in regions:
            assert region not in mappings.blocks, "a region is mapped twice"
            mappings.blocks[region] = self.handles[region]

    def remove(self, socket: int, regions: Sequence[int]) -> None:
        self._gate.wait()
        mappings = self._of(socket)
        for region in regions:
            mappings.blocks.pop(region, None)

    def create(self, regions: Sequence[int]) -> list[int]:
        self._gate.wait()
        created = []
        for region in regions:
            assert region not in self.handles
            if self.used >= COUNT:
                break
            self.handles[region] = self._next_block
            self._next_block += 1
            created.append(region)
        return created

    def release(self, regions: Sequence[int]) -> None:
        self._gate.wait()
        for region in regions:
            del self.handles[region]

    def _of(self, socket: int) -> Mappings:
        mappings = self.mappings[socket]
        if not mappings.follows:
            raise DeviceError("the other process closed the socket")
        return mappings


class WatchedLedger(Ledger):
    """A ledger that remembers which regions are absent."""

    absent: frozenset[int] = frozenset()

    def withdraw(self, count: int) -> tuple[int, ...]:
        withdrawn = super().withdraw(count)
        assert self.absent.isdisjoint(withdrawn)
        self.absent |= frozenset(withdrawn)
        return withdrawn

    def restore(self, regions: Sequence[int]) -> None:
        super().restore(regions)
        self.absent -= frozenset(regions)


class ModelGauge:
    """Reads the model's memory, in which the driver has nothing of its own. It names no processes."""

    def __init__(self, broker: ModelBroker) -> None:
        self._broker = broker
        self.reading: Reading | None = None

    def read(self) -> DeviceLoad:
        self.reading = Reading(
            total_bytes=COUNT * REGION_BYTES,
            used_bytes=self._broker.used * REGION_BYTES,
            busy_percent=None,
            memory_busy_percent=None,
            processes=None,
        )
        return DeviceLoad()


class RegionChanges(RuleBasedStateMachine):
    """Trainers start, get memory and die while other programs take memory and return it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.broker = ModelBroker(self.gate)
        self.shared = SharedRegions(self.broker, REGION_BYTES)
        self.ledger = WatchedLedger.create(COUNT * REGION_BYTES, REGION_BYTES, 1, 1, None)
        self.gauge = ModelGauge(self.broker)
        self.memory = DeviceMemory(
            self.ledger,
            kind="model",
            gauge=self.gauge,
            headroom=Headroom(LIMITS, 0, lambda _: None),
            regions=self.shared,
        )
        self.trainers: dict[TrainerId, tuple[Mappings, socket.socket]] = {}
        self.senders: list[threading.Thread] = []
        self.reaped: set[TrainerId] = set()
        self.number = 0

    @precondition(lambda self: len(self.trainers) < MOST_TRAINERS)
    @rule()
    def trainer_starts(self) -> None:
        self.number += 1
        trainer = TrainerId(self.number)
        own_end, trainer_end = socket.socketpair()
        mappings = Mappings()
        self.broker.processes.append(mappings)
        self.broker.mappings[own_end.fileno()] = mappings
        self.trainers[trainer] = (mappings, trainer_end)
        self.memory.claim(trainer, os.getpid())
        sender = threading.Thread(target=self._send, args=(trainer, own_end, mappings))
        sender.start()
        self.senders.append(sender)
        self._join_senders()

    def _send(self, trainer: TrainerId, own_end: socket.socket, mappings: Mappings) -> None:
        try:
            self.shared.send(trainer, own_end)
        except DeviceError:
            mappings.die()  # a trainer that receives no regions ends

    def _join_senders(self) -> None:
        """A trainer that starts during a change waits for its end."""
        if not self.shared.changing:
            for sender in self.senders:
                sender.join()
            self.senders.clear()

    @precondition(lambda self: self.trainers)
    @rule(data=st.data(), regions=st.integers(0, COUNT))
    def grant_changes(self, data: st.DataObject, regions: int) -> None:
        trainer = data.draw(st.sampled_from(sorted(self.trainers)))
        try:
            self.memory.grant(trainer, regions * REGION_BYTES)
        except DeviceMemoryError:
            free = COUNT - len(self.ledger.absent) - self.ledger.device_usage().granted_bytes // REGION_BYTES
            assert regions > free

    @precondition(lambda self: self.trainers)
    @rule(data=st.data(), refuses=st.booleans())
    def trainer_dies_or_refuses_the_next_change(self, data: st.DataObject, *, refuses: bool) -> None:
        mappings, _ = self.trainers[data.draw(st.sampled_from(sorted(self.trainers)))]
        mappings.refuses |= refuses
        if not refuses:
            mappings.die()

    @precondition(lambda self: any(not mappings.alive for mappings, _ in self.trainers.values()))
    @rule()
    def ends_of_trainers_are_noticed(self) -> None:
        for trainer, (mappings, _) in self.trainers.items():
            if not mappings.alive and trainer not in self.reaped:
                self.memory.revoke(trainer)
                self.shared.forget(trainer)
                self.reaped.add(trainer)

    @precondition(lambda self: self.reaped)
    @rule()
    def memory_of_a_dead_trainer_is_reclaimed(self) -> None:
        trainer = min(self.reaped)
        self.memory.release(trainer)
        self.reaped.remove(trainer)
        _, trainer_end = self.trainers.pop(trainer)
        trainer_end.close()

    @rule(others=st.integers(0, COUNT - 1))
    def controller_looks(self, others: int) -> None:
        self._look(others)

    @invariant()
    def budget_is_at_most_the_memory_of_present_regions(self) -> None:
        self.gauge.read()
        room = self.memory.room()
        assert room is not None
        assert room.budget_bytes <= (COUNT - len(self.ledger.absent)) * REGION_BYTES

    def _look(self, others: int) -> None:
        """As the controller does each second, while other programs want this many regions' memory."""
        self.broker.others = 0
        self.broker.others = min(others, COUNT - self.broker.used)
        for trainer in self.memory.take_refusing():
            if trainer in self.trainers:
                self.trainers[trainer][0].die()
        self.memory.restore_regions()
        self._join_senders()
        self.memory.fit_regions((COUNT - others) * REGION_BYTES)

    @precondition(lambda self: self.shared.changing)
    @rule()
    def change_advances(self) -> None:
        self.gate.let_pass(self.shared)

    @invariant()
    def nothing_moves_by_itself(self) -> None:
        """Let the threads come to rest after each rule: which rules come next must not depend on their speed."""
        if self.gate.settle(self.shared):
            self.shared._worker.submit(lambda: None).result(TIMEOUT_S)  # connections of dead trainers are ended
            for sender in self.senders:
                sender.join(TIMEOUT_S)

    @invariant()
    def every_region_that_jobs_may_use_has_memory_that_every_trainer_maps(self) -> None:
        waiting = {sender.name for sender in self.senders}
        for region in set(range(COUNT)) - self.ledger.absent:
            block = self.broker.handles[region]
            for mappings, _ in self.trainers.values():
                if mappings.follows and mappings.blocks and not waiting:
                    assert mappings.blocks[region] == block

    @invariant()
    def ledger_and_counts_agree(self) -> None:
        usage = self.ledger.device_usage()
        assert usage.absent_bytes == len(self.ledger.absent) * REGION_BYTES
        assert usage.granted_bytes + usage.absent_bytes <= usage.capacity_bytes
        assert self.broker.used <= COUNT

    @invariant()
    def released_memory_is_free(self) -> None:
        if not self.shared.changing and all(mappings.follows for mappings, _ in self.trainers.values()):
            assert self.broker.used - self.broker.others == len(self.broker.handles)
            assert self.shared.made_bytes == len(self.broker.handles) * REGION_BYTES

    def teardown(self) -> None:
        try:
            self._check_recovery()
        finally:
            self.gate.open()
            self.shared.close()
            for sender in self.senders:
                sender.join()
            for _, trainer_end in self.trainers.values():
                trainer_end.close()
            self.ledger.close()

    def _check_recovery(self) -> None:
        """All memory but one region's is released for other programs, and comes back to jobs.

        Trainers that refused a change have ended by then.
        """
        for others, absent in ((0, 0), (COUNT - 1, COUNT - 1), (0, 0)):
            self._settle(others)
            assert len(self.ledger.absent) == absent
            self.released_memory_is_free()
            self.every_region_that_jobs_may_use_has_memory_that_every_trainer_maps()
        assert set(self.shared._connections) == set(self.trainers)
        assert all(mappings.follows for mappings, _ in self.trainers.values())
        self.memory.claim(TrainerId(0), os.getpid())
        assert self.memory.grant(TrainerId(0), COUNT * REGION_BYTES) == COUNT * REGION_BYTES

    def _settle(self, others: int) -> None:
        """Let the controller look until nothing changes any more. Jobs give up their memory meanwhile."""
        for _ in range(40):
            for trainer in self.trainers:
                self.memory.grant(trainer, 0)
            self._look(others)
            while self.shared.changing and self.shared._change is not None and not self.shared._change.done():
                self.gate.let_pass(self.shared)
            self.ends_of_trainers_are_noticed()
            while self.reaped:
                self.memory_of_a_dead_trainer_is_reclaimed()
        self.memory.restore_regions()
        self._join_senders()


RegionChanges.TestCase.settings = settings(stateful_step_count=40)
TestRegionChanges = RegionChanges.TestCase
