"""Kinds of jobs for `bench trace`, with the planner's own trade-offs of memory and time.

The networks are those that the harness builds without torch: residual networks, which are nearly all activations,
unrolled recurrent ones, which are small and fast, and perceptrons, which are nearly all parameters and optimizer
state. Their trade-offs are the planner's for the reference machine. A job's own trade-offs are those of its kind,
scaled: `scaled` stands for another batch size, which changes memory and time alike.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from indb_tensile.bench.harness.networks.graph_builder import GraphBuilder
from indb_tensile.bench.harness.networks.recurrent import recurrent
from indb_tensile.bench.harness.networks.residual import residual
from indb_tensile.job import JobId
from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.graph import Role, Stage, StepGraph
from indb_tensile.scheduler.timing.machines import REFERENCE, latencies
from indb_tensile.scheduler.trade_offs import trade_offs
from indb_tensile.scheduler.workload import Workload

_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """A network with its trade-offs, from the plan with the most memory to the one with the least.

    `state_bytes` are parameters and optimizer state: what has to move when a job leaves the device or returns.
    """

    name: str
    trade_offs: tuple[TradeOff, ...]
    state_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The memory that the job needs without plans."""
        return self.trade_offs[0].peak_bytes

    def scaled(self, factor: float) -> "JobKind":
        """Return the same network with all sizes and times multiplied by `factor`."""
        points = tuple(
            TradeOff(
                peak_bytes=round(point.peak_bytes * factor),
                iteration_ns=round(point.iteration_ns * factor),
                compute_ns=round(point.compute_ns * factor),
                stall_ns=round(point.stall_ns * factor),
                out_ns=round(point.out_ns * factor),
                in_ns=round(point.in_ns * factor),
            )
            for point in self.trade_offs
        )
        return replace(self, trade_offs=points, state_bytes=round(self.state_bytes * factor))


@cache
def job_kinds() -> tuple[JobKind, ...]:
    """Return all kinds. The first call plans each of them, which takes about a second."""
    graphs: dict[str, Callable[[], StepGraph]] = {
        "residual 16 blocks": lambda: residual(400),
        "residual 24 blocks": lambda: residual(600),
        "residual 48 blocks": lambda: residual(1_200),
        "recurrent 50 steps": lambda: recurrent(700),
        "perceptron 16 layers": lambda: perceptron(16, 2_048),
        "perceptron 32 layers": lambda: perceptron(32, 2_048),
    }
    return tuple(_kind(name, build()) for name, build in graphs.items())


def _kind(name: str, graph: StepGraph) -> JobKind:
    workload = Workload(job=JobId(1), graphs=(graph,), latency_ns=(latencies(graph, REFERENCE),))
    return JobKind(
        name=name,
        trade_offs=trade_offs(workload, link=REFERENCE.link),
        state_bytes=sum(tensor.size_bytes for tensor in graph.tensors if tensor.persistent),
    )


def perceptron(layers: int, width: int) -> StepGraph:
    """Return the training step of a perceptron of equally wide layers with Adam, nearly all parameters and state."""
    return _Perceptron().build(layers, width)


class _Perceptron(GraphBuilder):
    """Adds a matrix product and an activation function for each layer, the backward pass, and Adam."""

    def build(self, layers: int, width: int) -> StepGraph:
        """Build upload, forward pass, backward pass and Adam."""
        value_bytes, weight_bytes = 4 * _BATCH * width, 4 * width**2
        flops = 2 * _BATCH * width**2
        value = self.tensor("x", value_bytes, Role.INPUT)
        self.operator("upload", Stage.UPLOAD, (), (value,))
        saved = []
        for _ in range(layers):
            weight = self.tensor("weight", weight_bytes, Role.PARAMETER)
            product, output = (self.tensor(name, value_bytes, Role.ACTIVATION) for name in ("mm", "relu"))
            self.operator("mm", Stage.FORWARD, (value, weight), (product,), flops)
            self.operator("relu", Stage.FORWARD, (product,), (output,), value_bytes // 4)
            saved.append((value, weight, output))
            value = output
        gradient = self.tensor("gradient", value_bytes, Role.ACTIVATION)
        self.operator("loss", Stage.BACKWARD, (value,), (gradient,))
        updates = []
        for read, weight, output in reversed(saved):
            through, onward = (self.tensor(name, value_bytes, Role.ACTIVATION) for name in ("through", "gradient"))
            of_weight = self.tensor("weight.gradient", weight_bytes, Role.ACTIVATION)
            self.operator("relu_backward", Stage.BACKWARD, (gradient, output), (through,), value_bytes // 4)
            self.operator("mm_weight", Stage.BACKWARD, (through, read), (of_weight,), flops)
            self.operator("mm_value", Stage.BACKWARD, (through, weight), (onward,), flops)
            updates.append((weight, of_weight))
            gradient = onward
        for weight, of_weight in updates:
            self.adam(weight, of_weight)
        return self.graph("perceptron")
