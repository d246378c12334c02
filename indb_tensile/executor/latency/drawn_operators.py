"""Operators to measure on a device without history: the steps of small random networks.

TENSILE section IV-A measures each operator "with different input data" when the system starts. Whole small networks
are drawn instead of single operators. Every forward operator then comes with its backward, its loss and its optimizer
update, with arguments that fit together and with the strides that captured steps have.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_evaluation, capture_training
from indb_tensile.executor.capture.step_trace import Loss

_MOST_FLOPS = 4_000_000_000  # most arithmetic of one operator: about 40 ms on one core
_MOST_BYTES = 128 * 1024 * 1024  # largest size of one tensor
_MOST_STEP_FLOPS = 12_000_000_000


def draw_steps(seed: int) -> Iterator[CapturedStep]:
    """Yield steps of networks of all families in turn, without end. Equal seeds give equal steps."""
    turn = 0
    while True:
        drawn = random.Random(f"{seed}/{turn}")  # noqa: S311 - a sample, not a secret
        step = _captured(_FAMILIES[turn % len(_FAMILIES)](drawn), drawn, train=turn % 8 != 7)
        turn += 1
        if step is not None:
            yield step


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """A random network and one batch for it, on the meta device."""

    module: nn.Module
    x: torch.Tensor
    loss: Loss
    y: torch.Tensor


def _captured(drawn: _Drawn | None, source: random.Random, *, train: bool) -> CapturedStep | None:
    """Return the network's step, or None if the step is larger than a sample should be or was not drawn."""
    if drawn is None:
        return None
    capture = capture_training if train else capture_evaluation
    step = capture(drawn.module, drawn.loss, drawn.x, drawn.y, _optimizer(source))
    flops = [operator.flops for operator in step.graph.operators]
    largest_bytes = max(tensor.size_bytes for tensor in step.graph.tensors)
    small = max(flops) <= _MOST_FLOPS and sum(flops) <= _MOST_STEP_FLOPS and largest_bytes <= _MOST_BYTES
    return step if small else None


def _optimizer(source: random.Random) -> OptimizerSettings:
    kind = source.choice(("adam", "adam", "adamw", "sgd"))
    momentum = source.choice((0.0, 0.9)) if kind == "sgd" else 0.0
    return OptimizerSettings(kind=kind, momentum=momentum, clip_norm=source.choice((None, None, 1.0)))


def _size(source: random.Random, low: int, high: int) -> int:
    """Return a whole number with a uniform logarithm, so 10 to 20 is as likely as 1,000 to 2,000.

    Of the numbers from 16 on, 70 % are rounded down to a multiple of 8.
    """
    drawn = round(math.exp(source.uniform(math.log(low), math.log(high))))
    return max(low, drawn // 8 * 8) if drawn >= 16 and source.random() < 0.7 else drawn


# --- losses ----------------------------------------------------------------------------------------------------


def _classified(module: nn.Module, x: torch.Tensor, shape: tuple[int, ...]) -> _Drawn:
    """Return a network with cross entropy over the last dimension of its outputs, which have this shape."""
    y = torch.empty(shape[:-1], dtype=torch.int64, device="meta")
    return _Drawn(module=module, x=x, y=y, loss=_cross_entropy)


def _cross_entropy(predicted: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(predicted.flatten(0, -2), y.flatten())


def _regressed(module: nn.Module, x: torch.Tensor, shape: tuple[int, ...], source: random.Random) -> _Drawn:
    """Return a network with one of the losses that compare numbers."""
    loss = source.choice(
        (functional.mse_loss, functional.smooth_l1_loss, functional.binary_cross_entropy_with_logits)
    )
    return _Drawn(module=module, x=x, y=torch.empty(shape, device="meta"), loss=loss)


# --- parts -----------------------------------------------------------------------------------------------------

_ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    nn.ReLU,
    nn.GELU,
    lambda: nn.GELU(approximate="tanh"),
    nn.Tanh,
    nn.Sigmoid,
    nn.SiLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.Hardswish,
    nn.Hardsigmoid,
)


def _activation(source: random.Random) -> nn.Module:
    return source.choice(_ACTIVATIONS)()


class _Branches(nn.Module):
    """Applies several modules to the same input, and adds, multiplies or concatenates their results."""

    def __init__(self, parts: list[nn.Module], join: str) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.join = join

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results = [part(x) for part in self.parts]
        if self.join == "cat":
            return torch.cat(results, 1)
        total: torch.Tensor = results[0]
        for other in results[1:]:
            total = total + other if self.join == "add" else total * other
        return total


# --- families --------------------------------------------------------------------------------------------------


def _dense(source: random.Random) -> _Drawn:
    """Fully connected layers with norms, activations and dropout between them."""
    rows, width = _size(source, 2, 2048), _size(source, 2, 4096)
    x = torch.empty(rows, width, device="meta")
    layers: list[nn.Module] = []
    for _ in range(source.randint(1, 3)):
        wider = _size(source, 4, 4096)
        layers += [nn.Linear(width, wider, bias=source.random() < 0.8), _activation(source)]
        if source.random() < 0.5:
            layers.append(nn.BatchNorm1d(wider) if source.random() < 0.5 else nn.LayerNorm(wider))
        if source.random() < 0.5:
            layers.append(nn.Dropout(0.2))
        width = wider
    outputs = _size(source, 1, 1000)
    module = nn.Sequential(*layers, nn.Linear(width, outputs)).to("meta")
    if source.random() < 0.5:
        return _regressed(module, x, (rows, outputs), source)
    return _classified(module, x, (rows, outputs))


def _convolutions(source: random.Random) -> _Drawn | None:
    """A classifier of images with random convolutions, norms, branches and pools, or None if it cannot be built."""
    rows, channels, pixels = _size(source, 1, 256), _size(source, 1, 256), _size(source, 4, 128)
    if source.random() < 0.25:
        channels = source.choice((1, 3))
    x = torch.empty(rows, channels, pixels, pixels, device="meta")
    layers: list[nn.Module] = []
    for _ in range(source.randint(1, 3)):
        wider = _size(source, 4, 384)
        layers.append(_convolution(source, channels, wider))
        if source.random() < 0.6:
            layers.append(nn.BatchNorm2d(wider))
        layers.append(_activation(source))
        if source.random() < 0.2:
            branches = [_convolution(source, wider, wider, stride=1) for _ in range(source.randint(1, 2))]
            join = source.choice(("add", "cat", "mul"))
            layers.append(_Branches([nn.Identity(), *branches], join))
            wider *= len(branches) + 1 if join == "cat" else 1
        if source.random() < 0.4:
            layers.append(_pool(source))
        channels = wider
    side = source.choice((1, 1, 2, 4))
    layers += [nn.AdaptiveAvgPool2d(side), nn.Flatten()] if source.random() < 0.7 else [nn.Flatten()]
    if source.random() < 0.4:
        layers.append(nn.Dropout(0.5))
    body, outputs = nn.Sequential(*layers).to("meta"), _size(source, 2, 1000)
    try:
        width = int(body(x).shape[-1])
    except (RuntimeError, ValueError):  # torch raises these if a window is larger than its image
        return None
    module = nn.Sequential(body, nn.Linear(width, outputs, device="meta"))
    return _classified(module, x, (rows, outputs))


def _convolution(source: random.Random, channels: int, wider: int, stride: int | None = None) -> nn.Module:
    kernel = source.choice((1, 1, 3, 3, 3, 5, 7))
    step = stride if stride is not None else source.choice((1, 1, 1, 2))
    bias = source.random() < 0.5
    if stride is None and source.random() < 0.3:  # depth-wise, then point-wise
        deep = nn.Conv2d(channels, channels, kernel, step, kernel // 2, groups=channels, bias=bias)
        return nn.Sequential(deep, nn.Conv2d(channels, wider, 1, bias=bias))
    groups = math.gcd(source.choice((1, 1, 1, 1, 2, 32)), math.gcd(channels, wider))
    return nn.Conv2d(channels, wider, kernel, step, kernel // 2, groups=groups, bias=bias)


def _pool(source: random.Random) -> nn.Module:
    kernel = source.choice((2, 2, 3))
    step = source.choice((1, 2, 2))
    return source.choice((nn.MaxPool2d, nn.MaxPool2d, nn.AvgPool2d))(kernel, step, padding=kernel // 3)


class _Block(nn.Module):
    """An encoder block with its norm before or after, with fused or plain attention, causal or not."""

    def __init__(self, source: random.Random, width: int, heads: int) -> None:
        super().__init__()
        wider = width * source.choice((1, 2, 4))
        self.heads, self.causal, self.before = heads, source.random() < 0.4, source.random() < 0.7
        self.plain = source.random() < 0.3
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        dropout = source.choice((0.0, 0.1))
        self.feed = nn.Sequential(
            nn.Linear(width, wider), _activation(source), nn.Dropout(dropout), nn.Linear(wider, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (self._attend, self.feed)
        for norm, part in zip(self.norms, parts, strict=True):
            branch = part(norm(x) if self.before else x)
            x = x + self.dropout(branch) if self.before else norm(x + self.dropout(branch))
        return x

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        rows, steps, width = x.shape
        split = self.mix(x).view(rows, steps, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        if self.plain:
            attended = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]), -1) @ value
        else:
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        joined: torch.Tensor = self.out(attended.transpose(1, 2).reshape(rows, steps, width))
        return joined


class _Tokens(nn.Module):
    """The sum of embedded tokens and embedded positions."""

    def __init__(self, words: int, steps: int, width: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Parameter(torch.empty(steps, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.words(x) + self.positions
        return embedded


class _Reduced(nn.Module):
    """Reduces a sequence to its mean or last step, or keeps all steps."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1) if self.kind == "mean" else x[:, -1] if self.kind == "last" else x


def _attention(source: random.Random) -> _Drawn:
    """A transformer over numbers or tokens."""
    rows, steps, heads = _size(source, 1, 128), _size(source, 4, 256), source.choice((1, 2, 4, 8, 12))
    width = heads * _size(source, 4, 96)
    tokens = source.random() < 0.5
    kind = source.choice(("mean", "last", "all"))
    outputs = _size(source, 2, 2000)
    with torch.device("meta"):
        if tokens:
            x = torch.empty(rows, steps, dtype=torch.int64)
            first: nn.Module = _Tokens(_size(source, 10, 20_000), steps, width)
        else:
            features = _size(source, 2, 512)
            x, first = torch.empty(rows, steps, features), nn.Linear(features, width)
        block = _Block(source, width, heads)
        module = nn.Sequential(first, block, _Reduced(kind), nn.Linear(width, outputs))
    return _classified(module, x, (rows, steps, outputs) if kind == "all" else (rows, outputs))


class _Recurrence(nn.Module):
    """Returns the sequence of outputs of one of torch's recurrent layers."""

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sequence: torch.Tensor = self.rnn(x)[0]
        return sequence


class _Unrolled(nn.Module):
    """A recurrent cell, called step by step."""

    def __init__(self, cell: nn.Module, hidden: int) -> None:
        super().__init__()
        self.cell, self.hidden = cell, hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zero = x.new_zeros(x.shape[0], self.hidden)
        state, outputs = (zero, zero), []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            outputs.append(state[0])
        return torch.stack(outputs, 1)


def _recurrent(source: random.Random) -> _Drawn:
    """An LSTM or GRU layer, or an unrolled LSTM cell."""
    rows, steps, features = _size(source, 1, 256), _size(source, 3, 96), _size(source, 2, 512)
    hidden, both_directions = _size(source, 4, 512), source.random() < 0.3
    kind = source.choice(("last", "mean", "all"))
    outputs = _size(source, 2, 500)
    with torch.device("meta"):
        x = torch.empty(rows, steps, features)
        if source.random() < 0.25:
            x, both_directions = torch.empty(rows, min(steps, 8), features), False
            layer: nn.Module = _Unrolled(nn.LSTMCell(features, hidden), hidden)
        elif source.random() < 0.65:
            layer = _Recurrence(nn.LSTM(features, hidden, 1, batch_first=True, bidirectional=both_directions))
        else:
            x = x[:, :6].contiguous()  # torch decomposes a GRU into a chain of small operators
            layer = _Recurrence(nn.GRU(features, hidden, 1, batch_first=True, bidirectional=both_directions))
        module = nn.Sequential(layer, _Reduced(kind), nn.Linear(hidden * (1 + both_directions), outputs))
    return _classified(module, x, (rows, x.shape[1], outputs) if kind == "all" else (rows, outputs))


_FAMILIES = (_dense, _convolutions, _attention, _convolutions, _recurrent)
