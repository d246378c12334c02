"""Where simulated jobs wait at the gates of schedules: what simulate.py needs to know of them at each boundary."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from indb_tensile.scheduler.timing.schedule import Schedule


@dataclass(slots=True)
class Closed:
    """A gate that waits until another job has come to this boundary, counted on from its first iteration."""

    job: int
    boundary: int
    opened_ns: float = 0.0


@dataclass(slots=True)
class Gates:
    """One job's gates, and at which boundaries of an iteration it waits or is waited for."""

    iterations: int = 1  # of a round
    boundaries: set[int] = field(default_factory=set)
    _waits: dict[tuple[int, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    # by iteration of the round and operator: the other job, its boundary in round 0, its boundaries in a round

    def wait(self, at: tuple[int, int], other: int, boundary: int, each: int) -> None:
        """The operator there waits for another job's boundary, which is `each` further on in every round."""
        self._waits.setdefault(at, []).append((other, boundary, each))

    def before(self, iteration: int, operator: int) -> list[Closed]:
        """The gates before this operator, but for those that are open from the beginning on."""
        rounds, place = divmod(iteration, self.iterations)
        waits = self._waits.get((place, operator), ())
        return [Closed(other, first + rounds * each) for other, first, each in waits if first + rounds * each > 0]


def gates_of(counts: Sequence[int], schedules: Sequence[Schedule]) -> list[Gates]:
    """The gates of each job; `counts` are the numbers of their operators."""
    found = [Gates() for _ in counts]
    for schedule in schedules:
        for number, iterations in zip(schedule.jobs, schedule.iterations, strict=True):
            found[number].iterations = iterations
        for gate in schedule.gates:
            job, other = schedule.jobs[gate.job], schedule.jobs[gate.after_job]
            boundary = gate.after_iteration * counts[other] + gate.after_operator + 1
            each = schedule.iterations[gate.after_job] * counts[other]
            found[job].wait((gate.iteration, gate.operator), other, boundary, each)
            found[job].boundaries.add(gate.operator)
            found[other].boundaries.add(boundary % counts[other])
    return found


def whole_rounds(schedules: Sequence[Schedule], least: int) -> int:
    """So many iterations, or more, of the gated job with the fewest in a round are a whole number of rounds."""
    gated = [[s.iterations[job] for job in sorted({gate.job for gate in s.gates})] for s in schedules]
    fewest = max((min(iterations, default=1) for iterations in gated), default=1)
    return -(-least // fewest) * fewest
