"""Networks for the rows of tables: residual blocks, crosses of features, a wide part beside a deep one, attention.

- `ResidualNetwork` and `FeatureTransformer`: Gorishniy, Rubachev, Khrulkov and Babenko, "Revisiting Deep Learning
  Models for Tabular Data" (NeurIPS 2021).
- `CrossNetwork`: Wang and others, "DCN V2: Improved Deep & Cross Network" (WWW 2021), with both parts side by side.
- `WideAndDeep`: Cheng and others, "Wide & Deep Learning for Recommender Systems" (2016). The wide part is linear in
  the embedded row.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from indb_tensile.learning.networks.row_embeddings import RowEmbedding, TokenEmbedding
from indb_tensile.learning.networks.sequences import EncoderBlock

Activation = Callable[[], nn.Module]


class ResidualNetwork(nn.Module):
    """Blocks of two linear layers, each added to its input after a normalisation."""

    def __init__(
        self,
        embedding: RowEmbedding,
        width: int,
        blocks: int,
        outputs: int,
        *,
        activation: Activation,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.first = nn.Linear(embedding.outputs, width)
        self.blocks = nn.ModuleList(_residual_block(width, activation, dropout) for _ in range(blocks))
        self.last = nn.Sequential(nn.LayerNorm(width), activation(), nn.Linear(width, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (batch, width) to (batch, outputs)."""
        x = self.first(self.embedding(x))
        for block in self.blocks:
            x = x + block(x)
        return cast(Tensor, self.last(x))


class CrossNetwork(nn.Module):
    """Products of features up to a degree, beside fully connected layers."""

    def __init__(
        self,
        embedding: RowEmbedding,
        crosses: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        activation: Activation,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.crosses = nn.ModuleList(nn.Linear(embedding.outputs, embedding.outputs) for _ in range(crosses))
        self.deep = dense(embedding.outputs, hidden, activation, dropout)
        deep_outputs = hidden[-1] if hidden else embedding.outputs
        self.last = nn.Linear(embedding.outputs + deep_outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (batch, width) to (batch, outputs)."""
        first = crossed = self.embedding(x)
        for cross in self.crosses:
            crossed = crossed + first * cross(crossed)
        return cast(Tensor, self.last(torch.cat([crossed, self.deep(first)], dim=1)))


class WideAndDeep(nn.Module):
    """The sum of a linear model and of fully connected layers."""

    def __init__(
        self,
        embedding: RowEmbedding,
        hidden: Sequence[int],
        outputs: int,
        *,
        activation: Activation,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.wide = nn.Linear(embedding.outputs, outputs)
        self.deep = nn.Sequential(
            dense(embedding.outputs, hidden, activation, dropout),
            nn.Linear(hidden[-1] if hidden else embedding.outputs, outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (batch, width) to (batch, outputs)."""
        embedded = self.embedding(x)
        return cast(Tensor, self.wide(embedded) + self.deep(embedded))


class EmbeddedDense(nn.Module):
    """Fully connected layers behind an embedding; without hidden ones a linear model of it.

    The first outputs are zero: a random last layer would add noise that few labels do not outweigh.
    """

    def __init__(
        self,
        embedding: RowEmbedding,
        hidden: Sequence[int],
        outputs: int,
        *,
        activation: Activation,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.hidden = dense(embedding.outputs, hidden, activation, dropout)
        self.last = ZeroLinear(hidden[-1] if hidden else embedding.outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (batch, width) to (batch, outputs)."""
        return cast(Tensor, self.last(self.hidden(self.embedding(x))))


class ZeroLinear(nn.Linear):
    """A linear layer whose first weights are zero."""

    def reset_parameters(self) -> None:
        """Set weights and constants to zero."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class FeatureTransformer(nn.Module):
    """Attention between the values of a row, each of which is a token. The first token has the answer."""

    def __init__(
        self, tokens: TokenEmbedding, width: int, heads: int, blocks: int, outputs: int, *, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, 2 * width, dropout) for _ in range(blocks)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (batch, width) to (batch, outputs)."""
        return cast(Tensor, self.last(self.blocks(self.tokens(x))[:, 0]))


def dense(inputs: int, hidden: Sequence[int], activation: Activation, dropout: float) -> nn.Sequential:
    """Return fully connected layers, each with its activation and dropout."""
    layers: list[nn.Module] = []
    for units in hidden:
        layers += [nn.Linear(inputs, units), activation()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        inputs = units
    return nn.Sequential(*layers)


def _residual_block(width: int, activation: Activation, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 2 * width),
        activation(),
        nn.Dropout(dropout),
        nn.Linear(2 * width, width),
        nn.Dropout(dropout),
    )
