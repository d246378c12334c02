"""Networks of requests as kinds of `bench exact`: lists of layers, and the networks that forecast.

The lists of layers together have every layer that a request may name. The networks for tables, texts and images are
in embedded_networks.py.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from indb_tensile.job import Task
from indb_tensile.learning.encoding.forecast_encoding import QUANTILES, ForecastValues
from indb_tensile.learning.networks.architectures import build

ROW, PICTURE, SEQUENCE = (24,), (3, 12, 12), (6, 8)  # shapes of a row
# By the name of the kind: the shape of a row, and the declaration.
_DECLARED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": (ROW, {"type": "mlp", "hidden": [48, 48], "activation": "gelu", "batch_norm": True, "dropout": 0.1}),
    "cnn": (PICTURE, {"type": "cnn", "channels": [6, 8], "depth": 2, "hidden": [16], "dropout": 0.1}),
}
LAYERS_OF_KINDS: dict[str, tuple[tuple[int, ...], list[dict[str, Any]]]] = {
    "layers_of_rows": (
        ROW,
        [
            {"type": "linear", "out": 48},
            {"type": "batch_norm1d"},
            {"type": "tanh"},
            {
                "type": "residual",
                "layers": [
                    {"type": "layer_norm"},
                    {"type": "linear", "out": 48},
                    {"type": "silu"},
                    {"type": "dropout"},
                ],
            },
            {"type": "sigmoid"},
            {"type": "linear"},
        ],
    ),
    "layers_of_pictures": (
        PICTURE,
        [
            {"type": "conv2d", "out": 8, "bias": False},
            {"type": "batch_norm2d"},
            {"type": "relu"},
            {"type": "max_pool2d"},
            {"type": "conv2d", "out": 8, "groups": 4},
            {"type": "gelu"},
            {"type": "avg_pool2d", "kernel": 3, "stride": 1, "padding": 1},
            {"type": "adaptive_avg_pool2d", "size": 2},
            {"type": "flatten"},
            {"type": "linear"},
        ],
    ),
    "layers_of_sequences": (
        SEQUENCE,
        [
            {"type": "lstm", "hidden": 8, "layers": 2, "dropout": 0.1, "output": "sequence"},
            {"type": "gru", "hidden": 6, "bidirectional": True, "output": "sequence"},
            {"type": "transformer_encoder", "d_model": 8, "heads": 2, "layers": 1, "output": "sequence"},
            {"type": "reshape", "shape": [-1]},
            {"type": "linear"},
        ],
    ),
}

FORECAST = ForecastValues(horizon=4, targets=2, interval=0.8)
_WINDOW, _CHANNELS, _KNOWN, _TEXTS = 8, 3, 1, 3
_FORECASTS: dict[str, dict[str, Any]] = {
    "window_mlp": {"width": 16, "blocks": 1},
    "dlinear": {"kernel": 3},
    "tcn": {"channels": [6, 6]},
    "window_lstm": {"units": 6},
}


def layer_builders(outputs: int) -> dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]]:
    """Return the shape of a row and a builder for `mlp`, `cnn` and each list of layers."""
    declared = _DECLARED | {
        name: (shape, {"type": "layers", "layers": layers}) for name, (shape, layers) in LAYERS_OF_KINDS.items()
    }
    return {name: (shape, partial(_network, own, shape, outputs)) for name, (shape, own) in declared.items()}


def forecast_builders(ensemble: int = 1) -> Mapping[str, Callable[[], nn.Module]]:
    """Return a builder for each network that forecasts, or for this many of it that forecast together."""
    layout = {"numbers": 1, "categories": [_TEXTS], "window": _WINDOW, "horizon": FORECAST.horizon, "season": 4}
    layout |= {"window_channels": _CHANNELS, "targets": FORECAST.targets, "known": _KNOWN}
    width, outputs = _window_width(), QUANTILES * FORECAST.count

    def network(declared: dict[str, Any]) -> nn.Module:
        seed = int(torch.randint(1 << 30, ()))
        return build(declared, (width,), outputs, seed=seed, task=Task.FORECAST, ensemble=ensemble)

    return {name: partial(network, {"type": name, **own, **layout}) for name, own in _FORECASTS.items()}


def encoded_windows(rows: int) -> torch.Tensor:
    """Draw encoded windows: a number, the history, known values, and the number of a text."""
    return torch.cat([torch.randn(rows, _window_width() - 1), torch.randint(_TEXTS, (rows, 1)).float()], dim=1)


def forecast_targets(rows: int) -> torch.Tensor:
    """Draw packed targets: what followed, whether it is known, and the level, spread and error of the window."""
    count = FORECAST.count
    packed = torch.randn(rows, 2 * count + 3 * FORECAST.targets)
    packed[:, count : 2 * count] = torch.rand(rows, count) < 0.9
    return packed


def _window_width() -> int:
    return 1 + _WINDOW * _CHANNELS + (_WINDOW + FORECAST.horizon) * _KNOWN + 1


def _network(declared: dict[str, Any], shape: tuple[int, ...], outputs: int) -> nn.Module:
    return build(declared, shape, outputs, seed=int(torch.randint(1 << 30, ())), task=Task.CLASSIFICATION)
