"""Cuts known networks into segments for `torch.utils.checkpoint`, as its user would write by hand.

A network's forward pass is a chain of its natural blocks: layers of a sequence, residual blocks, dense layers,
encoder layers, steps of an unrolled recurrence. As in torch's own `checkpoint_sequential`, consecutive blocks form
segments of about equal length. Each segment except the last keeps its inputs and recomputes the rest in the backward
pass.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from indb_tensile.bench.harness.networks.known_networks import Network

Values = tuple[Any, ...]
Block = Callable[..., Values]  # maps the result of the block before to its own
Forward = Callable[[torch.Tensor], torch.Tensor]

_Item = TypeVar("_Item")


def segmented(network: Network, module: nn.Module, count: int) -> Forward:
    """Return the network's forward pass in `count` segments, or in as many as there are blocks."""
    if network.name in _ENCODERS:
        return _encoder(network.name, module, count)
    *recomputed, last = map(_chained, _cut(list(_blocks(network, module)), count))

    def forward(x: torch.Tensor) -> torch.Tensor:
        values: Values = (x,)
        for segment in recomputed:
            values = checkpoint(segment, *values, use_reentrant=False)
        (output,) = last(*values)
        predicted: torch.Tensor = output
        return predicted

    return forward


def _blocks(network: Network, module: nn.Module) -> Iterator[Block]:
    match network.name:
        case "densenet121":
            return _densenet(module)
        case "lstm":
            return _lstm(module, network.row[-1])
        case _:
            return _joined(_CHAINS[network.name](module))


def _cut(items: Sequence[_Item], count: int) -> list[Sequence[_Item]]:
    count = min(count, len(items))
    bounds = [len(items) * k // count for k in range(count + 1)]
    return [items[start:stop] for start, stop in pairwise(bounds)]


def _chained(blocks: Sequence[Block]) -> Block:
    def run(*values: Any) -> Values:
        for block in blocks:
            values = block(*values)
        return values

    return run


def _joined(layers: Iterable[Callable[[Any], Any]]) -> Iterator[Block]:
    """Yield one block for each layer. A layer that works in place joins the layer whose result it overwrites.

    A segment's input must exist unchanged when the segment runs again.
    """
    row: list[Block] = []
    for layer in layers:
        if row and not getattr(layer, "inplace", False):
            yield _chained(row)
            row = []
        row.append(_single(layer))
    yield _chained(row)


def _single(layer: Callable[[Any], Any]) -> Block:
    return lambda x: (layer(x),)


# --- the networks ----------------------------------------------------------------------------------------------

_Chain = Iterator[Callable[[Any], Any]]


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1)


def _pooled(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)


def _vgg(module: Any) -> _Chain:
    yield from (*module.features, module.avgpool, _flat, *module.classifier)


def _squeezenet(module: Any) -> _Chain:
    yield from (*module.features, *module.classifier, _flat)


def _mobilenet(module: Any) -> _Chain:
    yield from (*module.features, _pooled, *module.classifier)


def _resnet(module: Any) -> _Chain:
    yield from (module.conv1, module.bn1, module.relu, module.maxpool)
    yield from (*module.layer1, *module.layer2, *module.layer3, *module.layer4, module.avgpool, _flat, module.fc)


def _inception_v3(module: Any) -> _Chain:
    for name, child in module.named_children():  # in the order of its forward
        if name == "fc":
            yield _flat
        yield child


def _inception_v4(module: Any) -> _Chain:
    yield from (*module.features, module.global_pool, module.head_drop, module.last_linear)


_CHAINS: dict[str, Callable[[Any], _Chain]] = {
    "vgg16": _vgg,
    "squeezenet": _squeezenet,
    "mobilenet_v2": _mobilenet,
    "resnet50": _resnet,
    "inception_v3": _inception_v3,
    "inception_v4": _inception_v4,
}


def _densenet(module: Any) -> Iterator[Block]:
    """Yield the blocks of DenseNet. Within a dense block all features computed so far pass from layer to layer."""
    parts = list(module.features)
    dense = next(k for k, part in enumerate(parts) if isinstance(part, nn.ModuleDict))
    yield from _joined(parts[:dense])
    for part in parts[dense:-1]:
        if isinstance(part, nn.ModuleDict):
            yield from map(_dense_layer, part.values())
            yield lambda *features: (torch.cat(features, 1),)
        else:
            yield _single(part)
    yield lambda x: (_pooled(torch.relu_(parts[-1](x))),)
    yield _single(module.classifier)


def _dense_layer(layer: Any) -> Block:
    return lambda *features: (*features, layer(list(features)))


def _lstm(module: Any, steps: int) -> Iterator[Block]:
    """Yield a block for each step. Steps pass on the embedded rows, both layers' states, and the outputs so far."""

    def begin(x: torch.Tensor) -> Values:
        embedded = module.embedding(x)
        zero = embedded.new_zeros(embedded.shape[0], module.cells[0].hidden_size)
        return (embedded, *(zero for _ in module.cells for _ in range(2)))

    def step(number: int) -> Block:
        def run(embedded: torch.Tensor, *values: torch.Tensor) -> Values:
            states, value = list(values), embedded[:, number]
            for layer, cell in enumerate(module.cells):
                states[2 * layer : 2 * layer + 2] = cell(value, (states[2 * layer], states[2 * layer + 1]))
                value = states[2 * layer]
            return (embedded, *states, value)

        return run

    yield begin
    yield from map(step, range(steps))
    yield lambda _, *values: (module.head(torch.stack(values[2 * len(module.cells) :], dim=1)),)


# --- encoders of transformers ------------------------------------------------------------------------------------

# BERT and GPT-2 prepare and end their encoders in ways of their own, so segments replace the list of layers.
_ENCODERS: dict[str, Callable[[Any], tuple[nn.Module, str]]] = {
    "bert": lambda module: (module.model.bert.encoder, "layer"),
    "gpt2": lambda module: (module.model.transformer, "h"),
}


class _Segment(nn.Module):
    """Consecutive layers of an encoder, called like one layer."""

    def __init__(self, layers: Sequence[nn.Module], *, recompute: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.recompute = recompute

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return (
            checkpoint(self._run, x, *args, use_reentrant=False, **kwargs)
            if self.recompute
            else self._run(x, *args, **kwargs)
        )

    def _run(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        for layer in self.layers:
            x = layer(x, *args, **kwargs)
        return x


def _encoder(name: str, module: nn.Module, count: int) -> Forward:
    owner, attribute = _ENCODERS[name](module)
    layers = getattr(owner, attribute)
    parts = _cut(list(layers), count)
    segments = nn.ModuleList(_Segment(part, recompute=k + 1 < len(parts)) for k, part in enumerate(parts))

    def forward(x: torch.Tensor) -> torch.Tensor:
        setattr(owner, attribute, segments)
        try:
            predicted: torch.Tensor = module(x)
        finally:
            setattr(owner, attribute, layers)
        return predicted

    return forward
