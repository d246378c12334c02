"""Check which kind of layer an operator's name stands for, as captured graphs spell the names."""

import pytest

from indb_tensile.scheduler.graph import Operator, Stage
from indb_tensile.scheduler.policies.layer_kinds import Kind, is_backward, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten.convolution.default", Kind.CONVOLUTION),
        ("aten.convolution_backward.default", Kind.CONVOLUTION),
        ("aten.max_pool2d_with_indices.default", Kind.POOLING),
        ("aten.max_pool2d_with_indices_backward.default", Kind.POOLING),
        ("aten._adaptive_avg_pool2d_backward.default", Kind.POOLING),
        ("aten.relu_.default", Kind.ACTIVATION),
        ("aten.threshold_backward.default", Kind.ACTIVATION),
        ("aten.leaky_relu_backward.grad_input", Kind.ACTIVATION),
        ("aten._softmax_backward_data.default", Kind.ACTIVATION),
        ("aten._native_batch_norm_legit_functional.default", Kind.NORMALISATION),
        ("aten.native_batch_norm_backward.default", Kind.NORMALISATION),
        ("aten.native_layer_norm_backward.default", Kind.NORMALISATION),
        ("aten.native_dropout_backward.default", Kind.DROPOUT),
        ("aten.addmm.default", Kind.LINEAR),
        ("aten.add.Tensor", Kind.ELEMENTWISE),
        ("relu", Kind.ACTIVATION),
        ("aten.cat.default", Kind.MOVEMENT),
        ("aten.mean.dim", Kind.OTHER),
        ("upload", Kind.OTHER),
    ],
)
def test_name_determines_the_kind_of_layer(name: str, kind: Kind) -> None:
    assert kind_of(name) is kind


def test_gradient_of_a_linear_layer_is_recognized_by_its_stage() -> None:
    forward, backward = (
        Operator(name="aten.mm.default", signature="", stage=stage, reads=(), writes=())
        for stage in (Stage.FORWARD, Stage.BACKWARD)
    )
    assert (is_backward(forward), is_backward(backward)) == (False, True)
