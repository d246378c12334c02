"""Builds the step graph of an unrolled recurrent network of any length, to test the planner on large graphs.

The network is one layer of long short-term memory. Every time step reads the same weights, and the tensors that it
saves for its backward pass stay for as long as all later steps take. So the weights never leave the device, nearly
all memory is activations of a few sizes, and their gaps are nested from the first step to the last. The other
large graphs, of residual networks (residual.py), differ: each block has parameters of its own. The gradient of the
weights is accumulated in place over all steps, and Adam comes last.
"""

from indb_tensile.bench.harness.networks.graph_builder import GraphBuilder
from indb_tensile.scheduler.graph import Role, Stage, StepGraph, TensorId

_BATCH = 64
_HIDDEN = 1024
_OPERATORS_PER_STEP = 14  # forward and backward
_STATE_BYTES = 4 * _BATCH * _HIDDEN
_GATES = 4


def recurrent(operators: int) -> StepGraph:
    """Return an unrolled recurrent network with the fewest time steps that give at least `operators` operators."""
    return _Builder().build(max(1, -(-operators // _OPERATORS_PER_STEP)))


class _Builder(GraphBuilder):
    """Adds the forward pass through all time steps, the backward pass, and one Adam update of the weights."""

    def build(self, steps: int) -> StepGraph:
        """Build upload, forward pass, backward pass and Adam for `steps` time steps."""
        x = self.tensor("x", steps * _STATE_BYTES // 16, Role.INPUT)
        self.operator("upload", Stage.UPLOAD, (), (x,))
        square_bytes = 4 * _GATES * _HIDDEN**2
        self._weights = self.tensor("weights", square_bytes, Role.PARAMETER)
        self._gradient = self.tensor("weights.gradient", square_bytes, Role.ACTIVATION)
        hidden, cell = (self._activation(name) for name in ("hidden", "cell"))
        for state in (hidden, cell):
            self.operator("zeros", Stage.FORWARD, (), (state,))
        saved = []
        for _ in range(steps):
            hidden, cell, step = self._forward(x, hidden, cell)
            saved.append(step)
        self._backward(hidden, saved)
        self.adam(self._weights, self._gradient)
        return self.graph("recurrent")

    def _forward(
        self, x: TensorId, hidden: TensorId, cell: TensorId
    ) -> tuple[TensorId, TensorId, tuple[TensorId, ...]]:
        """Add one time step. Returns the next hidden and cell state, and the tensors that its backward pass reads."""
        joined = self._add("cat", Stage.FORWARD, (x, hidden))
        product = self._add("mm", Stage.FORWARD, (joined, self._weights), _GATES, 2 * _BATCH * _GATES * _HIDDEN**2)
        gates = self._add("gates", Stage.FORWARD, (product,), _GATES)
        after = self._add("cell", Stage.FORWARD, (gates, cell))
        bent = self._add("tanh", Stage.FORWARD, (after,))
        out = self._add("hidden", Stage.FORWARD, (gates, bent))
        return out, after, (joined, gates, cell, bent)

    def _backward(self, hidden: TensorId, saved: list[tuple[TensorId, ...]]) -> None:
        of_hidden = self._add("loss", Stage.BACKWARD, (hidden,))
        of_cell = self._add("zeros", Stage.BACKWARD, ())
        flops = 2 * _BATCH * _GATES * _HIDDEN**2
        for number, (joined, gates, cell, bent) in enumerate(reversed(saved)):
            of_bent = self._add("mul", Stage.BACKWARD, (of_hidden, gates))
            through = self._add("tanh_backward", Stage.BACKWARD, (of_bent, bent))
            self.operator("add_", Stage.BACKWARD, (of_cell, through), (of_cell,))
            of_gates = self._add("gates_backward", Stage.BACKWARD, (of_cell, of_hidden, gates, cell, bent), _GATES)
            of_cell = self._add("mul", Stage.BACKWARD, (of_cell, gates))
            read = (joined, of_gates) if number == 0 else (joined, of_gates, self._gradient)
            self.operator("addmm_", Stage.BACKWARD, read, (self._gradient,), flops)
            of_joined = self._add("mm", Stage.BACKWARD, (of_gates, self._weights), 1, flops)
            of_hidden = self._add("narrow", Stage.BACKWARD, (of_joined,))

    def _add(self, name: str, stage: Stage, reads: tuple[TensorId, ...], width: int = 1, flops: int = 0) -> TensorId:
        """Add an operator and return the tensor that it writes, `width` times as large as a state."""
        output = self._activation(name, width)
        self.operator(name, stage, reads, (output,), flops or width * _STATE_BYTES // 4)
        return output

    def _activation(self, name: str, width: int = 1) -> TensorId:
        return self.tensor(name, width * _STATE_BYTES, Role.ACTIVATION)
