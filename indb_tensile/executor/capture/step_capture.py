"""Captures one step of a job as a static graph, which the scheduler plans and the program runs.

The step is recorded on tensors without memory, so capturing a module of any size allocates no tensor memory.
"""

import gc
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count, pairwise, zip_longest
from typing import Any

import torch
from torch import nn

from indb_tensile.errors import GraphError, RequestError
from indb_tensile.executor.capture.allocation_script import AllocationScript
from indb_tensile.executor.capture.exchange_operator import FINISHES, STARTS
from indb_tensile.executor.capture.late_waits import with_late_waits
from indb_tensile.executor.capture.normalise_again import is_split
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.owner_gradients import OwnerExchanges
from indb_tensile.executor.capture.passes import WHOLE, Passes
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.record import Call, Recorder, Shape, StorageKey
from indb_tensile.executor.capture.replay import Replayed, replay_step
from indb_tensile.executor.capture.step_trace import Loss, fake_mode
from indb_tensile.executor.capture.storage_layout import StoredTensor, layout, state_division
from indb_tensile.executor.capture.update import record_update
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.timing.operator_features import Description

_aten = torch.ops.aten
_SPLITTABLE = ("aten._fused_", "tensile.rmsprop_", "tensile.lion_")  # updates that treat each number independently


class StepKind(StrEnum):
    """The purpose of a step."""

    TRAINING = "training"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operator: its kernel, and the values that the host copies after the kernel has run.

    These values are results of the kernel or views of them.
    """

    kernel: Call
    returns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedStep:
    """One step of a job: its graph, and how each operator of the graph is run.

    `steps[k]` runs operator `k`. `views` maps each value that no kernel makes to the call that makes the value.
    `values` gives the storage, shape and strides of each named value. `tensor_of` maps a storage to the tensor of the
    graph; storages of 0 bytes have no tensor. `opaque` lists values whose size only calibration can measure.
    `scripts` gives, by signature, the allocations of operators whose allocations were recorded.
    """

    graph: StepGraph
    kind: StepKind
    batch_size: int
    steps: tuple[Step, ...]
    views: dict[str, Call]
    values: dict[str, Shape]
    tensor_of: dict[StorageKey, TensorId]
    layout: tuple[StoredTensor, ...]
    loss: str
    outputs: str | None
    constants: dict[str, torch.Tensor]
    opaque: frozenset[str]
    opaque_results: frozenset[str]
    scripts: Mapping[str, AllocationScript] = field(default_factory=dict)

    @property
    def persistent(self) -> tuple[Tensor, ...]:
        """The tensors that live across iterations. Their ids count from 0."""
        return tuple(tensor for tensor in self.graph.tensors if tensor.persistent)

    @property
    def signatures(self) -> frozenset[str]:
        """All signatures to look up: one for each operator, and one for each value of unknown size."""
        return frozenset({o.signature for o in self.graph.operators} | set(self.size_signatures().values()))

    @property
    def descriptions(self) -> dict[str, Description]:
        """The description of each operator, by signature. A latency prediction starts from it."""
        return {operator_step.kernel.signature: operator_step.kernel.description for operator_step in self.steps}

    def size_signatures(self) -> dict[str, str]:
        """Return the signature under which the catalog stores the size of each opaque value, as a workspace."""
        made = {
            name: operator_step.kernel
            for operator_step in self.steps
            for name in operator_step.kernel.results
            if name is not None
        }
        return {name: _size_signature(made[name], name) for name in sorted(self.opaque_results)}

    def with_measured(self, workspace: dict[str, int]) -> "CapturedStep":
        """Return the step with measurements, by signature: workspaces, and the true sizes of opaque values."""
        operators = [
            replace(o, workspace_bytes=workspace.get(o.signature, o.workspace_bytes)) for o in self.graph.operators
        ]
        for k, (first, second) in enumerate(pairwise(self.steps)):
            if is_split(first.kernel, second.kernel):  # both may run as one, in place of the second operator
                (values,) = operators[k + 1].writes
                scratch_bytes = operators[k].workspace_bytes - self.graph.tensors[values].size_bytes
                most_bytes = max(scratch_bytes, operators[k + 1].workspace_bytes)
                operators[k + 1] = replace(operators[k + 1], workspace_bytes=most_bytes)
        sized = {name: workspace[key] for name, key in self.size_signatures().items() if key in workspace}
        true_bytes = {self.tensor_of[self.values[name].storage]: size_bytes for name, size_bytes in sized.items()}
        tensors = tuple(replace(t, size_bytes=true_bytes.get(t.id, t.size_bytes)) for t in self.graph.tensors)
        graph = replace(self.graph, tensors=tensors, operators=tuple(operators))
        return replace(self, graph=graph, opaque=self.opaque - set(sized))


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disable garbage collection: a capture keeps every object that it makes, and a collection walks all of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_without_collections()
def capture_training(
    module: nn.Module,
    loss: Loss,
    x: torch.Tensor,
    y: torch.Tensor,
    optimizer: OptimizerSettings,
    passes: Passes = WHOLE,
    share: RankShare | None = None,
    place: torch.device | None = None,
) -> CapturedStep:
    """Capture forward, loss, backward and optimizer for batches like `x` and `y`, computed as `passes` says.

    With a `share` the step computes the parts of one of several devices, and exchanges gradients and losses with the
    others (exchange_operator.py). It takes the whole batch all the same. `place` is the device whose kernels will run
    it, if that is not the processor: batch normalisation of several devices rounds like them.

    Module and batch may be real, fake or on the meta device; nothing is allocated and nothing is changed. Raise
    RequestError for a model that cannot be captured or has no parameter to train.
    """
    stored = layout(module, optimizer, share)
    recorder, division = Recorder(fake_mode()), state_division(stored, share)
    replayed = replay_step(
        recorder,
        module,
        loss,
        stored,
        (x, y),
        train=True,
        passes=passes,
        share=share,
        state_division=division,
        place=place,
    )
    if not replayed.trained:
        raise RequestError("the model has no parameter that the loss depends on", hint="There is nothing to train.")
    with torch.no_grad():
        if share is None or division is None:
            record_update(recorder, optimizer, replayed.gradients)
        else:
            exchange = OwnerExchanges(recorder, replayed.trained, division, share.ranks)
            record_update(recorder, optimizer, replayed.gradients, exchange)
    recorder.calls = with_late_waits(recorder.calls)
    return _assemble(recorder, replayed, stored, StepKind.TRAINING, int(x.shape[0]))


@_without_collections()
def capture_evaluation(
    module: nn.Module,
    loss: Loss,
    x: torch.Tensor,
    y: torch.Tensor,
    optimizer: OptimizerSettings | None = None,
    share: RankShare | None = None,
) -> CapturedStep:
    """Capture forward and loss in evaluation mode. The step returns the loss and the model's outputs.

    With the `optimizer` of the training step, the optimizer's state is among the persistent tensors, so that one
    `Runner` can run both steps. If the optimizer averages parameters, the step reads the averages in place of the
    parameters. The step accesses no other optimizer state. The `share` of the training step says how much of that
    state there is.
    """
    stored = layout(module, optimizer, share)
    recorder = Recorder(fake_mode())
    averaged = optimizer is not None and optimizer.average_decay is not None
    replayed = replay_step(recorder, module, loss, stored, (x, y), train=False, passes=WHOLE, averaged=averaged)
    if not isinstance(replayed.outputs, torch.Tensor):
        raise RequestError("the model does not return exactly one tensor")
    with torch.no_grad():
        outputs = _copy_persistent(recorder, replayed.outputs)
        loss_value = _copy_persistent(recorder, replayed.loss)
    final = replace(replayed, outputs=outputs, loss=loss_value)
    return _assemble(recorder, final, stored, StepKind.EVALUATION, int(x.shape[0]))


def with_host_uploads(step: CapturedStep) -> CapturedStep:
    """Return the step for a device whose memory is the host's: operators write the batch, and no link is used."""
    graph = step.graph
    operators = tuple(replace(o, stage=Stage.FORWARD) if o.stage is Stage.UPLOAD else o for o in graph.operators)
    signature = graph_signature(step.kind, graph.tensors, operators)
    return replace(step, graph=replace(graph, operators=operators, signature=signature))


def _copy_persistent(recorder: Recorder, output: torch.Tensor) -> torch.Tensor:
    """Copy an output that is a parameter or buffer, because outputs are read right after they are made.

    No operator of the step makes a parameter or buffer.
    """
    role = recorder.storages[recorder.key_of(output)].role
    if role in (Role.INPUT, Role.ACTIVATION):
        return output
    copied: torch.Tensor = recorder.call(Stage.FORWARD, _aten.clone.default, output, name="returned_copy")
    return copied


def _assemble(
    recorder: Recorder, replayed: Replayed, stored: tuple[StoredTensor, ...], kind: StepKind, batch_size: int
) -> CapturedStep:
    loss = recorder.name_of(replayed.loss)
    outputs = None if replayed.outputs is None else recorder.name_of(replayed.outputs)
    calls = _needed(recorder, {name for name in (loss, outputs) if name is not None})
    opaque = _find_opaque(recorder, calls)
    _widen_reduced_losses(recorder, calls)
    views = {name: call for call in calls if call.view for name in call.makes}
    steps = _steps(calls, views, [n for n in (loss, outputs) if n is not None])
    tensor_of, tensors = _tensors(recorder, stored, steps)
    operators = _operators(steps, tensor_of)
    return CapturedStep(
        graph=StepGraph(tensors=tensors, operators=operators, signature=graph_signature(kind, tensors, operators)),
        kind=kind,
        batch_size=batch_size,
        steps=steps,
        views=views,
        values=recorder.values,
        tensor_of=tensor_of,
        layout=stored,
        loss=loss,
        outputs=outputs,
        constants=replayed.constants,
        opaque=opaque,
        opaque_results=opaque,
    )


def _needed(recorder: Recorder, returned: set[str]) -> list[Call]:
    """Return the calls with an effect: their results are used or returned, or they change state or draw numbers."""
    persistent = {k for k, info in recorder.storages.items() if info.role not in (Role.INPUT, Role.ACTIVATION)}
    storages = {recorder.values[name].storage for name in returned}
    used, needed = set(returned), []
    for call in reversed(recorder.calls):
        changes = not call.view and any(key in persistent or key in storages for key in call.writes)
        upload = call.stage is Stage.UPLOAD
        if call.random or changes or upload or used.intersection(n for n in call.results if n is not None):
            needed.append(call)
            used.update(call.arguments)
            storages.update(() if call.view else call.reads)
            storages.update(recorder.values[name].storage for name in call.arguments)
    return needed[::-1]


def _steps(calls: list[Call], views: dict[str, Call], returned: list[str]) -> tuple[Step, ...]:
    """Make one step per kernel. The host copies a returned value right after the kernel that makes the value."""
    kernels = [call for call in calls if not call.view]
    maker = {name: k for k, call in enumerate(kernels) for name in call.makes}
    returns: dict[int, list[str]] = {}
    for name in returned:
        root = name
        while root not in maker:
            root = views[root].arguments[0]
        returns.setdefault(maker[root], []).append(name)
    return tuple(Step(kernel=call, returns=tuple(returns.get(k, ()))) for k, call in enumerate(kernels))


def _tensors(
    recorder: Recorder, stored: tuple[StoredTensor, ...], steps: tuple[Step, ...]
) -> tuple[dict[StorageKey, TensorId], tuple[Tensor, ...]]:
    """Number persistent storages in the layout's order, then other storages in the order of their first write."""
    persistent = [recorder.values[s.name].storage for s in stored]
    written = [key for step in steps for key in step.kernel.writes]
    keys = [k for k in dict.fromkeys([*persistent, *written]) if recorder.storages[k].size_bytes > 0]
    tensor_of = {key: TensorId(position) for position, key in enumerate(keys)}
    tensors = tuple(
        Tensor(id=tensor_of[key], name=info.name, size_bytes=info.size_bytes, role=info.role)
        for key, info in ((key, recorder.storages[key]) for key in keys)
    )
    return tensor_of, tensors


def _operators(steps: tuple[Step, ...], tensor_of: dict[StorageKey, TensorId]) -> tuple[Operator, ...]:
    """Return the operators, with the exchanges numbered in their order."""
    starts, finishes = count(), count()
    return tuple(
        replace(
            _operator(step.kernel, tensor_of),
            starts=next(starts) if step.kernel.target in STARTS else None,
            awaits=next(finishes) if step.kernel.target in FINISHES else None,
        )
        for step in steps
    )


def _operator(call: Call, tensor_of: dict[StorageKey, TensorId]) -> Operator:
    reads = tuple(tensor_of[key] for key in call.reads if key in tensor_of)
    writes = tuple(tensor_of[key] for key in call.writes if key in tensor_of)
    return Operator(
        name="upload" if call.stage is Stage.UPLOAD else str(call.target),
        signature=call.signature,
        stage=call.stage,
        reads=reads,
        writes=writes,
        flops=call.flops,
        random=call.random,
        splittable=call.stage is Stage.OPTIMIZER and str(call.target).startswith(_SPLITTABLE),
    )


# A sum over bags needs none of these results, so they really have no elements.
_TRULY_EMPTY = frozenset(getattr(_aten, f"_embedding_bag{suffix}").default for suffix in ("", "_forward_only"))


def _find_opaque(recorder: Recorder, calls: list[Call]) -> frozenset[str]:
    """Mark results without bytes on fakes that later calls read, such as oneDNN's workspaces; return their names."""
    read = {name for call in calls for name in call.arguments}
    opaque = set()
    for call in calls:
        for name in () if call.view or call.target in _TRULY_EMPTY else call.results:
            is_read = name in read and name not in call.of_host
            if is_read and name is not None and _looks_empty(recorder, call, name):
                recorder.mark_opaque(name, _estimate_bytes(recorder, call))
                opaque.add(name)
    return frozenset(opaque)


# On the CPU these operators reduce in place of the loss per element, and the result keeps that storage.
_REDUCED_IN_PLACE = frozenset(
    {
        _aten.mse_loss.default,
        _aten.smooth_l1_loss.default,
        _aten.soft_margin_loss.default,
        _aten.binary_cross_entropy.default,
    }
)


def _widen_reduced_losses(recorder: Recorder, calls: list[Call]) -> None:
    """Give reduced losses the size of their real storage: one element for each element of the broadcast inputs."""
    for call in calls:
        if call.target not in _REDUCED_IN_PLACE:
            continue
        shapes = [reversed(recorder.values[name].shape) for name in call.arguments]
        elements = math.prod(max(sizes) for sizes in zip_longest(*shapes, fillvalue=1))  # as broadcast
        for name in call.results:
            if name is not None:
                recorder.widen(name, elements * recorder.values[name].dtype.itemsize)


def _looks_empty(recorder: Recorder, call: Call, name: str) -> bool:
    """Return whether the fake kernel seems to know no size: a result is empty beside results with elements.

    A call that reads an empty tensor, such as a slice of no rows, really has empty results.
    """
    key = recorder.values[name].storage
    empty = key in call.writes and recorder.storages[key].size_bytes == 0 and _any_bytes(recorder, call)
    beside_others = any(recorder.storages[written].size_bytes > 0 for written in call.writes)
    return empty and beside_others and not any(0 in recorder.values[name].shape for name in call.arguments)


def _any_bytes(recorder: Recorder, call: Call) -> bool:
    return any(recorder.storages[key].size_bytes > 0 for key in call.reads)


def _estimate_bytes(recorder: Recorder, call: Call) -> int:
    """Guess an opaque value's size until it is measured: a oneDNN LSTM keeps about 16 times its hidden sequence."""
    return 16 * max(recorder.storages[key].size_bytes for key in call.writes)


def graph_signature(kind: StepKind, tensors: tuple[Tensor, ...], operators: tuple[Operator, ...]) -> str:
    """Return the signature of a step graph. Equal graphs have equal ones."""
    described: list[Any] = [kind.value]
    described += [[t.name, t.size_bytes, t.role.value] for t in tensors]
    described += [[o.signature, o.stage.value, list(o.reads), list(o.writes)] for o in operators]
    return hashlib.sha256(json.dumps(described, separators=(",", ":")).encode()).hexdigest()


def _size_signature(call: Call, name: str) -> str:
    return hashlib.sha256(f"{call.signature}/{call.results.index(name)}".encode()).hexdigest()


def check_same_persistent(steps: tuple[CapturedStep, ...]) -> None:
    """Raise GraphError unless all steps give the same persistent tensors the same ids."""
    for step in steps[1:]:
        if step.persistent != steps[0].persistent:
            raise GraphError(
                f"the {step.kind} step of batch {step.batch_size} has other persistent tensors than the first",
                hint="Capture all steps from one module, with the same optimizer settings.",
            )
