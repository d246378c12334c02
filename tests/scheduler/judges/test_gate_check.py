"""Check the judge of gates: on examples computed by hand, and against running the jobs in every possible order."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.judges.gate_check import JobLoads, faults, most_bytes
from indb_tensile.scheduler.timing.schedule import Gate, Schedule

State = tuple[int, ...]
ROUNDS = {2: 6, 3: 4}  # by number of jobs: the rounds for which they are run in every order


def test_peaks_add_up_without_gates() -> None:
    assert most_bytes((_loads_with_peak(), _loads_with_peak()), _schedule((), 80)) == 80
    assert faults((_loads_with_peak(), _loads_with_peak()), _schedule((), 79)) == (
        "the jobs can come to 80 bytes together, over the budget of 79",
    )


def test_gates_in_both_directions_keep_peaks_apart() -> None:
    """The 40 bytes of each job wait for the end of the other job's 40 bytes. The first 10 bytes do not wait."""
    gates = (_gate(0, 0, 1, 1, -1, 1), _gate(1, 0, 1, 0, 0, 1))
    assert most_bytes((_loads_with_peak(), _loads_with_peak()), _schedule(gates, 50)) == 50
    assert faults((_loads_with_peak(), _loads_with_peak()), _schedule(gates, 50)) == ()


def test_one_gate_keeps_nothing_apart_since_the_other_job_may_run_ahead() -> None:
    gates = (_gate(1, 0, 1, 0, 0, 1),)
    assert most_bytes((_loads_with_peak(), _loads_with_peak()), _schedule(gates, 50)) == 80


def test_memory_of_a_waiting_job_counts_beside_the_other_jobs_peak() -> None:
    """The jobs alternate by iteration. Each holds 7 bytes while it waits at its gate."""
    loads = JobLoads(running_bytes=(30, 20), waiting_bytes=(7, 20))
    gates = (_gate(0, 0, 0, 1, -1, 1), _gate(1, 0, 0, 0, 0, 1))
    assert most_bytes((loads, loads), _schedule(gates, 37)) == 37


def test_deadlock_is_a_fault() -> None:
    gates = (_gate(0, 0, 1, 1, 0, 1), _gate(1, 0, 1, 0, 0, 1))
    assert faults((_loads_with_peak(), _loads_with_peak()), _schedule(gates, 100)) == (
        "jobs wait for each other for ever: job 0 before operator 1 of its iteration 0, "
        "job 1 before operator 1 of its iteration 0",
    )


def test_deadlock_across_iterations_is_a_fault() -> None:
    gates = (_gate(0, 0, 1, 1, 3, 0), _gate(1, 0, 0, 0, -3, 2))
    assert faults((_loads_with_peak(), _loads_with_peak()), _schedule(gates, 100))[0].startswith(
        "jobs wait for each other for ever: "
    )
    without_deadlock = (_gate(0, 0, 1, 1, 3, 0), _gate(1, 0, 0, 0, -4, 2))
    assert faults((_loads_with_peak(), _loads_with_peak()), _schedule(without_deadlock, 100)) == ()


def test_gates_of_unknown_operators_or_jobs_are_refused() -> None:
    gate = _gate(0, 0, 3, 1, 0, 1)
    assert faults((_loads_with_peak(), _loads_with_peak()), _schedule((gate,), 100)) == (f"no such operator: {gate}",)
    assert faults((_loads_with_peak(),), _schedule((), 100)) == ("a schedule of 2 jobs for 1",)
    for wrong_gate in (
        _gate(2, 0, 0, 0, 0, 0),
        _gate(0, 1, 0, 1, 0, 0),
        _gate(0, 0, 0, 0, 0, 0),
        _gate(0, 0, -1, 1, 0, 0),
    ):
        with pytest.raises(InvariantError, match="no such gate"):
            _schedule((wrong_gate,), 100)
    with pytest.raises(InvariantError, match="iterations in a round"):
        Schedule(jobs=(0, 1), iterations=(1,), gates=(), budget_bytes=1)
    with pytest.raises(InvariantError, match="iterations in a round"):
        Schedule(jobs=(4, 4), iterations=(1, 1), gates=(), budget_bytes=1)


@st.composite
def systems(draw: st.DrawFn) -> tuple[list[JobLoads], Schedule]:
    """Draw two jobs of up to three operators, or three jobs of up to two, with arbitrary gates, which may contradict
    each other.
    """
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
def test_judge_agrees_with_running_the_jobs_in_every_order(system: tuple[list[JobLoads], Schedule]) -> None:
    jobs, schedule = system
    runs = _Runs(jobs, schedule)
    states = runs.states()
    if not all(max(state[job] for state in states) >= half for job, half in enumerate(runs.half_of_the_steps())):
        (fault,) = faults(jobs, schedule)
        assert fault.startswith("jobs wait for each other for ever")
    else:
        assert faults(jobs, schedule) == ()
        assert most_bytes(jobs, schedule) == max(map(runs.held_bytes, states))


class _Runs:
    """All states that the jobs can reach within some rounds: any job that may start or end an operator does so."""

    def __init__(self, jobs: list[JobLoads], schedule: Schedule) -> None:
        self._jobs, self._schedule = jobs, schedule
        each = zip(jobs, schedule.iterations, strict=True)
        self._ends = [2 * ROUNDS[len(jobs)] * n * len(loads.running_bytes) for loads, n in each]

    def states(self) -> set[State]:
        reached = {(0,) * len(self._jobs)}
        pending = list(reached)
        while pending:
            for state in self.next_states(pending.pop()):
                if state not in reached:
                    reached.add(state)
                    pending.append(state)
        return reached

    def next_states(self, state: State) -> Iterator[State]:
        for job, steps in enumerate(state):
            if steps < self._ends[job] and (steps % 2 or self._open(state, job)):
                yield (*state[:job], steps + 1, *state[job + 1 :])

    def half_of_the_steps(self) -> list[int]:
        """Return, by job, the steps that a job reaches if it is not in a deadlock. Later steps may wait for rounds
        beyond the end.
        """
        return [end // 2 for end in self._ends]

    def held_bytes(self, state: State) -> int:
        total = 0
        for loads, steps in zip(self._jobs, state, strict=True):
            operator = steps // 2 % len(loads.running_bytes)
            total += loads.running_bytes[operator] if steps % 2 else loads.waiting_bytes[operator]
        return total

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


def _loads_with_peak() -> JobLoads:
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
