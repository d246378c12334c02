"""Check gates with jobs whose operators take arbitrary times."""

import dataclasses
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.judges.gate_check import JobLoads, faults
from indb_tensile.scheduler.phases.load_cycle import merge_segments
from indb_tensile.scheduler.phases.phase_offsets import Cycle, Gate, Shift, interleave, least_budget
from indb_tensile.scheduler.timing.job_runs import Compute
from tests.nightly import some_examples
from tests.scheduler.phases.cycle_strategies import cycles


def test_job_waits_before_its_load_rises_until_the_other_load_falls() -> None:
    """Two jobs of loads 10, 40 and 10 share 50 bytes: 40 may meet 10, but not 40.

    The second job starts with the first job's 40. The second job's 40 wait for the end of those 40, and the first
    job's next 40 wait for the end of the second job's 40.
    """
    cycle = Cycle(load_bytes=(10, 40, 10), duration_ns=(10, 10, 10), idle_bytes=0)
    shift = interleave((cycle, cycle), budget_bytes=50, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    assert shift.start_ns == ((0,), (10,))
    assert shift.gates == (
        Gate(job=0, iteration=0, operator=1, after_job=1, after_iteration=-1, after_operator=1),
        Gate(job=1, iteration=0, operator=1, after_job=0, after_iteration=0, after_operator=1),
    )


def test_implied_gates_are_left_out() -> None:
    """Three jobs run one after the other. Each waits for the job before it, which has waited for the third one."""
    block = Cycle(load_bytes=(40,), duration_ns=(10,), idle_bytes=0)
    shift = interleave((block, block, block), budget_bytes=79, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    assert shift.gates == (
        Gate(job=0, iteration=0, operator=0, after_job=2, after_iteration=-1, after_operator=0),
        Gate(job=1, iteration=0, operator=0, after_job=0, after_iteration=0, after_operator=0),
        Gate(job=2, iteration=0, operator=0, after_job=1, after_iteration=0, after_operator=0),
    )


@some_examples()
@given(st.lists(cycles(), min_size=2, max_size=4), st.floats(0, 1.1))
def test_no_gate_is_implied_by_the_gate_after_it(jobs: list[Cycle], fraction: float) -> None:
    least, most = least_budget(jobs), sum(job.peak_bytes for job in jobs)
    shift = interleave(jobs, budget_bytes=least + int((most - least) * fraction), compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    for gate, later_gate in product(shift.gates, repeat=2):
        if (gate.job, gate.after_job) == (later_gate.job, later_gate.after_job) and gate < later_gate:
            begins = _start_ns(jobs, shift, gate.job, gate.iteration, gate.operator)
            ends = _start_ns(
                jobs, shift, later_gate.after_job, later_gate.after_iteration, later_gate.after_operator + 1
            )
            assert ends > begins


def test_stretch_of_operators_waits_for_a_whole_stretch() -> None:
    block = Cycle(load_bytes=(40,), duration_ns=(30,), idle_bytes=0, stops=(3,))
    shift = interleave((block, block), budget_bytes=79, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    assert shift.gates == (
        Gate(job=0, iteration=0, operator=0, after_job=1, after_iteration=-1, after_operator=2),
        Gate(job=1, iteration=0, operator=0, after_job=0, after_iteration=0, after_operator=2),
    )


@some_examples()
@given(st.lists(cycles(), min_size=2, max_size=4), st.integers(1, 4), st.floats(0, 1.1))
def test_gates_of_stretches_hold_for_their_operators(jobs: list[Cycle], most: int, fraction: float) -> None:
    stretches = [merge_segments(cycle, most) for cycle in jobs]
    least, top = least_budget(stretches), sum(cycle.peak_bytes for cycle in jobs)
    budget = least + int((top - least) * fraction)
    shift = interleave(stretches, budget_bytes=budget, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    assert faults([_loads_of(cycle) for cycle in jobs], shift.schedule(range(len(jobs)), budget)) == ()


def test_schedule_exceeds_the_budget_without_any_one_of_its_gates() -> None:
    block = Cycle(load_bytes=(40,), duration_ns=(10,), idle_bytes=0)
    shift = interleave((block, block, block), budget_bytes=79, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    for gate in shift.gates:
        rest = tuple(other for other in shift.gates if other != gate)
        schedule = dataclasses.replace(shift.schedule(range(3), 79), gates=rest)
        (fault,) = faults([_loads_of(block)] * 3, schedule)
        assert fault.endswith("bytes together, over the budget of 79")


@some_examples()
@given(st.lists(cycles(), min_size=2, max_size=4), st.floats(0, 1.1))
def test_judge_finds_no_fault_for_any_timing(jobs: list[Cycle], fraction: float) -> None:
    least, most = least_budget(jobs), sum(job.peak_bytes for job in jobs)
    budget = least + int((most - least) * fraction)
    shift = interleave(jobs, budget_bytes=budget, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    assert faults([_loads_of(cycle) for cycle in jobs], shift.schedule(range(len(jobs)), budget)) == ()


@some_examples()
@given(st.lists(cycles(), min_size=2, max_size=4), st.floats(0, 1.1), st.data())
def test_budget_holds_without_deadlock_for_every_order_of_operators(
    jobs: list[Cycle], fraction: float, data: st.DataObject
) -> None:
    least, most = least_budget(jobs), sum(job.peak_bytes for job in jobs)
    budget = least + int((most - least) * fraction)
    shift = interleave(jobs, budget_bytes=budget, compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    runs = _ArbitraryRuns(jobs, shift)
    priority = data.draw(st.permutations(range(len(jobs))))  # the order in which jobs move when no move is drawn
    steps = 3 * sum(len(cycle.load_bytes) * len(s) for cycle, s in zip(jobs, shift.start_ns, strict=True))
    moves = data.draw(st.lists(st.integers(0, 7), max_size=60))
    for step in range(2 * steps):
        movable_jobs = [job for job in priority if runs.can_move(job)]
        assert movable_jobs, "all jobs wait for each other"
        runs.move(movable_jobs[moves[step] % len(movable_jobs)] if step < len(moves) else movable_jobs[0])
        assert runs.held_bytes() <= budget


@some_examples()
@given(st.lists(cycles(), min_size=2, max_size=4), st.floats(0, 1.1))
def test_no_job_waits_at_a_gate_if_operators_take_their_expected_time(jobs: list[Cycle], fraction: float) -> None:
    least, most = least_budget(jobs), sum(job.peak_bytes for job in jobs)
    shift = interleave(jobs, budget_bytes=least + int((most - least) * fraction), compute=Compute.OVERLAP)
    assert isinstance(shift, Shift)
    for gate in shift.gates:
        begins = _start_ns(jobs, shift, gate.job, gate.iteration, gate.operator)
        ends = _start_ns(jobs, shift, gate.after_job, gate.after_iteration, gate.after_operator + 1)
        assert ends <= begins


def _loads_of(job: Cycle) -> JobLoads:
    """Return the job's loads. At a gate a job holds no more than during the operator before the gate and the one
    after it.
    """
    load_bytes = job.load_bytes
    return JobLoads(running_bytes=load_bytes, waiting_bytes=(job.idle_bytes, *map(min, load_bytes, load_bytes[1:])))


def _start_ns(jobs: list[Cycle], shift: Shift, job: int, iteration: int, operator: int) -> int:
    """Return when this operator starts if every operator takes its expected time."""
    rounds, place = divmod(iteration, len(shift.start_ns[job]))
    return shift.start_ns[job][place] + rounds * shift.round_ns + sum(jobs[job].duration_ns[:operator])


class _ArbitraryRuns:
    """Jobs that run in any order. An operator's start and its end are two moves."""

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
        cycle, operator = self._jobs[job], self._ended[job] % len(self._jobs[job].load_bytes)
        if self._running[job]:
            return cycle.load_bytes[operator]
        if operator == 0:
            return cycle.idle_bytes
        return min(cycle.load_bytes[operator - 1], cycle.load_bytes[operator])
