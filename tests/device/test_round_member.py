"""Check that gates never block jobs for ever, and that jobs keep to the budget, whoever is killed, parks or rests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from indb_tensile.device.round_member import PartPlayer, RoundMember, Seat
from indb_tensile.job import Slot
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.phases.interleaved_schedule import schedule_cycles
from indb_tensile.scheduler.phases.phase_offsets import least_budget
from indb_tensile.scheduler.phases.round_part import BlockUse, RoundPart, Segment, Wait, block_use
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.workload import Workload
from tests.nightly import few_examples
from tests.scheduler.strategies import several_workloads

REGION = 1024
_LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)


@dataclass
class _Progress:
    """The progress of all members, as in the ledger. A wait never blocks: it records that it would."""

    passed: dict[int, tuple[int, int]] = field(default_factory=dict)
    blocked: bool = False
    over: bool = False

    def advance(self, slot: int, number: int, boundary: int, /) -> None:
        self.passed[slot] = max(self.passed.get(slot, (0, 0)), (number, boundary))

    def wait_for(self, slot: int, number: int, boundary: int, limit_ns: int, spins: int = 0, /) -> bool:
        del limit_ns, spins
        passed = self.passed.get(slot, (0, 0)) >= (number, boundary)
        self.blocked = self.blocked or not passed
        return passed

    def progress(self, slot: int, /) -> tuple[int, int]:
        return self.passed.get(slot, (0, 0))

    def is_over(self, number: int, /) -> bool:
        del number
        return self.over


@dataclass
class _Job:
    """A member that iterates, boundary by boundary, while it lives and takes part."""

    seat: Seat
    boundary: int = 0
    held: frozenset[int] = frozenset()
    alive: bool = True
    reaped: bool = False  # its process is gone, and its memory is the round's again
    resting: bool = False  # does other work between two iterations, is parked, or has left

    @property
    def part(self) -> RoundPart:
        return self.seat.part

    @property
    def held_bytes(self) -> int:
        return 0 if self.reaped else self.part.base_bytes + len(self.held) * self.part.region_bytes

    @property
    def is_played(self) -> bool:
        return self.reaped or (self.alive and self.resting)

    @property
    def between_iterations(self) -> bool:
        return self.boundary % self.part.operators == 0


class Rounds(RuleBasedStateMachine):
    """Members of one round that move in any order."""

    @initialize(jobs=several_workloads(4), fraction=st.floats(0, 1), compute=st.sampled_from(list(Compute)))
    def plan(self, jobs: tuple[Workload, ...], fraction: float, compute: Compute) -> None:
        blocks = [block_use(w, (LIVENESS,) * len(w.graphs), _LINK, region_bytes=REGION) for w in jobs]
        self.budget_bytes = _budget(blocks, fraction)
        cycles = [block.cycle for block in blocks]
        schedules = schedule_cycles(cycles, budget_bytes=self.budget_bytes, compute=compute)
        assert not isinstance(schedules, Infeasible)
        operators = [block.operators for block in blocks]
        slots = tuple(Slot(number) for number in range(len(blocks)))
        self.jobs = [
            _Job(seat=Seat(number=1, part=block.part(n, schedules[0], operators), slots=slots))
            for n, block in enumerate(blocks)
        ]
        self.progress = _Progress()
        for slot in slots:
            self.progress.advance(slot, 1, 0)

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        self._move(data.draw(st.sampled_from(self.jobs)))

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.jobs)).alive = False

    @precondition(lambda self: any(not job.alive for job in self.jobs))
    @rule(data=st.data())
    def bury(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([job for job in self.jobs if not job.alive])).reaped = True

    @rule(data=st.data())
    def rest_or_return(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        if job.between_iterations:
            job.resting = not job.resting

    @rule(data=st.data())
    def play(self, data: st.DataObject) -> None:
        self._play(data.draw(st.sampled_from(self.jobs)), data.draw(st.integers(1, 20)))

    @invariant()
    def budget_is_kept(self) -> None:
        if hasattr(self, "jobs"):
            assert sum(job.held_bytes for job in self.jobs) <= self.budget_bytes

    def teardown(self) -> None:
        """Every job that is left can iterate on, once the memory of the dead is free."""
        for job in getattr(self, "jobs", ()):
            job.reaped = not job.alive
        left = [job for job in getattr(self, "jobs", ()) if job.alive]
        for job in left:
            job.resting = job.resting and job.between_iterations
        goals = [job.boundary + 2 * job.part.operators for job in left]
        moved = True
        while moved and not all(job.boundary >= goal for job, goal in zip(left, goals, strict=True)):
            before = [job.boundary for job in self.jobs]
            for job in self.jobs:
                self._move(job)
                self._play(job, 5)
            self.budget_is_kept()
            moved = before != [job.boundary for job in self.jobs]
        assert moved or not left, "the jobs wait for each other for ever"

    def _move(self, job: _Job) -> None:
        """Pass one boundary as a trainer does, unless a gate is shut."""
        if not job.alive or job.resting:
            return
        iteration, operator = divmod(job.boundary, job.part.operators)
        segments = {segment.operator: segment for segment in job.part.segments}
        segment: Segment = segments[operator]
        job.held = job.held.difference(segment.returned)
        self.progress.advance(job.seat.slot, 1, job.boundary)
        if not all(
            self.progress.wait_for(job.seat.slots[position], 1, boundary, 0)
            for position, boundary in job.part.before(iteration, operator)
        ):
            return
        job.held = job.held.union(segment.taken)
        self.budget_is_kept()
        after = min((start for start in segments if start > operator), default=job.part.operators)
        job.boundary = iteration * job.part.operators + after
        if after == job.part.operators:
            job.held = job.held.difference(job.part.kept)
            assert not job.held
            self.progress.advance(job.seat.slot, 1, job.boundary)

    def _play(self, job: _Job, steps: int) -> None:
        """Play a part until a gate is shut, or for some boundaries. A trainer's thread stops between iterations."""
        if not job.is_played:
            return
        _, reached = self.progress.progress(job.seat.slot)
        left = iter(range(steps))
        self.progress.blocked = False
        player = PartPlayer(self.progress, job.seat, pause_s=0)
        stopped = lambda: self.progress.blocked or next(left, None) is None  # noqa: E731
        job.boundary = player.play(reached, stopped, to_end_of_iteration=False)


TestRounds = Rounds.TestCase
TestRounds.settings = settings(few_examples(), stateful_step_count=30)


def _budget(blocks: list[BlockUse], fraction: float) -> int:
    cycles = [block.cycle for block in blocks]
    least, most = least_budget(cycles), sum(cycle.peak_bytes for cycle in cycles)
    return least + int((most - least) * fraction)


class _Lender:
    def __init__(self) -> None:
        self.held: set[int] = set()

    def take_for(self, places: Sequence[int], limit_ns: int, /) -> bool:
        del limit_ns
        self.held.update(places)
        return True

    def give(self, places: Sequence[int], /) -> None:
        self.held.difference_update(places)


def test_member_that_rests_for_longer_than_a_beat_is_played_and_goes_on_with_a_later_iteration() -> None:
    part = RoundPart(
        position=0,
        operators=4,
        iterations=1,
        base_bytes=REGION,
        region_bytes=REGION,
        segments=(Segment(operator=0, taken=(0,)), Segment(operator=2, returned=(0,), taken=(1,))),
    )
    progress, lender = _Progress(), _Lender()
    member = RoundMember(progress, Seat(number=3, part=part, slots=(Slot(5),)), lambda *_: lender, beat_s=0.001)
    member.join(1 << 20)
    assert member.boundaries == {0, 2, 4}
    while progress.progress(5) < (3, 8):
        pass  # a thread plays: no gate is shut
    member.enter()
    _, begun = progress.progress(5)
    assert begun % 4 == 0
    for boundary in (0, 2, 4):
        assert member.pass_boundary(boundary) >= 0
        assert len(lender.held) == (boundary != 4)
    assert progress.progress(5) == (3, begun + 4)
    member.rest()
    member.leave()
    progress.over = True
    member.close()


class _Slow(_Progress):
    """Gates that are shut until they have been asked a number of times."""

    shut_for = 2

    def wait_for(self, slot: int, number: int, boundary: int, limit_ns: int, spins: int = 0, /) -> bool:
        self.shut_for -= 1
        return self.shut_for < 0 and super().wait_for(slot, number, boundary, limit_ns, spins)


def test_member_on_a_gpu_waits_for_the_gpu_before_it_waits_for_others_and_only_then() -> None:
    part = RoundPart(
        position=0,
        operators=6,
        iterations=1,
        base_bytes=REGION,
        region_bytes=REGION,
        segments=(
            Segment(operator=0, taken=(0,)),
            Segment(operator=2, taken=(1,)),
            Segment(operator=4, returned=(0, 1)),
        ),
        waits=(Wait(iteration=0, operator=2, position=1, boundary=3, each=6),),
    )
    seat = Seat(number=1, part=part, slots=(Slot(0), Slot(1)))
    for shut_for, finished in ((0, 0), (2, 1)):
        progress, finishes = _Slow(), list[int]()
        progress.shut_for = shut_for
        member = RoundMember(progress, seat, lambda *_: _Lender(), finish=partial(finishes.append, 1), beat_s=60.0)
        member.join(1 << 20)
        progress.advance(1, 1, 3)
        member.enter()
        assert member.pass_boundary(0) == 0, "nothing that is timed waited"
        idle_ns = member.pass_boundary(2)
        assert len(finishes) == finished
        assert (idle_ns > 0) == (finished > 0)
        assert member.pass_boundary(4) > 0, "`give` has waited for the GPU, which stands still from then on"
        assert len(finishes) == finished
        progress.over = True
        member.close()
