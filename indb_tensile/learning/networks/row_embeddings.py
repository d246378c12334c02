"""Embeddings of a table's row: each number and each category becomes a vector of its own.

A row is a vector of five parts: numbers, which are embedded; other values (indicators, ones and zeros, arrays),
which are not; categories, each as its number from 0 on; the tokens of texts (token_networks.py); and the pixels of
images (image_networks.py). Numbers are embedded as in Gorishniy, Rubachev and Babenko, "On Embeddings for Numerical
Features in Tabular Deep Learning" (NeurIPS 2022). The authors' package `rtdl_num_embeddings` is not used: its layers
take their bins, and draw some of their first weights, when they are constructed, and here a network is constructed
without memory and gets its weights later.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from indb_tensile.learning.encoding.narrow_rows import widened
from indb_tensile.learning.encoding.packed_rows import UnpackedRows
from indb_tensile.learning.networks.image_networks import ImageColumn, ImageOptions, ImageVectors
from indb_tensile.learning.networks.pretrained_vectors import PretrainedOptions, PretrainedVectors
from indb_tensile.learning.networks.token_networks import TextColumn, TextOptions, TextVectors

_FITTED_ROWS = 20_000  # quantiles of as many rows differ from those of all rows by less than a bin
_FIRST_EDGE, _LAST_EDGE = -2.0, 2.0  # of bins before they are fitted; most standardised numbers are between them


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """The parts of an encoded row: `numbers`, `others`, `categories`, tokens of `texts`, pixels of `images`.

    `categories` are the numbers of categories of each such column.
    """

    numbers: int
    others: int
    categories: tuple[int, ...]
    texts: tuple[TextColumn, ...] = ()
    images: tuple[ImageColumn, ...] = ()

    @property
    def width(self) -> int:
        """Return how many numbers an encoded row has."""
        return self.first_token + self.tokens + self.pixels

    @property
    def first_token(self) -> int:
        """Return how many numbers of a row stand before its tokens."""
        return self.numbers + self.others + len(self.categories)

    @property
    def tokens(self) -> int:
        """Return how many of these numbers are tokens."""
        return sum(text.length for text in self.texts)

    def split(self, x: Tensor, values: Sequence[int]) -> list[Tensor]:
        """Return the parts of a batch (batch, width): values of these sizes, the tokens, and pixels if there are.

        Rows may be narrow (narrow_rows.py), and have fewer tokens if the texts of the batch are short.
        """
        if x.dtype is torch.int16:
            dense, tokens = widened(x, self.first_token)
            return [*torch.split(dense, list(values), dim=1), tokens]
        sizes = [*values, min(self.tokens, x.shape[1] - self.first_token - self.pixels)]
        sizes += [self.pixels] if self.images else []
        return list(torch.split(x, sizes, dim=1))

    @property
    def pixels(self) -> int:
        """Return how many of these numbers are pixels."""
        return sum(image.size for image in self.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOptions:
    """How numbers and categories are embedded: `kind` of number_embedding, and the sizes that this kind uses.

    `texts` says how tokens are, and `images` how pixels are.
    """

    kind: str
    width: int
    bins: int
    frequencies: int
    frequency_scale: float
    texts: TextOptions | PretrainedOptions
    images: ImageOptions


class RowEmbedding(nn.Module):
    """Embeds the numbers and categories of a row.

    `outputs` is the length of the result, and `part_widths` how much of it each part of the row has.
    """

    def __init__(self, layout: RowLayout, options: EmbeddingOptions) -> None:
        super().__init__()
        self.layout = layout
        self.numbers = _number_embedding(layout.numbers, options)
        self.categories = CategoryEmbedding(layout.categories, options.width) if layout.categories else None
        self.texts = _text_vectors(layout.texts, options.texts) if layout.texts else None
        self.images = ImageVectors(layout.images, options.images) if layout.images else None
        embedded = 1 if self.numbers is None else options.width
        self.part_widths = (
            *(embedded,) * layout.numbers,
            *(1,) * layout.others,
            *(options.width,) * len(layout.categories),
            *(options.texts.width,) * len(layout.texts),
            *(options.images.width,) * len(layout.images),
        )
        self.outputs = sum(self.part_widths)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (batch, layout.width) to (batch, outputs)."""
        layout = self.layout
        sizes = layout.numbers, layout.others, len(layout.categories)
        numbers, others, categories, tokens, *pixels = layout.split(x, sizes)
        parts = [numbers if self.numbers is None else self.numbers(numbers).flatten(1)] if self.layout.numbers else []
        if self.layout.others:
            parts.append(others)
        if self.categories is not None:
            parts.append(self.categories(categories).flatten(1))
        if self.texts is not None:
            parts.append(self.texts(tokens).flatten(1))
        if self.images is not None:
            parts.append(self.images(pixels[0]).flatten(1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class TokenEmbedding(nn.Module):
    """Embeds each value, text and image as one token of `width` numbers, behind one that reads the others."""

    def __init__(self, layout: RowLayout, options: EmbeddingOptions) -> None:
        super().__init__()
        self.layout = layout
        self.summary = SummaryToken(options.width)
        self.numbers = _number_embedding(layout.numbers, options)
        plain = layout.others + (layout.numbers if self.numbers is None else 0)
        self.others = LinearEmbedding(plain, options.width) if plain else None
        self.categories = CategoryEmbedding(layout.categories, options.width) if layout.categories else None
        self.texts = None
        if layout.texts:
            self.texts = nn.Sequential(
                _text_vectors(layout.texts, options.texts), nn.Linear(options.texts.width, options.width)
            )
        self.images = None
        if layout.images:
            self.images = nn.Sequential(
                ImageVectors(layout.images, options.images), nn.Linear(options.images.width, options.width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (batch, layout.width) to (batch, 1 + values + texts + images, width)."""
        embedded = self.layout.numbers if self.numbers is not None else 0
        coded = len(self.layout.categories)
        plain = self.layout.first_token - embedded - coded
        numbers, others, categories, texts, *shown = self.layout.split(x, (embedded, plain, coded))
        parts = [self.summary(x)]
        if self.numbers is not None:
            parts.append(self.numbers(numbers))
        if self.others is not None:
            parts.append(self.others(others))
        if self.categories is not None:
            parts.append(self.categories(categories))
        if self.texts is not None:
            parts.append(self.texts(texts))
        if self.images is not None:
            parts.append(self.images(shown[0]))
        return torch.cat(parts, dim=1)


class LinearEmbedding(nn.Module):
    """Multiplies each number by a learned vector of its own, and adds another one."""

    def __init__(self, numbers: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(numbers, width))
        self.bias = nn.Parameter(torch.empty(numbers, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights from the range that torch's linear layers use for as many inputs."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, numbers) to (batch, numbers, width)."""
        return self.bias + self.weight * x.unsqueeze(-1)


class PiecewiseLinearEmbedding(nn.Module):
    """A learned function of each number that is linear between the quantiles of the training rows.

    The share of each bin that is below the number is multiplied by learned vectors, which are zero at first, and a
    linear embedding is added (version B of `rtdl_num_embeddings`, from the paper on TabM). Beyond the outermost
    quantiles only the linear embedding goes on. `fit` sets the bins, which are buffers: they are stored with the
    weights.
    """

    inverse_widths: Tensor  # of the bins; 0 for a bin that a number with few values does not need
    starts: Tensor  # of the bins, by their widths

    def __init__(self, numbers: int, bins: int, width: int) -> None:
        super().__init__()
        self.linear = LinearEmbedding(numbers, width)
        self.weight = nn.Parameter(torch.empty(numbers, bins, width))
        self.register_buffer("inverse_widths", torch.empty(numbers, bins))
        self.register_buffer("starts", torch.empty(numbers, bins))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Let the embedding be linear, with bins of equal widths."""
        nn.init.zeros_(self.weight)
        bins = self.weight.shape[1]
        bin_width = (_LAST_EDGE - _FIRST_EDGE) / bins
        nn.init.constant_(self.inverse_widths, 1 / bin_width)
        with torch.no_grad():
            self.starts.copy_((_FIRST_EDGE / bin_width + torch.arange(bins)).to(self.starts.device))

    def fit(self, x: Tensor) -> None:
        """Set the bins to the quantiles of these rows (rows, numbers), without those that are equal."""
        bins = self.weight.shape[1]
        quantiles = torch.quantile(x.double(), torch.linspace(0, 1, bins + 1, dtype=torch.float64), dim=0)
        inverse_widths, starts = torch.zeros(x.shape[1], bins), torch.zeros(x.shape[1], bins)
        for place, edges in enumerate(quantiles.T):
            distinct = edges.unique()
            widths = distinct.diff()
            inverse_widths[place, : len(widths)] = 1 / widths
            starts[place, : len(widths)] = distinct[:-1] / widths
        with torch.no_grad():
            self.inverse_widths.copy_(inverse_widths)
            self.starts.copy_(starts)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, numbers) to (batch, numbers, width)."""
        shares = (x.unsqueeze(-1) * self.inverse_widths - self.starts).clamp(0, 1)
        pieces = torch.matmul(shares.transpose(0, 1), self.weight).transpose(0, 1)
        return torch.relu(self.linear(x) + pieces)


class PeriodicEmbedding(nn.Module):
    """Sines and cosines of each number at learned frequencies, then a linear layer that all numbers share.

    This is the variant "lite" of `rtdl_num_embeddings`. `scale` is the standard deviation of the first frequencies.
    """

    def __init__(self, numbers: int, frequencies: int, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.frequencies = nn.Parameter(torch.empty(numbers, frequencies))
        self.linear = nn.Linear(2 * frequencies, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the frequencies."""
        bound = 3 * self.scale
        nn.init.trunc_normal_(self.frequencies, 0.0, self.scale, a=-bound, b=bound)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, numbers) to (batch, numbers, width)."""
        angles = 2 * math.pi * self.frequencies * x.unsqueeze(-1)
        return torch.relu(self.linear(torch.cat([angles.cos(), angles.sin()], dim=-1)))


class CategoryEmbedding(nn.Module):
    """A learned vector for each category of each column. All columns share one table, which is read once."""

    offsets: Tensor  # of each column's first category in the table

    def __init__(self, categories: Sequence[int], width: int) -> None:
        super().__init__()
        self.sizes = tuple(categories)
        self.weight = nn.Parameter(torch.empty(sum(categories), width))
        self.register_buffer("offsets", torch.empty(len(self.sizes), dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors as those of a linear embedding, and compute the offsets."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        with torch.no_grad():
            sizes = torch.tensor([0, *self.sizes[:-1]], device=self.offsets.device)
            self.offsets.copy_(sizes.cumsum(0))

    def forward(self, codes: Tensor) -> Tensor:
        """Map the numbers of categories (batch, columns) to (batch, columns, width)."""
        return nn.functional.embedding(codes.long() + self.offsets, self.weight)


class SummaryToken(nn.Module):
    """A learned token that is equal in all rows at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the token as the other tokens' weights."""
        bound = self.weight.shape[0] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, 1, width) for a batch."""
        return self.weight.expand(x.shape[0], 1, -1)


def fit_embeddings(module: nn.Module, x: Tensor | UnpackedRows) -> None:
    """Fit the bins of piecewise linear embeddings and the centers of vectors of registered networks in the module.

    `x` are encoded training rows (rows, width), which may lack their pixels.
    """
    if not len(x):
        return
    for part in module.modules():
        if isinstance(part, PiecewiseLinearEmbedding):
            part.fit(_evenly_spaced(x, -(-len(x) // _FITTED_ROWS))[:, : part.weight.shape[0]])
        if isinstance(part, RowEmbedding) and isinstance(part.texts, PretrainedVectors):
            rows = _evenly_spaced(x, part.texts.fitted_step(len(x)))
            part.texts.fit(rows[:, part.layout.first_token :][:, : part.layout.tokens])


def _evenly_spaced(x: Tensor | UnpackedRows, step: int) -> Tensor:
    """Return every `step`-th row."""
    return torch.as_tensor(x[::step])


def _text_vectors(columns: tuple[TextColumn, ...], options: TextOptions | PretrainedOptions) -> nn.Module:
    if isinstance(options, PretrainedOptions):
        return PretrainedVectors(columns, options)
    return TextVectors(columns, options)


def _number_embedding(numbers: int, options: EmbeddingOptions) -> nn.Module | None:
    """Return the embedding of the numbers, or None if there are none or they are used as they are."""
    if not numbers:
        return None
    match options.kind:
        case "piecewise":
            return PiecewiseLinearEmbedding(numbers, options.bins, options.width)
        case "periodic":
            return PeriodicEmbedding(numbers, options.frequencies, options.width, options.frequency_scale)
        case "linear":
            return nn.Sequential(LinearEmbedding(numbers, options.width), nn.ReLU())
        case _:
            return None
