"""Networks are built from declarations, and a wrong declaration is refused."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from indb_tensile.errors import RequestError
from indb_tensile.learning.networks.architectures import build, default, natural_shape, parameter_count
from indb_tensile.request.network_rules import ARCHITECTURES, LAYERS, check_architecture
from tests.nightly import few_examples

IMAGE: list[dict[str, Any]] = [
    {"type": "conv2d", "out": 8},
    {"type": "batch_norm2d"},
    {"type": "relu"},
    {"type": "residual", "layers": [{"type": "conv2d", "out": 8}, {"type": "batch_norm2d"}, {"type": "silu"}]},
    {"type": "max_pool2d"},
    {"type": "conv2d", "out": 12, "groups": 4, "stride": 1, "padding": 0, "bias": False},
    {"type": "avg_pool2d", "kernel": 2},
    {"type": "adaptive_avg_pool2d"},
    {"type": "flatten"},
    {"type": "batch_norm1d"},
    {"type": "dropout", "p": 0.1},
    {"type": "linear"},
]
SEQUENCE: list[dict[str, Any]] = [
    {"type": "reshape", "shape": [4, 6]},
    {"type": "lstm", "hidden": 5, "layers": 2, "dropout": 0.1, "output": "sequence"},
    {"type": "layer_norm"},
    {"type": "gru", "hidden": 4, "bidirectional": True, "output": "sequence"},
    {"type": "transformer_encoder", "heads": 2, "layers": 1, "output": "sequence"},
    {"type": "transformer_encoder", "d_model": 12, "heads": 3, "layers": 1, "positions": False},
    {"type": "gelu"},
    {"type": "linear", "out": 3, "bias": False},
    {"type": "tanh"},
    {"type": "sigmoid"},
    {"type": "linear"},
]


def layers(*declared: dict[str, Any]) -> dict[str, Any]:
    return {"type": "layers", "layers": list(declared)}


@pytest.mark.parametrize(
    ("architecture", "shape"),
    [
        ({"type": "mlp"}, (7,)),
        ({"type": "mlp", "hidden": []}, (7,)),
        ({"type": "mlp", "hidden": [5, 4], "activation": "gelu", "dropout": 0.2, "batch_norm": True}, (2, 3)),
        ({"type": "cnn"}, (1, 8, 8)),
        ({"type": "cnn", "channels": [4, 5, 6, 7], "kernel": 2, "depth": 2, "hidden": []}, (3, 5, 9)),
        ({"type": "auto"}, (3, 8, 8)),
        ({"type": "auto"}, (9,)),
        (layers(*IMAGE), (2, 12, 12)),
        (layers(*SEQUENCE), (24,)),
    ],
)
def test_a_network_learns_on_rows_of_its_shape(architecture: dict[str, Any], shape: tuple[int, ...]) -> None:
    module = build(architecture, shape, 3).train()
    module(torch.ones(4, *shape)).square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters())
    assert all(torch.isfinite(buffer).all() for buffer in module.buffers())
    assert module.eval()(torch.ones(1, *shape)).shape == (1, 3)


def test_the_learning_test_covers_every_layer_type() -> None:
    inner = [layer for outer in IMAGE for layer in outer.get("layers", [])]
    assert {layer["type"] for layer in (*IMAGE, *SEQUENCE, *inner)} == set(LAYERS)


def test_equal_seeds_give_equal_networks_and_leave_the_global_generator_unchanged() -> None:
    before = torch.get_rng_state()
    states = [build(layers(*SEQUENCE), (24,), 2, seed=seed).state_dict() for seed in (1, 1, 2)]
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_parameters_are_initialised_as_torch_initialises_them() -> None:
    module = build({"type": "mlp", "hidden": [100], "batch_norm": True}, (50,), 2, seed=3)
    weight = module.get_parameter("1.weight").detach()
    assert float(weight.abs().max()) <= 1 / 50**0.5
    assert float(weight.std()) == pytest.approx(1 / (3 * 50) ** 0.5, rel=0.1)
    normal = next(part for part in module.modules() if isinstance(part, nn.BatchNorm1d))
    assert normal.running_var is not None
    assert (normal.running_var == 1).all()
    assert parameter_count(module) == 50 * 100 + 100 + 200 + 202


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 20)),
)
@few_examples()
def test_a_cnn_fits_images_of_any_size(
    channels: list[int], kernel: int, depth: int, shape: tuple[int, int, int]
) -> None:
    module = build({"type": "cnn", "channels": channels, "kernel": kernel, "depth": depth}, shape, 2)
    assert module.eval()(torch.zeros(2, *shape)).shape == (2, 2)


def test_a_bidirectional_network_reads_the_whole_sequence_in_both_directions() -> None:
    module = build(layers({"type": "lstm", "hidden": 4, "bidirectional": True}, {"type": "linear"}), (5, 2), 1)
    x = torch.zeros(1, 5, 2, requires_grad=True)
    recurrent = module.get_submodule("0")(x)
    for half in (recurrent[:, :4], recurrent[:, 4:]):
        (gradient,) = torch.autograd.grad(half.sum(), x, retain_graph=True)
        assert (gradient.abs().sum(dim=2) > 0).all()


@pytest.mark.parametrize(
    ("architecture", "fault", "hint"),
    [
        ({"type": "lenet"}, 'unknown architecture "lenet"', "auto, mlp, cnn, resnet, vit, timm, layers"),
        ({}, 'lacks the key "type"', "mlp"),
        ({"type": "mlp", "width": 3}, 'unknown parameter "width"', "hidden"),
        ({"type": "mlp", "hidden": [0]}, r'"hidden" is \[0\]', "at least 1"),
        ({"type": "mlp", "hidden": 5}, '"hidden" is 5', "a list of integers"),
        ({"type": "mlp", "dropout": 1}, '"dropout" is 1', "below 1"),
        ({"type": "mlp", "activation": "swish"}, '"activation" is "swish"', "silu"),
        ({"type": "layers"}, '"layers" is missing', "list"),
        ({"type": "layers", "layers": []}, "list of layers is empty", "linear"),
        (layers({"type": "linear"}, {"type": "attention"}), 'layer 1 is {"type": "attention"}, whose type', "lstm"),
        (layers({"type": "linear", "in": 3}), r'layer 0 \(linear\): unknown parameter "in"', "out"),
        (layers({"type": "conv2d"}), r'layer 0 \(conv2d\): parameter "out" is missing', "integer"),
        (
            layers({"type": "residual", "layers": [{"type": "x"}]}),
            r"layer 0\. 0 is .* whose type is not known",
            "Known types",
        ),
        ({"type": "layers", "layers": [{"type": "relu"}] * 600}, "600 layers are more than", ""),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_place_and_the_known_values(
    architecture: dict[str, Any], fault: str, hint: str
) -> None:
    with pytest.raises(RequestError, match=fault) as caught:
        check_architecture(architecture)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("declared", "shape", "fault"),
    [
        ([{"type": "conv2d", "out": 2}], (8,), r"layer 0 \(conv2d\) does not fit its input of shape \[8\]"),
        (
            [{"type": "conv2d", "out": 2, "kernel": 5, "padding": 0}],
            (1, 3, 3),
            r"layer 0 \(conv2d\) .* \[1, 3, 3\]",
        ),
        ([{"type": "relu"}, {"type": "reshape", "shape": [3, 3]}], (8,), r"layer 1 \(reshape\) .* shape \[8\]"),
        ([{"type": "conv2d", "out": 3, "groups": 2}], (2, 4, 4), "layer 0"),
        ([{"type": "lstm", "hidden": 4, "dropout": 0.5}], (4, 2), "acts between layers"),
        ([{"type": "transformer_encoder", "heads": 4}], (4, 6), "d_model 6 cannot be split into 4 heads"),
        ([{"type": "residual", "layers": [{"type": "linear", "out": 3}]}], (4,), r"residual.*shape \[4\]"),
        ([{"type": "relu"}], (4,), r"gives \[4\] per row, the task needs \[2\]"),
        ([{"type": "linear", "out": 60000}, {"type": "linear"}], (60000,), "parameters are more than"),
    ],
)
def test_layers_that_do_not_fit_are_refused_with_their_shapes(
    declared: list[dict[str, Any]], shape: tuple[int, ...], fault: str
) -> None:
    with pytest.raises(RequestError, match=fault) as caught:
        build(layers(*declared), shape, 2)
    assert caught.value.hint


def test_the_shape_of_a_row_follows_the_architecture_and_the_only_array() -> None:
    auto, mlp, cnn, own = {"type": "auto"}, {"type": "mlp"}, {"type": "cnn"}, layers({"type": "linear"})
    assert natural_shape(auto, ((8, 8),), alone=True) == (1, 8, 8)
    assert natural_shape(auto, ((3, 8, 8),), alone=True) == (3, 8, 8)
    assert natural_shape(auto, ((8, 8),), alone=False) is None
    assert natural_shape(auto, ((8,),), alone=True) is None
    assert natural_shape(mlp, ((8, 8),), alone=True) is None
    assert natural_shape(cnn, ((8, 8),), alone=True) == (1, 8, 8)
    assert natural_shape(own, ((8, 8),), alone=True) == (8, 8)
    assert natural_shape({**own, "input_shape": [1, 8, 8]}, ((64,),), alone=True) == (1, 8, 8)
    with pytest.raises(RequestError, match="cnn needs images, the features give a flat row"):
        natural_shape(cnn, (), alone=False)


def test_auto_is_a_cnn_for_images_and_a_smaller_network_for_few_rows() -> None:
    assert default((1, 8, 8), rows=10)["type"] == "cnn"
    small, large = default((8,), rows=100), default((8,), rows=100_000)
    assert (small["type"], large["type"]) == ("mlp", "mlp")
    assert sum(small["hidden"]) < sum(large["hidden"])
    for chosen in (small, large, default((1, 8, 8), rows=10)):
        check_architecture(chosen)


def test_auto_embeds_the_values_of_larger_tables_that_are_not_wide() -> None:
    kinds = {(rows, values): default((8,), rows, values)["type"] for rows in (999, 1000) for values in (0, 8, 500)}
    assert kinds == dict.fromkeys(kinds, "mlp") | {(1000, 8): "wide_and_deep"}
    check_architecture(default((8,), 100_000, 8))


def test_the_tables_of_layers_and_architectures_are_plain_data() -> None:
    assert json.loads(json.dumps([ARCHITECTURES, LAYERS])) == [ARCHITECTURES, LAYERS]
