"""Makes inputs for one operator from its metadata, so that it can run alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from indb_tensile.executor.capture.record import Call, Ref, Runtime, Shape, StorageKey, with_leaves
from indb_tensile.executor.capture.step_capture import CapturedStep, StepKind
from indb_tensile.executor.latency.calibration_site import site
from indb_tensile.scheduler.graph import Stage

_PATTERN = 65_537  # floats repeated to fill an input: odd, so that rows differ

# The pivots of a factorisation are row numbers from 1 on. Operators that solve with them check that.
_FACTORISATIONS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "linalg_lu_factor_ex", "linalg_ldl_factor_ex")
)


class OperatorInputs:
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
        return with_leaves(call.args, self._make), with_leaves(call.kwargs, self._make)

    def _make(self, item: Any) -> Any:
        if isinstance(item, Ref):
            return self._value(item.name)
        if isinstance(item, Runtime):
            return 1e-3 if item is Runtime.LEARNING_RATE else False
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
        with gradient_mode(self._step, call):
            made = call.target(*args, **kwargs)
        self._produced[name] = made if call.single else made[call.results.index(name)]

    def _fill(self, shape: Shape) -> torch.Tensor:
        tensor_id = self._step.tensor_of.get(shape.storage)
        size_bytes = 0 if tensor_id is None else self._step.graph.tensors[tensor_id].size_bytes
        place = site()
        device = None if place is None else place.device
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


@contextmanager
def gradient_mode(step: CapturedStep, call: Call) -> Iterator[None]:
    """Set the gradient mode as in the step: some kernels depend on it. A training step's forward pass has it on."""
    with torch.set_grad_enabled(step.kind is StepKind.TRAINING and call.stage in (Stage.UPLOAD, Stage.FORWARD)):
        yield
