"""The second buffer of batches never raises a plan's peak, by the independent judge, and never overlaps a tensor."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.memory.next_batch import (
    NextBatchRoom,
    batch_tensors,
    next_batch_room,
    room_beside,
    room_by_load,
    uploads_ahead_from,
)
from indb_tensile.scheduler.memory.peak import LIVENESS, peak
from indb_tensile.scheduler.memory.residency import intervals
from indb_tensile.scheduler.memory.tensor_placement import place_plan
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.rewrite import effective
from tests.executor.plans import random_plan, random_rewritten_plan
from tests.scheduler.strategies import graphs

REGION_BYTES = 1 << 12
BATCH = ("batch",)


def plan_of(graph: StepGraph, seed: int) -> Plan:
    """Return a random plan; every third runs operators again and in another order."""
    return random_rewritten_plan(graph, seed) if seed % 3 == 0 else random_plan(graph, seed)


def counted_peak(graph: StepGraph, plan: Plan, first: int, last_use: int) -> int:
    """Return the judge's peak with the second buffer as one more tensor, away from its last use until `first`."""
    running = effective(graph, plan)
    batch = batch_tensors(graph, BATCH)
    extra = TensorId(len(running.tensors))
    size_bytes = sum(graph.tensors[t].size_bytes for t in batch)
    operators = list(running.operators)
    operators[last_use] = replace(operators[last_use], reads=(extra,))
    second = Tensor(id=extra, name="next batch", size_bytes=size_bytes, role=Role.BUFFER)
    counted = StepGraph(tensors=(*running.tensors, second), operators=tuple(operators))
    away = Swap(
        tensor=extra,
        out_after=OpIndex(last_use),
        free_at=OpIndex((last_use + 1) % len(operators)),
        in_at=OpIndex(first % len(operators)),
        needed_by=OpIndex(last_use),
        copies=False,
    )
    swaps = plan.swaps if first == last_use + 1 else (*plan.swaps, away)
    return check.peak(counted, replace(plan, executions=(), swaps=swaps))


@given(graphs(), st.integers(0, 200))
def test_second_buffer_is_counted_and_the_peak_stays_the_same_to_the_byte(graph: StepGraph, seed: int) -> None:
    plan, batch = plan_of(graph, seed), batch_tensors(graph, BATCH)
    bounds = room_by_load(graph, plan, batch)
    if not batch:
        assert bounds is None
    elif bounds is not None:
        assert counted_peak(graph, plan, *bounds) == check.peak(graph, plan)


@given(graphs(), st.integers(0, 200))
def test_second_buffer_overlaps_nothing_while_it_is_there_and_lies_in_the_plans_block(
    graph: StepGraph, seed: int
) -> None:
    plan = plan_of(graph, seed)
    room = next_batch_room(graph, plan, batch_tensors(graph, BATCH), REGION_BYTES)
    if room is None:
        return
    placed = place_plan(graph, plan, region_bytes=REGION_BYTES)
    count, end = len(effective(graph, plan).operators), room.offset + room.size_bytes
    there = {*range(room.first, count), *range(room.last_use + 1)}
    for interval, offset in zip(intervals(graph, plan), placed.offsets, strict=True):
        meets = not there.isdisjoint(k % count for k in range(interval.first, interval.stop))
        assert not meets or offset + interval.size_bytes <= room.offset or end <= offset
    assert end <= placed.size_bytes
    assert room.counted_bytes == sum(graph.tensors[t].size_bytes for t in batch_tensors(graph, BATCH))


def step(*sizes: int) -> StepGraph:
    """Return a step that uploads a batch of 600 bytes, and makes activations of these sizes, each from the last."""
    parameter = Tensor(id=TensorId(0), name="w", size_bytes=400, role=Role.PARAMETER)
    batch = Tensor(id=TensorId(1), name="batch", size_bytes=600, role=Role.INPUT)
    made = [
        Tensor(id=TensorId(k), name=f"a{k}", size_bytes=size, role=Role.ACTIVATION) for k, size in enumerate(sizes, 2)
    ]
    upload = Operator(name="upload", signature="u", stage=Stage.UPLOAD, reads=(), writes=(batch.id,))
    operators = [
        Operator(
            name="f", signature="f", stage=Stage.FORWARD, reads=(TensorId(t.id - 1), parameter.id), writes=(t.id,)
        )
        for t in made
    ]
    return StepGraph(tensors=(parameter, batch, *made), operators=(upload, *operators))


def test_room_begins_where_the_large_activations_are_gone() -> None:
    graph = step(5000, 5000, 500, 500)
    batch = batch_tensors(graph, BATCH)
    assert peak(graph, LIVENESS) == 10_400
    room = next_batch_room(graph, LIVENESS, batch, REGION_BYTES)
    assert isinstance(room, NextBatchRoom)
    assert (room.first, room.last_use, room.size_bytes, room.counted_bytes) == (3, 0, 1024, 600)


def test_plan_at_its_peak_until_its_end_has_room_between_two_iterations_at_most() -> None:
    graph = step(500, 5000)
    assert room_by_load(graph, LIVENESS, batch_tensors(graph, BATCH)) == (3, 0)


def test_batch_that_is_most_of_the_memory_has_no_second_buffer() -> None:
    graph = step(8, 8)
    assert room_by_load(graph, LIVENESS, batch_tensors(graph, BATCH)) is None
    assert next_batch_room(graph, LIVENESS, batch_tensors(graph, BATCH), REGION_BYTES) is None


def test_next_batch_is_uploaded_ahead_only_where_an_operator_still_runs() -> None:
    late, early = step(500, 5000), step(5000, 5000, 500, 500)
    assert uploads_ahead_from(late, LIVENESS, batch_tensors(late, BATCH)) is None
    assert uploads_ahead_from(early, LIVENESS, batch_tensors(early, BATCH)) == 3
    assert uploads_ahead_from(early, LIVENESS, ()) is None


def test_room_begins_after_the_plans_own_copies_to_the_device() -> None:
    graph = step(5000, 5000, 500, 500, 500)
    swap = Swap(tensor=TensorId(2), out_after=OpIndex(1), free_at=OpIndex(2), in_at=OpIndex(4), needed_by=OpIndex(4))
    reads = replace(graph.operators[4], reads=(*graph.operators[4].reads, TensorId(2)))
    later = StepGraph(tensors=graph.tensors, operators=(*graph.operators[:4], reads, *graph.operators[5:]))
    plan = Plan(policy="test", swaps=(swap,))
    bounds = room_by_load(later, plan, batch_tensors(later, BATCH))
    assert bounds is not None
    assert bounds[0] >= 4


@given(graphs(), st.integers(0, 200))
def test_memory_beside_the_plan_is_used_as_soon_as_the_batch_is_taken_and_never_later_than_the_plans_own(
    graph: StepGraph, seed: int
) -> None:
    plan, batch = plan_of(graph, seed), batch_tensors(graph, BATCH)
    first = room_beside(graph, plan, batch)
    operators = effective(graph, plan).operators
    own = uploads_ahead_from(graph, plan, batch)
    assert uploads_ahead_from(graph, plan, batch, beside=True) == first
    if first is None:
        assert own is None
        return
    assert batch
    assert own is None or first <= own
    uploads = [k for k, o in enumerate(operators) if o.stage is Stage.UPLOAD and not {*batch}.isdisjoint(o.writes)]
    count = len(operators)
    copies = [swap.in_at % count for swap in plan.swaps]
    assert max(uploads) < first < count
    if not plan.swaps:
        assert first == max(uploads) + 1
    assert all(at <= first or at == count for at in copies)
