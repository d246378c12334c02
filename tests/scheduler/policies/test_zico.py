"""Check Zico's rules on loads small enough to follow by hand."""

import dataclasses

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.phases.phase_offsets import Cycle, exclusive, interleave
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.policies.zico import (
    Group,
    LifespanRegion,
    informed,
    pairs,
    profiled,
    regional,
    regions,
    shifts,
    zico,
)
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.workload import Workload

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)


def test_regions_are_taken_as_the_load_grows_and_returned_in_reverse_order() -> None:
    """The load is up to 35 bytes above the 10 idle bytes, in regions of 10. The dip at operator 3 returns no region;
    the last region is of 5 bytes.
    """
    cycle = Cycle(load_bytes=(10, 20, 45, 30, 40, 15, 10), duration_ns=(1,) * 7, idle_bytes=10)
    assert regions(cycle, 10) == (
        LifespanRegion(size_bytes=10, first=1, last=5),
        LifespanRegion(size_bytes=10, first=2, last=4),
        LifespanRegion(size_bytes=10, first=2, last=4),
        LifespanRegion(size_bytes=5, first=2, last=2),
    )


def test_scheduler_counts_a_jobs_load_in_regions() -> None:
    """The regions of a job of 160 bytes have 10 bytes, so 33 bytes are four regions. Dips within a region are not
    visible.
    """
    cycle = Cycle(load_bytes=(10, 43, 170, 60, 90, 20), duration_ns=(1, 2, 3, 4, 5, 6), idle_bytes=10)
    assert regional(cycle) == dataclasses.replace(cycle, load_bytes=(10, 50, 170, 90, 90, 20))


def test_regions_are_no_larger_than_64_mb() -> None:
    cycle = Cycle(load_bytes=(1, 2 << 30, 65 << 20), duration_ns=(1, 1, 1), idle_bytes=0)
    assert regional(cycle).load_bytes == (64 << 20, 2 << 30, 128 << 20)


def test_zico_gives_every_graph_the_liveness_plan() -> None:
    assert zico((_job(1), _job(2)), budget_bytes=0, link=LINK) == ((Plan(policy="zico"),),) * 2


def test_second_job_is_shifted_until_both_fit() -> None:
    """The loads are 10, 20, 30, 40, 30, 20, 10 over 7 operators of 10 ns within 50 bytes: see
    phases/test_phase_offsets.py.
    """
    (group,) = _groups((_job(1), _job(2)), 50)
    assert group.jobs == (0, 1)
    assert group.budget_bytes == 50
    assert group.shift.start_ns == ((0,), (30,))
    assert (group.shift.peak_bytes, group.shift.delay_ns) == (50, (0, 0))


def test_iterations_alternate_if_nothing_fits_beside_a_peak() -> None:
    jobs = (_job(1, sizes=(40,)), _job(2, sizes=(40,)))  # each job always holds 40 bytes
    (group,) = _groups(jobs, 79)
    assert group.shift.start_ns == ((0,), (20,))
    assert (group.shift.peak_bytes, group.shift.round_ns) == (40, 40)


def test_each_pair_of_jobs_has_its_own_budget() -> None:
    """The peaks are 80, 40, 80, 40, and the largest is paired with the smallest. Each pair needs 80 and would use
    120; it gets 100.
    """
    jobs = tuple(_job(k, scale=scale) for k, scale in enumerate((2, 1, 2, 1), start=1))
    first, second = _groups(jobs, 200)
    assert (first.jobs, second.jobs) == ((0, 3), (1, 2))
    assert (first.budget_bytes, second.budget_bytes) == (100, 100)
    assert max(first.shift.peak_bytes, second.shift.peak_bytes) <= 100


def test_odd_job_is_left_alone() -> None:
    cycles = [Cycle(load_bytes=(size,), duration_ns=(1,), idle_bytes=0) for size in (5, 9, 7)]
    assert pairs(cycles) == ((0, 1), (2,))
    assert pairs(cycles[:1]) == ((0,),)
    assert pairs(()) == ()


def test_jobs_take_turns_if_pairs_do_not_fit_together() -> None:
    """Each of two pairs needs 40. Within 79 bytes all four jobs run one after the other, although two of them would
    fit.
    """
    jobs = tuple(_job(k) for k in range(1, 5))
    (group,) = _groups(jobs, 79)
    assert group.jobs == (0, 1, 2, 3)
    assert group.shift.start_ns == ((0,), (70,), (140,), (210,))
    assert group.shift.round_ns == 280


def test_budget_below_one_iteration_is_infeasible() -> None:
    refused = shifts((_job(1), _job(2)), budget_bytes=39, link=LINK)
    assert isinstance(refused, Infeasible)
    assert (refused.needed_bytes, refused.budget_bytes) == (40, 39)


def test_exclusive_iteration_takes_all_memory_except_idle_bytes() -> None:
    jobs = (
        Cycle(load_bytes=(5, 9), duration_ns=(1, 1), idle_bytes=4),
        Cycle(load_bytes=(3, 99), duration_ns=(1, 1), idle_bytes=1),
    )
    assert [cycle.load_bytes for cycle in exclusive(jobs, 50)] == [(49, 49), (99, 99)]


def test_informed_phase_begins_with_long_shifts_and_ends_with_the_shortest() -> None:
    """The steps are 61, 64, 67 and 70 bytes, as the budget is raised from 40 to 70."""
    cycle = Cycle(load_bytes=(10, 20, 30, 40, 30, 20, 10), duration_ns=(10,) * 7, idle_bytes=0)
    shifts_by_step = informed((cycle, cycle), budget_bytes=70, compute=Compute.OVERLAP)
    assert [shift.start_ns[1][0] for shift in shifts_by_step] == [20, 20, 20, 10]
    assert shifts_by_step[-1] == interleave((cycle, cycle), budget_bytes=70, compute=Compute.OVERLAP)
    assert informed((cycle, cycle), budget_bytes=39) == ()


def test_new_job_is_profiled_after_the_other_jobs_end_their_iterations() -> None:
    cycle = Cycle(load_bytes=(10, 20), duration_ns=(30, 40), idle_bytes=0)
    assert profiled((cycle, cycle, cycle), 2, (50, 10, None)) == 60
    assert profiled((cycle,), 0, (None,)) == 0


def _groups(jobs: tuple[Workload, ...], budget: int) -> tuple[Group, ...]:
    groups = shifts(jobs, budget_bytes=budget, link=LINK, compute=Compute.OVERLAP)
    assert not isinstance(groups, Infeasible)
    return groups


def _job(number: int, *, scale: int = 1, sizes: tuple[int, ...] = (10, 10, 10, 10)) -> Workload:
    """Return a job. Each operator makes one more tensor, and then each reads the newest tensor not yet read; nobody
    reads the last one.
    """
    tensors = tuple(
        Tensor(id=TensorId(i), name=f"t{i}", size_bytes=size * scale, role=Role.ACTIVATION)
        for i, size in enumerate(sizes)
    )
    count = len(sizes)
    uses: list[tuple[list[int], list[int]]] = [([], [k]) for k in range(count)]
    uses += [([k], []) for k in reversed(range(count - (count > 1)))]
    operators = tuple(
        Operator(
            name=f"op{k}",
            signature=f"op{k}",
            stage=Stage.FORWARD,
            reads=tuple(TensorId(t) for t in reads),
            writes=tuple(TensorId(t) for t in writes),
        )
        for k, (reads, writes) in enumerate(uses)
    )
    graph = StepGraph(tensors=tensors, operators=operators)
    return Workload(job=JobId(number), graphs=(graph,), latency_ns=((10,) * len(operators),))
