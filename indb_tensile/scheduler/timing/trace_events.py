"""Write a simulated timeline as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing can open.

Each job is a process of the trace with four rows and a counter: its operators, its waits before them, its copies to
the host, its copies to the device, and its bytes on the device. Uploads are in the row of waits, because a job waits
from the request of its batch until the batch is there. Jobs share the lanes. If two jobs copy at the same time, both
rows show the copy for as long as it takes beside the other one.

The format is the "JSON Object Format" of the Trace Event Format: times in microseconds, `X` a duration, `C` a
counter, `M` a name.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.memory.peak import load
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import captured_order, effective
from indb_tensile.scheduler.timing.simulate import Event, EventKind, JobRun

_OPERATORS, _WAITS, _TO_HOST, _TO_DEVICE = range(1, 5)
_ROWS: Mapping[int, str] = MappingProxyType(
    {_OPERATORS: "operators", _WAITS: "waits", _TO_HOST: "copies to the host", _TO_DEVICE: "copies to the device"}
)
_ROW_OF: Mapping[EventKind, int] = MappingProxyType(
    {EventKind.COMPUTE: _OPERATORS, EventKind.SWAP_OUT: _TO_HOST, EventKind.SWAP_IN: _TO_DEVICE}
)
_NS_PER_US = 1_000


def trace_events(runs: Sequence[JobRun], names: Sequence[str], events: Sequence[Event]) -> str:
    """Return the trace of these events, which `simulate.timeline` made of these runs. The first event
    is at time 0.
    """
    jobs = [_job(run) for run in runs]
    start_ns = min((event.start_ns for event in events), default=0)
    items = [item for number, name in enumerate(names) for item in _names(number, name)]
    for event in events:
        items += _event(jobs[event.job], event, start_ns)
    lines = ",\n".join(json.dumps(item, separators=(",", ":")) for item in items)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'


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


def _names(number: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": f"job {number}: {name}"}}
    yield {"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": number}}
    for row, title in _ROWS.items():
        yield {"ph": "M", "pid": number, "tid": row, "name": "thread_name", "args": {"name": title}}
        yield {"ph": "M", "pid": number, "tid": row, "name": "thread_sort_index", "args": {"sort_index": row}}


def _event(job: _Job, event: Event, start_ns: int) -> Iterator[dict[str, Any]]:
    start_us = (event.start_ns - start_ns) / _NS_PER_US
    yield {
        "ph": "X",
        "pid": event.job,
        "tid": _ROW_OF.get(event.kind, _WAITS),
        "name": _title(job, event),
        "cat": event.kind.value,
        "ts": start_us,
        "dur": (event.end_ns - event.start_ns) / _NS_PER_US,
        "args": _details(job, event),
    }
    if event.kind is EventKind.COMPUTE:
        bytes_on_device = job.load_bytes[event.operator]
        yield {
            "ph": "C",
            "pid": event.job,
            "name": "device memory",
            "ts": start_us,
            "args": {"bytes": bytes_on_device},
        }


def _title(job: _Job, event: Event) -> str:
    operator = job.graph.operators[event.operator]
    if event.kind is EventKind.COMPUTE:
        return operator.name
    if event.tensor is None:
        return event.kind.value
    return f"{event.kind.value} of {job.graph.tensors[event.tensor].name}"


def _details(job: _Job, event: Event) -> dict[str, Any]:
    operator = job.graph.operators[event.operator]
    details: dict[str, Any] = {"operator": event.operator, "stage": operator.stage.value}
    if event.kind is EventKind.COMPUTE:
        details["recomputed"] = event.operator not in job.first_runs
        details["workspace_bytes"] = operator.workspace_bytes
    if event.tensor is not None:
        details["tensor"] = event.tensor
        details["size_bytes"] = job.graph.tensors[event.tensor].size_bytes
    return details
