"""Check which kind of layer an operator's name stands for, as captured graphs spell the names."""

import pytest

from indb_tensile.scheduler.graph import Operator, Stage
from indb_tensile.scheduler.policies.layer_kinds import LayerKind, is_backward, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten.convolution.default", LayerKind.CONVOLUTION),
        ("aten.convolution_backward.default", LayerKind.CONVOLUTION),
        ("aten.max_pool2d_with_indices.default", LayerKind.POOLING),
        ("aten.max_pool2d_with_indices_backward.default", LayerKind.POOLING),
        ("aten._adaptive_avg_pool2d_backward.default", LayerKind.POOLING),
        ("aten.relu_.default", LayerKind.ACTIVATION),
        ("aten.threshold_backward.default", LayerKind.ACTIVATION),
        ("aten.leaky_relu_backward.grad_input", LayerKind.ACTIVATION),
        ("aten._softmax_backward_data.default", LayerKind.ACTIVATION),
        ("aten._native_batch_norm_legit_functional.default", LayerKind.NORMALISATION),
        ("aten.native_batch_norm_backward.default", LayerKind.NORMALISATION),
        ("aten.native_layer_norm_backward.default", LayerKind.NORMALISATION),
        ("aten.native_dropout_backward.default", LayerKind.DROPOUT),
        ("aten.addmm.default", LayerKind.LINEAR),
        ("aten.add.Tensor", LayerKind.ELEMENTWISE),
        ("relu", LayerKind.ACTIVATION),
        ("aten.cat.default", LayerKind.MOVEMENT),
        ("aten.mean.dim", LayerKind.OTHER),
        ("upload", LayerKind.OTHER),
    ],
)
def test_name_determines_the_kind_of_layer(name: str, kind: LayerKind) -> None:
    assert kind_of(name) is kind


def test_gradient_of_a_linear_layer_is_recognized_by_its_stage() -> None:
    forward, backward = (
        Operator(name="aten.mm.default", signature="", stage=stage, reads=(), writes=())
        for stage in (Stage.FORWARD, Stage.BACKWARD)
    )
    assert (is_backward(forward), is_backward(backward)) == (False, True)
