"""Builds networks from declarations: `mlp`, `cnn`, a list of layers, or a network for tables or images.

`mlp` and `cnn` are expanded to lists of layers. The networks for tables are modules of their own (`embedded_rows.py`
builds them). A declaration is untrusted input, so `request/network_rules.py` checks every name, type and size. The
shapes are computed on torch's meta device, and memory is allocated only after the whole network is known to fit
together.
"""

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import nn

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.encoding.feature_options import TOKENS
from indb_tensile.learning.networks.autoencoder import Autoencoder
from indb_tensile.learning.networks.embedded_rows import table_network
from indb_tensile.learning.networks.ensemble import Ensemble
from indb_tensile.learning.networks.forecast_networks import forecast_network
from indb_tensile.learning.networks.image_networks import image_network
from indb_tensile.learning.networks.layers import Shape, output_shape, stack
from indb_tensile.learning.networks.member_mean import OutputKind, output_kind_of
from indb_tensile.learning.networks.pretrained_vectors import PretrainedVectors
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.networks.timm_network import TimmNetwork, library_version
from indb_tensile.request.network_rules import (
    ANOMALY_ARCHITECTURES,
    ARCHITECTURES,
    EMBEDDING_ARCHITECTURES,
    ESTIMATORS,
    FORECAST_ARCHITECTURES,
    IMAGE_ARCHITECTURES,
    LAYOUT_PARAMETERS,
    MOST_PARAMETERS,
    check_architecture,
    without_type,
)
from indb_tensile.request.parameter_rules import fill_defaults


class TokenUse(Enum):
    """Whether columns are read as tokens."""

    NONE = "none"
    SOME = "some"
    ALL = "all"

    @classmethod
    def among(cls, encodings: Sequence[Any]) -> "TokenUse":
        """Return what the encodings of all columns say; that of a column that is no text is None."""
        read = [encoding == TOKENS for encoding in encodings]
        return cls.ALL if read and all(read) else cls.SOME if any(read) else cls.NONE


def build(
    architecture: dict[str, Any],
    input_shape: Shape,
    outputs: int,
    *,
    seed: int = 0,
    task: Task | None = None,
    ensemble: int = 1,
    network: RegisteredNetwork | None = None,
) -> nn.Module:
    """Build the network for rows of `input_shape`. Its output has the shape (batch, outputs).

    `task`, `ensemble` and `network` are as for `build_without_memory`. Equal seeds give equal parameters; the members
    of an ensemble have those of `seed` and of the seeds that follow. Raises RequestError as `build_without_memory`
    does.
    """
    module = build_without_memory(architecture, input_shape, outputs, task=task, ensemble=ensemble, network=network)
    return with_first_weights(module, seed)


def with_first_weights(module: nn.Module, seed: int) -> nn.Module:
    """Return a module that `build_without_memory` has built, with memory and the first weights of this seed."""
    module.to_empty(device="cpu")
    members = module.members if isinstance(module, Ensemble) else [module]
    for place, member in enumerate(members):
        _with_fresh_parameters(member, seed + place)
    return module


def build_without_memory(
    architecture: dict[str, Any],
    input_shape: Shape,
    outputs: int,
    *,
    task: Task | None = None,
    ensemble: int = 1,
    network: RegisteredNetwork | None = None,
) -> nn.Module:
    """Build the network on the meta device, where tensors have shapes but no memory.

    `task` says what the outputs are. Without it, one output is a value, and several ones are those of classes.
    `ensemble` is the number of networks that predict together, and `network` the registered one that the architecture
    `pretrained` begins with. Raises RequestError with the layer's number and the
    shapes if the layers do not fit together.
    """
    check_architecture(architecture)
    kind = _output_kind(task, outputs)
    with torch.device("meta"):
        if ensemble > 1:
            module: nn.Module = Ensemble(lambda: _network(architecture, input_shape, outputs, kind), ensemble, kind)
        else:
            module = _network(architecture, input_shape, outputs, kind, network)
    own = output_shape(module.eval(), input_shape, "the network")
    module.train()
    if own != (outputs,):
        raise RequestError(
            f"architecture: the network gives {list(own)} per row, the task needs {[outputs]}",
            hint='End the layers with {"type": "flatten"}, {"type": "linear"}.',
        )
    parameters = sum(parameter.numel() for parameter in module.parameters())
    if parameters > MOST_PARAMETERS:
        hint = "Make its layers narrower."
        raise RequestError(f"architecture: {parameters} parameters are more than {MOST_PARAMETERS}", hint=hint)
    return module


def _network(
    architecture: dict[str, Any],
    input_shape: Shape,
    outputs: int,
    kind: OutputKind,
    network: RegisteredNetwork | None = None,
) -> nn.Module:
    if architecture["type"] in ESTIMATORS:
        return _estimator(architecture, outputs)
    if architecture["type"] in EMBEDDING_ARCHITECTURES:
        return table_network(architecture["type"], _values(architecture), input_shape, outputs, kind, network)
    if architecture["type"] in FORECAST_ARCHITECTURES:
        return forecast_network(architecture["type"], _values(architecture), input_shape, outputs)
    if architecture["type"] in IMAGE_ARCHITECTURES and len(input_shape) == 3:
        if architecture["type"] == "timm":
            return TimmNetwork(_values(architecture), input_shape, outputs)
        return image_network(architecture["type"], _values(architecture), input_shape, outputs)
    if architecture["type"] in ANOMALY_ARCHITECTURES:
        return _autoencoder(_values(architecture), input_shape)
    return stack(expand(architecture, input_shape), input_shape, outputs)


def _autoencoder(values: Mapping[str, Any], input_shape: Shape) -> nn.Module:
    """Build an autoencoder. Without a worker's counts each number is a column."""
    (width,) = input_shape
    widths = values["widths"] or (1,) * width
    return Autoencoder(
        width,
        widths,
        values["divisors"] or (1,) * len(widths),
        hidden=values["hidden"],
        code=values["code"],
        noise=values["noise"],
        activation=values["activation"],
    )


def _output_kind(task: Task | None, outputs: int) -> OutputKind:
    if task is None:
        return OutputKind.VALUES if outputs == 1 else OutputKind.CLASSES
    return output_kind_of(task)


def _estimator(architecture: dict[str, Any], outputs: int) -> nn.Module:
    # Imported here because scikit-learn's estimators take a third of a second, and most models are networks.
    from indb_tensile.learning.networks.estimators import Estimator

    return Estimator(architecture["type"], _values(architecture), outputs)


def expand(architecture: dict[str, Any], input_shape: Shape) -> list[dict[str, Any]]:
    """Return the list of layers that an architecture of any type stands for."""
    values = _values(architecture)
    match architecture["type"]:
        case "mlp":
            return [{"type": "flatten"}, *_dense(values), {"type": "linear"}]
        case "cnn":
            return [*_convolutions(values, input_shape), {"type": "flatten"}, *_dense(values), {"type": "linear"}]
        case "layers":
            return [dict(layer) for layer in values["layers"]]
        case _:
            return expand(default(input_shape, rows=0), input_shape)


def resolve(
    architecture: dict[str, Any],
    arrays: tuple[Shape, ...],
    *,
    alone: bool,
    rows: int,
    values: int,
    texts: TokenUse = TokenUse.NONE,
    images: bool = False,
) -> dict[str, Any]:
    """Return the architecture, or the one that `auto` stands for, before the rows are encoded.

    `arrays` and `alone` are those of `natural_shape`, `rows` is the number of training rows, `values` the number of
    features that are numbers or categories, and `texts` says whether columns are read as tokens. If all are, a linear
    model of their vectors is more accurate than a deep one (`bench text`). `images` says whether columns hold images.
    """
    if architecture["type"] != "auto":
        return dict(architecture)
    if images:
        return _default_of_images(arrays[0] if alone else None, texts)
    if texts is not TokenUse.NONE:
        own: dict[str, Any] = {"hidden": [], "text_dropout": 0.7} if texts is TokenUse.ALL else {}
        return {"type": "wide_and_deep", "text_encoder": "pooling", **own}
    return default(natural_shape(architecture, arrays, alone) or (), rows, values)


def forecast_default(rows: int) -> dict[str, Any]:
    """Return the architecture that `auto` stands for where series are forecast, for this many training windows."""
    if rows < _FEW_ROWS:
        return {"type": "window_mlp", "width": 32, "dropout": 0.2}
    return {"type": "window_mlp", "width": 128}


def pair_default(texts: TokenUse) -> dict[str, Any]:
    """Return the architecture that `auto` stands for where pairs are learned.

    Towers that read texts only are linear in their vectors, as networks of texts are.
    """
    return {"type": "two_towers", **({"hidden": [], "text_encoder": "pooling"} if texts is TokenUse.ALL else {})}


def pair_width(architecture: Mapping[str, Any]) -> int:
    """Return how many numbers the vector of a query or of an item has."""
    return int(_values(dict(architecture))["width"])


def embeds(architecture: dict[str, Any]) -> bool:
    """Return whether the model takes categories as they are, so that a text column becomes one number."""
    return "categories" in ARCHITECTURES[architecture["type"]]


def with_layout(architecture: dict[str, Any], layout: Mapping[str, Any]) -> dict[str, Any]:
    """Return the architecture with the counts of numbers and categories that the columns give, if it needs them.

    Raises RequestError if the request has other counts.
    """
    if not embeds(architecture) and architecture["type"] not in ANOMALY_ARCHITECTURES:
        return architecture
    own = {name: value for name, value in layout.items() if name in ARCHITECTURES[architecture["type"]]}
    for name, value in own.items():
        if architecture.get(name) not in (None, value, tuple(value) if isinstance(value, list) else value):
            raise RequestError(
                f'architecture {architecture["type"]}: "{name}" is {architecture[name]}, the columns give {value}',
                hint=f'Leave "{name}" out: it is counted from the columns.',
            )
    return architecture | own


def library_of(architecture: Mapping[str, Any]) -> dict[str, str]:
    """Return the version of timm, which a version of a model stores if timm has its network, else nothing.

    Raises UnsupportedError if timm is needed and not installed.
    """
    return {"library_version": library_version()} if architecture["type"] == "timm" else {}


def without_layout(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the architecture of a version as a request for other columns has it."""
    return {name: value for name, value in architecture.items() if name not in LAYOUT_PARAMETERS}


def default(input_shape: Shape, rows: int, values: int = 0) -> dict[str, Any]:
    """Return the architecture that `auto` stands for.

    Images get convolutions, other rows get fully connected layers. Small tables get fewer units and more dropout, to
    limit overfitting. In larger tables each of the `values` of a row, its numbers and categories, is embedded before
    these layers, so that an answer that rises and falls several times with one number can be learned.
    """
    if len(input_shape) == 3:
        return {"type": "cnn", "channels": [32, 64], "hidden": [128], "dropout": 0.2, "batch_norm": True}
    if rows >= _EMBEDDED_ROWS and 0 < values <= _MOST_VALUES:
        return {"type": "wide_and_deep", "hidden": [128, 64], "dropout": 0.1}
    if rows < _FEW_ROWS:
        return {"type": "mlp", "hidden": [32], "dropout": 0.2}
    return {"type": "mlp", "hidden": [128, 64], "dropout": 0.1}


def _default_of_images(shape: Shape | None, texts: TokenUse) -> dict[str, Any]:
    """Return the architecture for a single image of this shape, or for images beside other columns."""
    if shape is None:
        own = {} if texts is TokenUse.NONE else {"text_encoder": "pooling"}
        return {"type": "wide_and_deep", "image_encoder": "resnet", **own}
    if min(shape[1:]) < _SMALL_SIDE:
        return default(shape, rows=0)
    return {"type": "resnet", "stages": [1, 1, 1], "width": 32, "dropout": 0.1}


def why_default(
    is_image: bool, rows: int, values: int, texts: TokenUse = TokenUse.NONE, *, images: bool = False
) -> str:
    """Return why `auto` stands for the network that `resolve` returns, for a sentence."""
    if images and not is_image:
        return "an image is one of several features"
    if texts is not TokenUse.NONE:
        return "all columns are read as tokens" if texts is TokenUse.ALL else "a column is read as tokens"
    if is_image:
        return "the only feature is an image"
    if rows < _EMBEDDED_ROWS:
        return f"fewer than {_EMBEDDED_ROWS} rows train"
    size = f"fewer than {_FEW_ROWS} rows train" if rows < _FEW_ROWS else f"{_FEW_ROWS} rows or more train"
    if not values:
        return f"{size}, and no feature is a number or a category"
    if values > _MOST_VALUES:
        return f"{size}, and more than {_MOST_VALUES} features are numbers or categories"
    return f"{_EMBEDDED_ROWS} rows or more train, and {values} of the features are numbers or categories"


_SMALL_SIDE = 32  # pixels below which an image gets few convolutions and no global mean
_FEW_ROWS = 2000  # training rows below which `default` chooses the small network
_EMBEDDED_ROWS = 1000  # training rows from which on `default` embeds values; an ensemble of `mlp` trains fewer
_MOST_VALUES = 64  # numbers and categories of a row that `default` embeds: no table that it was chosen on has more


def natural_shape(architecture: dict[str, Any], arrays: tuple[Shape, ...], alone: bool) -> Shape | None:
    """Return the shape of one row's tensor, or None for a flat row.

    The shape is the architecture's `input_shape`, or else the shape of the only feature if that is an array (`alone`
    is true) of two or more dimensions. `cnn` and `auto` treat a two-dimensional array as an image of one channel;
    `layers` treats it as a sequence (steps, features). `mlp`, the networks for tables and the models of scikit-learn
    have no shape of their own.
    `auto` uses a flat row for everything but images. Raises RequestError if `cnn`, `resnet` or
    `vit` has no image.
    """
    declared = _values(architecture).get("input_shape")
    kind = architecture["type"]
    if declared is not None:
        shape: Shape | None = tuple(declared)
    elif not alone or kind in _FLAT or len(arrays[0]) < 2:
        shape = None
    else:
        shape = (1, *arrays[0]) if len(arrays[0]) == 2 and kind != "layers" else arrays[0]
    if kind == "auto" and shape is not None and len(shape) != 3:
        return None
    if kind in ("cnn", *IMAGE_ARCHITECTURES) and (shape is None or len(shape) != 3):
        raise RequestError(
            f"architecture: {kind} needs images, the features give {'a flat row' if shape is None else list(shape)}",
            hint='Give the images\' shape as channels, height, width: "input_shape": [1, 28, 28].',
        )
    return shape


_FLAT = ("mlp", *EMBEDDING_ARCHITECTURES, *FORECAST_ARCHITECTURES, *ANOMALY_ARCHITECTURES, *ESTIMATORS)


def _values(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return all parameters of a checked architecture, with defaults."""
    return fill_defaults(without_type(architecture), ARCHITECTURES[architecture["type"]])


def _dense(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the hidden fully connected layers, each with its normalisation, activation and dropout."""
    layers: list[dict[str, Any]] = []
    for units in values["hidden"]:
        layers.append({"type": "linear", "out": units})
        if values["batch_norm"]:
            layers.append({"type": "batch_norm1d"})
        layers.append({"type": values["activation"]})
        if values["dropout"]:
            layers.append({"type": "dropout", "p": values["dropout"]})
    return layers


def _convolutions(values: Mapping[str, Any], input_shape: Shape) -> list[dict[str, Any]]:
    """Return `depth` convolutions per entry of `channels`, followed by a pooling layer.

    The pooling layer halves the image. It is left out where the image is too small to halve.
    """
    layers: list[dict[str, Any]] = []
    height, width = input_shape[1:]
    even = values["kernel"] % 2 == 0
    for channels in values["channels"]:
        for _ in range(values["depth"]):
            layers.append({"type": "conv2d", "out": channels, "kernel": values["kernel"]})
            height, width = height + even, width + even
            if values["batch_norm"]:
                layers.append({"type": "batch_norm2d"})
            layers.append({"type": values["activation"]})
        if min(height, width) >= 2:
            layers.append({"type": "max_pool2d", "kernel": 2})
            height, width = height // 2, width // 2
    return layers


def _with_fresh_parameters(module: nn.Module, seed: int) -> nn.Module:
    """Initialise every parameter and buffer in the order of the modules, except those of another library.

    The random numbers come from a fork of torch's generator, so the global random state does not change.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pretrained = [part for part in module.modules() if isinstance(part, PretrainedVectors)]
        by_library = [part for part in module.modules() if isinstance(part, TimmNetwork)]
        foreign = [*(part.encoder for part in pretrained), *(part.network for part in by_library)]
        others = {id(own) for network in foreign for own in network.modules()}
        for part in module.modules():
            reset = None if id(part) in others else getattr(part, "reset_parameters", None)
            if reset is not None:
                reset()
        for part in pretrained:
            part.load_network()
        for network in by_library:
            network.draw_weights()
    return module


def stored_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters and buffers that a version and a checkpoint store.

    These are all but those of a registered network that training leaves as they are.
    """
    left_out = {
        f"{prefix}.{name}"
        for prefix, part in module.named_modules()
        if isinstance(part, PretrainedVectors)
        for name in part.base_names
    }
    return tuple(name for name in module.state_dict() if name not in left_out)


def freeze(module: nn.Module, layers: Sequence[str]) -> None:
    """Let training leave the weights of these layers as they are. A layer is named by its number, as in `state_dict`.

    Raises RequestError for a layer without weights, and if no layer is left to train.
    """
    named = dict(module.named_parameters())
    for layer in layers:
        own = [name for name in named if name == layer or name.startswith(f"{layer}.")]
        if not own:
            known = list(dict.fromkeys(name.rpartition(".")[0] for name in named))
            raise RequestError(
                f'hyperparams: "freeze" names layer "{layer}", and the network has no such layer with weights',
                hint=f"Its layers with weights are {', '.join(known[:_MOST_LISTED])}.",
            )
        for name in own:
            named[name].requires_grad = False
    if layers and not any(parameter.requires_grad for parameter in named.values()):
        raise RequestError(
            'hyperparams: "freeze" names all layers with weights', hint="Leave at least one of them out."
        )


_MOST_LISTED = 100


def parameter_count(module: nn.Module) -> int:
    """Return the number of trainable values."""
    return sum(math.prod(parameter.shape) for parameter in module.parameters())
