"""Traces a module and its loss into one functional graph.

`aot_export_joint_with_descriptors` returns forward, loss and backward as one graph of ATen calls without in-place
updates, and describes each input and output. It runs the module on fake tensors (fakes), which have shapes and types
but no memory. The operators are those of eager (traced_operators.py). So the graph's results equal eager's bit for
bit, BatchNorm and dropout included, on torch 2.11 to 2.15. Only these two files call torch's private tracing.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
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
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from indb_tensile.errors import GraphError, RequestError
from indb_tensile.executor.capture.aten import fake_strided, storage_key
from indb_tensile.executor.capture.storage_layout import StoredTensor, Value, layout
from indb_tensile.executor.capture.traced_operators import eager_operators
from indb_tensile.executor.capture.written_views import WrittenViews

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_aten = torch.ops.aten
_CTC_LOSS = _aten._ctc_loss  # noqa: SLF001 - the name of operators

# Hints: what to use in place of operators whose output size depends on values.
_ALTERNATIVES = {
    _CTC_LOSS.Tensor: "Give ctc_loss its input_lengths and target_lengths as tuples of numbers, as (50,) * len(y).",
    _aten.linalg_lstsq.default: "Use torch.linalg.pinv(a) @ b.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """Forward, loss and backward as one graph, and the meaning of its nodes. Names are the module's.

    `state` maps placeholders to names of parameters and buffers, `inputs` maps placeholders to positions in the
    batch. `tangents` are the placeholders of the loss's gradient. `outputs` is the module's output if the step does
    not train, otherwise None; a step that does not train has no backward pass and no gradients. `gradients` has an
    entry for each name under which a parameter is used: the gradient of a shared parameter is the sum of its entries.
    `updates` lists, for a node, the buffers and parameters that may be overwritten once it has run, each with the
    node that computes the new value.
    """

    graph_module: fx.GraphModule
    state: dict[fx.Node, str]
    inputs: dict[fx.Node, int]
    tangents: frozenset[fx.Node]
    loss: fx.Node
    outputs: fx.Node | None
    gradients: tuple[tuple[str, fx.Node], ...]
    updates: dict[fx.Node, list[tuple[str, fx.Node]]]

    @property
    def nodes(self) -> list[fx.Node]:
        """The graph's nodes, in the order of execution."""
        return list(self.graph_module.graph.nodes)


class _WithLoss(nn.Module):
    """Forward and loss as one module.

    A tuple hides the loss from the module, so that the loss's tensors are constants and not state.
    """

    def __init__(self, module: nn.Module, loss: Loss, autocast: torch.dtype | None, *, returns_output: bool) -> None:
        super().__init__()
        self.module = module
        self._loss = (loss,)
        self._autocast = autocast
        self._returns_output = returns_output

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.autocast(x.device.type, dtype=self._autocast, enabled=self._autocast is not None), WrittenViews():
            # WrittenViews traces in-place writes through expanded views exactly, and refuses those that repeat
            # elements.
            with _reporting_errors("the model", x):
                predicted = self.module(x)
            with _reporting_errors("the loss", x):
                loss = self._loss[0](predicted, y)
        _require_real_loss(loss)
        return (loss, predicted) if self._returns_output else (loss,)


@contextmanager
def _reporting_errors(subject: str, x: torch.Tensor) -> Iterator[None]:
    """Raise RequestError for errors of the user's own code while tracing runs it on fakes."""
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException):
        raise  # `trace` reports these errors in more detail
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        batch = f"a batch of shape {tuple(x.shape)} and {x.dtype}"
        raise RequestError(
            f"{subject} cannot be computed on {batch}: {str(error).partition(chr(10))[0] or type(error).__name__}",
            detail=f"It raises {type(error).__name__} where tensors have shapes and types, and no values.",
            hint="Compute with torch's operations on tensors alone: not with numpy, addresses or nested tensors. "
            "Fix errors that occur on an ordinary batch too.",
        ) from error


def _require_real_loss(loss: Any) -> None:
    """Raise RequestError unless the loss is a real tensor. replay.py checks that it has one element."""
    hint = "It must be one real number, as a tensor: reduce the loss."
    if not isinstance(loss, torch.Tensor):
        raise RequestError(f"the loss is not a tensor but of type {type(loss).__name__}", hint=hint)
    if loss.is_complex():
        raise RequestError(f"the loss is complex: its type is {loss.dtype}", hint=hint)


def trace(
    mode: FakeTensorMode,
    module: nn.Module,
    loss: Loss,
    state: dict[str, torch.Tensor],
    batch: list[torch.Tensor],
    *,
    train: bool,
    autocast: torch.dtype | None = None,
) -> TracedStep:
    """Trace `module` and `loss` on fakes: `state` are the parameters and buffers by name, `batch` is input and label.

    With `autocast`, operators that autocast allows run in that type. The module does not change. Raises RequestError
    for a module that fails, that makes sparse gradients, or whose computation depends on values.
    """
    if train:
        _require_dense_gradients(module)
    wrapped = _WithLoss(_fake_copy(module, state).train(train), loss, autocast, returns_output=not train)
    # The cache makes tracing faster. A cached view still shares the storage of its input, so `_mutations` finds all
    # readers of a buffer. Only two results of one kernel in one new storage get separate storages from the cache: the
    # recorder finds out which results share memory by running the calls again without the cache.
    mode.cache_enabled = True
    try:
        with (
            ExitStack() as stack,
            mode,
            _use_lazy_graph_module(should_use=True),  # skips generating Python code, which nothing runs
            torch.set_grad_enabled(train),
            eager_operators(module),
        ):
            graph_module: fx.GraphModule = aot_export_joint_with_descriptors(
                stack, wrapped, tuple(batch), _disable_torch_fn_metadata_mode=True
            ).graph_module
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise RequestError(
            f"what the model computes depends on the values it sees: {error}",
            hint=_ALTERNATIVES.get(
                error.func, "One captured step must serve every batch: replace branches on values by torch.where."
            ),
        ) from error
    except NotImplementedError as error:  # torch 2.15 raises this for the backward pass of sparse tensors
        raise RequestError(
            f"an operator of the model cannot be captured: {str(error).partition(chr(10))[0]}",
            detail="The operator has no kernel for tensors that have shapes and types, and no values.",
            hint="Compute with dense tensors, as to_dense() makes them, and with torch's own operators.",
        ) from error
    finally:
        mode.cache_enabled = False
    return _read_graph(graph_module)


def trace_alone(module: nn.Module, loss: Loss, batch: tuple[Any, Any]) -> fx.GraphModule:
    """Return the graph of forward, loss and backward alone, without a step graph or plans (capture.py).

    Benchmarks use it: rivals such as min-cut partitioning divide this graph into forward and backward pass
    themselves. Nodes that run a kernel have the same names as the values in the step graph.
    """
    mode = fake_mode()
    state = {v.name: fake for s in layout(module, None) for v, fake in fakes_of(mode, s)}
    return trace(mode, module, loss, state, [fake_like(mode, e) for e in batch], train=True).graph_module


def fake_mode() -> FakeTensorMode:
    """Return a mode whose tensors have shapes but no memory."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    # A cached result has separate storages even if the kernel returns two outputs in one: LSTM's bias gradients.
    mode.cache_enabled = False
    return mode


def fakes_of(mode: FakeTensorMode, stored: StoredTensor) -> list[tuple[Value, torch.Tensor]]:
    """Return the values of one storage, without memory. They share storage like the real values."""
    if len(stored.values) == 1:
        only = stored.values[0]
        return [(only, fake_strided(mode, only.shape, only.stride, only.dtype, torch.device("cpu")))]
    with mode:
        base = torch.empty(stored.size_bytes, dtype=torch.uint8)
        return [(v, base.view(v.dtype).as_strided(v.shape, v.stride, v.offset)) for v in stored.values]


def fake_like(mode: FakeTensorMode, example: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor of the same shape and type, without memory."""
    with mode:
        return torch.empty(tuple(example.shape), dtype=example.dtype)


def _fake_copy(module: nn.Module, fakes: dict[str, torch.Tensor]) -> nn.Module:
    # The memo makes deepcopy use the fakes in place of the tensors, so no parameter is ever copied.
    memo: dict[int, Any] = {}
    for name, parameter in module.named_parameters():
        memo[id(parameter)] = nn.Parameter(fakes[name], requires_grad=parameter.requires_grad)
    for name, buffer in module.named_buffers():
        memo[id(buffer)] = fakes[name].detach()
    return copy.deepcopy(module, memo)


def _read_graph(graph_module: fx.GraphModule) -> TracedStep:
    """Identify each input and output of the graph.

    Raises RequestError for a model with side effects, and GraphError for a kind of input that no supported version of
    torch makes.
    """
    nodes = list(graph_module.graph.nodes)
    state: dict[fx.Node, str] = {}
    inputs: dict[fx.Node, int] = {}
    tangents = set()
    for node in (n for n in nodes if n.op == "placeholder"):
        match node.meta["desc"]:
            case ParamAOTInput(target=target) | BufferAOTInput(target=target):
                state[node] = _own_name(target)
            case PlainAOTInput(idx=index):
                inputs[node] = index
            case TangentAOTInput():
                tangents.add(node)
            case other if type(other).__name__.endswith("TokenAOTInput"):
                raise RequestError(
                    "the model calls operators for their side effects, as print does",
                    hint="Leave them out of its forward pass.",
                )
            case other:
                raise GraphError(f"the traced step has an input of an unknown kind: {other}")
    returned = _described_outputs(nodes[-1])
    plain = {desc.idx: node for desc, node in returned if isinstance(desc, PlainAOTOutput)}
    loss = plain.get(0)
    if loss is None:
        raise GraphError("the traced step returns no loss")
    gradients = tuple(
        (_own_name(desc.grad_of.target), node)
        for desc, node in returned
        if isinstance(desc, GradAOTOutput) and isinstance(desc.grad_of, ParamAOTInput) and node is not None
    )
    return TracedStep(
        graph_module=graph_module,
        state=state,
        inputs=inputs,
        tangents=frozenset(tangents),
        loss=loss,
        outputs=plain.get(1),
        gradients=gradients,
        updates=_mutations(nodes),
    )


def _own_name(target: str) -> str:
    """Return the module's own name for a parameter or buffer of the wrapper."""
    return target.removeprefix("module.")


def _described_outputs(node: fx.Node) -> list[tuple[Any, fx.Node | None]]:
    """Return each output of the graph with its descriptor."""
    values: Any = node.args[0]
    return list(zip(node.meta["desc"], values, strict=True))


def _mutations(nodes: list[fx.Node]) -> dict[fx.Node, list[tuple[str, fx.Node]]]:
    """Return, by node, the buffers and parameters that may be overwritten after it, and the nodes of the new values.

    After that node the new value has been computed, and the old one is not read again.
    """
    position = {node: k for k, node in enumerate(nodes)}
    placeholder_of = {n.meta["desc"]: n for n in nodes if n.op == "placeholder"}
    output = nodes[-1]
    aliases = _aliases(nodes)
    after: dict[fx.Node, list[tuple[str, fx.Node]]] = {}
    for desc, value in _described_outputs(output):
        mutated = desc.mutated_input if isinstance(desc, InputMutationAOTOutput) else None
        if not isinstance(mutated, BufferAOTInput | ParamAOTInput) or value is None:
            continue  # the batch is uploaded again, so changes to it do not outlive the step
        readers = _readers(aliases, placeholder_of[mutated]) - {output}
        last = max([value, *readers], key=position.__getitem__)
        after.setdefault(last, []).append((_own_name(mutated.target), value))
    return after


def _require_dense(node: fx.Node, value: torch.Tensor) -> None:
    if value.layout is not torch.strided:
        raise RequestError(
            f"the model computes with sparse tensors: {node.target} gives one of layout {value.layout}",
            hint="Give embeddings sparse=False, and make other tensors dense (to_dense).",
        )


def _require_dense_gradients(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse and part.weight.requires_grad:
            raise RequestError(
                f"the gradient of {name or 'the model'} ({type(part).__name__}) is sparse",
                hint="Build it with sparse=False: its gradient is then dense, and the same.",
            )


def _aliases(nodes: list[fx.Node]) -> dict[int, list[fx.Node]]:
    """Return the nodes whose values are in each storage. Raises RequestError for a sparse value."""
    nodes_of: dict[int, list[fx.Node]] = {}
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            _require_dense(node, value)
            nodes_of.setdefault(storage_key(value), []).append(node)
    return nodes_of


def _readers(aliases: dict[int, list[fx.Node]], source: fx.Node) -> set[fx.Node]:
    """Return all nodes that use `source` or a view of it."""
    return {user for alias in (source, *aliases[storage_key(source.meta["val"])]) for user in alias.users}
