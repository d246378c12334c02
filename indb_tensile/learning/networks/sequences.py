"""Modules for sequences of shape (batch, steps, features), built of plain operators whose storages can be planned.

`nn.TransformerEncoder` is not used: its fused path in evaluation mode hides the layer's tensors in one operator, and
attention with dropout inside draws random numbers in an operator that could otherwise be recomputed. Here dropout
follows attention and feed-forward, as on the residual branches of Vaswani et al. (2017).
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class RecurrentLayer(nn.Module):
    """An LSTM or GRU that returns one tensor: its last step, the mean of all steps, or the whole sequence."""

    def __init__(
        self,
        kind: str,
        features: int,
        hidden: int,
        layers: int,
        *,
        bidirectional: bool,
        dropout: float,
        output: str,
    ) -> None:
        super().__init__()
        self.output = output
        self.hidden = hidden
        module_class = nn.LSTM if kind == "lstm" else nn.GRU
        self.rnn = module_class(
            features, hidden, layers, batch_first=True, dropout=dropout, bidirectional=bidirectional
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, steps, features) to (batch, hidden), or to (batch, steps, hidden).

        A bidirectional network returns twice as many features.
        """
        sequence, _ = self.rnn(x)
        if self.output != "last" or not self.rnn.bidirectional:
            return _reduced(sequence, self.output)
        # The backward direction has read the whole sequence at the first step.
        return torch.cat([sequence[:, -1, : self.hidden], sequence[:, 0, self.hidden :]], dim=1)


class TransformerEncoder(nn.Module):
    """A stack of pre-norm encoder blocks. Features are projected to `d_model` if their number differs from it."""

    def __init__(
        self,
        steps: int,
        features: int,
        d_model: int,
        heads: int,
        layers: int,
        feedforward: int,
        *,
        dropout: float,
        positions: bool,
        output: str,
    ) -> None:
        super().__init__()
        self.output = output
        self.project = nn.Linear(features, d_model) if features != d_model else nn.Identity()
        self.positions = Positions(steps, d_model) if positions else nn.Identity()
        self.blocks = nn.Sequential(*(EncoderBlock(d_model, heads, feedforward, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, steps, features) to (batch, steps, d_model), or to (batch, d_model)."""
        return _reduced(self.norm(self.blocks(self.positions(self.project(x)))), self.output)


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward, each on a residual branch after a layer normalisation."""

    def __init__(self, d_model: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(d_model)
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.attention_output = nn.Linear(d_model, d_model)
        self.feedforward_norm = nn.LayerNorm(d_model)
        self.widen = nn.Linear(d_model, feedforward)
        self.narrow = nn.Linear(feedforward, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map (batch, steps, d_model) to the same shape. `mask` is added to the logits of the attention."""
        x = x + self.dropout(self._attend(self.attention_norm(x), mask))
        return cast(Tensor, x + self.dropout(self.narrow(functional.gelu(self.widen(self.feedforward_norm(x))))))

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, steps, width = x.shape
        split = self.query_key_value(x).view(batch, steps, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return cast(Tensor, self.attention_output(mixed.transpose(1, 2).reshape(batch, steps, width)))


class Positions(nn.Module):
    """Adds a learned vector to each step, because attention does not depend on the order of the steps."""

    def __init__(self, steps: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(steps, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw small random vectors, as for a token embedding (0.02: BERT, Devlin et al. 2019)."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, steps, d_model) to the same shape. There may be fewer steps than vectors."""
        steps = x.shape[1]
        return x + (self.weight if steps == len(self.weight) else self.weight[:steps])


class Residual(nn.Module):
    """Adds the output of the inner layers to their input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Map any shape to the same shape."""
        return cast(Tensor, x + self.inner(x))


class Reshape(nn.Module):
    """Reshapes each row."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, *any) to (batch, *shape)."""
        return x.reshape(x.shape[0], *self.shape)


def _reduced(sequence: Tensor, output: str) -> Tensor:
    match output:
        case "last":
            return sequence[:, -1]
        case "mean":
            return sequence.mean(dim=1)
        case _:
            return sequence


def divisors(d_model: int) -> tuple[int, ...]:
    """Return the numbers of heads, up to 64, that divide `d_model`."""
    return tuple(heads for heads in range(1, 65) if d_model % heads == 0)
