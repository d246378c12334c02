"""Write simulated and recorded iterations as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing can open.

Each track is a process of the trace with four rows and a counter: its operators, its waits before them, its copies to
the host, its copies to the device, and its bytes on the device. A job on several devices also has a row of its
exchanges with them. Uploads are in the row of waits, because a job waits from the request of its batch until it
is there. Jobs share the lanes. If two jobs copy at the same time, both rows show the copy for as long as it takes
beside the other one. A recorded track has one more row: its iterations, and what it did between them.

The format is the "JSON Object Format" of the Trace Event Format: times in microseconds, `X` a duration, `C` a
counter, `M` a name.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from indb_tensile.scheduler.graph import Operator, StepGraph
from indb_tensile.scheduler.memory.peak import load
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import captured_order, effective
from indb_tensile.scheduler.timing.job_runs import Event, EventKind, JobRun
from indb_tensile.scheduler.timing.recorded_iterations import Pause

_OPERATORS, _WAITS, _TO_HOST, _TO_DEVICE, _ITERATIONS, _EXCHANGES = range(1, 7)
_ROWS: Mapping[int, str] = MappingProxyType(
    {_OPERATORS: "operators", _WAITS: "waits", _TO_HOST: "copies to the host", _TO_DEVICE: "copies to the device"}
)
_ROW_OF: Mapping[EventKind, int] = MappingProxyType(
    {
        EventKind.COMPUTE: _OPERATORS,
        EventKind.SWAP_OUT: _TO_HOST,
        EventKind.SWAP_IN: _TO_DEVICE,
        EventKind.EXCHANGE: _EXCHANGES,
    }
)
_NS_PER_US = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Iterations of one job under one plan, with their events. `name` is what the row of iterations calls them.

    `iterations` are their starts and ends; empty for a track that shows no row of them. `used_bytes` are measured
    bytes on the device at moments; without them the counter shows the plan's.
    """

    run: JobRun
    events: Sequence[Event]
    name: str = ""
    iterations: Sequence[tuple[int, int]] = ()
    used_bytes: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What one job does, planned or measured: a process of the trace."""

    name: str
    stretches: Sequence[Stretch]
    pauses: Sequence[Pause] = ()


def trace_events(runs: Sequence[JobRun], names: Sequence[str], events: Sequence[Event]) -> str:
    """Return the trace of these events, which `simulate.timeline` made of these runs. The first event
    is at time 0.
    """
    start_ns = min((event.start_ns for event in events), default=0)
    items: list[dict[str, Any]] = []
    for number, (name, run) in enumerate(zip(names, runs, strict=True)):
        track = Track(name=f"job {number}: {name}", stretches=(Stretch(run=run, events=()),))
        items += _track_names(number, track)
    jobs = [_job(run) for run in runs]
    for event in events:
        items += _event(event.job, jobs[event.job], event, start_ns, counts=True)
    return _text(items)


def trace_tracks(tracks: Sequence[Track]) -> str:
    """Return the trace of these tracks, in their order. The first event is at time 0."""
    stretches = [stretch for track in tracks for stretch in track.stretches]
    starts_ns = [event.start_ns for stretch in stretches for event in stretch.events]
    starts_ns += [start_ns for stretch in stretches for start_ns, _ in stretch.iterations]
    starts_ns += [pause.start_ns for track in tracks for pause in track.pauses]
    start_ns = min(starts_ns, default=0)
    items: list[dict[str, Any]] = []
    for number, track in enumerate(tracks):
        items += _track_names(number, track)
        for stretch in track.stretches:
            items += _stretch(number, stretch, start_ns)
        for pause in track.pauses:
            span = (pause.start_ns, pause.end_ns)
            items.append(_slice(number, _ITERATIONS, pause.kind.value, "pause", span, start_ns, {}))
    return _text(items)


def _text(items: Sequence[Mapping[str, Any]]) -> str:
    lines = ",\n".join(json.dumps(item, separators=(",", ":")) for item in items)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'


def _stretch(number: int, stretch: Stretch, start_ns: int) -> Iterator[dict[str, Any]]:
    job = _job(stretch.run)
    for count, span in enumerate(stretch.iterations, start=1):
        yield _slice(number, _ITERATIONS, f"{stretch.name} {count}", "iteration", span, start_ns, {})
    for event in stretch.events:
        yield from _event(number, job, event, start_ns, counts=not stretch.used_bytes)
    for at_ns, size_bytes in stretch.used_bytes:
        yield _counter(number, (at_ns - start_ns) / _NS_PER_US, size_bytes)


@dataclass(frozen=True, slots=True)
class _Job:
    """The graph that a job runs, and its bytes on the device at each operator."""

    graph: StepGraph
    first_runs: frozenset[int]  # positions at which an operator, or a part of an operator, runs for the first time
    load_bytes: tuple[int, ...]


def _job(run: JobRun) -> _Job:
    cache = PlanCache()
    first: dict[tuple[int, int], int] = {}
    for position, execution in enumerate(run.plan.executions or captured_order(run.graph)):
        first.setdefault((execution.operator, execution.part), position)
    return _Job(effective(run.graph, run.plan, cache), frozenset(first.values()), load(run.graph, run.plan, cache))


def _track_names(number: int, track: Track) -> Iterator[dict[str, Any]]:
    rows = dict(_ROWS)
    if track.pauses or any(stretch.iterations for stretch in track.stretches):
        rows[_ITERATIONS] = "iterations, and pauses between them"
    if any(op.starts is not None for stretch in track.stretches for op in stretch.run.graph.operators):
        rows[_EXCHANGES] = "exchanges with other devices"
    yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": track.name}}
    yield {"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": number}}
    for row, title in rows.items():
        yield {"ph": "M", "pid": number, "tid": row, "name": "thread_name", "args": {"name": title}}
        yield {"ph": "M", "pid": number, "tid": row, "name": "thread_sort_index", "args": {"sort_index": row}}


def _event(number: int, job: _Job, event: Event, start_ns: int, *, counts: bool) -> Iterator[dict[str, Any]]:
    span, row = (event.start_ns, event.end_ns), _ROW_OF.get(event.kind, _WAITS)
    yield _slice(number, row, _title(job, event), event.kind.value, span, start_ns, _details(job, event))
    if counts and event.kind is EventKind.COMPUTE:
        yield _counter(number, (event.start_ns - start_ns) / _NS_PER_US, job.load_bytes[event.operator])


def _slice(
    number: int, row: int, name: str, category: str, span: tuple[int, int], start_ns: int, details: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": number,
        "tid": row,
        "name": name,
        "cat": category,
        "ts": (span[0] - start_ns) / _NS_PER_US,
        "dur": (span[1] - span[0]) / _NS_PER_US,
        "args": details,
    }


def _counter(number: int, at_us: float, size_bytes: int) -> dict[str, Any]:
    return {"ph": "C", "pid": number, "name": "device memory", "ts": at_us, "args": {"bytes": size_bytes}}


def _title(job: _Job, event: Event) -> str:
    operator = _operator(job, event)
    if event.kind is EventKind.COMPUTE:
        return operator.name if event.operator in job.first_runs else f"{operator.name} (recomputed)"
    if event.tensor is None:
        return event.kind.value
    return f"{event.kind.value} of {job.graph.tensors[event.tensor].name}"


def _details(job: _Job, event: Event) -> dict[str, Any]:
    operator = _operator(job, event)
    details: dict[str, Any] = {"operator": event.operator, "stage": operator.stage.value}
    if event.kind is EventKind.COMPUTE:
        details["recomputed"] = event.operator not in job.first_runs
        details["workspace_bytes"] = operator.workspace_bytes
    if event.tensor is not None:
        details["tensor"] = event.tensor
        details["size_bytes"] = job.graph.tensors[event.tensor].size_bytes
    return details


def _operator(job: _Job, event: Event) -> Operator:
    """Return the event's operator. A wait at the iteration's end is one before the next first operator."""
    operators = job.graph.operators
    return operators[event.operator % len(operators)]
