"""Captures step graphs of known networks to plan for: forward, loss, backward and fused Adam, at a stated batch.

The networks come from torchvision, timm and transformers (the extra `bench`). They are built without weights on the
meta device and captured on tensors without memory, so nothing is downloaded and nothing is allocated. The graph is
the step as PyTorch runs it on the CPU. Its operators' arithmetic, sizes and order are those of a GPU. Workspaces are
0, because only running a step measures them.

A capture takes seconds, so graphs are cached as JSON (scheduler/document.py) in a directory of the user's cache,
under a key that changes with the capturing code and the libraries' versions.
"""

import hashlib
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import gettempdir
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from indb_tensile.errors import MissingError, RequestError
from indb_tensile.scheduler.document import Document, read_document, write_document
from indb_tensile.scheduler.graph import StepGraph

if TYPE_CHECKING:
    import torch
    from torch import nn

    from indb_tensile.executor.capture.step_trace import Loss

CACHE_VARIABLE = "TENSILE_BENCH_CACHE"
_LIBRARIES = ("torch", "torchvision", "timm", "transformers")
_PACKAGE = Path(__file__).parents[3]
_SOURCES = (Path(__file__), *sorted((_PACKAGE / "executor").rglob("*.py")))

_SEQUENCE = 512
_LSTM_STEPS = 64
_LSTM_HIDDEN = 1024
_UNET_PIXELS = 128
_DOUBLINGS = 12  # 1 pixel doubled this many times is more than any network needs
_VOCABULARY = 10_000  # token ids below this are valid in every network of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network: how to build it, the shape of one row, and its batch when planned.

    `build` takes the last size of a row: pixels of a side, or tokens. The loss is the cross-entropy unless `loss` is
    another function of predictions and labels.
    """

    name: str
    title: str
    library: str
    batch: int
    row: tuple[int, ...]  # default shape, with which the network accepts any batch
    build: Callable[[int], "nn.Module"]
    tokens: bool = False  # rows are token ids
    label: tuple[int, ...] = ()  # a row's label: one class, or one for each token
    classes: int | None = 1000  # labels are below this; None if they are real numbers
    loss: "Loss | None" = None
    micro_batch_size: int | None = None  # rows of each part of a batch, None if it is computed whole

    def resized(self, side: int) -> "Network":
        """Return the same network for images of `side` pixels a side, or for `side` tokens."""
        if side < 1:
            raise RequestError(f"{self.name} has no rows of {side}", hint="Give at least 1 pixel or token.")
        row = (side,) if self.tokens else (*self.row[:-2], side, side)
        return replace(self, row=row, label=tuple(side if size == self.row[-1] else size for size in self.label))


def graph_of(name: str, batch: int | None = None, side: int | None = None) -> StepGraph:
    """Return the training step of this network, from the cache if possible. `side` is in pixels or tokens.

    Raises MissingError for an unknown network, or if its library is not installed.
    """
    network = find(name) if side is None else find(name).resized(side)
    rows = network.batch if batch is None else batch
    path = cache_directory() / f"{name}-{rows}{'' if side is None else f'x{side}'}-{_key()}.json"
    if path.exists():
        return read_document(path.read_bytes()).graph
    graph = capture(network, rows)
    _store(path, write_document(Document(name=name, graph=graph)))
    return graph


def find(name: str) -> Network:
    """Return the network of this name. Raises MissingError if there is none."""
    if name not in NETWORKS:
        raise MissingError(f"there is no network '{name}'", hint=f"Networks are: {', '.join(NETWORKS)}.")
    return NETWORKS[name]


def small_unet(levels: int) -> StepGraph:
    """Return the training step of one micro-batch of `unet`, with so many levels: a small graph of the same shape."""
    whole = NETWORKS["unet"]
    rows = whole.micro_batch_size
    assert rows is not None
    return capture(replace(whole, build=_unet(levels=levels, diffusion=False), micro_batch_size=None), rows)


def missing_library(network: Network) -> str | None:
    """Return the library that this network needs if it is not installed, else None."""
    try:
        metadata.version(network.library)
    except metadata.PackageNotFoundError:
        return network.library
    return None


def require_library(network: Network) -> None:
    """Raise MissingError if the network's library is not installed."""
    lacking = missing_library(network)
    if lacking is not None:
        way_out = "pip install 'indb-tensile[bench]' (see pyproject.toml for how, with a CPU build of torch)"
        raise MissingError(f"network {network.name} comes from {lacking}, which is not installed", hint=way_out)


def require_rows(network: Network, batch: int) -> None:
    """Raise RequestError if the network cannot be trained on such a batch, because pixels or rows are too few."""
    if batch < 1:
        raise RequestError(f"{network.name} cannot be captured at a batch of {batch}", hint="Give at least 1 row.")
    rows = min(batch, 2)  # no network refuses more rows where it accepts two
    fault = None if network is NETWORKS.get(network.name) else _refusal(network, rows)
    if fault is None:
        return
    shape = f"{batch} row{'s'[: batch > 1]} of {network.row[-1]} pixels a side"
    raise RequestError(
        f"{network.name} cannot be trained on {shape}: {fault}",
        hint=f"Give at least {_least(network, rows)} pixels{', or 2 rows' if _refusal(network, 2) is None else ''}.",
    )


def _least(network: Network, batch: int) -> int:
    """Return the fewest pixels a side that the network accepts for this batch; the present size is refused."""

    def takes(pixels: int) -> bool:
        return _refusal(network.resized(pixels), batch) is None

    side = network.row[-1]
    enough = next(side << doubled for doubled in range(1, _DOUBLINGS) if takes(side << doubled))
    return bisect_left(range(enough), True, side, key=takes)


@cache
def _refusal(network: Network, batch: int) -> str | None:
    """Return the error of a forward pass without memory on such a batch; None if it succeeds, or for tokens."""
    if network.tokens:
        return None
    import torch

    module, _, x, _ = example(network, batch)
    try:
        with torch.no_grad():
            module.train()(x)
    except (RuntimeError, ValueError) as error:
        return str(error).partition("\n")[0].rstrip(".")
    return None


def cache_directory() -> Path:
    """Return the directory of captured graphs: $TENSILE_BENCH_CACHE, else one in the user's cache."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME")
    if not home:
        return Path(gettempdir()) / f"indb-tensile-{os.getuid()}" / "graphs"
    return Path(home) / ("" if "XDG_CACHE_HOME" in os.environ else ".cache") / "indb-tensile" / "graphs"


def capture(network: Network, batch: int) -> StepGraph:
    """Build the network without memory and capture its training step. Takes seconds."""
    require_library(network)
    require_rows(network, batch)
    from indb_tensile.executor.capture.optimizer import OptimizerSettings
    from indb_tensile.executor.capture.passes import Passes
    from indb_tensile.executor.capture.step_capture import capture_training

    passes = Passes(micro_batch_size=network.micro_batch_size)
    return capture_training(*example(network, batch), OptimizerSettings(kind="adam"), passes).graph


def example(network: Network, batch: int) -> "tuple[nn.Module, Loss, torch.Tensor, torch.Tensor]":
    """Return the network, its loss and a batch of rows and labels, all without memory."""
    import torch

    with torch.device("meta"):
        module = network.build(network.row[-1])
        x = torch.empty((batch, *network.row), dtype=torch.int64 if network.tokens else torch.float32)
        y = torch.empty((batch, *network.label), dtype=torch.float32 if network.classes is None else torch.int64)
    return module, network.loss or _loss, x, y


def random_example(
    network: Network, batch: int, seed: int = 0
) -> "tuple[nn.Module, Loss, torch.Tensor, torch.Tensor]":
    """Return the same with memory, with weights, rows and labels drawn at random.

    Raises MissingError for a missing library, RequestError if the network does not accept such rows.
    """
    require_library(network)
    require_rows(network, batch)
    import torch

    torch.manual_seed(seed)
    module = network.build(network.row[-1])
    shape = (batch, *network.row)
    x = torch.randint(_VOCABULARY, shape) if network.tokens else torch.randn(shape)
    labels = (batch, *network.label)
    y = torch.randn(labels) if network.classes is None else torch.randint(network.classes, labels)
    return module, network.loss or _loss, x, y


def _loss(predicted: "torch.Tensor", y: "torch.Tensor") -> "torch.Tensor":
    """Return the cross-entropy, over all tokens if each has a label."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(predicted.flatten(0, -2), y.flatten())


def _loss_of_pixels(predicted: "torch.Tensor", y: "torch.Tensor") -> "torch.Tensor":
    """Return the cross-entropy over all pixels, each of which has a label."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(predicted, y)


def _squared_error(predicted: "torch.Tensor", y: "torch.Tensor") -> "torch.Tensor":
    from torch.nn.functional import mse_loss

    return mse_loss(predicted, y)


def _key() -> str:
    """Return a key that changes with the code and libraries that a captured graph depends on."""
    digest = hashlib.sha256()
    for name in _LIBRARIES:
        try:
            digest.update(f"{name} {metadata.version(name)}\n".encode())
        except metadata.PackageNotFoundError:
            digest.update(f"{name} none\n".encode())
    for path in _SOURCES:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _store(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)  # atomic, since other processes may be reading


# --- the networks ----------------------------------------------------------------------------------------------


def _torchvision(function: str, **settings: Any) -> Callable[[int], "nn.Module"]:
    def build(_: int) -> "nn.Module":
        _declare_missing_operators()
        from torchvision import models

        module: nn.Module = getattr(models, function)(weights=None, **settings)
        return module

    return build


def _declare_missing_operators() -> None:
    # Imported here because the names of the networks are listed without torch.
    from indb_tensile.learning.networks.torchvision_operators import declare_missing_operators

    declare_missing_operators()


def _vit_s(pixels: int) -> "nn.Module":
    """Build ViT-S with patches of 16 pixels (Touvron et al. 2021)."""
    _declare_missing_operators()
    from torchvision.models import VisionTransformer

    module: nn.Module = VisionTransformer(
        image_size=pixels, patch_size=16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536
    )
    return module


def _timm(name: str) -> Callable[[int], "nn.Module"]:
    def build(_: int) -> "nn.Module":
        _declare_missing_operators()
        import timm

        module: nn.Module = timm.create_model(name, pretrained=False)
        return module

    return build


def _gpt2(tokens: int) -> "nn.Module":
    """Build GPT-2 without dropout on attention weights, which the CPU's fused attention lacks; so does BERT below."""
    _declare_missing_operators()
    import torch
    from torch import nn
    from transformers import GPT2Config, GPT2LMHeadModel

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            positions = max(1024, tokens)  # GPT-2's own number, or more if the row is longer
            config = GPT2Config(
                n_layer=12, n_positions=positions, attn_pdrop=0.0, use_cache=False, attn_implementation="sdpa"
            )
            self.model = GPT2LMHeadModel(config)
            # The model would create the mask from values, which do not exist on the meta device.
            self.register_buffer("causal", torch.full((1, 1, tokens, tokens), float("-inf")).triu(1))

        def forward(self, x: "torch.Tensor") -> Any:
            return self.model(input_ids=x, attention_mask=self.causal).logits

    return LanguageModel()


def _bert(tokens: int) -> "nn.Module":
    _declare_missing_operators()
    from torch import nn
    from transformers import BertConfig, BertForSequenceClassification

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            positions = max(512, tokens)
            config = BertConfig(
                num_labels=2,
                max_position_embeddings=positions,
                attention_probs_dropout_prob=0.0,
                attn_implementation="sdpa",
            )
            self.model = BertForSequenceClassification(config)

        def forward(self, x: "torch.Tensor") -> Any:
            return self.model(input_ids=x).logits

    return Classifier()


def unrolled_lstm(steps: int) -> "nn.Module":
    """Build two layers of LSTM cells, unrolled. torch's own LSTM would be one operator for all its steps."""
    import torch
    from torch import nn

    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(_VOCABULARY, _LSTM_HIDDEN)
            self.cells = nn.ModuleList(nn.LSTMCell(_LSTM_HIDDEN, _LSTM_HIDDEN) for _ in range(2))
            self.head = nn.Linear(_LSTM_HIDDEN, _VOCABULARY)

        def forward(self, x: "torch.Tensor") -> "torch.Tensor":
            embedded = self.embedding(x)
            zero = embedded.new_zeros(embedded.shape[0], _LSTM_HIDDEN)
            states = [(zero, zero) for _ in self.cells]
            outputs = []
            for step in range(steps):
                value = embedded[:, step]
                for layer, cell in enumerate(self.cells):
                    states[layer] = cell(value, states[layer])
                    value = states[layer][0]
                outputs.append(value)
            predicted: torch.Tensor = self.head(torch.stack(outputs, dim=1))
            return predicted

    return Unrolled()


def _unet(*, levels: int = 4, diffusion: bool) -> Callable[[int], "nn.Module"]:
    def build(_: int) -> "nn.Module":
        from indb_tensile.bench.harness.networks.unet import LevelledUNet

        return LevelledUNet(levels=levels, diffusion=diffusion)

    return build


def _images(name: str, title: str, build: Callable[[int], "nn.Module"], pixels: int, library: str) -> Network:
    return Network(name=name, title=title, library=library, batch=16, row=(3, pixels, pixels), build=build)


def _vision(name: str, title: str, function: str, pixels: int = 224, **settings: Any) -> Network:
    return _images(name, title, _torchvision(function, **settings), pixels, "torchvision")


_ALL = (
    _vision("vgg16", "VGG-16", "vgg16"),
    _vision("inception_v3", "Inception V3", "inception_v3", 299, aux_logits=False, init_weights=False),
    _images("inception_v4", "Inception V4", _timm("inception_v4"), 299, "timm"),
    _vision("resnet50", "ResNet-50", "resnet50"),
    _vision("densenet121", "DenseNet-121", "densenet121"),
    _vision("mobilenet_v2", "MobileNet V2", "mobilenet_v2"),
    _vision("squeezenet", "SqueezeNet 1.1", "squeezenet1_1"),
    _vision("efficientnet_b0", "EfficientNet-B0", "efficientnet_b0"),
    _vision("swin_t", "Swin-T", "swin_t"),
    _images("vit_s", "ViT-S/16", _vit_s, 224, "torchvision"),
    Network(
        name="gpt2",
        title="GPT-2, 12 layers, 512 tokens",
        library="transformers",
        batch=8,
        row=(_SEQUENCE,),
        build=_gpt2,
        tokens=True,
        label=(_SEQUENCE,),
    ),
    Network(
        name="bert",
        title="BERT-base, 512 tokens",
        library="transformers",
        batch=16,
        row=(_SEQUENCE,),
        build=_bert,
        tokens=True,
        classes=2,
    ),
    Network(
        name="lstm",
        title="LSTM, 2 layers of 1024, 64 steps",
        library="torch",
        batch=64,
        row=(_LSTM_STEPS,),
        build=unrolled_lstm,
        tokens=True,
        label=(_LSTM_STEPS,),
    ),
    Network(
        name="unet",
        title="U-Net, 4 levels, micro-batches of 4",
        library="torch",
        batch=16,
        row=(3, _UNET_PIXELS, _UNET_PIXELS),
        build=_unet(diffusion=False),
        label=(_UNET_PIXELS, _UNET_PIXELS),
        classes=2,
        loss=_loss_of_pixels,
        micro_batch_size=4,
    ),
    Network(
        name="diffusion_unet",
        title="diffusion U-Net, 4 levels",
        library="torch",
        batch=16,
        row=(3, _UNET_PIXELS, _UNET_PIXELS),
        build=_unet(diffusion=True),
        label=(3, _UNET_PIXELS, _UNET_PIXELS),
        classes=None,
        loss=_squared_error,
    ),
)
NETWORKS: Mapping[str, Network] = MappingProxyType({network.name: network for network in _ALL})
