"""Traces a module and its loss into one functional graph: the only file that calls private tracing of torch.

`aot_export_joint_with_descriptors` gives forward, loss and backward as one graph of ATen calls without
in-place updates, and says of each input and output what it is. It is equal to eager bit for bit, BatchNorm
and dropout included, on torch 2.11 to 2.13.
"""

import copy
import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._C import DispatchKey
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from indb_tensile.errors import GraphError, RequestError
from indb_tensile.executor.aten import is_operator, storage_key
from indb_tensile.executor.layout import Stored, Value, layout
from indb_tensile.executor.record import Recorder
from indb_tensile.executor.recurrence import gru
from indb_tensile.scheduler.graph import Role, Stage

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

INPUTS = ("x", "y")

_aten = torch.ops.aten

_RECURRENCES = (_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What replaying a traced graph on a recorder left there, as fakes."""

    loss: torch.Tensor
    outputs: torch.Tensor | None
    gradients: dict[str, torch.Tensor]
    constants: dict[str, torch.Tensor]  # real tensors that the module closes over


class _WithLoss(nn.Module):
    """Forward and loss as one module. The loss hides in a tuple: its tensors are constants, not state."""

    def __init__(self, module: nn.Module, loss: Loss, *, outputs: bool) -> None:
        super().__init__()
        self.module = module
        self._loss = (loss,)
        self._outputs = outputs

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        predicted = self.module(x)
        loss = self._loss[0](predicted, y)
        return (loss, predicted) if self._outputs else (loss,)


def replay_step(
    recorder: Recorder,
    module: nn.Module,
    loss: Loss,
    stored: tuple[Stored, ...],
    batch: tuple[Any, Any],
    *,
    train: bool,
) -> Replayed:
    """Trace `module` and `loss` on fakes of the recorder's mode and record every call of the step.

    `batch` are example tensors: real, fake or meta. Nothing is allocated and the module is left as it is.
    Persistent values of `stored` are declared first, all of them.
    """
    fakes = {v.name: recorder.declare(v.name, s.role, fake) for s in stored for v, fake in _fakes(recorder.mode, s)}
    tied = _tied(module)
    inputs = [_fake_like(recorder.mode, example) for example in batch]
    traced = _trace(recorder.mode, module, loss, fakes, inputs, train=train)
    with torch.set_grad_enabled(False):
        return _Replay(recorder, traced, fakes, inputs, tied).run()


def trace_joint(module: nn.Module, loss: Loss, batch: tuple[Any, Any]) -> fx.GraphModule:
    """Forward, loss and backward as torch traces them, before they are recorded: for who divides them otherwise.

    Nodes that run a kernel have the names that the recorded values have.
    """
    mode = fake_mode()
    fakes = {v.name: fake for s in layout(module, None) for v, fake in _fakes(mode, s)}
    return _trace(mode, module, loss, fakes, [_fake_like(mode, example) for example in batch], train=True)


def _tied(module: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer, with the first name of the same one."""
    first: dict[int, str] = {}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def fake_mode() -> FakeTensorMode:
    """A mode whose tensors have shapes and no memory."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    # A remembered result has storages of its own where the kernel gives two outputs one: LSTM's bias gradients.
    mode.cache_enabled = False
    return mode


def _fakes(mode: FakeTensorMode, stored: Stored) -> list[tuple[Value, torch.Tensor]]:
    with mode:
        if len(stored.values) == 1:
            only = stored.values[0]
            return [(only, torch.empty_strided(only.shape, only.stride, dtype=only.dtype))]
        base = torch.empty(stored.size_bytes, dtype=torch.uint8)
        return [(v, base.view(v.dtype).as_strided(v.shape, v.stride, v.offset)) for v in stored.values]


def _fake_like(mode: FakeTensorMode, example: torch.Tensor) -> torch.Tensor:
    with mode:
        return torch.empty(tuple(example.shape), dtype=example.dtype)


def _trace(
    mode: FakeTensorMode,
    module: nn.Module,
    loss: Loss,
    fakes: dict[str, torch.Tensor],
    inputs: list[torch.Tensor],
    *,
    train: bool,
) -> fx.GraphModule:
    wrapped = _WithLoss(_fake_copy(module, fakes).train(train), loss, outputs=not train)
    mode.cache_enabled = True  # fast, and who shares a storage is found when the calls are recorded
    try:
        with ExitStack() as stack, mode, torch.set_grad_enabled(train), _plain_attention(), _own_recurrences():
            joint = aot_export_joint_with_descriptors(stack, wrapped, tuple(inputs))
            traced: fx.GraphModule = joint.graph_module
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise RequestError(
            f"what the model computes depends on the values it sees: {error}",
            hint="One captured step must serve every batch: replace branches on values by torch.where.",
        ) from error
    finally:
        mode.cache_enabled = False
    return traced


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Without the fused encoder layer of evaluation mode, one opaque call whose bits differ from training's."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _own_recurrences() -> Iterator[None]:
    """Recurrent layers as the library itself composes them; one of them spelt out (recurrence.py).

    Tracing would take torch's Python versions, whose dropout between layers draws other random numbers.
    """
    kept = [(op, dict(op.py_kernels)) for op in _RECURRENCES]
    try:
        for op in _RECURRENCES:
            op.py_kernels.clear()
            op._dispatch_cache.clear()  # noqa: SLF001 - it remembers the kernels just taken away
        for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
            _aten.gru.input.py_kernels[key] = gru
        yield
    finally:
        for op, kernels in kept:
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()  # noqa: SLF001


def _fake_copy(module: nn.Module, fakes: dict[str, torch.Tensor]) -> nn.Module:
    # deepcopy takes the fakes for the tensors through its memo, so no parameter is ever copied.
    memo: dict[int, Any] = {}
    for name, parameter in module.named_parameters():
        memo[id(parameter)] = nn.Parameter(fakes[name], requires_grad=parameter.requires_grad)
    for name, buffer in module.named_buffers():
        memo[id(buffer)] = fakes[name].detach()
    return copy.deepcopy(module, memo)


class _Replay:
    """Walks the traced graph once, node by node, on the recorder's fakes."""

    def __init__(
        self,
        recorder: Recorder,
        traced: fx.GraphModule,
        fakes: dict[str, torch.Tensor],
        inputs: list[torch.Tensor],
        tied: dict[str, str],
    ) -> None:
        self._recorder = recorder
        self._traced = traced
        self._tied = tied
        self._persistent = {name: fakes[first] for name, first in tied.items()}
        self._inputs = inputs
        self._env: dict[fx.Node, Any] = {}
        self._constants: dict[str, torch.Tensor] = {}
        self._stage = Stage.FORWARD
        self._tangents: set[fx.Node] = set()
        nodes = list(traced.graph.nodes)
        self._mutations = _mutations(nodes)

    def run(self) -> Replayed:
        self._upload()
        for node in self._traced.graph.nodes:
            if node.op == "placeholder":
                self._place(node)
            elif node.op == "get_attr":
                pass  # uploaded before
            elif node.op == "call_function":
                self._call(node)
            elif node.op != "output":
                raise GraphError(f"the traced step has a node of kind {node.op}: {node.format_node()}")
        return self._finish()

    def _upload(self) -> None:
        for name, fake in zip(INPUTS, self._inputs, strict=True):
            self._uploaded(name, fake)
        for node in self._traced.graph.nodes:
            if node.op == "get_attr":
                self._upload_constant(node)

    def _upload_constant(self, node: fx.Node) -> None:
        constant = getattr(self._traced, str(node.target))
        if not isinstance(constant, torch.Tensor):
            raise RequestError(
                f"the model uses {node.target}, a {type(constant).__name__}, inside its forward pass",
                hint="Only plain tensor operations can be captured.",
            )
        name = next((name for name, known in self._constants.items() if known is constant), None)
        if name is None:
            name = f"constant_{node.name}"
            self._uploaded(name, _fake_like(self._recorder.mode, constant))
            self._constants[name] = constant
        self._env[node] = self._recorder.fake(name)

    def _uploaded(self, name: str, fake: torch.Tensor) -> None:
        # The bytes come from the host: what is recorded is the allocation, the program adds the copy.
        uploaded: torch.Tensor = self._recorder.call(
            Stage.UPLOAD,
            _aten.empty.memory_format,
            list(fake.shape),
            dtype=fake.dtype,
            device=torch.device("cpu"),
            name=name,
        )
        self._recorder.storages[self._recorder.key_of(uploaded)].role = Role.INPUT

    def _place(self, node: fx.Node) -> None:
        match node.meta["desc"]:
            case ParamAOTInput(target=target) | BufferAOTInput(target=target):
                self._env[node] = self._persistent[target.removeprefix("module.")]
            case PlainAOTInput(idx=index):
                self._env[node] = self._recorder.fake(INPUTS[index])
            case TangentAOTInput():
                self._tangents.add(node)
            case other:
                raise GraphError(f"the traced step has an input of an unknown kind: {other}")

    def _call(self, node: fx.Node) -> None:
        if self._stage is Stage.FORWARD and self._tangents.intersection(node.all_input_nodes):
            self._start_backward()
        args: tuple[Any, ...] = fx.map_arg(node.args, lambda n: self._env[n])
        kwargs: dict[str, Any] = fx.map_arg(node.kwargs, lambda n: self._env[n])
        if node.target is operator.getitem:
            self._env[node] = args[0][args[1]]
        else:
            self._env[node] = self._recorder.call(self._stage, _functional(node), *args, name=node.name, **kwargs)
        for buffer, value in self._mutations.get(node, ()):
            self._update(buffer, value)

    def _start_backward(self) -> None:
        self._stage = Stage.BACKWARD
        for tangent in self._tangents:
            loss = self._env[_output(self._traced, PlainAOTOutput(idx=0))]
            self._env[tangent] = self._recorder.call(
                Stage.BACKWARD, _aten.ones_like.default, loss, pin_memory=False, name=tangent.name
            )

    def _update(self, buffer: str, value: fx.Node) -> None:
        self._recorder.call(self._stage, _aten.copy_.default, self._persistent[buffer], self._env[value])

    def _finish(self) -> Replayed:
        loss = self._env[_output(self._traced, PlainAOTOutput(idx=0))]
        if loss.numel() != 1 or loss.dim() != 0:
            raise RequestError(f"the loss has shape {tuple(loss.shape)}", hint="It must be one number: reduce it.")
        predicted = dict(_outputs(self._traced)).get(PlainAOTOutput(idx=1))
        return Replayed(
            loss=loss,
            outputs=None if predicted is None else self._env[predicted],
            gradients={name: self._sum(parts) for name, parts in self._gradients().items()},
            constants=self._constants,
        )

    def _gradients(self) -> dict[str, list[fx.Node]]:
        """By parameter, one part for each of the names it is used under."""
        parts: dict[str, list[fx.Node]] = {}
        for desc, node in _outputs(self._traced):
            if isinstance(desc, GradAOTOutput) and isinstance(desc.grad_of, ParamAOTInput) and node is not None:
                name = self._tied[desc.grad_of.target.removeprefix("module.")]
                parts.setdefault(name, []).append(node)
        return parts

    def _sum(self, parts: list[fx.Node]) -> torch.Tensor:
        """Parts are added as eager's engine does: in the order in which they are computed."""
        nodes = list(self._traced.graph.nodes)
        first, *others = (self._env[node] for node in sorted(parts, key=nodes.index))
        total: torch.Tensor = first
        for other in others:
            total = self._recorder.call(Stage.BACKWARD, _aten.add.Tensor, total, other)
        return total


def _functional(node: fx.Node) -> Callable[..., Any]:
    if not is_operator(node.target) or not callable(node.target):
        raise RequestError(
            f"the model uses {node.target}, which cannot be captured",
            detail=node.format_node() or "",
            hint="Only plain tensor operations can be captured.",
        )
    return node.target


def _outputs(traced: fx.GraphModule) -> list[tuple[Any, fx.Node | None]]:
    node = next(n for n in traced.graph.nodes if n.op == "output")
    values: Any = node.args[0]
    return list(zip(node.meta["desc"], values, strict=True))


def _output(traced: fx.GraphModule, wanted: Any) -> fx.Node:
    found = [node for desc, node in _outputs(traced) if desc == wanted]
    if len(found) != 1 or found[0] is None:
        raise GraphError(f"the traced step has no output {wanted}")
    return found[0]


def _mutations(nodes: list[fx.Node]) -> dict[fx.Node, list[tuple[str, fx.Node]]]:
    """After which node each buffer may take its new value: when it is there and the old is read no more."""
    position = {node: k for k, node in enumerate(nodes)}
    placed = {n.meta["desc"]: n for n in nodes if n.op == "placeholder"}
    output = nodes[-1]
    values: Any = output.args[0]
    after: dict[fx.Node, list[tuple[str, fx.Node]]] = {}
    for desc, value in zip(output.meta["desc"], values, strict=True):
        mutated = desc.mutated_input if isinstance(desc, InputMutationAOTOutput) else None
        if not isinstance(mutated, BufferAOTInput | ParamAOTInput):
            continue  # the batch is uploaded anew: what a model does to it does not outlive the step
        readers = _readers(nodes, placed[mutated]) - {output}
        last = max([value, *readers], key=position.__getitem__)
        after.setdefault(last, []).append((mutated.target.removeprefix("module."), value))
    return after


def _readers(nodes: list[fx.Node], source: fx.Node) -> set[fx.Node]:
    """Whatever uses `source` or a view of it."""
    storage = storage_key(source.meta["val"])
    aliases = [
        n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor) and storage_key(n.meta["val"]) == storage
    ]
    return {user for alias in (source, *aliases) for user in alias.users}
