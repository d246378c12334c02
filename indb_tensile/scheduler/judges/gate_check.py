"""Check gates: compute the most bytes that jobs ever occupy together, in any order and timing of their operators.

Gates are guaranteed, times are not, so no time occurs here. A state says how far each job has come. A state can be
reached exactly if, for every operator that has started, everything has ended that its gates wait for: gates that make
jobs wait for each other in a circle are reported first, and without a circle the jobs can come to the state in some
order. The most bytes in any of these states are computed exactly. The states are the closed sets of a directed graph:
an arc leads from each position of a job to the position before, and from a gate to the position of the other job that
the gate awaits. A closed set of the largest weight is a minimum cut (Picard, "Maximal closure of a graph", 1976; for
states of distributed programs Chase and Garg, "Detection of global predicates", 1998).

Rounds repeat forever, but only few have to be examined. For given positions of the jobs in their rounds, the gates
say for each pair of jobs by how many rounds the first job must at least be ahead of the second. If any numbers of
rounds satisfy these conditions, the least numbers do. The least numbers are at most the largest of these distances,
times the number of other jobs. A circle of waiting jobs passes through each job at most once. So a circle spans at
most as many rounds as there are jobs, times the largest distance.

This module shares no code with phases/ and does not depend on how phases/ works.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indb_tensile.scheduler.judges.closure import heaviest_closure
from indb_tensile.scheduler.timing.schedule import Gate, Schedule

_Ints = npt.NDArray[np.int64]

_NEVER = -(1 << 60)  # the weight of a state outside the window: no closed set of the largest weight contains it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLoads:
    """The bytes of a job while each operator runs, and while the job waits at the gates before each operator."""

    running_bytes: tuple[int, ...]
    waiting_bytes: tuple[int, ...]


def most_bytes(jobs: Sequence[JobLoads], schedule: Schedule) -> int:
    """Return the most bytes that these jobs occupy together in any state that the gates allow."""
    return _Window(jobs, schedule, 1 + (len(jobs) - 1) * _most_ahead(schedule)).most_bytes()


def faults(jobs: Sequence[JobLoads], schedule: Schedule) -> tuple[str, ...]:
    """Return the faults of these gates, in words: unknown operators, a circle of waits, or a budget
    that is not kept.
    """
    counts = [len(own.running_bytes) for own in jobs]
    if len(counts) != len(schedule.jobs):
        return (f"a schedule of {len(schedule.jobs)} jobs for {len(counts)}",)
    unknown = [
        f"no such operator: {gate}"
        for gate in schedule.gates
        if gate.operator >= counts[gate.job] or gate.after_operator >= counts[gate.after_job]
    ]
    if unknown:
        return tuple(unknown)
    waits = _circle(jobs, schedule)
    if waits is not None:
        return (f"jobs wait for each other for ever: {waits}",)
    most = most_bytes(jobs, schedule)
    if most > schedule.budget_bytes:
        return (f"the jobs can come to {most} bytes together, over the budget of {schedule.budget_bytes}",)
    return ()


def _most_ahead(schedule: Schedule) -> int:
    """Return by how many rounds any gate requires the awaited job to be ahead, at most."""
    return max(0, max((_rounds(schedule, gate) + 1 for gate in schedule.gates), default=0))


def _rounds(schedule: Schedule, gate: Gate) -> int:
    """Return the round of the awaited iteration, counted from the gate's own round: -1 for the round before."""
    return gate.after_iteration // schedule.iterations[gate.after_job]


# --- states in a window of rounds --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wait:
    """A rule: a job at `state` or further implies that the other job is at `after_state` or further."""

    job: int
    state: int
    after_job: int
    after_state: int


class _Window:
    """The states of all jobs in a window of rounds. State 2 n is waiting before the job's n-th operator in the
    window, 2 n + 1 running it.
    """

    def __init__(self, jobs: Sequence[JobLoads], schedule: Schedule, rounds: int) -> None:
        counts = [len(own.running_bytes) for own in jobs]
        self.loads = [
            _load_of_states(own, rounds * each) for own, each in zip(jobs, schedule.iterations, strict=True)
        ]
        self.waits: list[_Wait] = []
        for gate in schedule.gates:
            each, other = schedule.iterations[gate.job], schedule.iterations[gate.after_job]
            for number in range(rounds):
                operator = (gate.iteration + number * each) * counts[gate.job] + gate.operator
                after = (gate.after_iteration + number * other) * counts[gate.after_job] + gate.after_operator
                if after >= 0:
                    beyond = len(self.loads[gate.after_job])  # a state outside the window
                    after_state = min(2 * after + 2, beyond)
                    self.waits.append(_Wait(gate.job, 2 * operator + 1, gate.after_job, after_state))

    def run(self) -> list[int]:
        """Return the state at which each job stops for ever, if it stops only at gates."""
        mine: list[list[_Wait]] = [[] for _ in self.loads]
        for wait in sorted(self.waits, key=lambda w: -w.state):
            mine[wait.job].append(wait)
        at = [0] * len(self.loads)
        moved = True
        while moved:
            moved = False
            for job, waits in enumerate(mine):
                before = at[job]
                while waits and at[waits[-1].after_job] >= waits[-1].after_state:
                    waits.pop()
                at[job] = waits[-1].state - 1 if waits else len(self.loads[job]) - 1
                moved = moved or at[job] > before
        return at

    def most_bytes(self) -> int:
        """Return the largest weight of a closed set. A node is a range of states without waits between them, with its
        largest load.
        """
        stops: list[set[int]] = [{len(load_bytes)} for load_bytes in self.loads]
        for wait in self.waits:
            stops[wait.job].add(wait.state)
            stops[wait.after_job].add(wait.after_state)
        nodes: dict[tuple[int, int], int] = {}
        weights: list[int] = []
        arcs: list[tuple[int, int]] = []
        base = 0
        for job, load_bytes in enumerate(self.loads):
            begins = [0, *sorted(stops[job])]
            most = np.maximum.reduceat(np.append(load_bytes, _NEVER), begins).tolist()
            most[-1] = _NEVER  # beyond the window
            base += most[0]
            for before, begin, low, high in zip(begins, begins[1:], most, most[1:], strict=False):
                nodes[job, begin] = len(weights)
                weights.append(high - low)
                if before:
                    arcs.append((nodes[job, begin], nodes[job, before]))
        for wait in self.waits:
            arcs.append((nodes[wait.job, wait.state], nodes[wait.after_job, wait.after_state]))
        return base + heaviest_closure(weights, arcs)


def _circle(jobs: Sequence[JobLoads], schedule: Schedule) -> str | None:
    """Return the positions of jobs that wait for each other forever; None if no jobs do."""
    ahead = _most_ahead(schedule)
    rounds = 2 * len(jobs) * ahead + 2
    at = _Window(jobs, schedule, rounds + len(jobs) * ahead).run()
    each = [n * len(own.running_bytes) for n, own in zip(schedule.iterations, jobs, strict=True)]
    if all(state >= 2 * rounds * count for state, count in zip(at, each, strict=True)):
        return None
    return ", ".join(
        f"job {job} before operator {state // 2 % len(own.running_bytes)} of its iteration "
        f"{state // 2 // len(own.running_bytes)}"
        for job, state, own in zip(schedule.jobs, at, jobs, strict=True)
    )


def _load_of_states(own: JobLoads, iterations: int) -> _Ints:
    each = np.array([own.waiting_bytes, own.running_bytes], dtype=np.int64).T.ravel()
    return np.append(np.tile(each, iterations), own.waiting_bytes[0])
