"""Measures operators that have never run on this kind of device: workspace, output sizes, latency.

Each operator runs alone on inputs made from its metadata. A job can therefore be calibrated before it is admitted
beside other jobs and before its own state is in memory. If torch's tensors are served from an arena (serving.py), the
operator's script gives its memory. Otherwise memory is read from the allocator's events: the workspace is the highest
sum of an operator's allocations and frees, minus the operator's results.
"""

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from time import perf_counter_ns
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.errors import InvariantError
from indb_tensile.executor.capture.allocation_script import AllocationScript, record_script
from indb_tensile.executor.capture.aten import entry_point, storage_key
from indb_tensile.executor.capture.capture import CapturedStep, StepKind
from indb_tensile.executor.capture.record import Call, Ref, Runtime, Shape, StorageKey, tensors_in
from indb_tensile.scheduler.graph import Stage, StepGraph

Known = Mapping[str, tuple[int, int]]  # latency_ns and workspace_bytes by signature

_TIMED_RUNS = 3
_SHORT_RUNS = 7  # for calls so short that other work on the processor disturbs their timing
_SHORT_NS = 1_000_000
_LABEL = "tensile operator "
_LEAST_OVERFLOW = 1 << 20  # the controller then grants at least one region more
_PATTERN = 65_537  # floats repeated to fill an input: odd, so that rows differ


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """The steps with their measurements. `overflow_bytes` > 0 says how much more memory than the grant is needed."""

    steps: tuple[CapturedStep, ...]
    measured: dict[str, tuple[int, int]]
    overflow_bytes: int

    @property
    def graphs(self) -> tuple[StepGraph, ...]:
        """Return the measured graphs, in the order of the steps."""
        return tuple(step.graph for step in self.steps)


def calibrate(
    steps: tuple[CapturedStep, ...], unknown: frozenset[str], known: Known, grant_bytes: int
) -> CalibrationResult:
    """Run every operator whose signature is `unknown`: once for its memory, then for its time.

    Operators that cannot run within `grant_bytes` are left out, and the overflow says how much memory is missing. On
    a GPU the overflow also covers memory that an operator was refused and replaced by using another algorithm. The
    state of the random generator is restored. Raise InvariantError if an operator makes other storages than its graph
    says.
    """
    fits, overflow_bytes = _split_fitting(_work(steps, unknown, known), grant_bytes)
    random_state = torch.get_rng_state()
    try:
        memory, refused_bytes = _measure_memory(fits, grant_bytes)
        fits = [(step, call) for step, call in fits if call.signature in memory]
        latency_ns = {} if refused_bytes else {call.signature: _measure_time(step, call) for step, call in fits}
    finally:
        torch.set_rng_state(random_state)
    if refused_bytes:  # a refusal changes which kernels run, so everything is measured again with the larger grant
        return CalibrationResult(steps=steps, measured={}, overflow_bytes=max(overflow_bytes, refused_bytes))
    measured: dict[str, tuple[int, int]] = {}
    for step, call in fits:
        used = memory[call.signature]
        measured[call.signature] = (latency_ns[call.signature], used.workspace_bytes)
        measured.update({key: (0, used.made_bytes[name]) for name, key in _sizes_of(step, call).items()})
        overflow_bytes = max(overflow_bytes, _needed_bytes(step, call) + used.workspace_bytes - grant_bytes)
    scripts = {signature: used.script for signature, used in memory.items() if used.script is not None}
    return CalibrationResult(
        steps=_with_scripts(apply_known(steps, {**known, **measured}), scripts),
        measured=measured,
        overflow_bytes=max(0, overflow_bytes),
    )


def apply_known(steps: tuple[CapturedStep, ...], known: Known) -> tuple[CapturedStep, ...]:
    """Return the steps with the known workspaces and sizes."""
    workspace = {signature: workspace_bytes for signature, (_, workspace_bytes) in known.items()}
    return tuple(step.with_measured(workspace) for step in steps)


def add_scripts(steps: tuple[CapturedStep, ...]) -> tuple[CapturedStep, ...]:
    """Return the steps with a script for every operator, including operators that an earlier process calibrated.

    Returns the steps unchanged if tensors are not served from an arena. An operator gets no script if there is too
    little memory to record it. The state of the random generator is restored.
    """
    serving = _serving()
    if serving is None:
        return steps
    random_state = torch.get_rng_state()
    try:
        missing = {s: item for s, item in kernels(steps).items() if not any(s in step.scripts for step in steps)}
        recorded = {signature: _try_record(serving, *item) for signature, item in missing.items()}
        scripts = {s: record[0] for s, (record, refused) in recorded.items() if record and not refused}
    finally:
        torch.set_rng_state(random_state)
        serving.trim()
    return _with_scripts(steps, scripts)


def _with_scripts(steps: tuple[CapturedStep, ...], scripts: dict[str, AllocationScript]) -> tuple[CapturedStep, ...]:
    known = {signature: script for step in steps for signature, script in step.scripts.items()} | scripts
    return tuple(
        replace(step, scripts={o.signature: known[o.signature] for o in step.graph.operators if o.signature in known})
        for step in steps
    )


def unknown_signatures(steps: tuple[CapturedStep, ...], known: Iterable[str]) -> frozenset[str]:
    """Return the signatures that must be calibrated before the steps can be planned."""
    required = frozenset(signature for step in steps for signature in step.signatures)
    return required.difference(known)


def kernels(steps: Iterable[CapturedStep]) -> dict[str, tuple[CapturedStep, Call]]:
    """Return one call for each signature in the steps."""
    return {run.kernel.signature: (step, run.kernel) for step in steps for run in step.steps}


def measure_latency(step: CapturedStep, call: Call) -> int:
    """Measure the nanoseconds of one call that runs alone. The first run sets kernels up and does not count.

    The state of the random generator is restored.
    """
    random_state = torch.get_rng_state()
    try:
        first_ns = _measure_time(step, call, 1)
        return _measure_time(step, call, _TIMED_RUNS if first_ns > _SHORT_NS else _SHORT_RUNS)
    finally:
        torch.set_rng_state(random_state)


@dataclass(frozen=True, slots=True)
class _Memory:
    workspace_bytes: int
    made_bytes: dict[str, int]
    script: AllocationScript | None = None


_Work = list[tuple[CapturedStep, Call]]


def _work(steps: tuple[CapturedStep, ...], unknown: frozenset[str], known: Known) -> _Work:
    work: dict[str, tuple[CapturedStep, Call]] = {}
    for step in steps:
        for run in step.steps:
            sizes = _sizes_of(step, run.kernel).values()
            if run.kernel.signature in unknown or any(key in unknown or key not in known for key in sizes):
                work.setdefault(run.kernel.signature, (step, run.kernel))
    return list(work.values())


def _sizes_of(step: CapturedStep, call: Call) -> dict[str, str]:
    return {name: key for name, key in step.size_signatures().items() if name in call.results}


def _split_fitting(work: _Work, grant_bytes: int) -> tuple[_Work, int]:
    needed = [_needed_bytes(step, call) for step, call in work]
    fits = [item for item, size_bytes in zip(work, needed, strict=True) if size_bytes <= grant_bytes]
    return fits, max([0, *(size_bytes - grant_bytes for size_bytes in needed)])


def _needed_bytes(step: CapturedStep, call: Call) -> int:
    keys = {*call.reads, *call.writes}
    return sum(step.graph.tensors[step.tensor_of[key]].size_bytes for key in keys if key in step.tensor_of)


# --- memory ----------------------------------------------------------------------------------------------------


class Timer(Protocol):
    """Times calls on a device that runs asynchronously to the host."""

    def time_ns(self, run: Callable[[], object]) -> int:
        """Return the nanoseconds of one call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSite:
    """The place where operators are measured on a GPU: the job's own memory, which may be too small.

    `refusal` returns two numbers of bytes that the memory would have had to hold, and resets both: the highest of all
    refused allocations, and the highest of those refused allocations that the whole device could hold.
    """

    device: torch.device
    serving: ArenaServing
    timer: Timer
    refusal: Callable[[], tuple[int, int]]


_site: CalibrationSite | None = None


def calibrate_on(site: CalibrationSite | None) -> None:
    """Choose where operators are measured: on a GPU, or on the processor if `site` is None.

    Call this function before any measurement.
    """
    global _site
    _site = site


@cache
def _private_serving() -> ArenaServing | None:
    """Return the process's own serving. Its memory goes back to the system with `trim`."""
    return ArenaServing.private()


def _serving() -> ArenaServing | None:
    return _private_serving() if _site is None else _site.serving


def _measure_memory(work: _Work, grant_bytes: int) -> tuple[dict[str, _Memory], int]:
    """Return the memory of each signature, and the bytes missing from the grant.

    The runs also warm up every kernel.
    """
    serving = _serving()
    if serving is None:
        return _profiled(work), 0
    memory: dict[str, _Memory] = {}
    refused_bytes = 0
    for step, call in work:
        recorded, needed_bytes = _try_record(serving, step, call)
        if needed_bytes:  # the total may suffice while no single free piece is large enough
            refused_bytes = max(refused_bytes, needed_bytes - grant_bytes, _LEAST_OVERFLOW)
        if recorded is not None:
            script, made = recorded
            memory[call.signature] = _Memory(script.workspace_bytes, made, script)
    return memory, refused_bytes


def _try_record(
    serving: ArenaServing, step: CapturedStep, call: Call
) -> tuple[tuple[AllocationScript, dict[str, int]] | None, int]:
    """Record a call. Return the record, or None without room, and the bytes that the memory must hold to refuse
    nothing.

    If the call succeeds, allocations that the whole device could not hold do not count.
    """
    if _site is None:
        return _record(serving, step, call), 0
    _site.refusal()
    try:
        recorded = _record(serving, step, call)
    except (RuntimeError, MemoryError) as error:
        needed_bytes, _ = _site.refusal()
        if not needed_bytes:
            raise
        let_go(error)
        return None, needed_bytes
    # An allocation larger than the whole device is refused in every run, so the fallback algorithm is the normal one.
    _, grantable_bytes = _site.refusal()
    return recorded, grantable_bytes


def let_go(error: BaseException | None) -> None:
    """Clear the frames of an exception and its contexts, because these frames keep tensors alive."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _record(serving: ArenaServing, step: CapturedStep, call: Call) -> tuple[AllocationScript, dict[str, int]]:
    arguments = _Inputs(step).arguments(call)
    made: dict[str, int] = {}

    def run() -> Any:
        with _mode(step, call):
            result = entry_point(call.target)(*arguments[0], **arguments[1])
        made.update(_made_bytes(step, call, arguments, result))
        return result

    return record_script(serving, call, run), made


def _profiled(work: _Work) -> dict[str, _Memory]:
    """Measure all calls in one profiler session."""
    made: dict[str, dict[str, int]] = {}
    if not work:
        return {}
    with allocation_profiler() as profiler:
        for step, call in work:
            arguments = _Inputs(step).arguments(call)
            with _mode(step, call), record_function(_LABEL + call.signature):
                result = entry_point(call.target)(*arguments[0], **arguments[1])
            made[call.signature] = _made_bytes(step, call, arguments, result)
            del result, arguments
    highest = dict(_highest_per_label(profiler))
    return {
        call.signature: _Memory(
            max(0, highest[call.signature] - sum(made[call.signature].values())), made[call.signature]
        )
        for _, call in work
    }


@contextmanager
def allocation_profiler() -> Iterator[Any]:
    """Run torch's profiler of the host allocator, without the profiler's output and warnings.

    Its events are the same in every supported version of torch.
    """
    with _silent_error_output(), warnings.catch_warnings():
        # Up to torch 2.12 the first use warns that a second cycle of the same profiler would lose the events of the
        # first.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield profiler


@contextmanager
def _silent_error_output() -> Iterator[None]:
    """Discard the error output: the profiler writes lines there that none of its settings turns off."""
    sys.stderr.flush()
    error_output, null_output = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_output, 2)
    try:
        yield
    finally:
        os.dup2(error_output, 2)
        os.close(error_output)
        os.close(null_output)


def _highest_per_label(profiler: Any) -> Iterator[tuple[str, int]]:
    """Return the highest sum of allocations in each labelled range."""
    for event in _walk(profiler.profiler.kineto_results.experimental_event_tree()):
        if event.name.startswith(_LABEL):
            yield event.name.removeprefix(_LABEL), _highest_in(event)


def _highest_in(event: Any) -> int:
    current_bytes = highest_bytes = 0
    for _, size_bytes in sorted(allocations([event])):
        current_bytes += size_bytes
        highest_bytes = max(highest_bytes, current_bytes)
    return highest_bytes


def allocations(events: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Return the time and the bytes of each allocation within profiler events. Frees have negative bytes."""
    for event in _walk(events):
        if event.tag.name == "Allocation":
            yield event.start_time_ns, event.extra_fields.alloc_size


def _walk(events: Iterable[Any]) -> Iterator[Any]:
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        yield event
        waiting.extend(event.children)


def _made_bytes(step: CapturedStep, call: Call, arguments: tuple[Any, Any], result: Any) -> dict[str, int]:
    """Return the bytes of each new storage, by its first value's name. Check that they agree with the capture."""
    known_storages = {storage_key(t) for t in tensors_in(arguments)}
    results = [result] if call.single else list(result or ())
    owner: dict[int, str] = {}
    made: dict[str, int] = {}
    for name, tensor in zip(call.results, results, strict=False):
        if name is None or not isinstance(tensor, torch.Tensor) or name in call.arguments:
            continue
        if _site is not None and _site.device.type != tensor.device.type:
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


# --- time ------------------------------------------------------------------------------------------------------


def _measure_time(step: CapturedStep, call: Call, runs: int = _TIMED_RUNS) -> int:
    args, kwargs = _Inputs(step).arguments(call)
    run = entry_point(call.target)

    def once() -> None:
        result = run(*args, **kwargs)
        if call.stage is Stage.UPLOAD:
            result.zero_()  # an upload also writes the bytes

    with _mode(step, call):
        if _site is not None:
            return _site.timer.time_ns(once)
        times_ns: list[int] = []
        while len(times_ns) < runs:
            start = perf_counter_ns()
            once()
            times_ns.append(perf_counter_ns() - start)
    return int(median(times_ns))


@contextmanager
def _mode(step: CapturedStep, call: Call) -> Iterator[None]:
    """Set the gradient mode as in the step: some kernels depend on it. A training step's forward pass has it on."""
    with torch.set_grad_enabled(step.kind is StepKind.TRAINING and call.stage in (Stage.UPLOAD, Stage.FORWARD)):
        yield


# --- inputs ----------------------------------------------------------------------------------------------------


# The pivots of a factorisation are row numbers from 1 on. Operators that solve with them check that.
_FACTORISATIONS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "linalg_lu_factor_ex", "linalg_ldl_factor_ex")
)


class _Inputs:
    """Inputs with the shapes, strides and shared storages of one step, made on demand."""

    def __init__(self, step: CapturedStep) -> None:
        self._step = step
        self._memory: dict[StorageKey, torch.Tensor] = {}
        self._produced: dict[str, torch.Tensor] = {}
        self._generator = torch.Generator().manual_seed(0)
        self._pivots = {
            step.values[name].storage
            for run in step.steps
            if run.kernel.target in _FACTORISATIONS
            for name in run.kernel.results
            if name is not None and step.values[name].dtype is torch.int32
        }

    def arguments(self, call: Call) -> tuple[Any, Any]:
        """Return the positional and keyword arguments of the call."""
        return self._make(call.args), self._make(call.kwargs)

    def _make(self, item: Any) -> Any:
        if isinstance(item, Ref):
            return self._value(item.name)
        if isinstance(item, Runtime):
            return 1e-3 if item is Runtime.LEARNING_RATE else False
        if isinstance(item, list | tuple):
            return type(item)(self._make(part) for part in item)
        if isinstance(item, dict):
            return {key: self._make(part) for key, part in item.items()}
        return item

    def _value(self, name: str) -> torch.Tensor:
        if name in self._step.opaque_results and name not in self._produced:
            self._produce(name)
        if name in self._produced:
            return self._produced[name]
        shape = self._step.values[name]
        if shape.storage not in self._memory:
            self._memory[shape.storage] = self._fill(shape)
        memory = self._memory[shape.storage].untyped_storage()
        empty = torch.empty(0, dtype=shape.dtype, device=memory.device)
        return empty.set_(memory, shape.offset, shape.shape, shape.stride)

    def _produce(self, name: str) -> None:
        """Make a value with its own kernel, because only that kernel knows the value's format."""
        call = next(run.kernel for run in self._step.steps if name in run.kernel.results)
        args, kwargs = self.arguments(call)
        with _mode(self._step, call):
            made = call.target(*args, **kwargs)
        self._produced[name] = made if call.single else made[call.results.index(name)]

    def _fill(self, shape: Shape) -> torch.Tensor:
        tensor_id = self._step.tensor_of.get(shape.storage)
        size_bytes = 0 if tensor_id is None else self._step.graph.tensors[tensor_id].size_bytes
        device = None if _site is None else _site.device
        size = size_bytes // shape.dtype.itemsize
        memory = torch.full((size,), int(shape.storage in self._pivots), dtype=shape.dtype, device=device)
        if shape.dtype.is_floating_point and memory.numel():
            # Positive, so that roots and logarithms are finite, and below 1, because losses check that shares are.
            # The numbers are drawn once and repeated, which is fast.
            drawn = torch.rand(min(_PATTERN, memory.numel()), generator=self._generator) * 0.9 + 0.05
            drawn = drawn.to(memory.device)
            whole = memory.numel() // drawn.numel() * drawn.numel()
            memory[:whole].view(-1, drawn.numel()).copy_(drawn)
            memory[whole:].copy_(drawn[: memory.numel() - whole])
        return memory
