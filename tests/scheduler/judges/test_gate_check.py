"""The judge of gates: by hand, and against running jobs in every order there is."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.judges.gate_check import JobLoads, faults, most_bytes
from indb_tensile.scheduler.timing.schedule import Gate, Schedule

State = tuple[int, ...]
ROUNDS = {2: 6, 3: 4}  # that so many jobs are run in every order


def test_without_gates_peaks_meet() -> None:
    assert most_bytes((_hill(), _hill()), _schedule((), 80)) == 80
    assert faults((_hill(), _hill()), _schedule((), 79)) == (
        "the jobs can come to 80 bytes together, over the budget of 79",
    )


def test_a_gate_each_way_keeps_peaks_apart() -> None:
    """Each job's 40 bytes wait for the other's to be over; its first 10 do not."""
    gates = (_gate(0, 0, 1, 1, -1, 1), _gate(1, 0, 1, 0, 0, 1))
    assert most_bytes((_hill(), _hill()), _schedule(gates, 50)) == 50
    assert faults((_hill(), _hill()), _schedule(gates, 50)) == ()


def test_one_gate_alone_keeps_nothing_apart_since_the_other_job_may_run_ahead() -> None:
    gates = (_gate(1, 0, 1, 0, 0, 1),)
    assert most_bytes((_hill(), _hill()), _schedule(gates, 50)) == 80


def test_a_job_waits_at_its_gate_with_what_it_holds_there() -> None:
    """In turns, iteration by iteration: what the one keeps at its gate counts beside the other's peak."""
    keeps = JobLoads(running_bytes=(30, 20), waiting_bytes=(7, 20))
    gates = (_gate(0, 0, 0, 1, -1, 1), _gate(1, 0, 0, 0, 0, 1))
    assert most_bytes((keeps, keeps), _schedule(gates, 37)) == 37


def test_jobs_that_wait_for_each_other_are_found() -> None:
    gates = (_gate(0, 0, 1, 1, 0, 1), _gate(1, 0, 1, 0, 0, 1))
    assert faults((_hill(), _hill()), _schedule(gates, 100)) == (
        "jobs wait for each other for ever: job 0 before operator 1 of its iteration 0, "
        "job 1 before operator 1 of its iteration 0",
    )


def test_a_job_that_waits_for_a_later_iteration_of_one_that_waits_for_it_is_found() -> None:
    gates = (_gate(0, 0, 1, 1, 3, 0), _gate(1, 0, 0, 0, -3, 2))
    assert faults((_hill(), _hill()), _schedule(gates, 100))[0].startswith("jobs wait for each other for ever: ")
    one_less = (_gate(0, 0, 1, 1, 3, 0), _gate(1, 0, 0, 0, -4, 2))
    assert faults((_hill(), _hill()), _schedule(one_less, 100)) == ()


def test_gates_of_operators_or_jobs_that_are_not_there_are_refused() -> None:
    gate = _gate(0, 0, 3, 1, 0, 1)
    assert faults((_hill(), _hill()), _schedule((gate,), 100)) == (f"no such operator: {gate}",)
    assert faults((_hill(),), _schedule((), 100)) == ("a schedule of 2 jobs for 1",)
    for wrong in (
        _gate(2, 0, 0, 0, 0, 0),
        _gate(0, 1, 0, 1, 0, 0),
        _gate(0, 0, 0, 0, 0, 0),
        _gate(0, 0, -1, 1, 0, 0),
    ):
        with pytest.raises(InvariantError, match="no such gate"):
            _schedule((wrong,), 100)
    with pytest.raises(InvariantError, match="iterations in a round"):
        Schedule(jobs=(0, 1), iterations=(1,), gates=(), budget_bytes=1)
    with pytest.raises(InvariantError, match="iterations in a round"):
        Schedule(jobs=(4, 4), iterations=(1, 1), gates=(), budget_bytes=1)


@st.composite
def systems(draw: st.DrawFn) -> tuple[list[JobLoads], Schedule]:
    """Two jobs of up to three operators, or three of two, and any gates, as wrong as can be."""
    jobs = []
    count = draw(st.integers(2, 3))
    for _ in range(count):
        running = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5 - count))
        waiting = [draw(st.integers(0, min(a, b))) for a, b in zip(running, (running[-1], *running), strict=False)]
        jobs.append(JobLoads(running_bytes=tuple(running), waiting_bytes=tuple(waiting)))
    iterations = [draw(st.integers(1, 2)) for _ in jobs]
    gates = []
    for _ in range(draw(st.integers(0, 5))):
        job, other = draw(st.permutations(range(len(jobs))))[:2]
        gates.append(
            _gate(
                job,
                draw(st.integers(0, iterations[job] - 1)),
                draw(st.integers(0, len(jobs[job].running_bytes) - 1)),
                other,
                draw(st.integers(-iterations[other], (4 - count) * iterations[other] - 1)),
                draw(st.integers(0, len(jobs[other].running_bytes) - 1)),
            )
        )
    names = tuple(range(len(jobs)))
    return jobs, Schedule(jobs=names, iterations=tuple(iterations), gates=tuple(gates), budget_bytes=10**9)


@given(systems())
def test_it_finds_what_running_the_jobs_in_every_order_finds(system: tuple[list[JobLoads], Schedule]) -> None:
    jobs, schedule = system
    runs = _Runs(jobs, schedule)
    states = runs.states()
    if not all(max(state[job] for state in states) >= half for job, half in enumerate(runs.halves())):
        (fault,) = faults(jobs, schedule)
        assert fault.startswith("jobs wait for each other for ever")
    else:
        assert faults(jobs, schedule) == ()
        assert most_bytes(jobs, schedule) == max(map(runs.held_bytes, states))


class _Runs:
    """Every state of some rounds, found by letting any job that may start or end an operator do so."""

    def __init__(self, jobs: list[JobLoads], schedule: Schedule) -> None:
        self._jobs, self._schedule = jobs, schedule
        each = zip(jobs, schedule.iterations, strict=True)
        self._ends = [2 * ROUNDS[len(jobs)] * n * len(own.running_bytes) for own, n in each]

    def states(self) -> set[State]:
        found = {(0,) * len(self._jobs)}
        asked = list(found)
        while asked:
            for state in self.moves(asked.pop()):
                if state not in found:
                    found.add(state)
                    asked.append(state)
        return found

    def moves(self, state: State) -> Iterator[State]:
        for job, steps in enumerate(state):
            if steps < self._ends[job] and (steps % 2 or self._open(state, job)):
                yield (*state[:job], steps + 1, *state[job + 1 :])

    def halves(self) -> list[int]:
        """Where jobs get to that do not wait for ever: further on they may wait for rounds that are not looked at."""
        return [end // 2 for end in self._ends]

    def held_bytes(self, state: State) -> int:
        held = 0
        for own, steps in zip(self._jobs, state, strict=True):
            operator = steps // 2 % len(own.running_bytes)
            held += own.running_bytes[operator] if steps % 2 else own.waiting_bytes[operator]
        return held

    def _open(self, state: State, job: int) -> bool:
        iteration, operator = divmod(state[job] // 2, len(self._jobs[job].running_bytes))
        rounds, place = divmod(iteration, self._schedule.iterations[job])
        for gate in self._schedule.gates:
            if (gate.job, gate.iteration, gate.operator) == (job, place, operator):
                other = gate.after_job
                after = gate.after_iteration + rounds * self._schedule.iterations[other]
                ended = after * len(self._jobs[other].running_bytes) + gate.after_operator + 1
                if state[other] // 2 < ended:
                    return False
        return True


def _hill() -> JobLoads:
    return JobLoads(running_bytes=(10, 40, 10), waiting_bytes=(0, 10, 10))


def _gate(*numbers: int) -> Gate:
    job, iteration, operator, after_job, after_iteration, after_operator = numbers
    return Gate(
        job=job,
        iteration=iteration,
        operator=operator,
        after_job=after_job,
        after_iteration=after_iteration,
        after_operator=after_operator,
    )


def _schedule(gates: tuple[Gate, ...], budget_bytes: int) -> Schedule:
    return Schedule(jobs=(0, 1), iterations=(1, 1), gates=gates, budget_bytes=budget_bytes)
