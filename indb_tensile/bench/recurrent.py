"""The step graph of an unrolled recurrent network of any length, the second family for questions of size.

One layer of long short-term memory: every time step reads the same weights, and what it makes for its backward pass
waits as long as the steps after it take. So the weights never leave, nearly all memory is activations of a few sizes,
and their gaps are nested all the way from the first step to the last: what a residual network's blocks, each with
parameters of its own, are not. Weights' gradients are added up in place over all steps, and Adam comes last.
"""

from indb_tensile.bench.graph_builder import GraphBuilder
from indb_tensile.scheduler.graph import Role, Stage, StepGraph, TensorId

_BATCH = 64
_HIDDEN = 1024
_OPERATORS_PER_STEP = 14  # forward and backward
_STATE_BYTES = 4 * _BATCH * _HIDDEN
_GATES = 4


def recurrent(operators: int) -> StepGraph:
    """An unrolled recurrent network of as many time steps as make at least so many operators."""
    return _Builder().build(max(1, -(-operators // _OPERATORS_PER_STEP)))


class _Builder(GraphBuilder):
    """Forward through all time steps, back through them, and one update for each parameter."""

    def build(self, steps: int) -> StepGraph:
        """Upload, forward, backward, Adam."""
        x = self.tensor("x", steps * _STATE_BYTES // 16, Role.INPUT)
        self.operator("upload", Stage.UPLOAD, (), (x,))
        square_bytes = 4 * _GATES * _HIDDEN**2
        self._weights = self.tensor("weights", square_bytes, Role.PARAMETER)
        self._gradient = self.tensor("weights.gradient", square_bytes, Role.ACTIVATION)
        hidden, cell = (self._activation(name) for name in ("hidden", "cell"))
        for made in (hidden, cell):
            self.operator("zeros", Stage.FORWARD, (), (made,))
        kept = []
        for _ in range(steps):
            hidden, cell, step = self._forward(x, hidden, cell)
            kept.append(step)
        self._backward(hidden, kept)
        self.adam(self._weights, self._gradient)
        return self.graph("recurrent")

    def _forward(
        self, x: TensorId, hidden: TensorId, cell: TensorId
    ) -> tuple[TensorId, TensorId, tuple[TensorId, ...]]:
        """Add one time step. Returns the next hidden and cell state, and what its backward pass reads."""
        joined = self._made("cat", Stage.FORWARD, (x, hidden))
        product = self._made("mm", Stage.FORWARD, (joined, self._weights), _GATES, 2 * _BATCH * _GATES * _HIDDEN**2)
        gates = self._made("gates", Stage.FORWARD, (product,), _GATES)
        after = self._made("cell", Stage.FORWARD, (gates, cell))
        bent = self._made("tanh", Stage.FORWARD, (after,))
        out = self._made("hidden", Stage.FORWARD, (gates, bent))
        return out, after, (joined, gates, cell, bent)

    def _backward(self, hidden: TensorId, kept: list[tuple[TensorId, ...]]) -> None:
        of_hidden = self._made("loss", Stage.BACKWARD, (hidden,))
        of_cell = self._made("zeros", Stage.BACKWARD, ())
        flops = 2 * _BATCH * _GATES * _HIDDEN**2
        for number, (joined, gates, cell, bent) in enumerate(reversed(kept)):
            of_bent = self._made("mul", Stage.BACKWARD, (of_hidden, gates))
            through = self._made("tanh_backward", Stage.BACKWARD, (of_bent, bent))
            self.operator("add_", Stage.BACKWARD, (of_cell, through), (of_cell,))
            of_gates = self._made("gates_backward", Stage.BACKWARD, (of_cell, of_hidden, gates, cell, bent), _GATES)
            of_cell = self._made("mul", Stage.BACKWARD, (of_cell, gates))
            read = (joined, of_gates) if number == 0 else (joined, of_gates, self._gradient)
            self.operator("addmm_", Stage.BACKWARD, read, (self._gradient,), flops)
            of_joined = self._made("mm", Stage.BACKWARD, (of_gates, self._weights), 1, flops)
            of_hidden = self._made("narrow", Stage.BACKWARD, (of_joined,))

    def _made(self, name: str, stage: Stage, reads: tuple[TensorId, ...], width: int = 1, flops: int = 0) -> TensorId:
        """What one more operator makes, `width` times as large as a state."""
        made = self._activation(name, width)
        self.operator(name, stage, reads, (made,), flops or width * _STATE_BYTES // 4)
        return made

    def _activation(self, name: str, width: int = 1) -> TensorId:
        return self.tensor(name, width * _STATE_BYTES, Role.ACTIVATION)
