"""An operator makes the same allocations in every run. Its workspace is its memory beside its outputs."""

from itertools import combinations
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.executor.capture.allocation_script import Allocation, AllocationScript
from tests.device.preloaded import ask
from tests.executor.conftest import prepared

PROCESS = "tests.executor.capture.script_process"
KINDS = ("cnn", "lstm", "mlp", "transformer", "regression")


@pytest.fixture(scope="module")
def answers_of_models() -> dict[str, Any]:
    return ask(PROCESS, *KINDS)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_every_operator_repeats_exactly_and_its_workspace_is_its_scripts(
    answers_of_models: dict[str, Any], kind: str
) -> None:
    _, steps = prepared(kind)  # calibrated in this process, by torch's own count of its allocations
    models = answers_of_models["models"][kind]
    assert len(models) == len(steps)
    for in_arena, step in zip(models, steps, strict=True):
        assert (in_arena["steady"], in_arena["same again"]) == (True, True)
        assert in_arena["workspaces"] == in_arena["of scripts"]
        assert in_arena["sizes"] == [tensor.size_bytes for tensor in step.graph.tensors]
        # Outputs keep their places from the operator's start. Scratch of an odd size cannot always use such a place.
        least = [operator.workspace_bytes for operator in step.graph.operators]
        assert all(measured >= bound for measured, bound in zip(in_arena["workspaces"], least, strict=True))


def test_memory_that_the_first_run_allocates_permanently_belongs_to_no_script() -> None:
    assert ask(PROCESS)["setting_up"] == {
        "repeats": [True, [2000], 0],
        "sets up": [True, [2000], 1],  # as cuBLAS allocates its workspace
        "never": [False, [12, 2000], 3],
    }


def _allocation(size_bytes: int, made_at: int, released_at: int, result: int | None = None) -> Allocation:
    return Allocation(size_bytes=size_bytes, result=result, made_at=made_at, released_at=released_at)


def test_a_workspace_has_room_for_all_scratch_that_is_alive_at_the_same_time() -> None:
    script = AllocationScript(
        allocations=(
            _allocation(1000, 0, 8, result=0),
            _allocation(300, 1, 4),
            _allocation(200, 2, 3),
            _allocation(400, 5, 6),
        )
    )
    assert (script.workspace_bytes, script.packed) == (520, ({1: 0, 2: 320, 3: 0}, 520))


def test_scratch_is_aligned_as_the_device_requires() -> None:
    allocations = (_allocation(300, 0, 3), _allocation(200, 1, 2))
    assert AllocationScript(allocations=allocations).packed == ({0: 0, 1: 320}, 520)
    assert AllocationScript(allocations=allocations, alignment_bytes=512).packed == ({0: 0, 1: 512}, 712)


def test_scratch_that_is_released_before_an_output_is_made_uses_the_outputs_place() -> None:
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
    """Draw allocations and releases in any order. An allocation that is never released may be an output."""
    count = draw(st.integers(0, 8))
    order = draw(st.permutations([*range(count)] * 2))
    made: dict[int, int] = {}
    ends: dict[int, int] = {}
    for moment, number in enumerate(order):
        (ends if number in made else made)[number] = moment
    outputs = draw(st.sets(st.integers(0, 7)))
    return AllocationScript(
        allocations=tuple(
            _allocation(
                draw(st.integers(1, 400)),
                made[number],
                2 * count if number in outputs else ends[number],
                result=number if number in outputs else None,
            )
            for number in made
        )
    )


@given(scripts())
def test_lodged_scratch_overlaps_neither_its_host_nor_other_lodged_scratch(script: AllocationScript) -> None:
    allocations = script.allocations
    for scratch, host in script.lodged.items():
        assert allocations[scratch].result is None
        assert allocations[host].result is not None
        assert allocations[scratch].size_bytes <= allocations[host].size_bytes
        assert allocations[scratch].released_at <= allocations[host].made_at
    for left, right in combinations(script.lodged, 2):
        if script.lodged[left] == script.lodged[right]:
            first, second = sorted((allocations[left], allocations[right]), key=lambda a: a.made_at)
            assert first.released_at <= second.made_at


@given(scripts())
def test_a_workspace_covers_the_peak_beside_the_outputs_and_its_scratch_never_overlaps(
    script: AllocationScript,
) -> None:
    outputs_bytes = sum(a.size_bytes for a in script.allocations if a.result is not None)
    moments = range(2 * len(script.allocations) + 1)
    used_bytes = [sum(a.size_bytes for a in script.allocations if a.made_at <= m < a.released_at) for m in moments]
    assert max(used_bytes) - outputs_bytes <= script.workspace_bytes
    offsets, size_bytes = script.packed
    assert offsets.keys() | script.lodged.keys() == {i for i, a in enumerate(script.allocations) if a.result is None}
    lying = sorted(((offset, script.allocations[index]) for index, offset in offsets.items()), key=itemgetter(0))
    assert max((offset + scratch.size_bytes for offset, scratch in lying), default=0) == size_bytes
    for (low, first), (high, second) in combinations(lying, 2):
        together = first.made_at < second.released_at and second.made_at < first.released_at
        assert not together or low + first.size_bytes <= high
