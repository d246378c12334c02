"""The gates at which simulated jobs wait, in the form that simulate.py needs at each boundary."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from indb_tensile.scheduler.timing.schedule import Schedule


@dataclass(slots=True)
class ClosedGate:
    """A gate that waits until another job has reached `boundary`, counted from that job's first iteration."""

    job: int
    boundary: int
    opened_ns: float = 0.0


@dataclass(slots=True)
class JobGates:
    """The gates of one job, and the boundaries of an iteration at which the job waits or is waited for."""

    iterations: int = 1  # iterations of this job in one round of the schedule
    boundaries: set[int] = field(default_factory=set)
    _waits: dict[tuple[int, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    # key: iteration of the round and operator; value: the other job, its boundary in round 0, its boundaries in a
    # round

    def wait(self, at: tuple[int, int], other: int, boundary: int, each: int) -> None:
        """Add a gate: the operator waits for another job's boundary, which moves on by `each` in every round."""
        self._waits.setdefault(at, []).append((other, boundary, each))

    def before(self, iteration: int, operator: int) -> list[ClosedGate]:
        """Return the gates before this operator, without those that are open from the start."""
        rounds, place = divmod(iteration, self.iterations)
        waits = self._waits.get((place, operator), ())
        return [ClosedGate(other, first + rounds * each) for other, first, each in waits if first + rounds * each > 0]


def gates_of(counts: Sequence[int], schedules: Sequence[Schedule]) -> list[JobGates]:
    """Return the gates of each job. `counts` are the jobs' numbers of operators."""
    gates = [JobGates() for _ in counts]
    for schedule in schedules:
        for number, iterations in zip(schedule.jobs, schedule.iterations, strict=True):
            gates[number].iterations = iterations
        for gate in schedule.gates:
            job, other = schedule.jobs[gate.job], schedule.jobs[gate.after_job]
            boundary = gate.after_iteration * counts[other] + gate.after_operator + 1
            each = schedule.iterations[gate.after_job] * counts[other]
            gates[job].wait((gate.iteration, gate.operator), other, boundary, each)
            gates[job].boundaries.add(gate.operator)
            gates[other].boundaries.add(boundary % counts[other])
    return gates


def whole_rounds(schedules: Sequence[Schedule], least: int) -> int:
    """Round `least` iterations up to whole rounds of the gated job that has the fewest iterations in a round."""
    gated = [[s.iterations[job] for job in sorted({gate.job for gate in s.gates})] for s in schedules]
    fewest = max((min(iterations, default=1) for iterations in gated), default=1)
    return -(-least // fewest) * fewest
