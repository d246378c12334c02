"""Networks that turn the tokens of a text into one vector: a sum of embeddings, a convolution, or attention.

Tokens are numbers from 1 on, and 0 is padding behind the last token, which has no effect on the vector. The vector of
an empty text is zero with pooling and convolution.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from indb_tensile.learning.encoding.narrow_rows import token_numbers
from indb_tensile.learning.networks.sequences import EncoderBlock, Positions

_DEVIATION = 0.02  # standard deviation of the first embeddings for attention (BERT, Devlin et al. 2019)
_POOLED_DEVIATION = 0.01  # larger first vectors stay nearly random for rare tokens
# Share of a text's tokens that training with pooling leaves out: half a point of accuracy on Debian's packages.
_LEFT_OUT = 0.2
_FAR = -1e9  # added to the weight of padding in attention; not infinite, since a text may have no token


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    """The tokens of a column of texts: how many different ones there are, and how many of them a row has."""

    vocabulary: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How texts become vectors of `width` numbers: `encoder` is a value of text_encoder, the rest are its sizes."""

    encoder: str
    width: int
    kernel: int
    heads: int
    blocks: int
    dropout: float
    text_dropout: float

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "TextOptions":
        """Return the options from the parameters of an architecture."""
        sizes = {name: values[f"text_{name}"] for name in ("encoder", "width", "kernel", "heads", "blocks")}
        return cls(**sizes, dropout=values["dropout"], text_dropout=values["text_dropout"])


class TextVectors(nn.Module):
    """Turns the tokens of several columns into one vector for each column."""

    def __init__(self, columns: tuple[TextColumn, ...], options: TextOptions) -> None:
        super().__init__()
        self.lengths = [column.length for column in columns]
        self.vocabularies = [column.vocabulary for column in columns]
        self.columns = nn.ModuleList(_encoder(column, options) for column in columns)
        self.dropout = nn.Dropout(options.text_dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map the tokens (batch, sum of lengths) to (batch, columns, width).

        Rows may be cut (`cut_lengths`), and tokens narrow (narrow_rows.py).
        """
        numbers = token_numbers(tokens, self.vocabularies)
        parts = torch.split(numbers, cut_lengths(self.lengths, tokens.shape[1]), dim=1)
        vectors = [encode(own) for encode, own in zip(self.columns, parts, strict=True)]
        return cast(Tensor, self.dropout(torch.stack(vectors, dim=1)))


def longest_column(lengths: Sequence[int]) -> int:
    """Return the place of the longest column of tokens, the first of several. In short batches it is the one cut."""
    return max(range(len(lengths)), key=lengths.__getitem__)


def cut_lengths(lengths: Sequence[int], tokens: int) -> list[int]:
    """Return the tokens of each column in rows of so many tokens.

    Rows of a batch of short texts lack the last tokens of the longest column, which are padding (cut_texts.py).
    """
    own = list(lengths)
    own[longest_column(own)] -= sum(own) - tokens
    return own


class TokenVectors(nn.Module):
    """A learned vector for each token."""

    def __init__(self, vocabulary: int, width: int, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors."""
        nn.init.normal_(self.weight, std=self.deviation)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, tokens) to (batch, tokens, width)."""
        return functional.embedding(tokens, self.weight)


class TextPooling(nn.Module):
    """The sum of the vectors of a text's tokens over the square root of their number.

    It is a bag of tokens as in fastText (Joulin et al. 2017), with the length of a text as TF-IDF counts it: with the
    mean, each token of a long text would count less. In training some tokens are left out, so that no rare token
    decides alone.
    """

    def __init__(self, column: TextColumn, options: TextOptions) -> None:
        super().__init__()
        self.vectors = TokenVectors(column.vocabulary, options.width, _POOLED_DEVIATION)
        self.left_out = nn.Dropout(_LEFT_OUT)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, tokens) to (batch, width)."""
        present = _present(tokens)
        total = (self.vectors(tokens) * self.left_out(present)).sum(dim=1)
        return cast(Tensor, total / present.sum(dim=1).clamp(min=1).sqrt())


class TextConvolution(nn.Module):
    """The largest values of a convolution over the tokens, as in Kim (2014)."""

    def __init__(self, column: TextColumn, options: TextOptions) -> None:
        super().__init__()
        self.vectors = TokenVectors(column.vocabulary, options.width, 1.0)
        self.convolution = nn.Conv1d(options.width, options.width, options.kernel, padding="same")

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, tokens) to (batch, width)."""
        present = _present(tokens)
        convolved = self.convolution((self.vectors(tokens) * present).transpose(1, 2))
        return (functional.relu(convolved) * present.transpose(1, 2)).amax(dim=2)


class TextTransformer(nn.Module):
    """The mean of the tokens after blocks of attention between them (Vaswani et al. 2017)."""

    def __init__(self, column: TextColumn, options: TextOptions) -> None:
        super().__init__()
        width = options.width
        self.vectors = TokenVectors(column.vocabulary, width, _DEVIATION)
        self.positions = Positions(column.length, width)
        self.blocks = nn.ModuleList(
            EncoderBlock(width, options.heads, 4 * width, options.dropout) for _ in range(options.blocks)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, tokens) to (batch, width)."""
        present = _present(tokens)
        padding = ((1 - present) * _FAR).transpose(1, 2).unsqueeze(1)  # (batch, 1, 1, tokens)
        x = self.positions(self.vectors(tokens))
        for block in self.blocks:
            x = block(x, padding)
        return _mean(self.norm(x), present)


def _present(tokens: Tensor) -> Tensor:
    """Return 1 for a token and 0 for padding, as (batch, tokens, 1)."""
    return (tokens != 0).float().unsqueeze(-1)


def _mean(vectors: Tensor, present: Tensor) -> Tensor:
    return (vectors * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)


def _encoder(column: TextColumn, options: TextOptions) -> nn.Module:
    match options.encoder:
        case "convolution":
            return TextConvolution(column, options)
        case "transformer":
            return TextTransformer(column, options)
        case _:
            return TextPooling(column, options)
