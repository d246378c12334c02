"""Small models that together use every feature that captured steps must get right, with their data and steps."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from indb_tensile.bench.harness.exactness import convolutional
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import WHOLE, Passes
from indb_tensile.executor.capture.split_normalisations import with_split_normalisations
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_evaluation, capture_training
from indb_tensile.executor.capture.step_trace import Loss
from indb_tensile.executor.run.state import State
from indb_tensile.learning.encoding.packed_targets import pack
from indb_tensile.learning.networks.weighted_losses import WeightedCrossEntropy
from tests.nightly import nightly_unless

LOSS = nn.CrossEntropyLoss()
BATCH = 8
TAIL = 3
CLASSES = 5


class Lstm(nn.Module):
    """Classifies the last output of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 12, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
        return logits


class DeepLstm(nn.Module):
    """Has two layers of a bidirectional LSTM with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True)
        self.head = nn.Linear(10, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.lstm(x)[0].mean(1))
        return logits


class Recurrent(nn.Module):
    """Has a GRU, then a plain recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 10, batch_first=True)
        self.rnn = nn.RNN(10, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.rnn(self.gru(x)[0])[0][:, -1])
        return logits


class DeepGru(nn.Module):
    """Has two layers of a bidirectional GRU without biases, with dropout between them.

    The logits depend on the outputs and on the last hidden states.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 9, num_layers=2, bidirectional=True, dropout=0.2, bias=False)
        self.head = nn.Linear(27, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, last = self.gru(x.transpose(0, 1))
        logits: torch.Tensor = self.head(torch.cat([outputs.mean(0), last[1]], 1))
        return logits


class Constant(nn.Module):
    """Uses a tensor that is neither parameter nor buffer, uses one weight twice, and never uses one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.head = nn.Linear(6, CLASSES)
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.full((6,), 0.5), requires_grad=False)
        self.scale = (torch.linspace(0.5, 1.5, 6),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x)) * self.scale[0] + self.frozen
        logits: torch.Tensor = self.head(torch.tanh(self.first(hidden)))
        return logits


class Stretched(nn.Module):
    """Has expanded, transposed and sliced gradients, and a buffer that is updated in place and then read."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6).t())  # not contiguous
        self.bias = nn.Parameter(torch.zeros(4))
        self.register_buffer("seen", torch.zeros(4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x @ self.weight + self.bias.expand(x.shape[0], 4)
        if self.training:
            self.seen.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
        left, right = torch.split(hidden + self.seen, 2, dim=1)
        logits: torch.Tensor = self.head(torch.cat([right.sin(), left], dim=1))
        return logits


class Tied(nn.Module):
    """Uses one weight under three names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6, bias=False) for _ in range(3)])
        for layer in self.layers:
            layer.weight = self.layers[0].weight
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        logits: torch.Tensor = self.head(x)
        return logits


def mlp() -> nn.Module:
    """Return a network of two linear layers."""
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def wide() -> nn.Module:
    """Return a network whose large parameters are updated in parts. No two parameters have equal parts."""
    return nn.Sequential(
        nn.Linear(6, 101),
        nn.BatchNorm1d(101),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(101, 37),
        nn.Tanh(),
        nn.Linear(37, CLASSES),
    )


def cnn() -> nn.Module:
    """Return convolutions with BatchNorm, dropout and pooling."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def transformer() -> nn.Module:
    """Return one encoder layer with dropout."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(40, CLASSES))


def regression() -> nn.Module:
    """Return a network for the squared error, which torch reduces in the storage of the errors."""
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def plain_cnn() -> nn.Module:
    """Return convolutions without BatchNorm and without random numbers."""
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(64, CLASSES))


class Normalised(nn.Module):
    """Normalises batches of images in both memory orders, with one layer twice, and batches of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.slow = nn.BatchNorm2d(6, momentum=0.01)
        self.forgetful = nn.BatchNorm2d(6, track_running_stats=False)
        self.head = nn.Linear(6 * 36, CLASSES)
        self.last = nn.BatchNorm1d(CLASSES, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = self.norm(self.second(x).contiguous(memory_format=torch.channels_last))
        x = self.forgetful(torch.relu(self.slow(x)))
        logits: torch.Tensor = self.last(self.head(x.flatten(1)))
        return logits


SHAPES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (6,)),
    "wide": (wide, (6,)),
    "cnn": (cnn, (1, 8, 8)),
    "plain cnn": (plain_cnn, (1, 8, 8)),
    "normalised": (Normalised, (1, 8, 8)),
    "transformer": (transformer, (5, 8)),
    "lstm": (Lstm, (7, 6)),
    "deep lstm": (DeepLstm, (4, 6)),
    "recurrent": (Recurrent, (2, 6)),
    "deep gru": (DeepGru, (2, 6)),
    "constant": (Constant, (6,)),
    "stretched": (Stretched, (6,)),
    "tied": (Tied, (6,)),
    "regression": (regression, (6,)),
    "weighted": (mlp, (6,)),
    "dense": (convolutional.dense, (3, 8, 8)),
}
# Parameters of tests that run for each model: the models whose graphs differ most are enough in the day.
DAILY_KINDS = nightly_unless(lambda kind: kind in ("cnn", "transformer", "recurrent", "tied"), SHAPES)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model, its data and its captured steps: for a full batch, for the tail batch, and for evaluation."""

    module: nn.Module
    settings: OptimizerSettings
    batches: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    held_out: tuple[torch.Tensor, torch.Tensor]
    loss: Loss = LOSS
    passes: Passes = WHOLE

    @property
    def steps(self) -> tuple[CapturedStep, ...]:
        """Capture the steps again at each call."""
        full, tail = self.batches[0], self.batches[-1]
        return (
            self._training(full),
            self._training(tail),
            capture_evaluation(self.module, self.loss, *self.held_out, self.settings),
        )

    def _training(self, batch: tuple[torch.Tensor, torch.Tensor]) -> CapturedStep:
        step = capture_training(self.module, self.loss, *batch, self.settings, self.passes)
        return with_split_normalisations(step)  # as in a trainer

    def state(self) -> State:
        """Return a state with the model's initial values."""
        return State.create(self.module, self.settings)


def make_job(
    kind: str,
    seed: int = 0,
    settings: OptimizerSettings | None = None,
    batches: int = 3,
    passes: Passes = WHOLE,
) -> Job:
    """Return a job with seeded weights, `batches - 1` full batches and a tail batch."""
    torch.manual_seed(seed)
    build, shape = SHAPES[kind]
    module = build()
    sizes = [BATCH] * (batches - 1) + [TAIL]
    numbers = kind == "regression"

    def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(rows, *shape)
        if numbers:
            return x, torch.randn(rows, 2)
        classes = torch.randint(0, CLASSES, (rows,))
        return x, pack(classes, torch.rand(rows)) if kind == "weighted" else classes

    loss = nn.MSELoss() if numbers else WeightedCrossEntropy() if kind == "weighted" else LOSS

    return Job(
        module=module,
        settings=settings or OptimizerSettings(),
        batches=tuple(batch(rows) for rows in sizes),
        held_out=batch(BATCH),
        loss=loss,
        passes=passes,
    )
