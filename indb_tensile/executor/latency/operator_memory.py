"""Measures the memory of operators that run alone: workspace and output sizes.

If torch's tensors are served from an arena, the operator's script gives its memory. Otherwise memory is read from the
allocator's events: the workspace is the highest sum of an operator's allocations and frees, minus its results.
"""

import traceback
from dataclasses import dataclass
from typing import Any

import torch

from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.errors import InvariantError
from indb_tensile.executor.capture.allocation_script import AllocationScript, record_script
from indb_tensile.executor.capture.aten import entry_point, storage_key
from indb_tensile.executor.capture.record import Call, tensors_in
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.allocation_profile import allocation_profiler, highest_per_label, labelled
from indb_tensile.executor.latency.calibration_site import serving, site
from indb_tensile.executor.latency.operator_inputs import OperatorInputs, gradient_mode

_LEAST_OVERFLOW = 1 << 20  # the controller then grants at least one region more


@dataclass(frozen=True, slots=True)
class OperatorMemory:
    """One operator's memory: its workspace, its new storages by name, and its script if an arena serves tensors."""

    workspace_bytes: int
    made_bytes: dict[str, int]
    script: AllocationScript | None = None


def measure_memory(work: list[tuple[CapturedStep, Call]], grant_bytes: int) -> tuple[dict[str, OperatorMemory], int]:
    """Return the memory of each signature, and the bytes missing from the grant.

    The runs also warm up every kernel.
    """
    arena = serving()
    if arena is None:
        return _profiled(work), 0
    memory: dict[str, OperatorMemory] = {}
    refused_bytes = 0
    for step, call in work:
        recorded, needed_bytes = try_record(arena, step, call)
        if needed_bytes:  # the total may suffice while no single free piece is large enough
            refused_bytes = max(refused_bytes, needed_bytes - grant_bytes, _LEAST_OVERFLOW)
        if recorded is not None:
            script, made = recorded
            memory[call.signature] = OperatorMemory(script.workspace_bytes, made, script)
    return memory, refused_bytes


def try_record(
    arena: ArenaServing, step: CapturedStep, call: Call
) -> tuple[tuple[AllocationScript, dict[str, int]] | None, int]:
    """Record a call. Return the record, or None without room, and the bytes that the memory must hold to refuse
    nothing.

    If the call succeeds, allocations that the whole device could not hold do not count.
    """
    place = site()
    if place is None:
        return _record(arena, step, call), 0
    place.refusal()
    try:
        recorded = _record(arena, step, call)
    except (RuntimeError, MemoryError) as error:
        needed_bytes, _ = place.refusal()
        if not needed_bytes:
            raise
        let_go(error)
        return None, needed_bytes
    # An allocation larger than the whole device is refused in every run, so the fallback algorithm is the normal one.
    _, grantable_bytes = place.refusal()
    return recorded, grantable_bytes


def let_go(error: BaseException | None) -> None:
    """Clear the frames of an exception and its contexts, because these frames keep tensors alive."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _record(arena: ArenaServing, step: CapturedStep, call: Call) -> tuple[AllocationScript, dict[str, int]]:
    arguments = OperatorInputs(step).arguments(call)
    made: dict[str, int] = {}

    def run() -> Any:
        with gradient_mode(step, call):
            result = entry_point(call.target)(*arguments[0], **arguments[1])
        made.update(_made_bytes(step, call, arguments, result))
        return result

    return record_script(arena, call, run), made


def _profiled(work: list[tuple[CapturedStep, Call]]) -> dict[str, OperatorMemory]:
    """Measure all calls in one profiler session."""
    made: dict[str, dict[str, int]] = {}
    if not work:
        return {}
    with allocation_profiler() as profiler:
        for step, call in work:
            arguments = OperatorInputs(step).arguments(call)
            with gradient_mode(step, call), labelled(call.signature):
                result = entry_point(call.target)(*arguments[0], **arguments[1])
            made[call.signature] = _made_bytes(step, call, arguments, result)
            del result, arguments
    highest = dict(highest_per_label(profiler))
    return {
        call.signature: OperatorMemory(
            max(0, highest[call.signature] - sum(made[call.signature].values())), made[call.signature]
        )
        for _, call in work
    }


def _made_bytes(step: CapturedStep, call: Call, arguments: tuple[Any, Any], result: Any) -> dict[str, int]:
    """Return the bytes of each new storage, by its first value's name. Check that they agree with the capture."""
    known_storages = {storage_key(t) for t in tensors_in(arguments)}
    results = [result] if call.single else list(result or ())
    owner: dict[int, str] = {}
    made: dict[str, int] = {}
    place = site()
    for name, tensor in zip(call.results, results, strict=False):
        if name is None or not isinstance(tensor, torch.Tensor) or name in call.arguments:
            continue
        if place is not None and place.device.type != tensor.device.type:
            continue  # a small result in host memory
        key = storage_key(tensor)
        _check_sharing(step, call, name, owner.get(key), shared=key in known_storages)
        if key not in owner:
            owner[key] = name
            made[name] = tensor.untyped_storage().nbytes()
            _check_size(step, call, name, made[name])
    return made


def _check_sharing(step: CapturedStep, call: Call, name: str, other: str | None, *, shared: bool) -> None:
    storage = step.values[name].storage
    empty = storage not in step.tensor_of
    expected = storage in call.reads
    alike = other is None or step.values[other].storage == storage
    if not empty and (shared != expected or not alike):
        raise InvariantError(f"operator {call.target} shares the storage of {name} differently than captured")


def _check_size(step: CapturedStep, call: Call, name: str, made_bytes: int) -> None:
    tensor_id = step.tensor_of.get(step.values[name].storage)
    captured = 0 if tensor_id is None else step.graph.tensors[tensor_id].size_bytes
    if made_bytes > captured and name not in step.opaque:
        raise InvariantError(
            f"operator {call.target} makes {name} of {made_bytes} bytes, more than the captured {captured}"
        )
