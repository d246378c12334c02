"""Check the trace of a timeline: every event is in its row, and the counter shows the memory that operators hold."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, liveness_peak, load
from indb_tensile.scheduler.plan import Execution, Infeasible, Plan, Swap
from indb_tensile.scheduler.planner import Workload, least_bytes, plan_jobs
from indb_tensile.scheduler.timing.job_runs import Event, EventKind, JobRun
from indb_tensile.scheduler.timing.simulate import timeline
from indb_tensile.scheduler.timing.trace_events import trace_events
from tests.nightly import some_examples
from tests.scheduler.strategies import links, several_workloads

P, A = TensorId(0), TensorId(1)


def test_operators_copies_and_waits_have_rows_of_their_own() -> None:
    """p leaves after operator 0 and is late for operator 2, `last`. Operator 1 runs again just before operator 2."""
    executions = tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 1, 2))
    swap = Swap(tensor=P, out_after=OpIndex(0), free_at=OpIndex(1), in_at=OpIndex(2), needed_by=OpIndex(3))
    run = JobRun(graph=_graph(), plan=Plan(policy="test", executions=executions, swaps=(swap,)), latency_ns=(9, 8, 7))
    events = (
        _event(EventKind.COMPUTE, 0, None, 5_000, 6_000),
        _event(EventKind.SWAP_OUT, 1, P, 6_000, 6_500),
        _event(EventKind.LATE_OUT, 1, P, 6_000, 6_500),
        _event(EventKind.COMPUTE, 2, None, 6_500, 6_501),
        _event(EventKind.SWAP_IN, 2, P, 6_500, 8_500),
        _event(EventKind.UPLOAD, 3, None, 8_500, 8_501),
    )
    trace = json.loads(trace_events([run], ["net"], events))
    assert trace["displayTimeUnit"] == "ms"
    metadata = [(e["name"], e["tid"], e["args"]) for e in trace["traceEvents"] if e["ph"] == "M" and "tid" in e]
    assert [n for n in metadata if n[0] == "thread_name"] == [
        ("thread_name", 1, {"name": "operators"}),
        ("thread_name", 2, {"name": "waits"}),
        ("thread_name", 3, {"name": "copies to the host"}),
        ("thread_name", 4, {"name": "copies to the device"}),
    ]
    assert [_slice(e) for e in trace["traceEvents"] if e["ph"] == "X"] == [
        (1, "first", 0.0, 1.0, {"operator": 0, "stage": "forward", "recomputed": False, "workspace_bytes": 0}),
        (3, "swap out of p", 1.0, 0.5, {"operator": 1, "stage": "forward", "tensor": 0, "size_bytes": 100}),
        (2, "late swap-out of p", 1.0, 0.5, {"operator": 1, "stage": "forward", "tensor": 0, "size_bytes": 100}),
        (
            1,
            "make (recomputed)",
            1.5,
            0.001,
            {"operator": 2, "stage": "forward", "recomputed": True, "workspace_bytes": 7},
        ),
        (4, "swap in of p", 1.5, 2.0, {"operator": 2, "stage": "forward", "tensor": 0, "size_bytes": 100}),
        (2, "upload", 3.5, 0.001, {"operator": 3, "stage": "backward"}),
    ]
    counter = [(e["ts"], e["args"]) for e in trace["traceEvents"] if e["ph"] == "C"]
    # p is away at operator 1. At operator 2 p has its memory again, and the recomputed tensor lives until operator 3.
    assert counter == [(0.0, {"bytes": 100}), (1.5, {"bytes": 100 + 20 + 7})]


@some_examples()
@given(several_workloads(), links(), st.floats(0.0, 1.0))
def test_every_event_of_a_timeline_is_in_the_trace(workloads: tuple[Workload, ...], link: Link, share: float) -> None:
    least = sum(least_bytes(w) for w in workloads)
    extra = sum(max(liveness_peak(graph) for graph in w.graphs) for w in workloads) - least
    planned = plan_jobs(workloads, budget_bytes=least + round(share * extra), link=link)
    plans = [LIVENESS] * len(workloads) if isinstance(planned, Infeasible) else [p.plans[0] for p in planned]
    runs = [
        JobRun(graph=w.graphs[0], plan=plan, latency_ns=w.latency_ns[0])
        for w, plan in zip(workloads, plans, strict=True)
    ]
    events = timeline(runs, link)
    trace = json.loads(trace_events(runs, [f"net {k}" for k in range(len(runs))], events))["traceEvents"]
    slices = [e for e in trace if e["ph"] == "X"]
    assert [(e["pid"], e["cat"], e["args"]["operator"]) for e in slices] == [
        (e.job, e.kind.value, e.operator) for e in events
    ]
    assert min(e["ts"] for e in slices) == 0
    operator_events = [e for e in events if e.kind is EventKind.COMPUTE]
    loads = [load(runs[e.job].graph, plans[e.job])[e.operator] for e in operator_events]
    assert [e["args"]["bytes"] for e in trace if e["ph"] == "C"] == loads
    for row in {(e["pid"], e["tid"]) for e in slices}:
        stretches = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if (e["pid"], e["tid"]) == row)
        # A viewer draws a row of stretches that do not overlap. Each time is rounded to a nanosecond.
        assert all(end <= start + 0.0021 for (_, end), (start, _) in pairwise(stretches))


def test_job_is_named_after_its_network() -> None:
    run = JobRun(graph=_graph(), plan=LIVENESS, latency_ns=(9, 8, 7))
    trace = json.loads(trace_events([run, run], ["resnet", "vgg"], ()))["traceEvents"]
    assert [(e["pid"], e["args"]["name"]) for e in trace if e["name"] == "process_name"] == [
        (0, "job 0: resnet"),
        (1, "job 1: vgg"),
    ]


def _slice(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["tid"], event["name"], event["ts"], event["dur"], event["args"]


def _event(kind: EventKind, operator: int, tensor: TensorId | None, start_ns: int, end_ns: int) -> Event:
    return Event(job=0, kind=kind, operator=OpIndex(operator), tensor=tensor, start_ns=start_ns, end_ns=end_ns)


def _graph() -> StepGraph:
    def operator(name: str, stage: Stage, reads: tuple[TensorId, ...], writes: tuple[TensorId, ...]) -> Operator:
        workspace_bytes = 7 if name == "make" else 0
        return Operator(
            name=name, signature=name, stage=stage, reads=reads, writes=writes, workspace_bytes=workspace_bytes
        )

    return StepGraph(
        tensors=(
            Tensor(id=P, name="p", size_bytes=100, role=Role.PARAMETER),
            Tensor(id=A, name="a", size_bytes=20, role=Role.ACTIVATION),
        ),
        operators=(
            operator("first", Stage.FORWARD, (P,), ()),
            operator("make", Stage.FORWARD, (), (A,)),
            operator("last", Stage.BACKWARD, (P, A), ()),
        ),
    )
