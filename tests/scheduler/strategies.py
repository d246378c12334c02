"""Strategies for random but valid step graphs, jobs and links: the inputs of the scheduler's property tests."""

from dataclasses import replace

from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.workload import Workload

_PERSISTENT = (Role.PARAMETER, Role.OPTIMIZER_STATE, Role.BUFFER)

sizes = st.integers(min_value=1, max_value=40)


@st.composite
def links(draw: st.DrawFn) -> Link:
    """Draw a link that copies a byte in 50 to 2,000 ns."""
    rates = st.integers(min_value=500_000, max_value=20_000_000)
    return Link(out_bytes_per_s=draw(rates), in_bytes_per_s=draw(rates), per_copy_ns=draw(st.integers(0, 300)))


@st.composite
def persistent_tensors(draw: st.DrawFn) -> tuple[Tensor, ...]:
    """Draw parameters, optimizer state and buffers, which all graphs of a job share."""
    count = draw(st.integers(min_value=0, max_value=4))
    return tuple(
        Tensor(id=TensorId(i), name=f"p{i}", size_bytes=draw(sizes), role=draw(st.sampled_from(_PERSISTENT)))
        for i in range(count)
    )


@st.composite
def graphs(draw: st.DrawFn, persistent: tuple[Tensor, ...] | None = None) -> StepGraph:
    """Draw a graph whose operators read live tensors and write new tensors or update live tensors in place."""
    tensors = list(draw(persistent_tensors()) if persistent is None else persistent)
    operators: list[Operator] = []
    alive = [t.id for t in tensors]
    if draw(st.booleans()):
        tensors.append(Tensor(id=TensorId(len(tensors)), name="batch", size_bytes=draw(sizes), role=Role.INPUT))
        alive.append(tensors[-1].id)
        operators.append(_operator("upload", Stage.UPLOAD, (), (alive[-1],)))
    for index in range(draw(st.integers(min_value=1, max_value=14))):
        reads = draw(st.lists(st.sampled_from(alive), max_size=3, unique=True)) if alive else []
        writes = draw(st.lists(st.sampled_from(alive), max_size=1)) if alive else []
        if draw(st.integers(0, 2)):
            tensor = Tensor(id=TensorId(len(tensors)), name=f"a{index}", size_bytes=draw(sizes), role=Role.ACTIVATION)
            tensors.append(tensor)
            alive.append(tensor.id)
            writes.append(tensor.id)
        workspace = draw(st.sampled_from((0, 0, 0, 5, 60)))
        operators.append(_operator(f"op{index}", Stage.FORWARD, tuple(reads), tuple(writes), workspace))
    return StepGraph(tensors=tuple(tensors), operators=tuple(operators))


@st.composite
def graphs_with_exchanges(draw: st.DrawFn, persistent: tuple[Tensor, ...] | None = None) -> StepGraph:
    """Draw a graph of which up to three activations are exchanged with other devices after their last use.

    All exchanges have one more tensor in common. They are waited for at the end, and some are read then.
    """
    graph = draw(graphs(persistent))
    last = {t: k for k, operator in enumerate(graph.operators) for t in operator.tensors}
    made = sorted(t for t in last if graph.tensors[t].role is Role.ACTIVATION)
    chosen = sorted(draw(st.sets(st.sampled_from(made), max_size=3)) if made else (), key=lambda t: (last[t], t))
    if not chosen:
        return graph
    room = Tensor(id=TensorId(len(graph.tensors)), name="room", size_bytes=draw(sizes), role=Role.ACTIVATION)
    operators: list[Operator] = []
    for k, operator in enumerate(graph.operators):
        operators.append(operator)
        for number, tensor in enumerate(chosen):
            if last[tensor] == k:
                operators += [_operator("room", Stage.BACKWARD, (), (room.id,))] if number == 0 else []
                operators.append(_exchange((tensor, room.id), starts=number))
    for number, tensor in enumerate(chosen):
        operators.append(_exchange((tensor, room.id), awaits=number))
        if draw(st.booleans()):
            operators.append(_operator(f"use{number}", Stage.OPTIMIZER, (tensor,), ()))
    return StepGraph(tensors=(*graph.tensors, room), operators=tuple(operators))


def _exchange(tensors: tuple[TensorId, ...], *, starts: int | None = None, awaits: int | None = None) -> Operator:
    name = f"start{starts}" if awaits is None else f"await{awaits}"
    return replace(_operator(name, Stage.BACKWARD, tensors, tensors), random=True, starts=starts, awaits=awaits)


@st.composite
def workloads(draw: st.DrawFn, job: int = 1, graphs_each: int = 2, *, exchanges: bool = False) -> Workload:
    """Draw a job of one or more graphs over the same persistent tensors, with `exchanges` some of several devices."""
    persistent = draw(persistent_tensors())
    drawn = graphs(persistent)
    either = st.one_of(drawn, graphs_with_exchanges(persistent)) if exchanges else drawn
    steps = tuple(draw(either) for _ in range(draw(st.integers(1, graphs_each))))
    return Workload(
        job=JobId(job),
        graphs=steps,
        latency_ns=tuple(draw(latencies(step)) for step in steps),
        max_swapping_rate=draw(st.sampled_from((1.0, 1.0, 0.5, 0.2))),
    )


@st.composite
def several_workloads(draw: st.DrawFn, most: int = 3, *, exchanges: bool = False) -> tuple[Workload, ...]:
    """Draw one to `most` jobs."""
    return tuple(draw(workloads(job, exchanges=exchanges)) for job in range(1, draw(st.integers(1, most)) + 1))


def latencies(graph: StepGraph) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw nanoseconds for each operator, not all of them 0."""
    count = len(graph.operators)
    each = st.lists(st.integers(min_value=0, max_value=20_000), min_size=count, max_size=count)
    return each.filter(any).map(tuple)


def _operator(
    name: str, stage: Stage, reads: tuple[TensorId, ...], writes: tuple[TensorId, ...], workspace_bytes: int = 0
) -> Operator:
    return Operator(
        name=name, signature=name, stage=stage, reads=reads, writes=writes, workspace_bytes=workspace_bytes
    )
