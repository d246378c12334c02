"""Makes tracing record the operators that eager runs, and describe their results as eager's.

By default tracing replaces some operators by Python decompositions, whose results differ in the last bits. The
context managers keep eager's operators instead. The functions registered with `register_op_impl` replace torch's own
fakes of some operators, for the whole process: they describe the same results more exactly. Only this file and
step_trace.py call torch's private tracing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._C import DispatchKey
from torch._subclasses.fake_impls import register_op_impl
from torch._subclasses.fake_tensor import FakeTensorMode

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.ctc_loss import ctc_loss, fake_ctc_loss
from indb_tensile.executor.capture.products import product, product_along
from indb_tensile.executor.capture.recurrence import gru

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


@contextmanager
def eager_operators(module: nn.Module) -> Iterator[None]:
    """Trace the operators that eager runs, and refuse those that check values."""
    with _plain_attention(), _torch_recurrences(module), _replaced_operators(), _eager_kernels():
        yield


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
