"""The room of a position is the part of its operator's workspace that nothing else has while the operator runs."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.executor.capture.allocation_script import Allocation, AllocationScript
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.program_offsets import plan_offsets
from indb_tensile.executor.run.timeline import unroll
from indb_tensile.scheduler.memory.residency import intervals
from indb_tensile.scheduler.memory.tensor_placement import place_plan
from indb_tensile.scheduler.plan import Plan
from tests.executor.conftest import prepared
from tests.executor.plans import random_plan
from tests.nightly import some_examples

_REGION_BYTES = 1 << 14


def _with_scratch(step: CapturedStep, scratch: list[int], workspaces: list[int]) -> CapturedStep:
    """Return the step whose operators list this scratch, one after the other, and have these workspaces."""
    scripts, sizes = {}, {}
    for k, operator in enumerate(step.graph.operators):
        piece = Allocation(size_bytes=scratch[k % len(scratch)], result=None, made_at=0, released_at=1)
        scripts[operator.signature] = AllocationScript(allocations=(piece,))
        sizes[operator.signature] = workspaces[k % len(workspaces)]
    return replace(step.with_measured(sizes), scripts=scripts)


def _in_use(step: CapturedStep, plan: Plan, k: int) -> list[tuple[int, int]]:
    """Return the ranges of tensors that are on the device while operator k runs."""
    placed = place_plan(step.graph, plan, region_bytes=_REGION_BYTES)
    count = len(step.graph.operators)
    return [
        (offset, offset + residency.size_bytes)
        for residency, offset in zip(intervals(step.graph, plan), placed.offsets, strict=True)
        if residency.tensor is not None
        and (residency.first <= k < residency.stop or residency.first <= k + count < residency.stop)
    ]


@some_examples()
@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=5),
    st.lists(st.integers(0, 20_000), min_size=1, max_size=5),
    st.integers(0, 50),
)
def test_room_overlaps_neither_listed_scratch_nor_any_tensor(
    scratch: list[int], workspaces: list[int], seed: int
) -> None:
    step = _with_scratch(prepared("mlp")[1][0], scratch, workspaces)
    plan = random_plan(step.graph, seed)
    offsets = plan_offsets(step, plan, unroll(step.graph, plan), _REGION_BYTES)
    for k, (size_bytes, start) in enumerate(offsets.rooms):
        stop = start + size_bytes
        assert 0 <= start <= stop <= offsets.size_bytes
        others = [(offset, offset + listed_bytes) for listed_bytes, offset in offsets.positions[k]]
        assert all(end <= start or stop <= begin for begin, end in others + _in_use(step, plan, k) if size_bytes)
        listed_bytes = scratch[k % len(scratch)]
        workspace_bytes = step.graph.operators[k].workspace_bytes
        assert size_bytes <= max(0, workspace_bytes - (listed_bytes if listed_bytes <= workspace_bytes else 0))
        assert offsets.unlisted_bytes[k] == 0
