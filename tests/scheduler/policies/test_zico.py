"""Zico's rules on loads small enough to follow by hand."""

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
from indb_tensile.scheduler.timing.simulate import Compute
from indb_tensile.scheduler.workload import Workload

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)


def test_regions_are_taken_as_the_load_grows_and_returned_in_the_opposite_order() -> None:
    """30 bytes over the 10 that stay, in regions of 10; the dip at operator 3 returns nothing, the last one is 5."""
    own = Cycle(load_bytes=(10, 20, 45, 30, 40, 15, 10), duration_ns=(1,) * 7, idle_bytes=10)
    assert regions(own, 10) == (
        LifespanRegion(size_bytes=10, first=1, last=5),
        LifespanRegion(size_bytes=10, first=2, last=4),
        LifespanRegion(size_bytes=10, first=2, last=4),
        LifespanRegion(size_bytes=5, first=2, last=2),
    )


def test_the_scheduler_sees_a_job_by_its_regions() -> None:
    """A job of 160 bytes has regions of 10: 33 bytes are four of them, and what dips within them is not seen."""
    own = Cycle(load_bytes=(10, 43, 170, 60, 90, 20), duration_ns=(1, 2, 3, 4, 5, 6), idle_bytes=10)
    assert regional(own) == dataclasses.replace(own, load_bytes=(10, 50, 170, 90, 90, 20))


def test_regions_are_no_larger_than_64_mb() -> None:
    own = Cycle(load_bytes=(1, 2 << 30, 65 << 20), duration_ns=(1, 1, 1), idle_bytes=0)
    assert regional(own).load_bytes == (64 << 20, 2 << 30, 128 << 20)


def test_zico_plans_liveness_for_every_graph() -> None:
    assert zico((_job(1), _job(2)), budget_bytes=0, link=LINK) == ((Plan(policy="zico"),),) * 2


def test_the_second_training_is_shifted_until_both_fit() -> None:
    """Loads of 10, 20, 30, 40, 30, 20, 10 over 7 operators of 10 ns; 50 bytes: see test_phases.py."""
    (group,) = _groups((_job(1), _job(2)), 50)
    assert group.jobs == (0, 1)
    assert group.budget_bytes == 50
    assert group.shift.start_ns == ((0,), (30,))
    assert (group.shift.peak_bytes, group.shift.delay_ns) == (50, (0, 0))


def test_without_room_for_both_peaks_beside_anything_iterations_alternate() -> None:
    jobs = (_job(1, sizes=(40,)), _job(2, sizes=(40,)))  # 40 bytes all the time
    (group,) = _groups(jobs, 79)
    assert group.shift.start_ns == ((0,), (20,))
    assert (group.shift.peak_bytes, group.shift.round_ns) == (40, 40)


def test_more_jobs_are_paired_and_each_pair_has_a_budget_of_its_own() -> None:
    """Peaks of 80, 40, 80, 40: the largest with the smallest. Pairs need 80, would take 120, and get 100."""
    jobs = tuple(_job(k, scale=scale) for k, scale in enumerate((2, 1, 2, 1), start=1))
    first, second = _groups(jobs, 200)
    assert (first.jobs, second.jobs) == ((0, 3), (1, 2))
    assert (first.budget_bytes, second.budget_bytes) == (100, 100)
    assert max(first.shift.peak_bytes, second.shift.peak_bytes) <= 100


def test_an_odd_job_is_left_alone() -> None:
    cycles = [Cycle(load_bytes=(size,), duration_ns=(1,), idle_bytes=0) for size in (5, 9, 7)]
    assert pairs(cycles) == ((0, 1), (2,))
    assert pairs(cycles[:1]) == ((0,),)
    assert pairs(()) == ()


def test_jobs_take_turns_where_pairs_do_not_fit_beside_each_other() -> None:
    """Two pairs need 40 each; under 79 bytes all four jobs go one after the other, though two could meet."""
    jobs = tuple(_job(k) for k in range(1, 5))
    (group,) = _groups(jobs, 79)
    assert group.jobs == (0, 1, 2, 3)
    assert group.shift.start_ns == ((0,), (70,), (140,), (210,))
    assert group.shift.round_ns == 280


def test_what_not_even_one_iteration_at_a_time_can_do_is_infeasible() -> None:
    refused = shifts((_job(1), _job(2)), budget_bytes=39, link=LINK)
    assert isinstance(refused, Infeasible)
    assert (refused.needed_bytes, refused.budget_bytes) == (40, 39)


def test_an_exclusive_iteration_takes_all_that_the_others_do_not_keep() -> None:
    jobs = (
        Cycle(load_bytes=(5, 9), duration_ns=(1, 1), idle_bytes=4),
        Cycle(load_bytes=(3, 99), duration_ns=(1, 1), idle_bytes=1),
    )
    assert [own.load_bytes for own in exclusive(jobs, 50)] == [(49, 49), (99, 99)]


def test_the_informed_phase_begins_with_long_shifts_and_ends_with_the_least() -> None:
    """From 40 bytes to 70: steps of 61, 64, 67 and 70 as the budget is raised."""
    hill = Cycle(load_bytes=(10, 20, 30, 40, 30, 20, 10), duration_ns=(10,) * 7, idle_bytes=0)
    found = informed((hill, hill), budget_bytes=70, compute=Compute.OVERLAP)
    assert [shift.offset_ns[1] for shift in found] == [20, 20, 20, 10]
    assert found[-1] == interleave((hill, hill), budget_bytes=70, compute=Compute.OVERLAP)
    assert informed((hill, hill), budget_bytes=39) == ()


def test_a_new_job_is_profiled_when_the_others_have_ended_their_iterations() -> None:
    hill = Cycle(load_bytes=(10, 20), duration_ns=(30, 40), idle_bytes=0)
    assert profiled((hill, hill, hill), 2, (50, 10, None)) == 60
    assert profiled((hill,), 0, (None,)) == 0


def _groups(jobs: tuple[Workload, ...], budget: int) -> tuple[Group, ...]:
    found = shifts(jobs, budget_bytes=budget, link=LINK, compute=Compute.OVERLAP)
    assert not isinstance(found, Infeasible)
    return found


def _job(number: int, *, scale: int = 1, sizes: tuple[int, ...] = (10, 10, 10, 10)) -> Workload:
    """Operators make one tensor more each, and then read the youngest left; the last one nobody reads."""
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
