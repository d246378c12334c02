"""Networks that forecast from a window: a linear one, a residual MLP, dilated convolutions, and an LSTM.

- `DecomposedLinear`: Zeng, Chen, Zhang and Xu, "Are Transformers Effective for Time Series Forecasting?" (AAAI 2023).
- `WindowMLP`: residual blocks over the whole window, as in Oreshkin and others, "N-BEATS" (ICLR 2020), and Das and
  others, "Long-term Forecasting with TiDE" (2023).
- `TemporalConvolution`: Bai, Kolter and Koltun, "An Empirical Evaluation of Generic Convolutional and Recurrent
  Networks for Sequence Modeling" (2018).

All but the linear one add to a base forecast: a mean of simple forecasts whose weights are learned (`BaseForecast`).
Their last layer begins at zero, so the training begins at simple forecasts. The ends of the interval are at a
positive distance from the median, so they never cross.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from indb_tensile.errors import RequestError
from indb_tensile.learning.encoding.forecast_encoding import QUANTILES
from indb_tensile.learning.networks.layers import ACTIVATION_MODULES, Shape

# Multiplies the weights of the base forecast before the softmax: a learning rate that suits the layers of a network
# would change these few weights too slowly.
_SHARPNESS = 5.0
_STATIC_WIDTH = 8  # numbers that embed a static text


@dataclass(frozen=True, kw_only=True)
class WindowLayout:
    """The parts of an encoded window: static numbers, the history, known values, and codes of static texts."""

    window: int
    horizon: int
    channels: int
    targets: int
    known: int
    season: int
    numbers: int
    categories: tuple[int, ...]

    @property
    def values(self) -> int:
        """Return how many values are forecast."""
        return self.horizon * self.targets

    @property
    def width(self) -> int:
        """Return the numbers of an encoded window."""
        history = self.window * self.channels
        return self.numbers + history + (self.window + self.horizon) * self.known + len(self.categories)


class WindowParts(nn.Module):
    """Takes an encoded window apart, and embeds the static texts."""

    def __init__(self, layout: WindowLayout) -> None:
        super().__init__()
        self.layout = layout
        self.embeddings = nn.ModuleList(nn.Embedding(size, _STATIC_WIDTH) for size in layout.categories)
        self.static = layout.numbers + _STATIC_WIDTH * len(layout.categories)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (batch, width) to the history (batch, window, channels), known values (batch, window + horizon, known)
        and static numbers (batch, static).
        """
        own = self.layout
        begin, middle = own.numbers, own.numbers + own.window * own.channels
        end = middle + (own.window + own.horizon) * own.known
        history = x[:, begin:middle].reshape(len(x), own.window, own.channels)
        known = x[:, middle:end].reshape(len(x), own.window + own.horizon, own.known)
        parts = [x[:, :begin]]
        for place, embedding in enumerate(self.embeddings):
            parts.append(embedding(x[:, end + place].long()))
        return history, known, torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


class BaseForecast(nn.Module):
    """A mean of simple forecasts with learned weights: (batch, window, targets) to (batch, horizon, targets).

    They are the last value, the mean of the window, a smoothed level with a learned rate, the level with the mean
    slope of the window, the value a season before, and that value moved by the change since.
    """

    def __init__(self, layout: WindowLayout) -> None:
        super().__init__()
        self.window, self.horizon = layout.window, layout.horizon
        seasons = layout.window // layout.season if layout.season > 1 else 0
        self.season = layout.season if seasons else 1
        self.moved = seasons >= 2
        self.count = 4 + (seasons > 0) + self.moved
        self.weights = nn.Parameter(torch.empty(self.count, layout.horizon, layout.targets))
        self.rate = nn.Parameter(torch.empty(layout.targets))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin with equal weights."""
        nn.init.zeros_(self.weights)
        nn.init.zeros_(self.rate)

    def forward(self, targets: Tensor) -> Tensor:
        """Return the base forecast of each window."""
        shape = (len(targets), self.horizon, targets.shape[2])
        last = targets[:, -1:]
        # The weight of a value is a power of the rate, of its age; the softmax takes away what all have in common.
        fading = -functional.logsigmoid(self.rate).expand(self.window, -1).cumsum(dim=0)
        smoothed = (targets * fading.softmax(dim=0)).sum(dim=1, keepdim=True)
        slope = (last - targets[:, :1]) / max(self.window - 1, 1)
        drift = last + slope.expand(shape).cumsum(dim=1)
        parts = [last.expand(shape), targets.mean(dim=1, keepdim=True).expand(shape), smoothed.expand(shape), drift]
        if self.count > len(parts):
            season = targets[:, -self.season :]
            before = season.repeat(1, -(-self.horizon // self.season), 1)[:, : self.horizon]
            parts.append(before)
            if self.moved:
                earlier = targets[:, -2 * self.season : -self.season]
                parts.append(before + season.mean(dim=1, keepdim=True) - earlier.mean(dim=1, keepdim=True))
        weights = (_SHARPNESS * self.weights).softmax(dim=0)
        return (torch.stack(parts, dim=1) * weights).sum(dim=1)


class _ZeroLinear(nn.Linear):
    """A linear layer whose weights begin at zero."""

    def reset_parameters(self) -> None:
        """Set weights and bias to zero."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class _MeanLinear(nn.Linear):
    """A linear layer that begins with the mean of its inputs, as the authors of DLinear do."""

    def reset_parameters(self) -> None:
        """Set all weights to the same share, and the bias to zero."""
        nn.init.constant_(self.weight, 1 / self.in_features)
        nn.init.zeros_(self.bias)


class IntervalHead(nn.Module):
    """Makes the outputs from features: the median beside a base forecast, and the distances of both ends from it."""

    def __init__(self, inputs: int, layout: WindowLayout) -> None:
        super().__init__()
        self.values = layout.values
        self.last = _ZeroLinear(inputs, QUANTILES * layout.values)  # the training begins at the base forecast

    def forward(self, features: Tensor, base: Tensor) -> Tensor:
        """Map features (batch, inputs) and the base (batch, values) to (batch, 3 * values)."""
        below, shift, above = self.last(features).split(self.values, dim=1)
        median = base + shift
        return torch.cat([median - functional.softplus(below), median, median + functional.softplus(above)], dim=1)


class WindowMLP(nn.Module):
    """Residual blocks over the whole window, beside a base forecast."""

    def __init__(self, layout: WindowLayout, values: Mapping[str, Any]) -> None:
        super().__init__()
        self.parts, self.base = WindowParts(layout), BaseForecast(layout)
        self.targets = layout.targets
        width = values["width"]
        inputs = layout.width - len(layout.categories) - layout.numbers + self.parts.static
        self.first = nn.Linear(inputs, width)
        activation = ACTIVATION_MODULES[values["activation"]]
        self.blocks = nn.ModuleList(_block(width, activation, values["dropout"]) for _ in range(values["blocks"]))
        self.norm = nn.LayerNorm(width)
        self.head = IntervalHead(width, layout)

    def forward(self, x: Tensor) -> Tensor:
        """Map encoded windows (batch, width) to (batch, 3 * values)."""
        history, known, static = self.parts(x)
        features = self.first(torch.cat([history.flatten(1), known.flatten(1), static], dim=1))
        for block in self.blocks:
            features = features + block(features)
        base = self.base(history[:, :, : self.targets]).flatten(1)
        return cast(Tensor, self.head(self.norm(features), base))


class DecomposedLinear(nn.Module):
    """Two linear maps from window to horizon, of the moving average and of the rest, and one of all other values."""

    def __init__(self, layout: WindowLayout, values: Mapping[str, Any]) -> None:
        super().__init__()
        self.parts = WindowParts(layout)
        self.layout = layout
        self.kernel = min(values["kernel"], layout.window)
        self.trend = _MeanLinear(layout.window, layout.horizon)
        self.rest = _MeanLinear(layout.window, layout.horizon)
        others = layout.window * (layout.channels - layout.targets)
        others += (layout.window + layout.horizon) * layout.known + self.parts.static
        self.head = IntervalHead(max(others, 1), layout)

    def forward(self, x: Tensor) -> Tensor:
        """Map encoded windows (batch, width) to (batch, 3 * values)."""
        history, known, static = self.parts(x)
        own = history[:, :, : self.layout.targets].transpose(1, 2)
        before, after = (self.kernel - 1) // 2, self.kernel // 2
        padded = torch.cat([own[:, :, :1].expand(-1, -1, before), own, own[:, :, -1:].expand(-1, -1, after)], dim=2)
        average = functional.avg_pool1d(padded, self.kernel, 1)
        base = (self.trend(average) + self.rest(own - average)).transpose(1, 2).flatten(1)
        observed = history[:, :, self.layout.targets :]
        others = torch.cat([observed.flatten(1), known.flatten(1), static], dim=1)
        if not others.shape[1]:
            others = torch.zeros_like(x[:, :1])
        return cast(Tensor, self.head(others, base))


class TemporalConvolution(nn.Module):
    """Causal convolutions of growing dilation over the window, beside a base forecast."""

    def __init__(self, layout: WindowLayout, values: Mapping[str, Any]) -> None:
        super().__init__()
        self.parts, self.base = WindowParts(layout), BaseForecast(layout)
        self.layout = layout
        channels, kernel = values["channels"], values["kernel"]
        widths = [layout.channels + layout.known, *channels]
        self.layers = nn.ModuleList(
            _CausalBlock(inputs, outputs, kernel, 2**place, values["dropout"])
            for place, (inputs, outputs) in enumerate(zip(widths, channels, strict=False))
        )
        self.head = _WindowHead(channels[-1], layout, self.parts.static)

    def forward(self, x: Tensor) -> Tensor:
        """Map encoded windows (batch, width) to (batch, 3 * values)."""
        history, known, static = self.parts(x)
        sequence = torch.cat([history, known[:, : self.layout.window]], dim=2).transpose(1, 2)
        for layer in self.layers:
            sequence = layer(sequence)
        base = self.base(history[:, :, : self.layout.targets]).flatten(1)
        return cast(Tensor, self.head(sequence[:, :, -1], known, static, base))


class WindowLSTM(nn.Module):
    """An LSTM over the steps of the window, beside a base forecast."""

    def __init__(self, layout: WindowLayout, values: Mapping[str, Any]) -> None:
        super().__init__()
        self.parts, self.base = WindowParts(layout), BaseForecast(layout)
        self.layout = layout
        dropout = values["dropout"] if values["layers"] > 1 else 0.0
        inputs = layout.channels + layout.known
        self.rnn = nn.LSTM(inputs, values["units"], values["layers"], batch_first=True, dropout=dropout)
        self.head = _WindowHead(values["units"], layout, self.parts.static)

    def forward(self, x: Tensor) -> Tensor:
        """Map encoded windows (batch, width) to (batch, 3 * values)."""
        history, known, static = self.parts(x)
        states, _ = self.rnn(torch.cat([history, known[:, : self.layout.window]], dim=2))
        base = self.base(history[:, :, : self.layout.targets]).flatten(1)
        return cast(Tensor, self.head(states[:, -1], known, static, base))


class _WindowHead(nn.Module):
    """Joins what a sequence layer has read with the known values of the horizon and the static numbers."""

    def __init__(self, inputs: int, layout: WindowLayout, static: int) -> None:
        super().__init__()
        self.window = layout.window
        self.hidden = nn.Linear(inputs + layout.horizon * layout.known + static, 64)
        self.head = IntervalHead(64, layout)

    def forward(self, state: Tensor, known: Tensor, static: Tensor, base: Tensor) -> Tensor:
        joined = torch.cat([state, known[:, self.window :].flatten(1), static], dim=1)
        return cast(Tensor, self.head(functional.relu(self.hidden(joined)), base))


class _CausalBlock(nn.Module):
    """A convolution whose value at a step depends on this step and earlier ones, added to its input."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.padding = (kernel - 1) * dilation
        self.convolution = nn.Conv1d(inputs, outputs, kernel, dilation=dilation)
        self.direct = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        padded = functional.pad(x, (self.padding, 0))
        return cast(Tensor, self.direct(x) + self.dropout(functional.relu(self.convolution(padded))))


def _block(width: int, activation: Callable[[], nn.Module], dropout: float) -> nn.Sequential:
    layers: Sequence[nn.Module] = (
        *(nn.LayerNorm(width), nn.Linear(width, 2 * width), activation()),
        *(nn.Dropout(dropout), nn.Linear(2 * width, width), nn.Dropout(dropout)),
    )
    return nn.Sequential(*layers)


_BUILDERS: dict[str, Callable[[WindowLayout, Mapping[str, Any]], nn.Module]] = {
    "window_mlp": WindowMLP,
    "dlinear": DecomposedLinear,
    "tcn": TemporalConvolution,
    "window_lstm": WindowLSTM,
}


def forecast_network(kind: str, values: Mapping[str, Any], input_shape: Shape, outputs: int) -> nn.Module:
    """Build the network of this kind for encoded windows. Works on any device.

    Raises RequestError if the layout of the window is not known, or is not that of the rows.
    """
    names = ("window", "horizon", "window_channels", "targets", "known", "season")
    if any(values[name] is None for name in names):
        raise RequestError(
            f"architecture {kind} forecasts series",
            hint="Give task => 'forecast' and forecast => '{\"horizon\": ...}', or choose another architecture.",
        )
    layout = WindowLayout(
        window=values["window"],
        horizon=values["horizon"],
        channels=values["window_channels"],
        targets=values["targets"],
        known=values["known"],
        season=values["season"],
        numbers=values["numbers"] or 0,
        categories=tuple(values["categories"] or ()),
    )
    if (layout.width,) != tuple(input_shape) or outputs != QUANTILES * layout.values:
        raise RequestError(
            f"architecture {kind}: windows of {layout.width} numbers and {QUANTILES * layout.values} outputs do not "
            f"fit rows of {list(input_shape)} and {outputs} outputs",
            hint='Leave "window", "horizon", "window_channels", "targets", "known" and "season" out.',
        )
    return _BUILDERS[kind](layout, values)
