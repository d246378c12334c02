"""Traces a module and its loss into one functional graph: the only file that calls private tracing of torch.

`aot_export_joint_with_descriptors` gives forward, loss and backward as one graph of ATen calls without
in-place updates, and says of each input and output what it is. It is equal to eager bit for bit, BatchNorm
and dropout included, on torch 2.11 to 2.13.
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
from indb_tensile.executor.capture.alignments import ctc_loss, fake_ctc_loss
from indb_tensile.executor.capture.aten import fake_strided, storage_key
from indb_tensile.executor.capture.products import product, product_along
from indb_tensile.executor.capture.recurrence import gru
from indb_tensile.executor.capture.storage_layout import Stored, Value, layout

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_aten = torch.ops.aten
_RECURRENCES = (_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)
_CTC_LOSS = _aten._ctc_loss  # noqa: SLF001 - the name of operators
_RESIZED = ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d", *(f"nearest{n}d" for n in (1, 2, 3)))
_RESIZED_EXACTLY = tuple(
    f"_upsample_{name}" for name in (*(f"nearest_exact{n}d" for n in (1, 2, 3)), "bilinear2d_aa")
)
_COMPOSED = (
    *(f"upsample_{name}" for name in _RESIZED),
    *_RESIZED_EXACTLY,
    *("_upsample_bicubic2d_aa", "hardshrink", "softshrink", "multi_margin_loss", "multilabel_margin_loss_forward"),
)

# What to use in place of operators whose results have other sizes for other values.
_WAYS_OUT = {
    _CTC_LOSS.Tensor: "Give ctc_loss its input_lengths and target_lengths as tuples of numbers, as (50,) * len(y).",
    _aten.linalg_lstsq.default: "Use torch.linalg.pinv(a) @ b.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """Forward, loss and backward as one graph, and what its nodes stand for; names are the module's.

    `state` and `inputs` are placeholders: of parameters and buffers by name, of the batch by position. `tangents`
    are placeholders of the loss's gradient. `gradients`: what adds up to each parameter's, by the name it is used
    under. `updates`: after which node a buffer may take which node's value.
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
        """In the order of execution."""
        return list(self.graph_module.graph.nodes)


class _WithLoss(nn.Module):
    """Forward and loss as one module. The loss hides in a tuple: its tensors are constants, not state."""

    def __init__(self, module: nn.Module, loss: Loss, autocast: torch.dtype | None, *, outputs: bool) -> None:
        super().__init__()
        self.module = module
        self._loss = (loss,)
        self._autocast = autocast
        self._outputs = outputs

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.autocast(x.device.type, dtype=self._autocast, enabled=self._autocast is not None):
            with _blaming("the model", x):
                predicted = self.module(x)
            with _blaming("the loss", x):
                loss = self._loss[0](predicted, y)
        _require_real_loss(loss)
        return (loss, predicted) if self._outputs else (loss,)


@contextmanager
def _blaming(subject: str, x: torch.Tensor) -> Iterator[None]:
    """Raise RequestError for what the user's own code raises while it runs on fakes."""
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException):
        raise  # said better by `trace`
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        batch = f"a batch of shape {tuple(x.shape)} and {x.dtype}"
        raise RequestError(
            f"{subject} cannot be computed on {batch}: {str(error).partition(chr(10))[0] or type(error).__name__}",
            detail=f"It raises {type(error).__name__} where tensors have shapes and types, and no values.",
            hint="Compute with torch's operations on tensors alone: not with numpy, addresses or nested tensors. "
            "Mend what fails on an ordinary batch too.",
        ) from error


def _require_real_loss(loss: Any) -> None:
    hint = "It must be one real number, a tensor: return it, reduced."
    if not isinstance(loss, torch.Tensor):
        raise RequestError(f"the loss is no tensor but of type {type(loss).__name__}", hint=hint)
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
) -> Joint:
    """Trace `module` and `loss` on fakes: `state` its parameters and buffers by name, `batch` its input and label.

    With `autocast`, what tolerates it runs in that type. The module is left as it is. Raises RequestError for a model
    whose work depends on the values it sees, that fails, or that makes sparse gradients.
    """
    if train:
        _require_dense_gradients(module)
    wrapped = _WithLoss(_fake_copy(module, state).train(train), loss, autocast, outputs=not train)
    mode.cache_enabled = True  # fast, and who shares a storage is found when the calls are recorded
    try:
        with (
            ExitStack() as stack,
            mode,
            _use_lazy_graph_module(should_use=True),  # the graph is read, its Python text never
            torch.set_grad_enabled(train),
            _plain_attention(),
            _own_recurrences(module),
            _own_compositions(),
            _own_kernels(),
        ):
            graph_module: fx.GraphModule = aot_export_joint_with_descriptors(
                stack, wrapped, tuple(batch), _disable_torch_fn_metadata_mode=True
            ).graph_module
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise RequestError(
            f"what the model computes depends on the values it sees: {error}",
            hint=_WAYS_OUT.get(
                error.func, "One captured step must serve every batch: replace branches on values by torch.where."
            ),
        ) from error
    finally:
        mode.cache_enabled = False
    return _read(graph_module)


def trace_alone(module: nn.Module, loss: Loss, batch: tuple[Any, Any]) -> fx.GraphModule:
    """Forward, loss and backward as torch traces them, before they are recorded: for who divides them otherwise.

    Nodes that run a kernel have the names that the recorded values have.
    """
    mode = fake_mode()
    state = {v.name: fake for s in layout(module, None) for v, fake in fakes_of(mode, s)}
    return trace(mode, module, loss, state, [fake_like(mode, e) for e in batch], train=True).graph_module


def fake_mode() -> FakeTensorMode:
    """A mode whose tensors have shapes and no memory."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    # A remembered result has storages of its own where the kernel gives two outputs one: LSTM's bias gradients.
    mode.cache_enabled = False
    return mode


def fakes_of(mode: FakeTensorMode, stored: Stored) -> list[tuple[Value, torch.Tensor]]:
    """The values of one storage, without memory: they share what the real ones share."""
    if len(stored.values) == 1:
        only = stored.values[0]
        return [(only, fake_strided(mode, only.shape, only.stride, only.dtype, torch.device("cpu")))]
    with mode:
        base = torch.empty(stored.size_bytes, dtype=torch.uint8)
        return [(v, base.view(v.dtype).as_strided(v.shape, v.stride, v.offset)) for v in stored.values]


def fake_like(mode: FakeTensorMode, example: torch.Tensor) -> torch.Tensor:
    """A dense tensor of the same shape and type, without memory."""
    with mode:
        return torch.empty(tuple(example.shape), dtype=example.dtype)


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
def _own_recurrences(module: nn.Module) -> Iterator[None]:
    """Recurrent layers as the library itself composes them; one of them spelt out (recurrence.py).

    Tracing would take torch's Python versions, whose dropout between layers draws other random numbers. And on a GPU
    cuDNN's, for which a layer's weights have to lie side by side: a plan moves each on its own, and a fake has no
    place.
    """
    kept = [(op, dict(op.py_kernels)) for op in _RECURRENCES]
    cudnn = torch.backends.cudnn.enabled
    try:
        torch.backends.cudnn.enabled = cudnn and not any(isinstance(part, nn.RNNBase) for part in module.modules())
        for op in _RECURRENCES:
            op.py_kernels.clear()
            op._dispatch_cache.clear()  # noqa: SLF001 - it remembers the kernels just taken away
        for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
            _aten.gru.input.py_kernels[key] = gru
        yield
    finally:
        torch.backends.cudnn.enabled = cudnn
        for op, kernels in kept:
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()  # noqa: SLF001


def _refuse_check(_info: torch.Tensor, function: str, *, is_matrix: bool) -> None:
    """aten::_linalg_check_errors, which tracing keeps in some versions of torch and drops in others (2.11)."""
    raise RequestError(
        f"the model checks values while it computes, in torch.{function}",
        hint="Use the operators that check nothing, torch.linalg.inv_ex, solve_ex or cholesky_ex.",
    )


_COMPOSED_HERE: dict[Any, tuple[DispatchKey, Callable[..., Any]]] = {
    _aten.prod.default: (DispatchKey.Autograd, product),
    _aten.prod.dim_int: (DispatchKey.Autograd, product_along),
    _aten._linalg_check_errors.default: (DispatchKey.Autograd, _refuse_check),  # noqa: SLF001 - the operator's name
    _aten.ctc_loss.IntList: (DispatchKey.CompositeImplicitAutograd, ctc_loss),
}


@contextmanager
def _own_compositions() -> Iterator[None]:
    """Operators that are spelt out here where tracing would change bits or fail (products.py, alignments.py)."""
    kept = {op: dict(op.py_kernels) for op in _COMPOSED_HERE}
    try:
        for op, (key, own) in _COMPOSED_HERE.items():
            op.py_kernels[key] = own
            op._dispatch_cache.clear()  # noqa: SLF001 - it remembers the kernel just replaced
        yield
    finally:
        for op, kernels in kept.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()  # noqa: SLF001


@contextmanager
def _own_kernels() -> Iterator[None]:
    """Images resized, and the like, by the kernels that eager calls.

    Tracing would take compositions of torch in Python, whose bits are others, and whose steps are a dozen.
    """
    packets = [getattr(_aten, name) for name in _COMPOSED if hasattr(_aten, name)]
    operators = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    kept = [(op, dict(op.py_kernels)) for op in operators]
    try:
        for op in operators:
            for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
                op.py_kernels.pop(key, None)
            op._dispatch_cache.clear()  # noqa: SLF001 - it remembers the kernels just taken away
        yield
    finally:
        for op, kernels in kept:
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()  # noqa: SLF001


@register_op_impl(_aten.mkldnn_rnn_layer_backward.default)
def _rnn_backward(_mode: FakeTensorMode, _operator: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    """An LSTM's gradients on fakes: float32 whatever the inputs are.

    Torch's own say the inputs' type up to 2.12, and tracing would leave out the casts that eager makes.
    """
    made = [given.new_empty(given.shape, dtype=torch.float32) for given in (*args[:4], *args[5:7])]
    return (*made[:4], made[3], *made[4:])  # both biases have one gradient


@register_op_impl(_CTC_LOSS.default)
def _alignments(_mode: FakeTensorMode, _operator: Any, *args: Any, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a size that depends on lengths only, which are known; torch's own refuses."""
    scores, _targets, _input_lengths, target_lengths, *_others = args
    return fake_ctc_loss(scores, target_lengths)


@register_op_impl(_aten.index_fill.int_Scalar)
@register_op_impl(_aten.index_fill.int_Tensor)
def _changed_clone(_mode: FakeTensorMode, _operator: Any, given: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """What filling by index in place becomes: it changes a clone, and torch's own fake has another order."""
    return given.clone()


def _fake_copy(module: nn.Module, fakes: dict[str, torch.Tensor]) -> nn.Module:
    # deepcopy takes the fakes for the tensors through its memo, so no parameter is ever copied.
    memo: dict[int, Any] = {}
    for name, parameter in module.named_parameters():
        memo[id(parameter)] = nn.Parameter(fakes[name], requires_grad=parameter.requires_grad)
    for name, buffer in module.named_buffers():
        memo[id(buffer)] = fakes[name].detach()
    return copy.deepcopy(module, memo)


def _read(graph_module: fx.GraphModule) -> Joint:
    """Say of each input and output what it is. Raises GraphError for a kind that no version known here makes."""
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
                    "the model calls operators for what they do and not for what they return, as a print does",
                    hint="Leave them out of its forward pass.",
                )
            case other:
                raise GraphError(f"the traced step has an input of an unknown kind: {other}")
    returned = _outputs(nodes[-1])
    plain = {desc.idx: node for desc, node in returned if isinstance(desc, PlainAOTOutput)}
    loss = plain.get(0)
    if loss is None:
        raise GraphError("the traced step returns no loss")
    gradients = tuple(
        (_own_name(desc.grad_of.target), node)
        for desc, node in returned
        if isinstance(desc, GradAOTOutput) and isinstance(desc.grad_of, ParamAOTInput) and node is not None
    )
    return Joint(
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
    """The module's own name for what the wrapper holds."""
    return target.removeprefix("module.")


def _outputs(node: fx.Node) -> list[tuple[Any, fx.Node | None]]:
    values: Any = node.args[0]
    return list(zip(node.meta["desc"], values, strict=True))


def _mutations(nodes: list[fx.Node]) -> dict[fx.Node, list[tuple[str, fx.Node]]]:
    """After which node each buffer may take its new value: when it is there and the old is read no more."""
    position = {node: k for k, node in enumerate(nodes)}
    placed = {n.meta["desc"]: n for n in nodes if n.op == "placeholder"}
    output = nodes[-1]
    aliases = _aliases(nodes)
    after: dict[fx.Node, list[tuple[str, fx.Node]]] = {}
    for desc, value in _outputs(output):
        mutated = desc.mutated_input if isinstance(desc, InputMutationAOTOutput) else None
        if not isinstance(mutated, BufferAOTInput | ParamAOTInput) or value is None:
            continue  # the batch is uploaded anew: what a model does to it does not outlive the step
        readers = _readers(aliases, placed[mutated]) - {output}
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
    """The nodes whose values live in each storage."""
    found: dict[int, list[fx.Node]] = {}
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            _require_dense(node, value)
            found.setdefault(storage_key(value), []).append(node)
    return found


def _readers(aliases: dict[int, list[fx.Node]], source: fx.Node) -> set[fx.Node]:
    """Whatever uses `source` or a view of it."""
    return {user for alias in (source, *aliases[storage_key(source.meta["val"])]) for user in alias.users}
