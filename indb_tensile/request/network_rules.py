"""The networks of a training: the known architectures and layers with their parameters, and the check of both.

The check sees the declaration only. Whether the layers fit together and the network fits in memory depends on the
table's columns, so a worker checks that when it builds the network (learning/networks/architectures.py).
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .near_names import did_you_mean
from .parameter_rules import Json, Rule, check_parameters, fill_defaults
from .pretrained_rules import MOST_POSITIONS, MOST_VOCABULARY, PRETRAINED, check_pretrained
from .timm_rules import TIMM, check_timm

ACTIVATIONS = ("relu", "gelu", "tanh", "sigmoid", "silu")
SEQUENCE_OUTPUTS = ("last", "mean", "sequence")
NUMBER_EMBEDDINGS = ("piecewise", "periodic", "linear", "none")
MOST_UNITS = 65536
MOST_PARAMETERS = 2_000_000_000
MOST_LAYERS = 500  # most layers of a network, including layers within residual layers
DEEPEST_LAYERS = 8  # levels of residual layers within residual layers

_FLAG: Rule = {"type": "boolean", "default": False}
_DROPOUT: Rule = {"type": "number", "minimum": 0, "below": 1, "default": 0.0}
_ACTIVATION: Rule = {"type": "choice", "values": list(ACTIVATIONS), "default": "relu"}
_WIDTHS: Rule = {"type": "integers", "minimum": 1, "maximum": MOST_UNITS, "length": [0, 64]}
_INPUT_SHAPE: Rule = _WIDTHS | {"length": [1, 3], "default": None}
# How the values of a row are laid out for networks that embed them. The worker counts `numbers` and `categories`.
_LAYOUT: dict[str, Rule] = {
    "numbers": {"type": "integer", "minimum": 0, "maximum": 2147483647, "default": None},
    "categories": {"type": "integers", "minimum": 1, "maximum": 10002, "length": [0, 1600], "default": None},
}
_TOKEN_LAYOUT: dict[str, Rule] = {
    "vocabularies": {"type": "integers", "minimum": 1, "maximum": 32768, "length": [0, 1600], "default": None},
    "lengths": {"type": "integers", "minimum": 1, "maximum": 1024, "length": [0, 1600], "default": None},
}
# What each column of a row has become: how many numbers, and by what the sum of their errors is divided.
_PART: Rule = {"type": "integers", "minimum": 1, "maximum": 2147483647, "length": [0, 10000], "default": None}
_PART_LAYOUT: dict[str, Rule] = {"widths": _PART, "divisors": _PART}
# Where a row has the numbers of the item of a pair: the first one of each range, and the one behind its last.
_SIDE_LAYOUT: dict[str, Rule] = {
    "item_ranges": {"type": "integers", "minimum": 0, "maximum": 2147483647, "length": [2, 4000], "default": None},
}
# Channels, height and width of each column of images.
_IMAGE_LAYOUT: dict[str, Rule] = {
    "images": {"type": "integers", "minimum": 1, "maximum": 1024, "length": [0, 192], "default": None},
}
TEXT_ENCODERS = ("pooling", "convolution", "transformer")
IMAGE_ENCODERS = ("convolution", "resnet", "vit")
_EMBEDDINGS: dict[str, Rule] = {
    "number_embedding": {"type": "choice", "values": list(NUMBER_EMBEDDINGS), "default": "piecewise"},
    "embedding_width": {"type": "integer", "minimum": 1, "maximum": 1024, "default": 8},
    "bins": {"type": "integer", "minimum": 2, "maximum": 256, "default": 24},
    "frequencies": {"type": "integer", "minimum": 1, "maximum": 256, "default": 24},
    "frequency_scale": {"type": "number", "above": 0, "maximum": 100, "default": 0.1},
    "text_encoder": {"type": "choice", "values": list(TEXT_ENCODERS), "default": "pooling"},
    "text_width": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 128},
    "text_dropout": _DROPOUT | {"default": 0.5},
    "text_kernel": {"type": "integer", "minimum": 1, "maximum": 31, "default": 3},
    "text_heads": {"type": "integer", "minimum": 1, "maximum": 256, "default": 4},
    "text_blocks": {"type": "integer", "minimum": 1, "maximum": 64, "default": 2},
    "image_encoder": {"type": "choice", "values": list(IMAGE_ENCODERS), "default": "resnet"},
    "image_width": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 64},
    "image_blocks": {"type": "integer", "minimum": 1, "maximum": 64, "default": 1},
    "image_patch": {"type": "integer", "minimum": 1, "maximum": 256, "default": 4},
    "image_heads": {"type": "integer", "minimum": 1, "maximum": 256, "default": 4},
    **_LAYOUT,
    **_TOKEN_LAYOUT,
    **_IMAGE_LAYOUT,
}
# Parameters that have an effect only with one value of another parameter. Otherwise they are refused.
_ONLY_WITH = {
    "bins": ("number_embedding", "piecewise"),
    "frequencies": ("number_embedding", "periodic"),
    "frequency_scale": ("number_embedding", "periodic"),
    "text_kernel": ("text_encoder", "convolution"),
    "text_heads": ("text_encoder", "transformer"),
    "text_blocks": ("text_encoder", "transformer"),
    "image_patch": ("image_encoder", "vit"),
    "image_heads": ("image_encoder", "vit"),
}
_TABLE_DROPOUT: Rule = _DROPOUT | {"default": 0.1}
# How the values of a window are laid out for networks that forecast. The worker counts them.
_COUNT: Rule = {"type": "integer", "minimum": 0, "maximum": 2147483647, "default": None}
_COUNTED = ("window", "horizon", "window_channels", "targets", "known", "season")
WINDOW_LAYOUT: dict[str, Rule] = dict.fromkeys(_COUNTED, _COUNT)
ARCHITECTURES: dict[str, dict[str, Rule]] = {
    "auto": {"input_shape": _INPUT_SHAPE},
    "mlp": {
        "hidden": _WIDTHS | {"default": [128, 64]},
        "activation": _ACTIVATION,
        "dropout": _DROPOUT,
        "batch_norm": _FLAG,
        "input_shape": _INPUT_SHAPE,
    },
    "cnn": {
        "channels": _WIDTHS | {"length": [1, 32], "default": [32, 64]},
        "kernel": {"type": "integer", "minimum": 1, "maximum": 31, "default": 3},
        "depth": {"type": "integer", "minimum": 1, "maximum": 16, "default": 1},
        "hidden": _WIDTHS | {"default": [128]},
        "activation": _ACTIVATION,
        "dropout": _DROPOUT,
        "batch_norm": {"type": "boolean", "default": True},
        "input_shape": _INPUT_SHAPE,
    },
    "resnet": {
        "stages": {"type": "integers", "minimum": 1, "maximum": 64, "length": [1, 8], "default": [1, 1, 1]},
        "width": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 32},
        "dropout": _DROPOUT,
        "input_shape": _INPUT_SHAPE,
    },
    "vit": {
        "patch": {"type": "integer", "minimum": 1, "maximum": 256, "default": 4},
        "width": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 64},
        "heads": {"type": "integer", "minimum": 1, "maximum": 256, "default": 4},
        "blocks": {"type": "integer", "minimum": 1, "maximum": 64, "default": 4},
        "dropout": _DROPOUT,
        "input_shape": _INPUT_SHAPE,
    },
    "timm": {**TIMM, "input_shape": _INPUT_SHAPE},
    "layers": {"layers": {"type": "layers"}, "input_shape": _INPUT_SHAPE},
    "tabm": {
        "members": {"type": "integer", "minimum": 1, "maximum": 256, "default": 8},
        "hidden": _WIDTHS | {"length": [1, 64], "default": [128, 128]},
        "activation": _ACTIVATION,
        "dropout": _TABLE_DROPOUT,
        **_EMBEDDINGS,
    },
    "residual_mlp": {
        "width": {"type": "integer", "minimum": 1, "maximum": MOST_UNITS, "default": 128},
        "blocks": {"type": "integer", "minimum": 1, "maximum": 64, "default": 2},
        "activation": _ACTIVATION,
        "dropout": _TABLE_DROPOUT,
        **_EMBEDDINGS,
    },
    "ft_transformer": {
        "heads": {"type": "integer", "minimum": 1, "maximum": 256, "default": 4},
        "blocks": {"type": "integer", "minimum": 1, "maximum": 64, "default": 2},
        "dropout": _TABLE_DROPOUT,
        **_EMBEDDINGS,
        "embedding_width": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 32},
    },
    "dcn": {
        "crosses": {"type": "integer", "minimum": 1, "maximum": 16, "default": 2},
        "hidden": _WIDTHS | {"default": [128, 64]},
        "activation": _ACTIVATION,
        "dropout": _TABLE_DROPOUT,
        **_EMBEDDINGS,
    },
    "wide_and_deep": {
        "hidden": _WIDTHS | {"default": [128, 64]},
        "activation": _ACTIVATION,
        "dropout": _TABLE_DROPOUT,
        **_EMBEDDINGS,
    },
    "autoencoder": {
        "hidden": _WIDTHS | {"length": [0, 16], "default": [16]},
        "code": {"type": "integer", "minimum": 1, "maximum": MOST_UNITS, "default": None},
        "noise": _DROPOUT | {"default": 0.1},
        "activation": _ACTIVATION,
        **_PART_LAYOUT,
    },
    "two_towers": {
        "width": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 64},
        "hidden": _WIDTHS | {"default": [128]},
        "temperature": {"type": "number", "minimum": 0.01, "maximum": 100, "default": None},
        "activation": _ACTIVATION,
        "dropout": _TABLE_DROPOUT,
        **_EMBEDDINGS,
        "embedding_width": {"type": "integer", "minimum": 1, "maximum": 1024, "default": 32},
        **_SIDE_LAYOUT,
    },
    "window_mlp": {
        "width": {"type": "integer", "minimum": 1, "maximum": MOST_UNITS, "default": 64},
        "blocks": {"type": "integer", "minimum": 1, "maximum": 64, "default": 2},
        "activation": _ACTIVATION,
        "dropout": _TABLE_DROPOUT,
        **_LAYOUT,
        **WINDOW_LAYOUT,
    },
    "dlinear": {
        "kernel": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 25},
        **_LAYOUT,
        **WINDOW_LAYOUT,
    },
    "tcn": {
        "channels": _WIDTHS | {"length": [1, 16], "default": [32, 32, 32, 32]},
        "kernel": {"type": "integer", "minimum": 2, "maximum": 31, "default": 3},
        "dropout": _TABLE_DROPOUT,
        **_LAYOUT,
        **WINDOW_LAYOUT,
    },
    "window_lstm": {
        "units": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 64},
        "layers": {"type": "integer", "minimum": 1, "maximum": 8, "default": 1},
        "dropout": _TABLE_DROPOUT,
        **_LAYOUT,
        **WINDOW_LAYOUT,
    },
    "pretrained": {
        **PRETRAINED,
        "hidden": _WIDTHS | {"default": []},
        "activation": _ACTIVATION,
        "dropout": _TABLE_DROPOUT,
        **{name: rule for name, rule in _EMBEDDINGS.items() if not name.startswith("text_")},
        "text_dropout": _DROPOUT | {"default": 0.1},
        "vocabularies": _TOKEN_LAYOUT["vocabularies"] | {"maximum": MOST_VOCABULARY + 1},
        "lengths": _TOKEN_LAYOUT["lengths"] | {"maximum": MOST_POSITIONS},
    },
    "boosting": {
        "iterations": {"type": "integer", "minimum": 1, "maximum": 10000, "default": None},
        "patience": {"type": "integer", "minimum": 1, "maximum": 10000, "default": 20},
        "learning_rate": {"type": "number", "above": 0, "maximum": 1, "default": 0.1},
        "leaves": {"type": "integer", "minimum": 2, "maximum": 4096, "default": 31},
        "max_depth": {"type": "integer", "minimum": 1, "maximum": 64, "default": None},
        "leaf_rows": {"type": "integer", "minimum": 1, "maximum": 1000000, "default": 20},
        "l2": {"type": "number", "minimum": 0, "maximum": 1e9, "default": 0.0},
        **_LAYOUT,
    },
    "linear": {
        "l2": {"type": "number", "above": 0, "maximum": 1e9, "default": 1.0},
        "iterations": {"type": "integer", "minimum": 1, "maximum": 100000, "default": 1000},
    },
}
IMAGE_ARCHITECTURES = ("resnet", "vit", "timm")  # modules of their own; `cnn` stands for a list of layers
ESTIMATORS = ("boosting", "linear")  # models of scikit-learn, fitted on the processor: they take no device memory
ANOMALY_ARCHITECTURES = ("autoencoder",)
PAIR_ARCHITECTURES = ("two_towers",)
# Networks that are no ensemble of several members already.
ENSEMBLE_ARCHITECTURES = tuple(
    kind
    for kind, rules in ARCHITECTURES.items()
    if kind not in ("tabm", "pretrained", *PAIR_ARCHITECTURES, *ESTIMATORS)
)
FORECAST_ARCHITECTURES = tuple(kind for kind, rules in ARCHITECTURES.items() if "horizon" in rules)
EMBEDDING_ARCHITECTURES = tuple(kind for kind, rules in ARCHITECTURES.items() if "number_embedding" in rules)
# Those that predict from a row, and need no registered network.
TABLE_ARCHITECTURES = tuple(
    kind for kind in EMBEDDING_ARCHITECTURES if kind not in ("pretrained", *PAIR_ARCHITECTURES)
)
_UNITS: Rule = {"type": "integer", "minimum": 1, "maximum": MOST_UNITS}
_KERNEL: Rule = {"type": "integer", "minimum": 1, "maximum": 63}
_PADDING: Rule = {"type": "integer", "minimum": 0, "maximum": 31}
_DEPTH: Rule = {"type": "integer", "minimum": 1, "maximum": 64, "default": 1}
_OUTPUT: Rule = {"type": "choice", "values": list(SEQUENCE_OUTPUTS), "default": "last"}
_POOL: dict[str, Rule] = {
    "kernel": _KERNEL | {"default": 2},
    "stride": _KERNEL | {"default": None},
    "padding": _PADDING | {"default": 0},
}
_RECURRENT: dict[str, Rule] = {
    "hidden": _UNITS,
    "layers": _DEPTH,
    "bidirectional": _FLAG,
    "dropout": _DROPOUT,
    "output": _OUTPUT,
}
# The default of `out` in a linear layer is the number of outputs that the task needs.
LAYERS: dict[str, dict[str, Rule]] = {
    "linear": {"out": _UNITS | {"default": None}, "bias": {"type": "boolean", "default": True}},
    "conv2d": {
        "out": _UNITS,
        "kernel": _KERNEL | {"default": 3},
        "stride": _KERNEL | {"default": 1},
        "padding": _PADDING | {"default": None},
        "groups": _UNITS | {"default": 1},
        "bias": {"type": "boolean", "default": True},
    },
    "batch_norm1d": {},
    "batch_norm2d": {},
    "layer_norm": {},
    **{name: {} for name in ACTIVATIONS},
    "dropout": {"p": _DROPOUT | {"default": 0.5}},
    "max_pool2d": _POOL,
    "avg_pool2d": _POOL,
    "adaptive_avg_pool2d": {"size": _KERNEL | {"default": 1}},
    "flatten": {},
    "reshape": {"shape": {"type": "integers", "minimum": -1, "maximum": 2147483647, "length": [1, 4]}},
    "lstm": _RECURRENT,
    "gru": _RECURRENT,
    "transformer_encoder": {
        "d_model": _UNITS | {"default": None},
        "heads": {"type": "integer", "minimum": 1, "maximum": 256, "default": 4},
        "layers": _DEPTH | {"default": 2},
        "feedforward": _UNITS | {"default": None},
        "dropout": _DROPOUT | {"default": 0.1},
        "positions": {"type": "boolean", "default": True},
        "output": _OUTPUT | {"default": "mean"},
    },
    "residual": {"layers": {"type": "layers"}},
}


def read_architecture(text: str) -> Json:
    """Return the declaration of a network as an object.

    `text` is a name, a list of layers in JSON, or an object in JSON. A name stands for an object with this type only,
    and a list for an object with these layers.
    """
    if not text.lstrip().startswith(("{", "[")):
        return {"type": text}
    try:
        decoded = json.loads(text)
        return {"type": "layers", "layers": decoded} if isinstance(decoded, list) else dict(decoded)
    except (ValueError, RecursionError) as error:
        message = f"architecture is not valid JSON: {error}"
        raise RequestError(message, hint=_KNOWN_ARCHITECTURES) from None


def check_architecture(declaration: Json) -> Json:
    """Return the declaration without nulls.

    Raises RequestError for an unknown type, an invalid parameter, an invalid layer, and too many weights.
    """
    kind = declaration.get("type")
    if kind is None:
        message = f'architecture {shown(declaration)} lacks the key "type"'
        raise RequestError(message, hint=_KNOWN_ARCHITECTURES)
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        hint = did_you_mean(kind, ARCHITECTURES) + _KNOWN_ARCHITECTURES
        raise RequestError(f"unknown architecture {shown(kind)}", hint=hint)
    checked = check_parameters(f"architecture {kind}", without_type(declaration), ARCHITECTURES[kind])
    if kind == "layers":
        check_layers(checked["layers"])
    _check_widths(kind, checked.get("hidden") or [])
    if kind in EMBEDDING_ARCHITECTURES:
        _check_embeddings(kind, checked)
    if kind == "pretrained":
        check_pretrained(checked)
    if kind == "timm":
        check_timm(checked)
    if kind == "vit":
        _check_heads(kind, fill_defaults(checked, ARCHITECTURES[kind]), "width", "heads")
    return {"type": kind} | checked


def check_layers(layers: Sequence[Any]) -> None:
    """Raise RequestError for an empty or too long list, an unknown type of layer, and an invalid parameter."""
    if not layers:
        raise RequestError("architecture: the list of layers is empty", hint='End it with {"type": "linear"}.')
    count = _check_level(layers, "layer", 0)
    if count > MOST_LAYERS:
        raise RequestError(f"architecture: {count} layers are more than {MOST_LAYERS}", hint="Give fewer layers.")


def weights_misfit(own: Json, source: Json) -> str:
    """Return why a network cannot take the weights of another one, or an empty text if the declarations do not tell.

    Both declarations have been checked. Lists of layers are left to the worker, which compares the shapes.
    """
    kind = own["type"]
    if "auto" in (kind, source["type"]):
        return ""
    if kind != source["type"]:
        return f"its type is {kind}, and not {source['type']}"
    rules = {name: rule for name, rule in ARCHITECTURES[kind].items() if name in _SHAPING}
    ours, theirs = (fill_defaults(without_type(declaration), rules) for declaration in (own, source))
    for name in rules:
        if ours[name] != theirs[name]:
            return f'"{name}" is {shown(_plain(ours[name]))}, and not {shown(_plain(theirs[name]))}'
    return ""


LAYOUT_PARAMETERS = (
    "numbers",
    "categories",
    "vocabularies",
    "lengths",
    *WINDOW_LAYOUT,
    "images",
    *_PART_LAYOUT,
    *_SIDE_LAYOUT,
    "library_version",
)  # follow from the columns of the table or from what is installed, and are no user's choice
_SHAPING = (  # the parameters that decide the shapes of weights
    *("hidden", "channels", "kernel", "depth", "batch_norm", "members", "width", "blocks", "crosses"),
    *("number_embedding", "embedding_width", "bins", "frequencies"),
    *("text_encoder", "text_width", "text_kernel", "text_blocks"),
    *("units", "layers", "code"),
    *("digest", "train", "lora", "name"),
    *("image_encoder", "image_width", "image_blocks", "image_patch", "stages", "patch"),
)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def without_type(declaration: Json) -> Json:
    """Return the parameters of an architecture or of a layer."""
    return {name: value for name, value in declaration.items() if name != "type"}


def _check_level(layers: Sequence[Any], where: str, depth: int) -> int:
    """Return the number of layers on all levels. Layers count from 0, as in the messages about their shapes."""
    if depth > DEEPEST_LAYERS:
        message = f"architecture: {where} nests residual layers more than {DEEPEST_LAYERS} deep"
        raise RequestError(message, hint="Nest them less deep.")
    count = len(layers)
    for position, layer in enumerate(layers):
        title = f"architecture: {where} {position}"
        kind = layer.get("type") if isinstance(layer, dict) else None
        if not isinstance(kind, str) or kind not in LAYERS:
            hint = f"{did_you_mean(kind, LAYERS)}Known types: {', '.join(LAYERS)}."
            raise RequestError(f"{title} is {shown(layer)}, whose type is not known", hint=hint)
        values = check_parameters(f"{title} ({kind})", without_type(layer), LAYERS[kind])
        if kind == "residual":
            count += _check_level(values["layers"], f"{where} {position}.", depth + 1)
        elif kind in ("lstm", "gru") and values.get("dropout") and values.get("layers", 1) == 1:
            hint = 'Give it more "layers", or add a dropout layer after it.'
            raise RequestError(f'{title} ({kind}): "dropout" acts between layers, and there is one', hint=hint)
    return count


def _check_embeddings(kind: str, checked: Json) -> None:
    """Raise RequestError for a parameter of another embedding, and for tokens that the heads do not divide."""
    values = fill_defaults(checked, ARCHITECTURES[kind])
    for name, (chooser, needed) in _ONLY_WITH.items():
        if name in checked and values.get(chooser) != needed:
            hint = f'Leave it out, or set "{chooser}" to {needed}.'
            message = f'architecture {kind}: "{name}" means nothing with {chooser} {values[chooser]}'
            raise RequestError(message, hint=hint)
    _check_heads(kind, values, "embedding_width", "heads")
    if values.get("text_encoder") == "transformer":
        _check_heads(kind, values, "text_width", "text_heads")
    if values.get("image_encoder") == "vit":
        _check_heads(kind, values, "image_width", "image_heads")


def _check_heads(kind: str, values: Json, width_name: str, heads_name: str) -> None:
    width, heads = values[width_name], values.get(heads_name, 1)
    if width % heads:
        message = f'architecture {kind}: "{width_name}" {width} cannot be split into {heads} heads'
        divisors = ", ".join(str(number) for number in range(1, 65) if width % number == 0)
        raise RequestError(message, hint=f'Set "{heads_name}" to one of {divisors}, or give another "{width_name}".')


def _check_widths(kind: str, hidden: Sequence[int]) -> None:
    """Raise RequestError if the hidden layers alone have too many weights.

    The table's columns need not be known for that. A worker counts all weights later.
    """
    weights = sum(inputs * outputs for inputs, outputs in pairwise(hidden))
    if weights > MOST_PARAMETERS:
        message = f"architecture {kind}: the hidden layers have {weights} weights, more than {MOST_PARAMETERS}"
        raise RequestError(message, hint="Make its layers narrower.")


_KNOWN_ARCHITECTURES = (
    f"Give a name ({', '.join(ARCHITECTURES)}), a JSON object such as "
    '{"type": "mlp", "hidden": [64, 64], "dropout": 0.1}, or a list of layers such as '
    '[{"type": "linear", "out": 64}, {"type": "relu"}, {"type": "linear"}].'
)
