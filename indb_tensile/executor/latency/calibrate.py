"""Measures operators that have never run on this kind of device: workspace, output sizes, latency.

Each operator runs on inputs made from its metadata (`operator_inputs.py`). A job can therefore be calibrated before
it is admitted beside other jobs and before its own state is in memory. `operator_memory.py` measures memory, and
`operator_turns.py` time. On a GPU each operator is timed by itself.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from indb_tensile.errors import InvariantError
from indb_tensile.executor.capture.allocation_script import AllocationScript
from indb_tensile.executor.capture.record import Call
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.calibration_site import serving, site
from indb_tensile.executor.latency.operator_memory import OperatorMemory, measure_memory, try_record
from indb_tensile.executor.latency.operator_turns import PreparedCall, accessed_bytes, alternate, time_in_turns
from indb_tensile.scheduler.graph import StepGraph

Known = Mapping[str, tuple[int, int]]  # latency_ns and workspace_bytes by signature

_TIMED_RUNS = 3
_SHORT_RUNS = 7  # runs of calls so short that other work on the processor disturbs their timing
_SHORT_NS = 1_000_000


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
        memory, refused_bytes = measure_memory(fits, grant_bytes)
        fits = [(step, call) for step, call in fits if call.signature in memory]
        latency_ns = {} if refused_bytes else _latencies(fits, memory, grant_bytes)
    finally:
        torch.set_rng_state(random_state)
    if refused_bytes:  # a refusal changes which kernels run, so everything is measured again with the larger grant
        return CalibrationResult(steps=steps, measured={}, overflow_bytes=max(overflow_bytes, refused_bytes))
    measured: dict[str, tuple[int, int]] = {}
    for step, call in fits:
        used = memory[call.signature]
        measured[call.signature] = (latency_ns[call.signature], used.workspace_bytes)
        measured.update({key: (0, used.made_bytes[name]) for name, key in _sizes_of(step, call).items()})
        overflow_bytes = max(overflow_bytes, accessed_bytes(step, call) + used.workspace_bytes - grant_bytes)
    scripts = {signature: used.script for signature, used in memory.items() if used.script is not None}
    return CalibrationResult(
        steps=with_scripts(apply_known(steps, {**known, **measured}), scripts),
        measured=measured,
        overflow_bytes=max(0, overflow_bytes),
    )


def apply_known(steps: tuple[CapturedStep, ...], known: Known) -> tuple[CapturedStep, ...]:
    """Return the steps with the known workspaces and sizes."""
    workspace = {signature: workspace_bytes for signature, (_, workspace_bytes) in known.items()}
    return tuple(step.with_measured(workspace) for step in steps)


def record_again(steps: tuple[CapturedStep, ...], signatures: frozenset[str]) -> dict[str, AllocationScript]:
    """Run these operators again, and return the scripts of those that have a repeatable one.

    An operator is left out if it fails on inputs made from its metadata, or if there is too little memory to record
    it. The state of the random generator is restored.
    """
    arena = serving()
    if arena is None:
        return {}
    scripts = {}
    random_state = torch.get_rng_state()
    try:
        for signature, item in kernels(steps).items():
            if signature in signatures:
                with suppress(RuntimeError, MemoryError, InvariantError):
                    record, refused_bytes = try_record(arena, *item)
                    if record is not None and not refused_bytes and record[0].steady:
                        scripts[signature] = record[0]
    finally:
        arena.recorded()  # an operator that failed has left the recording on
        torch.set_rng_state(random_state)
        arena.trim()
    return scripts


def add_scripts(steps: tuple[CapturedStep, ...]) -> tuple[CapturedStep, ...]:
    """Return the steps with a script for every operator, including operators that an earlier process calibrated.

    Returns the steps unchanged if tensors are not served from an arena. An operator gets no script if there is too
    little memory to record it. The state of the random generator is restored.
    """
    arena = serving()
    if arena is None:
        return steps
    random_state = torch.get_rng_state()
    try:
        missing = {s: item for s, item in kernels(steps).items() if not any(s in step.scripts for step in steps)}
        recorded = {signature: try_record(arena, *item) for signature, item in missing.items()}
        scripts = {s: record[0] for s, (record, refused) in recorded.items() if record and not refused}
    finally:
        torch.set_rng_state(random_state)
        arena.trim()
    return with_scripts(steps, scripts)


def with_scripts(steps: tuple[CapturedStep, ...], scripts: dict[str, AllocationScript]) -> tuple[CapturedStep, ...]:
    """Return the steps with these scripts, by signature, in place of their present ones."""
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
    needed = [accessed_bytes(step, call) for step, call in work]
    fits = [item for item, size_bytes in zip(work, needed, strict=True) if size_bytes <= grant_bytes]
    return fits, max([0, *(size_bytes - grant_bytes for size_bytes in needed)])


def _latencies(work: _Work, memory: Mapping[str, OperatorMemory], grant_bytes: int) -> dict[str, int]:
    """Return the nanoseconds of each call, by signature."""
    place = site()
    if place is None:
        workspace_bytes = {signature: used.workspace_bytes for signature, used in memory.items()}
        return time_in_turns(work, workspace_bytes, grant_bytes)
    return {call.signature: _measure_time(step, call) for step, call in work}


def _measure_time(step: CapturedStep, call: Call, runs: int = _TIMED_RUNS) -> int:
    prepared = PreparedCall(step, call)
    place = site()
    if place is None:
        return alternate([(prepared.context, prepared.run)], runs)[0]
    with prepared.context():
        return place.timer.time_ns(prepared.run)
