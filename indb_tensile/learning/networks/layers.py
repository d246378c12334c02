"""The layers of declared networks: the torch module of each for a given input shape.

The declarations have been checked by `request/network_rules.py`, which has the names and parameters of all layers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from indb_tensile.errors import RequestError
from indb_tensile.learning.networks.sequences import (
    RecurrentLayer,
    Reshape,
    Residual,
    TransformerEncoder,
    divisors,
)
from indb_tensile.request.network_rules import LAYERS, without_type
from indb_tensile.request.parameter_rules import fill_defaults

Shape = tuple[int, ...]
ACTIVATION_MODULES: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
}

_Values = Mapping[str, Any]


def stack(layers: Sequence[dict[str, Any]], shape: Shape, outputs: int, where: str = "layer") -> nn.Sequential:
    """Build the layers in order, each for the output shape of the previous one. Works on any device.

    Raises RequestError with the layer's number and the shapes if a layer does not fit.
    """
    modules = []
    for position, layer in enumerate(layers):
        title = f"{where} {position}"
        module = _module(layer, shape, outputs, title)
        shape = output_shape(module, shape, f"{title} ({layer['type']})")
        modules.append(module)
    return nn.Sequential(*modules)


def output_shape(module: nn.Module, shape: Shape, title: str) -> Shape:
    """Return the shape of the module's output for one row of the given shape.

    The shape is determined on the meta device, without computing values. Moves the module to the meta device.
    """
    try:
        result = module.to("meta")(torch.empty(2, *shape, device="meta"))
    except (RuntimeError, ValueError, IndexError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise _shape_error(title, shape, reason) from error
    if 0 in result.shape:
        raise _shape_error(title, shape, f"nothing is left: the result has shape {list(result.shape[1:])}")
    return tuple(result.shape[1:])


def _module(layer: dict[str, Any], shape: Shape, outputs: int, title: str) -> nn.Module:
    """Build one layer. Raises RequestError if the layer does not fit the shape of its input."""
    kind = layer["type"]
    values = fill_defaults(without_type(layer), LAYERS[kind])
    if kind == "residual":
        inner = stack(values["layers"], shape, outputs, f"{title}.")
        inner_shape = output_shape(inner, shape, f"{title} (residual)")
        if inner_shape != shape:
            raise _shape_error(
                f"{title} (residual)", shape, f"its layers give {list(inner_shape)}, which cannot be added"
            )
        return Residual(inner)
    dims, build = _BUILDERS[kind]
    if dims is not None and len(shape) not in dims:
        expected = " or ".join(_DIMS[count] for count in dims)
        raise _shape_error(f"{title} ({kind})", shape, f"it needs {expected}")
    return build(values, shape, outputs, f"{title} ({kind})")


def _shape_error(title: str, shape: Shape, reason: str) -> RequestError:
    return RequestError(
        f"architecture: {title} does not fit its input of shape {list(shape)}",
        detail=f"{reason[0].upper()}{reason[1:]}." if reason else "",
        hint="Change the layer or the ones before it; reshape, flatten and input_shape give another shape.",
    )


_DIMS = {1: "a vector (features)", 2: "a sequence (steps, features)", 3: "an image (channels, height, width)"}


def _linear(values: _Values, shape: Shape, outputs: int, title: str) -> nn.Module:
    return nn.Linear(shape[-1], outputs if values["out"] is None else values["out"], bias=values["bias"])


def _conv2d(values: _Values, shape: Shape, outputs: int, title: str) -> nn.Module:
    groups, out = values["groups"], values["out"]
    if shape[0] % groups or out % groups:
        raise _shape_error(title, shape, f"its {groups} groups must divide {shape[0]} channels in and {out} out")
    padding = values["kernel"] // 2 if values["padding"] is None else values["padding"]
    return nn.Conv2d(shape[0], out, values["kernel"], values["stride"], padding, groups=groups, bias=values["bias"])


def _max_pool2d(values: _Values, shape: Shape, outputs: int, title: str) -> nn.Module:
    return nn.MaxPool2d(values["kernel"], values["stride"], values["padding"])


def _avg_pool2d(values: _Values, shape: Shape, outputs: int, title: str) -> nn.Module:
    return nn.AvgPool2d(values["kernel"], values["stride"], values["padding"])


def _recurrent(kind: str) -> "_Builder":
    """Return the builder of an LSTM or GRU layer."""

    def make(values: _Values, shape: Shape, outputs: int, title: str) -> nn.Module:
        return RecurrentLayer(
            kind,
            shape[1],
            values["hidden"],
            values["layers"],
            bidirectional=values["bidirectional"],
            dropout=values["dropout"],
            output=values["output"],
        )

    return make


def _transformer(values: _Values, shape: Shape, outputs: int, title: str) -> nn.Module:
    d_model = values["d_model"] or shape[1]
    if d_model % values["heads"]:
        hint = f"Use one of {', '.join(map(str, divisors(d_model)))} heads, or another d_model."
        raise RequestError(
            f"architecture: {title}: d_model {d_model} cannot be split into {values['heads']} heads", hint=hint
        )
    return TransformerEncoder(
        shape[0],
        shape[1],
        d_model,
        values["heads"],
        values["layers"],
        values["feedforward"] or 4 * d_model,
        dropout=values["dropout"],
        positions=values["positions"],
        output=values["output"],
    )


def _activation(name: str) -> "_Builder":
    return lambda values, shape, outputs, title: ACTIVATION_MODULES[name]()


_Builder = Callable[[_Values, Shape, int, str], nn.Module]

# The number of dimensions of a row that a layer accepts (None: any), and the function that builds the module.
_BUILDERS: dict[str, tuple[tuple[int, ...] | None, _Builder]] = {
    "linear": (None, _linear),
    "conv2d": ((3,), _conv2d),
    "batch_norm1d": ((1,), lambda values, shape, outputs, title: nn.BatchNorm1d(shape[0])),
    "batch_norm2d": ((3,), lambda values, shape, outputs, title: nn.BatchNorm2d(shape[0])),
    "layer_norm": (None, lambda values, shape, outputs, title: nn.LayerNorm(shape[-1] if len(shape) < 3 else shape)),
    "dropout": (None, lambda values, shape, outputs, title: nn.Dropout(values["p"])),
    "max_pool2d": ((3,), _max_pool2d),
    "avg_pool2d": ((3,), _avg_pool2d),
    "adaptive_avg_pool2d": ((3,), lambda values, shape, outputs, title: nn.AdaptiveAvgPool2d(values["size"])),
    "flatten": (None, lambda values, shape, outputs, title: nn.Flatten()),
    "reshape": (None, lambda values, shape, outputs, title: Reshape(values["shape"])),
    "lstm": ((2,), _recurrent("lstm")),
    "gru": ((2,), _recurrent("gru")),
    "transformer_encoder": ((2,), _transformer),
    **{name: (None, _activation(name)) for name in ACTIVATION_MODULES},
}
