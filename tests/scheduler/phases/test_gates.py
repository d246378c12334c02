"""Gates against jobs whose operators take any time whatever."""

import dataclasses
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.judges.gate_check import JobLoads, faults
from indb_tensile.scheduler.phases.load_cycle import merge_segments
from indb_tensile.scheduler.phases.phase_offsets import Cycle, Gate, Shift, interleave, least_budget
from indb_tensile.scheduler.timing.simulate import Compute
from tests.scheduler.phases.test_phase_offsets import cycles


def test_a_job_waits_where_its_load_rises_for_the_other_to_come_down() -> None:
    """10, 40, 10 beside the same under 50: 40 may meet 10, and not 40.

    The second job starts with the first one's 40. Its own 40 wait for those to be over; the first job's next 40 wait
    for the second one's.
    """
    hill = Cycle(load_bytes=(10, 40, 10), duration_ns=(10, 10, 10), idle_bytes=0)
    shift = interleave((hill, hill), budget_bytes=50, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    assert shift.start_ns == ((0,), (10,))
    assert shift.gates == (
        Gate(job=0, iteration=0, operator=1, after_job=1, after_iteration=-1, after_operator=1),
        Gate(job=1, iteration=0, operator=1, after_job=0, after_iteration=0, after_operator=1),
    )


def test_what_other_gates_imply_is_left_out() -> None:
    """Three jobs one after the other: each waits for the one before it, which has waited for the third."""
    block = Cycle(load_bytes=(40,), duration_ns=(10,), idle_bytes=0)
    shift = interleave((block, block, block), budget_bytes=79, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    assert shift.gates == (
        Gate(job=0, iteration=0, operator=0, after_job=2, after_iteration=-1, after_operator=0),
        Gate(job=1, iteration=0, operator=0, after_job=0, after_iteration=0, after_operator=0),
        Gate(job=2, iteration=0, operator=0, after_job=1, after_iteration=0, after_operator=0),
    )


@given(st.lists(cycles(), min_size=2, max_size=4), st.floats(0, 1.1))
def test_no_gate_could_be_passed_together_with_the_one_before_it(jobs: list[Cycle], fraction: float) -> None:
    least, most = least_budget(jobs), sum(job.peak_bytes for job in jobs)
    shift = interleave(jobs, budget_bytes=least + int((most - least) * fraction), compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    for gate, after in product(shift.gates, repeat=2):
        if (gate.job, gate.after_job) == (after.job, after.after_job) and gate < after:
            begins = _start_ns(jobs, shift, gate.job, gate.iteration, gate.operator)
            ends = _start_ns(jobs, shift, after.after_job, after.after_iteration, after.after_operator + 1)
            assert ends > begins


def test_a_stretch_of_operators_waits_as_a_whole_and_for_a_whole_one() -> None:
    block = Cycle(load_bytes=(40,), duration_ns=(30,), idle_bytes=0, stops=(3,))
    shift = interleave((block, block), budget_bytes=79, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    assert shift.gates == (
        Gate(job=0, iteration=0, operator=0, after_job=1, after_iteration=-1, after_operator=2),
        Gate(job=1, iteration=0, operator=0, after_job=0, after_iteration=0, after_operator=2),
    )


@given(st.lists(cycles(), min_size=2, max_size=4), st.integers(1, 4), st.floats(0, 1.1))
def test_gates_made_for_stretches_hold_for_their_operators(jobs: list[Cycle], most: int, fraction: float) -> None:
    stretches = [merge_segments(own, most) for own in jobs]
    least, top = least_budget(stretches), sum(own.peak_bytes for own in jobs)
    budget = least + int((top - least) * fraction)
    shift = interleave(stretches, budget_bytes=budget, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    assert faults([_steps(own) for own in jobs], shift.schedule(range(len(jobs)), budget)) == ()


def test_without_one_of_its_gates_a_schedule_does_not_hold() -> None:
    block = Cycle(load_bytes=(40,), duration_ns=(10,), idle_bytes=0)
    shift = interleave((block, block, block), budget_bytes=79, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    for gate in shift.gates:
        rest = tuple(other for other in shift.gates if other != gate)
        schedule = dataclasses.replace(shift.schedule(range(3), 79), gates=rest)
        (fault,) = faults([_steps(block)] * 3, schedule)
        assert fault.endswith("bytes together, over the budget of 79")


@given(st.lists(cycles(), min_size=2, max_size=4), st.floats(0, 1.1))
def test_the_judge_finds_nothing_wrong_for_any_timing(jobs: list[Cycle], fraction: float) -> None:
    least, most = least_budget(jobs), sum(job.peak_bytes for job in jobs)
    budget = least + int((most - least) * fraction)
    shift = interleave(jobs, budget_bytes=budget, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    assert faults([_steps(own) for own in jobs], shift.schedule(range(len(jobs)), budget)) == ()


@given(st.lists(cycles(), min_size=2, max_size=4), st.floats(0, 1.1), st.data())
def test_the_budget_is_kept_and_nobody_waits_for_ever_in_whatever_order_operators_run(
    jobs: list[Cycle], fraction: float, data: st.DataObject
) -> None:
    least, most = least_budget(jobs), sum(job.peak_bytes for job in jobs)
    budget = least + int((most - least) * fraction)
    shift = interleave(jobs, budget_bytes=budget, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    judge = _Judge(jobs, shift)
    eager = data.draw(st.permutations(range(len(jobs))))  # who goes first where nothing else is drawn
    steps = 3 * sum(len(own.load_bytes) * len(s) for own, s in zip(jobs, shift.start_ns, strict=True))
    moves = data.draw(st.lists(st.integers(0, 7), max_size=60))
    for step in range(2 * steps):
        possible = [job for job in eager if judge.can_move(job)]
        assert possible, "all jobs wait for each other"
        judge.move(possible[moves[step] % len(possible)] if step < len(moves) else possible[0])
        assert judge.held_bytes() <= budget


@given(st.lists(cycles(), min_size=2, max_size=4), st.floats(0, 1.1))
def test_nobody_waits_at_a_gate_where_operators_take_their_time(jobs: list[Cycle], fraction: float) -> None:
    least, most = least_budget(jobs), sum(job.peak_bytes for job in jobs)
    shift = interleave(jobs, budget_bytes=least + int((most - least) * fraction), compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    for gate in shift.gates:
        begins = _start_ns(jobs, shift, gate.job, gate.iteration, gate.operator)
        ends = _start_ns(jobs, shift, gate.after_job, gate.after_iteration, gate.after_operator + 1)
        assert ends <= begins


def _steps(own: Cycle) -> JobLoads:
    """At a gate a job holds no more than during the operator before it, nor than during the one after it."""
    held = own.load_bytes
    return JobLoads(running_bytes=held, waiting_bytes=(own.idle_bytes, *map(min, held, held[1:])))


def _start_ns(jobs: list[Cycle], shift: Shift, job: int, iteration: int, operator: int) -> int:
    rounds, place = divmod(iteration, len(shift.start_ns[job]))
    return shift.start_ns[job][place] + rounds * shift.round_ns + sum(jobs[job].duration_ns[:operator])


class _Judge:
    """Jobs that run in any order, an operator's start and its end being two moves."""

    def __init__(self, jobs: list[Cycle], shift: Shift) -> None:
        self._jobs = jobs
        self._rounds = [len(starts) for starts in shift.start_ns]
        self._gates: dict[tuple[int, int, int], list[Gate]] = {}
        for gate in shift.gates:
            self._gates.setdefault((gate.job, gate.iteration, gate.operator), []).append(gate)
        self._ended = [0] * len(jobs)
        self._running = [False] * len(jobs)

    def can_move(self, job: int) -> bool:
        if self._running[job]:
            return True
        iteration, operator = divmod(self._ended[job], len(self._jobs[job].load_bytes))
        rounds, place = divmod(iteration, self._rounds[job])
        return all(
            self._ended[g.after_job]
            > (g.after_iteration + rounds * self._rounds[g.after_job]) * len(self._jobs[g.after_job].load_bytes)
            + g.after_operator
            for g in self._gates.get((job, place, operator), ())
        )

    def move(self, job: int) -> None:
        self._ended[job] += self._running[job]
        self._running[job] = not self._running[job]

    def held_bytes(self) -> int:
        return sum(self._held(job) for job in range(len(self._jobs)))

    def _held(self, job: int) -> int:
        own, operator = self._jobs[job], self._ended[job] % len(self._jobs[job].load_bytes)
        if self._running[job]:
            return own.load_bytes[operator]
        if operator == 0:
            return own.idle_bytes
        return min(own.load_bytes[operator - 1], own.load_bytes[operator])
