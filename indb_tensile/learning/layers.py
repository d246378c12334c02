"""The declarative layers: which there are, what each takes, and the module it makes for a given input shape."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from indb_tensile.errors import RequestError
from indb_tensile.learning.parameters import Specification, check_parameters
from indb_tensile.learning.sequences import (
    SEQUENCE_OUTPUTS,
    Recurrent,
    Reshape,
    Residual,
    TransformerEncoder,
    divisors,
)

Shape = tuple[int, ...]

ACTIVATIONS = ("relu", "gelu", "tanh", "sigmoid", "silu")
MOST_UNITS = 65_536
MOST_LAYERS = 500  # all levels together
DEEPEST_LAYERS = 8  # of residual layers within one another

_UNITS: Specification = {"type": "integer", "minimum": 1, "maximum": MOST_UNITS}
_KERNEL: Specification = {"type": "integer", "minimum": 1, "maximum": 63}
_DROPOUT: Specification = {"type": "number", "minimum": 0, "below": 1, "default": 0.0}
_DEPTH: Specification = {"type": "integer", "minimum": 1, "maximum": 64, "default": 1}
_OUTPUT: Specification = {"type": "choice", "values": list(SEQUENCE_OUTPUTS), "default": "last"}
_POOL: dict[str, Specification] = {
    "kernel": {**_KERNEL, "default": 2},
    "stride": {**_KERNEL, "default": None},
    "padding": {"type": "integer", "minimum": 0, "maximum": 31, "default": 0},
}
_RECURRENT: dict[str, Specification] = {
    "hidden": _UNITS,
    "layers": _DEPTH,
    "bidirectional": {"type": "boolean", "default": False},
    "dropout": _DROPOUT,
    "output": _OUTPUT,
}

# A linear layer without `out` has as many as the task needs outputs.
LAYERS: dict[str, dict[str, Specification]] = {
    "linear": {"out": {**_UNITS, "default": None}, "bias": {"type": "boolean", "default": True}},
    "conv2d": {
        "out": _UNITS,
        "kernel": {**_KERNEL, "default": 3},
        "stride": {**_KERNEL, "default": 1},
        "padding": {"type": "integer", "minimum": 0, "maximum": 31, "default": None},
        "groups": {**_UNITS, "default": 1},
        "bias": {"type": "boolean", "default": True},
    },
    "batch_norm1d": {},
    "batch_norm2d": {},
    "layer_norm": {},
    **{name: {} for name in ACTIVATIONS},
    "dropout": {"p": {**_DROPOUT, "default": 0.5}},
    "max_pool2d": _POOL,
    "avg_pool2d": _POOL,
    "adaptive_avg_pool2d": {"size": {**_KERNEL, "default": 1}},
    "flatten": {},
    "reshape": {"shape": {"type": "integers", "minimum": -1, "maximum": 2**31 - 1, "length": [1, 4]}},
    "lstm": _RECURRENT,
    "gru": _RECURRENT,
    "transformer_encoder": {
        "d_model": {**_UNITS, "default": None},
        "heads": {"type": "integer", "minimum": 1, "maximum": 256, "default": 4},
        "layers": {**_DEPTH, "default": 2},
        "feedforward": {**_UNITS, "default": None},
        "dropout": {**_DROPOUT, "default": 0.1},
        "positions": {"type": "boolean", "default": True},
        "output": {**_OUTPUT, "default": "mean"},
    },
    "residual": {"layers": {"type": "layers"}},
}

_Values = Mapping[str, Any]


def check_layers(layers: Sequence[Any], where: str = "layer", depth: int = 0) -> int:
    """How many there are on all levels; raises RequestError, naming the layer, for what is not known."""
    if depth > DEEPEST_LAYERS:
        raise RequestError(f"architecture: {where} nests residual layers more than {DEEPEST_LAYERS} deep")
    count = len(layers)
    for position, layer in enumerate(layers):
        title = f"{where} {position}"
        values = check_parameters(
            f"architecture: {title} ({_kind(layer, title)})", _without_type(layer), _known(layer)
        )
        if layer["type"] == "residual":
            count += check_layers(values["layers"], f"{title}.", depth + 1)
    if count > MOST_LAYERS:
        raise RequestError(f"architecture: {count} layers are more than {MOST_LAYERS}")
    return count


def stack(layers: Sequence[Mapping[str, Any]], shape: Shape, outputs: int, where: str = "layer") -> nn.Sequential:
    """The layers one after another, each made for the shape that the one before gives. Works on any device.

    Raises RequestError, with the layer's number and the shapes, where one does not fit.
    """
    made = []
    for position, layer in enumerate(layers):
        title = f"{where} {position}"
        module = _module(layer, shape, outputs, title)
        shape = output_shape(module, shape, f"{title} ({layer['type']})")
        made.append(module)
    return nn.Sequential(*made)


def output_shape(module: nn.Module, shape: Shape, title: str) -> Shape:
    """What the module makes of one row of this shape, found on the meta device: nothing is computed."""
    try:
        result = module.to("meta")(torch.empty(2, *shape, device="meta"))
    except (RuntimeError, ValueError, IndexError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise _misfit(title, shape, reason) from error
    if 0 in result.shape:
        raise _misfit(title, shape, f"nothing is left: the result has shape {list(result.shape[1:])}")
    return tuple(result.shape[1:])


def _module(layer: Mapping[str, Any], shape: Shape, outputs: int, title: str) -> nn.Module:
    kind = layer["type"]
    values = check_parameters(f"architecture: {title} ({kind})", _without_type(layer), LAYERS[kind])
    if kind == "residual":
        inner = stack(values["layers"], shape, outputs, f"{title}.")
        own = output_shape(inner, shape, f"{title} (residual)")
        if own != shape:
            raise _misfit(f"{title} (residual)", shape, f"its layers give {list(own)}, which cannot be added")
        return Residual(inner)
    dims, maker = _MAKERS[kind]
    if dims is not None and len(shape) not in dims:
        wanted = " or ".join(_DIMS[count] for count in dims)
        raise _misfit(f"{title} ({kind})", shape, f"it needs {wanted}")
    return maker(values, shape, outputs, f"{title} ({kind})")


def _misfit(title: str, shape: Shape, reason: str) -> RequestError:
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
        raise _misfit(title, shape, f"its {groups} groups must divide {shape[0]} channels in and {out} out")
    padding = values["kernel"] // 2 if values["padding"] is None else values["padding"]
    return nn.Conv2d(shape[0], out, values["kernel"], values["stride"], padding, groups=groups, bias=values["bias"])


def _max_pool2d(values: _Values, shape: Shape, outputs: int, title: str) -> nn.Module:
    return nn.MaxPool2d(values["kernel"], values["stride"], values["padding"])


def _avg_pool2d(values: _Values, shape: Shape, outputs: int, title: str) -> nn.Module:
    return nn.AvgPool2d(values["kernel"], values["stride"], values["padding"])


def _recurrent(kind: str) -> "_Maker":
    def make(values: _Values, shape: Shape, outputs: int, title: str) -> nn.Module:
        if values["dropout"] and values["layers"] == 1:
            hint = 'Give it more "layers", or add a dropout layer after it.'
            raise RequestError(f'architecture: {title}: "dropout" acts between layers, and there is one', hint=hint)
        return Recurrent(
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


_Maker = Callable[[_Values, Shape, int, str], nn.Module]

# The dimensions of a row that a layer takes (None: any), and its maker.
_MAKERS: dict[str, tuple[tuple[int, ...] | None, _Maker]] = {
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
    "relu": (None, lambda values, shape, outputs, title: nn.ReLU()),
    "gelu": (None, lambda values, shape, outputs, title: nn.GELU()),
    "tanh": (None, lambda values, shape, outputs, title: nn.Tanh()),
    "sigmoid": (None, lambda values, shape, outputs, title: nn.Sigmoid()),
    "silu": (None, lambda values, shape, outputs, title: nn.SiLU()),
}


def _kind(layer: Any, title: str) -> str:
    kind = layer.get("type") if isinstance(layer, Mapping) else None
    if kind not in LAYERS:
        hint = f"Known layers: {', '.join(LAYERS)}."
        raise RequestError(f"architecture: {title} has the unknown type {_shown(kind)}", hint=hint)
    return str(kind)


def _shown(kind: Any) -> str:
    return f'"{kind}"' if isinstance(kind, str) else repr(kind)


def _known(layer: Mapping[str, Any]) -> dict[str, Specification]:
    return LAYERS[layer["type"]]


def _without_type(layer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in layer.items() if name != "type"}
