"""Determine the kind of layer of an operator from its name. The layer-wise policies decide by this kind.

vDNN and SuperNeurons treat layers, not tensors: they move what convolutions read or write, and run cheap layers
again. A captured graph has operators (`aten.convolution.default`, `aten.convolution_backward.default`), so the
papers' layer types are derived from operator names. An operator that is in no table has the kind OTHER, and a policy
leaves its tensors alone.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from indb_tensile.scheduler.graph import Operator, Stage


class LayerKind(StrEnum):
    """The papers' types of layer. A backward operator has the kind of the layer whose gradient it computes."""

    CONVOLUTION = "convolution"
    POOLING = "pooling"
    ACTIVATION = "activation"
    NORMALISATION = "normalisation"
    DROPOUT = "dropout"
    LINEAR = "linear"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"  # only copies data: concatenation, layout
    OTHER = "other"


def kind_of(name: str) -> LayerKind:
    """Return the kind of the operator of this name, with or without namespace and overload."""
    parts = name.split(".")
    base = parts[1] if len(parts) > 1 else parts[0]
    for ending in ("_data", "_input", "_backward"):
        base = base.removesuffix(ending)
    base = base.strip("_")
    return _KINDS.get(base, LayerKind.OTHER)


def is_backward(operator: Operator) -> bool:
    """Return whether the operator computes gradients. The stage decides, because a linear layer's gradients are
    computed by operators of the layer's own name.
    """
    return operator.stage is Stage.BACKWARD


_NAMES: Mapping[LayerKind, str] = MappingProxyType(
    {
        LayerKind.CONVOLUTION: "convolution convolution_overrideable cudnn_convolution mkldnn_convolution "
        "slow_conv2d "
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_depthwise2d",
        LayerKind.POOLING: "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices "
        "avg_pool1d "
        "avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d "
        "adaptive_max_pool3d",
        LayerKind.ACTIVATION: "relu relu6 threshold leaky_relu prelu rrelu elu celu selu gelu silu mish sigmoid "
        "logsigmoid log_sigmoid_forward log_sigmoid tanh hardtanh hardswish hardsigmoid softplus softshrink glu "
        "softmax log_softmax",
        LayerKind.NORMALISATION: "native_batch_norm native_batch_norm_legit native_batch_norm_legit_functional "
        "native_batch_norm_legit_no_training batch_norm_with_update batch_norm_with_update_functional "
        "batch_norm_no_update batch_norm cudnn_batch_norm miopen_batch_norm native_layer_norm layer_norm "
        "native_group_norm group_norm fused_rms_norm rms_norm local_response_norm normalise_again",
        LayerKind.DROPOUT: "native_dropout dropout bernoulli fused_dropout",
        LayerKind.LINEAR: "mm addmm bmm baddbmm matmul linear addmv mv dot addbmm",
        LayerKind.ELEMENTWISE: "add sub rsub mul div neg pow sqrt rsqrt exp log abs square reciprocal clamp "
        "clamp_min "
        "clamp_max where maximum minimum addcmul addcdiv lerp erf sin cos sign masked_fill add_relu",
        LayerKind.MOVEMENT: "cat stack clone copy to_copy contiguous slice select split expand permute transpose t "
        "view "
        "reshape constant_pad_nd index_select",
    }
)
_KINDS: Mapping[str, LayerKind] = MappingProxyType(
    {name: kind for kind, names in _NAMES.items() for name in names.split()}
)
