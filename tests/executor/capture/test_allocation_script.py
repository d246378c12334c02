"""An operator allocates the same whenever it runs; its workspace is what that takes beside its outputs."""

from itertools import combinations
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.executor.capture.allocation_script import Allocation, AllocationScript
from tests.device.preloaded import ask
from tests.executor.capture.script_process import KINDS
from tests.executor.conftest import prepared


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return ask("tests.executor.capture.script_process")


@pytest.mark.parametrize("kind", KINDS)
def test_every_operator_repeats_exactly_and_its_workspace_is_its_scripts(seen: dict[str, Any], kind: str) -> None:
    _, steps = prepared(kind)  # calibrated here, by torch's own account of its allocations
    models = seen["models"][kind]
    assert len(models) == len(steps)
    for found, step in zip(models, steps, strict=True):
        assert (found["steady"], found["same again"]) == (True, True)
        assert found["workspaces"] == found["of scripts"]
        assert found["sizes"] == [tensor.size_bytes for tensor in step.graph.tensors]
        # Outputs hold their places from the operator's start, which scratch of an odd size cannot always use.
        least = [operator.workspace_bytes for operator in step.graph.operators]
        assert all(mine >= theirs for mine, theirs in zip(found["workspaces"], least, strict=True))


def test_what_the_first_run_sets_up_for_good_belongs_to_no_script(seen: dict[str, Any]) -> None:
    assert seen["setting_up"] == {
        "repeats": [True, [2000], 0],
        "sets up": [True, [2000], 1],  # as cuBLAS its workspace
        "never": [False, [12, 2000], 3],
    }


def _allocation(size_bytes: int, made_at: int, released_at: int, result: int | None = None) -> Allocation:
    return Allocation(size_bytes=size_bytes, result=result, made_at=made_at, released_at=released_at)


def test_a_workspace_has_room_for_the_scratch_that_is_there_together() -> None:
    script = AllocationScript(
        allocations=(
            _allocation(1000, 0, 8, result=0),
            _allocation(300, 1, 4),
            _allocation(200, 2, 3),
            _allocation(400, 5, 6),
        )
    )
    assert (script.workspace_bytes, script.packed) == (520, ({1: 0, 2: 320, 3: 0}, 520))


def test_scratch_lies_at_multiples_of_the_alignment_that_the_device_asks_for() -> None:
    allocations = (_allocation(300, 0, 3), _allocation(200, 1, 2))
    assert AllocationScript(allocations=allocations).packed == ({0: 0, 1: 320}, 520)
    assert AllocationScript(allocations=allocations, alignment_bytes=512).packed == ({0: 0, 1: 512}, 712)


def test_scratch_that_is_gone_before_an_output_is_made_lies_in_its_place() -> None:
    script = AllocationScript(
        allocations=(
            _allocation(500, 0, 2),
            _allocation(500, 1, 5),
            _allocation(400, 3, 8, result=1),
            _allocation(600, 4, 8, result=0),
        )
    )
    assert (script.lodged, script.workspace_bytes) == ({0: 3}, 500)


@st.composite
def scripts(draw: st.DrawFn) -> AllocationScript:
    """Any order of allocations and releases; what is never released may be an output."""
    count = draw(st.integers(0, 8))
    order = draw(st.permutations([*range(count)] * 2))
    made: dict[int, int] = {}
    ends: dict[int, int] = {}
    for moment, number in enumerate(order):
        (ends if number in made else made)[number] = moment
    kept = draw(st.sets(st.integers(0, 7)))
    return AllocationScript(
        allocations=tuple(
            _allocation(
                draw(st.integers(1, 400)),
                made[number],
                2 * count if number in kept else ends[number],
                result=number if number in kept else None,
            )
            for number in made
        )
    )


@given(scripts())
def test_lodged_scratch_meets_neither_its_host_nor_what_else_is_lodged_there(script: AllocationScript) -> None:
    allocations = script.allocations
    for one, host in script.lodged.items():
        assert allocations[one].result is None
        assert allocations[host].result is not None
        assert allocations[one].size_bytes <= allocations[host].size_bytes
        assert allocations[one].released_at <= allocations[host].made_at
    for one, two in combinations(script.lodged, 2):
        if script.lodged[one] == script.lodged[two]:
            first, second = sorted((allocations[one], allocations[two]), key=lambda a: a.made_at)
            assert first.released_at <= second.made_at


@given(scripts())
def test_a_workspace_covers_what_is_missing_beside_the_outputs_and_no_scratch_meets_in_it(
    script: AllocationScript,
) -> None:
    outputs_bytes = sum(one.size_bytes for one in script.allocations if one.result is not None)
    moments = range(2 * len(script.allocations) + 1)
    held = [sum(a.size_bytes for a in script.allocations if a.made_at <= m < a.released_at) for m in moments]
    assert max(held) - outputs_bytes <= script.workspace_bytes
    offsets, size_bytes = script.packed
    assert offsets.keys() | script.lodged.keys() == {i for i, a in enumerate(script.allocations) if a.result is None}
    lying = sorted(((offset, script.allocations[index]) for index, offset in offsets.items()), key=itemgetter(0))
    assert max((offset + one.size_bytes for offset, one in lying), default=0) == size_bytes
    for (low, one), (high, other) in combinations(lying, 2):
        together = one.made_at < other.released_at and other.made_at < one.released_at
        assert not together or low + one.size_bytes <= high
