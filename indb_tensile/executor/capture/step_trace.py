"""Traces a module and its loss into one functional graph. Only this file calls torch's private tracing.

`aot_export_joint_with_descriptors` returns forward, loss and backward as one graph of ATen calls without in-place
updates, and describes each input and output. It runs the module on fake tensors (fakes), which have shapes and types
but no memory. By default it replaces some operators by Python decompositions, whose results differ in the last bits;
the context managers below keep eager's operators instead. So the graph's results equal eager's bit for bit, BatchNorm
and dropout included, on torch 2.11 to 2.15.

The functions registered with `register_op_impl` replace torch's own fakes of some operators, for the whole process:
they describe the same results more exactly.
"""

import copy
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
from torch._subclasses.fake_impls import register_op_impl
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from indb_tensile.errors import GraphError, RequestError
from indb_tensile.executor.capture.aten import fake_strided, storage_key
from indb_tensile.executor.capture.ctc_loss import ctc_loss, fake_ctc_loss
from indb_tensile.executor.capture.products import product, product_along
from indb_tensile.executor.capture.recurrence import gru
from indb_tensile.executor.capture.storage_layout import StoredTensor, Value, layout
from indb_tensile.executor.capture.written_views import WrittenViews

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_aten = torch.ops.aten
_RECURRENCES = (_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)
_CTC_LOSS = _aten._ctc_loss  # noqa: SLF001 - the name of operators
# Operators that torch's tracing would decompose, and that `_eager_kernels` keeps whole.
_DECOMPOSED_BY_TORCH = (
    *(f"upsample_{name}" for name in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")),
    *(f"upsample_nearest{dimensions}d" for dimensions in (1, 2, 3)),
    *(f"_upsample_nearest_exact{dimensions}d" for dimensions in (1, 2, 3)),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    *("hardshrink", "softshrink", "multi_margin_loss", "multilabel_margin_loss_forward"),
)

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
            _plain_attention(),
            _torch_recurrences(module),
            _replaced_operators(),
            _eager_kernels(),
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


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Disable the fused encoder layer of evaluation mode.

    It is one operator, whose results differ in the last bits from those of the layers in training mode.
    """
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


@contextmanager
def _torch_recurrences(module: nn.Module) -> Iterator[None]:
    """Trace recurrent layers as the C++ compositions that eager runs, and GRU as the one in recurrence.py.

    Otherwise tracing would use torch's Python decompositions, whose dropout between layers draws other random
    numbers. On a GPU it would use cuDNN's kernels, which need a layer's weights in contiguous memory. A memory plan
    swaps each weight separately, and a fake has no address, so the weights are not contiguous.
    """
    saved_kernels = [(op, dict(op.py_kernels)) for op in _RECURRENCES]
    cudnn = torch.backends.cudnn.enabled
    try:
        torch.backends.cudnn.enabled = cudnn and not any(isinstance(part, nn.RNNBase) for part in module.modules())
        for op in _RECURRENCES:
            op.py_kernels.clear()
            op._dispatch_cache.clear()  # noqa: SLF001 - it caches the kernels just removed
        for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
            _aten.gru.input.py_kernels[key] = gru
        yield
    finally:
        torch.backends.cudnn.enabled = cudnn
        for op, kernels in saved_kernels:
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()  # noqa: SLF001


def _refuse_check(_info: torch.Tensor, function: str, *, is_matrix: bool) -> None:
    """Refuse aten::_linalg_check_errors, so that a model is refused in every version of torch.

    Some versions trace the check, which reads values on the host, and others (2.11) drop it: then an error that eager
    would raise is lost.
    """
    raise RequestError(
        f"the model checks values while it computes, in torch.{function}",
        hint="Use the operators without checks, torch.linalg.inv_ex, solve_ex or cholesky_ex.",
    )


# Operators that tracing replaces by a composition of ours, or refuses.
_REPLACEMENTS: dict[Any, tuple[DispatchKey, Callable[..., Any]]] = {
    _aten.prod.default: (DispatchKey.Autograd, product),
    _aten.prod.dim_int: (DispatchKey.Autograd, product_along),
    _aten._linalg_check_errors.default: (DispatchKey.Autograd, _refuse_check),  # noqa: SLF001 - the operator's name
    _aten.ctc_loss.IntList: (DispatchKey.CompositeImplicitAutograd, ctc_loss),
}


@contextmanager
def _replaced_operators() -> Iterator[None]:
    """Use the operators of products.py and ctc_loss.py, where tracing would change bits or fail. Refuse checks."""
    saved_kernels = {op: dict(op.py_kernels) for op in _REPLACEMENTS}
    try:
        for op, (key, composition) in _REPLACEMENTS.items():
            op.py_kernels[key] = composition
            op._dispatch_cache.clear()  # noqa: SLF001 - it caches the kernel just replaced
        yield
    finally:
        for op, kernels in saved_kernels.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()  # noqa: SLF001


@contextmanager
def _eager_kernels() -> Iterator[None]:
    """Trace the resizing of images, and similar operators, as the kernels that eager calls.

    Otherwise tracing would use decompositions in Python, which take a dozen steps and give other bits.
    """
    packets = [getattr(_aten, name) for name in _DECOMPOSED_BY_TORCH if hasattr(_aten, name)]
    operators = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    saved_kernels = [(op, dict(op.py_kernels)) for op in operators]
    try:
        for op in operators:
            for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
                op.py_kernels.pop(key, None)
            op._dispatch_cache.clear()  # noqa: SLF001 - it caches the kernels just removed
        yield
    finally:
        for op, kernels in saved_kernels:
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()  # noqa: SLF001


@register_op_impl(_aten.mkldnn_rnn_layer_backward.default)
def _fake_lstm_gradients(_mode: FakeTensorMode, _operator: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    """Return an LSTM's gradients on fakes: float32, whatever the inputs are.

    Up to torch 2.12 the fakes have the inputs' type, and tracing would leave out the casts that eager makes.
    """
    # Arguments 0 to 3 are the input, the weights of input and state, and the bias; 5 and 6 are hidden and cell state.
    gradients = [argument.new_empty(argument.shape, dtype=torch.float32) for argument in (*args[:4], *args[5:7])]
    return (*gradients[:4], gradients[3], *gradients[4:])  # the gradient of the one bias is also that of the other


@register_op_impl(_CTC_LOSS.default)
def _fake_ctc_loss_results(
    _mode: FakeTensorMode, _operator: Any, *args: Any, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the fakes of aten::_ctc_loss.

    Their sizes depend only on lengths, which are known; torch's own fake refuses.
    """
    scores, _targets, _input_lengths, target_lengths, *_others = args
    return fake_ctc_loss(scores, target_lengths)


@register_op_impl(_aten.index_fill.int_Scalar)
@register_op_impl(_aten.index_fill.int_Tensor)
def _filled_clone(_mode: FakeTensorMode, _operator: Any, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return the fake of an index fill: a clone, which has the strides of `x`.

    The kernel fills a clone, whether the model called it or functionalization made it from a fill in place. Torch's
    own fake has other strides.
    """
    return x.clone()


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
