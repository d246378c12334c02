"""Rounds of jobs for `bench soak --rounds`: members are killed, parked and told to leave at random moments.

The controller's own code manages the memory, plays the parts of dead members, and notices deaths. After each of these
events every member that still iterates has to come two iterations further. Loads and budgets are drawn at random, and
the gates are those of the planner.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from indb_tensile import _native
from indb_tensile.bench.harness.soak.soak_round_member import DAMAGED
from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.controller.round_players import RoundPlayers
from indb_tensile.controller.trainers import MessageReceived, ProcessEnded, TrainerGone, Trainers
from indb_tensile.device.ledger import Ledger, RegionState
from indb_tensile.messages import Adopt, Adopted, LeavePhases, LeftPhases, Park, Parked
from indb_tensile.scheduler.admission.admission_orders import EndMethod
from indb_tensile.scheduler.admission.pool import TrainerId
from indb_tensile.scheduler.phases.interleaved_schedule import schedule_cycles
from indb_tensile.scheduler.phases.load_cycle import Cycle
from indb_tensile.scheduler.phases.phase_offsets import least_budget
from indb_tensile.scheduler.phases.round_part import BlockUse, RoundPart
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.timing.job_runs import Compute

REGION_BYTES = 1 << 16
REGIONS = 64
_MOST_MEMBERS = 4
_MOST_SEGMENTS = 6
_MOST_PLACES = 8
_EVENTS = 3  # number of disturbances in a round
_RATE = 10**10
_DEADLINE_S = 60.0


def soak_rounds(rounds: int, *, seed: int) -> dict[str, Any]:
    """Run this many rounds and return the counts of what went wrong and what happened."""
    started_s = time.monotonic()
    with Ledger.create(REGIONS * REGION_BYTES, REGION_BYTES, _RATE, _RATE) as ledger:
        site = _Rounds(ledger=ledger, chance=random.Random(seed))  # noqa: S311 - chance, not secrecy
        try:
            for number in range(1, rounds + 1):
                site.run(number)
        finally:
            site.close()
        lost = sum(region.state is not RegionState.FREE for region in ledger.regions())
        usage = ledger.device_usage()
    return {
        "rounds": rounds,
        "kills": site.kills,
        "kills_inside_an_iteration": site.kills_inside,
        "parked": site.parks,
        "left_early": site.leaves,
        "iterations": site.iterations,
        "regions_lost": lost,
        "double_owners": site.damaged,
        "blocked": site.blocked,
        "over_budget_bytes": site.over_budget_bytes,
        "used_bytes_left": usage.used_bytes,
        "seconds": round(time.monotonic() - started_s, 1),
    }


def is_clean_of_rounds(row: dict[str, Any]) -> bool:
    """Return whether nobody was blocked, no region is lost or shared, and no budget was exceeded."""
    return not any(
        row[name] for name in ("regions_lost", "double_owners", "blocked", "over_budget_bytes", "used_bytes_left")
    )


def draw_parts(chance: random.Random, count: int) -> tuple[list[RoundPart], int]:
    """Return the parts of a round of jobs with random loads, and its budget, at most the sum of their peaks."""
    while True:
        blocks = [_draw_block(chance) for _ in range(count)]
        cycles = [block.cycle for block in blocks]
        least, most = least_budget(cycles), sum(cycle.peak_bytes for cycle in cycles)
        budget_bytes = chance.randint(least // REGION_BYTES, most // REGION_BYTES) * REGION_BYTES
        schedules = schedule_cycles(cycles, budget_bytes=budget_bytes, compute=chance.choice(list(Compute)))
        if budget_bytes > REGIONS * REGION_BYTES or isinstance(schedules, Infeasible):
            continue
        (schedule,) = schedules
        operators = [block.operators for block in blocks]
        return [block.part(position, schedule, operators) for position, block in enumerate(blocks)], budget_bytes


def _draw_block(chance: random.Random) -> BlockUse:
    """Return a job whose operators have random places, of a base of one to three regions."""
    count, base_regions = chance.randint(1, _MOST_SEGMENTS), chance.randint(1, 3)
    use = [tuple(sorted(chance.sample(range(_MOST_PLACES), chance.randint(0, _MOST_PLACES)))) for _ in range(count)]
    return BlockUse(
        base_regions=base_regions,
        region_bytes=REGION_BYTES,
        operators=count,
        stops=tuple(range(1, count + 1)),
        use=tuple(use),
        cycle=Cycle(
            load_bytes=tuple((base_regions + len(places)) * REGION_BYTES for places in use),
            duration_ns=tuple(chance.randint(1, 9) for _ in use),
            idle_bytes=base_regions * REGION_BYTES,
        ),
    )


@dataclass(kw_only=True)
class _Rounds:
    """The members, and the controller's code that manages their memory and their rounds."""

    ledger: Ledger
    chance: random.Random
    kills: int = 0
    kills_inside: int = 0
    parks: int = 0
    leaves: int = 0
    iterations: int = 0
    damaged: int = 0
    blocked: int = 0
    over_budget_bytes: int = 0
    _next: int = 1
    _largest_bytes: int = 0  # the largest budget so far: the ledger's high-water mark covers all rounds
    _iterating: list[TrainerId] = field(default_factory=list)
    _answered: set[TrainerId] = field(default_factory=set)
    _gone: set[TrainerId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._forks = ForkServer(os.environ)
        self._trainers = Trainers(
            forks=self._forks,
            module="indb_tensile.bench.harness.soak.soak_round_member",
            device_fd=self.ledger.fd,
            grace_s=10.0,
        )
        self._memory = DeviceMemory(self.ledger, kind="emulated")
        self._passages = _native.Passages(self.ledger.fd)
        self._players = RoundPlayers(self._passages)

    def close(self) -> None:
        """End the processes that still run."""
        self._players.end()
        self._trainers.close()
        self._forks.close()

    def run(self, number: int) -> None:
        """Run one round: members join, some are killed, parked or leave early, and the rest leave together."""
        members = self._start(self.chance.randint(2, _MOST_MEMBERS))
        parts, budget_bytes = draw_parts(self.chance, len(members))
        self._players.begin(number, {trainer: self._memory.slot(trainer) for trainer in members}, parts)
        for trainer, part in zip(members, parts, strict=True):
            self._memory.grant(trainer, part.base_bytes)
            seat = self._players.seat_of(trainer)
            self._trainers.send(trainer, Adopt(generation=1, grant_bytes=part.base_bytes, plans=(), seat=seat))
        self._memory.set_pool(budget_bytes - sum(part.base_bytes for part in parts))
        self._wait(lambda: self._answered.issuperset(members), "join")
        self._iterating = list(members)
        self._await_progress()
        for _ in range(min(_EVENTS, len(members) - 1)):
            self._hurt(self._iterating.pop(self.chance.randrange(len(self._iterating))), number)
            self._await_progress()
        self._end(members, number, budget_bytes)

    def _start(self, count: int) -> list[TrainerId]:
        members = [TrainerId(self._next + number) for number in range(count)]
        self._next += count
        for trainer in members:
            self._trainers.spawn(trainer)
        self._wait(lambda: all(self._trainers.pid(trainer) for trainer in members), "start")
        for trainer in members:
            self._memory.claim(trainer, self._trainers.pid(trainer))
        return members

    def _hurt(self, trainer: TrainerId, number: int) -> None:
        """Kill a member at a random moment, or tell it to park or to leave."""
        self._answered.discard(trainer)
        event = self.chance.choice(("kill", "kill", "park", "leave"))
        if event == "kill":
            seat = self._players.seat_of(trainer)
            time.sleep(self.chance.random() * 0.01)
            _, boundary = self._passages.progress(seat.slot)
            os.kill(self._trainers.pid(trainer), signal.SIGKILL)
            self.kills += 1
            self.kills_inside += boundary % seat.part.operators != 0
        elif event == "park":
            self._trainers.send(trainer, Park(number=1))
            self.parks += 1
        else:
            self._trainers.send(trainer, LeavePhases(number=number))
            self.leaves += 1

    def _await_progress(self) -> None:
        """Wait until every member that iterates has come two iterations further."""
        seats = [self._players.seat_of(trainer) for trainer in self._iterating]
        goals = [self._passages.progress(seat.slot)[1] + 2 * seat.part.operators for seat in seats]

        def reached() -> bool:
            return all(self._passages.progress(seat.slot)[1] >= goal for seat, goal in zip(seats, goals, strict=True))

        self._wait(reached, "iterate")
        self.iterations += 2 * len(seats)

    def _end(self, members: Sequence[TrainerId], number: int, budget_bytes: int) -> None:
        """Let the rest leave, end the round, and check that all its memory is free."""
        for trainer in self._iterating:
            self._answered.discard(trainer)
            self._trainers.send(trainer, LeavePhases(number=number))
        self._wait(lambda: (self._answered | self._gone).issuperset(members), "leave")
        self._players.end()
        self._memory.set_pool(0)
        for trainer in members:
            if trainer not in self._gone:
                self._trainers.end(trainer, EndMethod.KILL)
        self._wait(lambda: self._gone.issuperset(members), "end")
        self._largest_bytes = max(self._largest_bytes, budget_bytes)
        excess_bytes = self.ledger.device_usage().high_water_bytes - self._largest_bytes
        self.over_budget_bytes = max(self.over_budget_bytes, excess_bytes)

    def _wait(self, condition: Callable[[], bool], awaited: str) -> None:
        end_s = time.monotonic() + _DEADLINE_S
        while not condition():
            if time.monotonic() > end_s:
                self.blocked += 1
                raise TimeoutError(f"members did not {awaited} within {_DEADLINE_S:g} s: {self.ledger.slots()}")
            for report in self._trainers.poll(0.002):
                self._handle(report)

    def _handle(self, report: MessageReceived | ProcessEnded | TrainerGone) -> None:
        match report:
            case MessageReceived(trainer=trainer, message=Adopted() | LeftPhases() | Parked()):
                self._answered.add(trainer)
            case ProcessEnded(trainer=trainer):
                self._memory.revoke(trainer)
                self._trainers.reap(trainer)
            case TrainerGone(trainer=trainer, code=code):
                self._memory.release(trainer)
                self.damaged += code == DAMAGED
                self._gone.add(trainer)
                if self._players.has(trainer):
                    self._players.play(trainer)
            case _:
                pass
