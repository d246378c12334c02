"""Builds the step graph of a residual network of any depth, for tests of size beyond any known network.

The network has bottleneck blocks as in ResNet-50: convolution, normalisation and ReLU, an addition, their backward
passes, gradients of a block's input accumulated in place, and Adam for every parameter. Nothing is captured, so ten
thousand operators take no time to build.
"""

from collections.abc import Iterator, Sequence

from indb_tensile.bench.harness.networks.graph_builder import GraphBuilder
from indb_tensile.scheduler.graph import Role, Stage, StepGraph, TensorId

_BATCH = 16
_OPERATORS_PER_BLOCK = 25  # including the backward pass and the updates
_STAGES = ((64, 56), (128, 28), (256, 14), (512, 7))  # channels and pixels of ResNet's four stages


def residual(operators: int) -> StepGraph:
    """Return a residual network of bottleneck blocks with at least `operators` operators."""
    blocks = -(-operators // _OPERATORS_PER_BLOCK) + 1
    return _Builder().build([_STAGES[block * len(_STAGES) // blocks] for block in range(blocks)])


class _Builder(GraphBuilder):
    """Adds forward layers and records them in `_layers`, from which it adds the backward pass, last layer first."""

    def __init__(self) -> None:
        super().__init__()
        self._layers: list[tuple[str, TensorId, TensorId, TensorId, TensorId | None, int]] = []
        self._gradient: dict[TensorId, TensorId] = {}

    def build(self, blocks: Sequence[tuple[int, int]]) -> StepGraph:
        """Build upload, forward pass, backward pass and Adam."""
        channels, pixels = blocks[0]
        value = self.tensor("x", self._bytes(4 * channels, pixels), Role.INPUT)
        self.operator("upload", Stage.UPLOAD, (), (value,))
        for channels, pixels in blocks:
            value = self._block(value, channels, pixels)
        self._gradient[value] = self.tensor("gradient", self.tensors[value].size_bytes, Role.ACTIVATION)
        self.operator("loss", Stage.BACKWARD, (value,), (self._gradient[value],))
        updates = [update for step in reversed(self._layers) for update in self._backward(*step)]
        for parameter, gradient in updates:
            self.adam(parameter, gradient)
        return self.graph("residual")

    def _block(self, value: TensorId, channels: int, pixels: int) -> TensorId:
        branch = value
        for kernel, width in ((1, channels), (3, channels), (1, 4 * channels)):
            branch = self._layer("convolution", branch, channels * width * kernel**2, width, pixels)
            branch = self._layer("normalisation", branch, 2 * width, width, pixels)
            if width == channels:
                branch = self._layer("relu", branch, 0, width, pixels)
        if self.tensors[value].size_bytes != self.tensors[branch].size_bytes:
            return self._layer("relu", branch, 0, 4 * channels, pixels)
        return self._layer("add", branch, 0, 4 * channels, pixels, value)

    def _layer(
        self, name: str, value: TensorId, weights: int, width: int, pixels: int, other: TensorId | None = None
    ) -> TensorId:
        output = self.tensor(name, self._bytes(width, pixels), Role.ACTIVATION)
        parameter = self.tensor(f"{name}.weight", 4 * weights, Role.PARAMETER) if weights else output
        flops = 2 * _BATCH * pixels**2 * max(weights, width)
        reads = [value] if other is None else [value, other]
        self.operator(name, Stage.FORWARD, (*reads, *([parameter] if weights else [])), (output,), flops)
        self._layers.append((name, value, output, parameter, other, flops))
        return output

    def _backward(
        self, name: str, value: TensorId, output: TensorId, parameter: TensorId, other: TensorId | None, flops: int
    ) -> Iterator[tuple[TensorId, TensorId]]:
        gradient = self._gradient.pop(output)
        if other is not None:
            self._gradient[other] = gradient  # an addition passes its gradient to both inputs
        for_value = self.tensor(f"{name}.gradient", self.tensors[value].size_bytes, Role.ACTIVATION)
        trained = parameter != output
        writes = [for_value]
        if trained:
            size_bytes = self.tensors[parameter].size_bytes
            writes.append(self.tensor(f"{name}.weight.gradient", size_bytes, Role.ACTIVATION))
        saved = output if name == "relu" else value
        self.operator(
            f"{name}_backward",
            Stage.BACKWARD,
            (gradient, saved, *([parameter] if trained else [])),
            tuple(writes),
            2 * flops,
        )
        known = self._gradient.get(value)
        if known is not None:
            self.operator("add_gradients", Stage.BACKWARD, (known, for_value), (for_value,), flops)
        self._gradient[value] = for_value
        if trained:
            yield parameter, writes[1]

    def _bytes(self, width: int, pixels: int) -> int:
        return 4 * _BATCH * width * pixels**2
