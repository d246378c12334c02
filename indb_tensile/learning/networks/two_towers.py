"""Two towers: one network for queries and one for items. Their vectors are near if the item goes with the query.

Huang and others, "Learning Deep Structured Semantic Models for Web Search using Clickthrough Data" (CIKM 2013). The
loss compares each query with the items of its batch, and corrects for their frequencies: Yi and others,
"Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations" (RecSys 2019). The temperature is
learned as in CLIP (Radford and others 2021), unless it is set.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from indb_tensile.learning.networks.row_embeddings import RowEmbedding, RowLayout, fit_embeddings
from indb_tensile.learning.networks.table_networks import dense
from indb_tensile.request.pair_sides import ITEM, QUERY

_FIRST_TEMPERATURE = 0.07  # CLIP's, as is the lowest one
_LOWEST_TEMPERATURE = 0.01


class TwoTowers(nn.Module):
    """Maps encoded rows (batch, width) to the vectors of their queries and items (batch, 2 x vector).

    `build` returns a tower for rows of a layout. A vector has the length 1; that of the query is then divided by the
    temperature, so that the product of both is what the loss takes. `ranges` are those of `PairEncoding`.
    """

    def __init__(
        self,
        layout: RowLayout,
        ranges: Sequence[int],
        build: Callable[[RowLayout], nn.Module],
        temperature: float | None,
    ) -> None:
        super().__init__()
        items = list(zip(ranges[::2], ranges[1::2], strict=True))
        others = pairwise((0, *ranges, layout.width))
        self.places = {QUERY: [pair for pair in list(others)[::2] if pair[0] < pair[1]], ITEM: items}
        self.towers = nn.ModuleDict({side: build(_side(layout, own)) for side, own in self.places.items()})
        self.scale = LearnedScale() if temperature is None else None
        self.fixed_scale = 1.0 if temperature is None else 1.0 / temperature

    def forward(self, x: Tensor) -> Tensor:
        """Return the query's vector, divided by the temperature, and then the item's (batch, 2 x vector)."""
        query, item = (self.vectors(side, self.rows_of(side, x)) for side in (QUERY, ITEM))
        scaled = query * self.fixed_scale if self.scale is None else self.scale(query)
        return torch.cat([scaled, item], dim=1)

    def vectors(self, side: str, rows: Tensor) -> Tensor:
        """Return the vectors of rows of one side (rows, numbers of the side), each of length 1."""
        return functional.normalize(cast(Tensor, self.towers[side](rows)).float(), dim=1)

    def rows_of(self, side: str, x: Tensor) -> Tensor:
        """Return the columns of encoded rows (rows, width) that describe one side: the query or the item."""
        parts = [x[:, begin:end] for begin, end in self.places[side]]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def fit(self, x: Tensor) -> None:
        """Fit the bins of piecewise linear embeddings to encoded training rows, perhaps without their pixels."""
        for side, tower in self.towers.items():
            fit_embeddings(tower, self.rows_of(side, x))


class Tower(nn.Module):
    """Fully connected layers behind an embedding of the numbers of one side.

    Its first weights are random: vectors that are zero have no direction in which they could become near.
    """

    def __init__(
        self,
        embedding: RowEmbedding,
        hidden: Sequence[int],
        outputs: int,
        *,
        activation: Callable[[], nn.Module],
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.hidden = dense(embedding.outputs, hidden, activation, dropout)
        self.last = nn.Linear(hidden[-1] if hidden else embedding.outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (batch, numbers of the side) to (batch, outputs)."""
        return cast(Tensor, self.last(self.hidden(self.embedding(x))))


class LearnedScale(nn.Module):
    """Multiplies by a learned factor, the inverse of a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.logarithm = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin with the usual temperature."""
        nn.init.constant_(self.logarithm, -math.log(_FIRST_TEMPERATURE))

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        return x * self.logarithm.clamp(max=-math.log(_LOWEST_TEMPERATURE)).exp()


class InBatchSoftmax(nn.Module):
    """The cross entropy of each query's item among the items of its batch.

    The logarithm of an item's frequency is subtracted from its logit, since a frequent item is more often among the
    others of a batch. Further rows with the item of a row are left out of its sum. More than `rows` rows, as those of
    a validation, are divided into such batches, of which the last one may be smaller.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean for outputs (rows, 2 x vector) and targets (rows, 2) of `loss_targets`."""
        halves = outputs.float().chunk(2, dim=1)
        if len(outputs) <= self.rows:
            return _losses(halves[0], halves[1], targets).mean()
        parts = zip(*(torch.split(whole, self.rows) for whole in (*halves, targets)), strict=True)
        return torch.cat([_losses(*part) for part in parts]).mean()


def _losses(query: Tensor, item: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each row of one batch."""
    numbers, logarithms = targets[:, :1], targets[:, 1]
    logits = query @ item.t() - logarithms
    own = logits.diagonal()
    # The row's own logit is added again: the mask of equal items has it too.
    others = logits.masked_fill(numbers == numbers.t(), _NEVER)
    return torch.logaddexp(others.logsumexp(dim=1), own) - own


def _side(layout: RowLayout, places: Sequence[tuple[int, int]]) -> RowLayout:
    """Return the layout of the numbers of one side."""

    def among(place: int) -> bool:
        return any(begin <= place < end for begin, end in places)

    def within(first: int, end: int) -> int:
        return sum(max(0, min(own_end, end) - max(begin, first)) for begin, own_end in places)

    codes = layout.numbers + layout.others
    at = codes + len(layout.categories)
    texts, images = [], []
    for text in layout.texts:
        texts += [text] if among(at) else []
        at += text.length
    for image in layout.images:
        images += [image] if among(at) else []
        at += image.size
    return RowLayout(
        numbers=within(0, layout.numbers),
        others=within(layout.numbers, codes),
        categories=tuple(size for place, size in enumerate(layout.categories) if among(codes + place)),
        texts=tuple(texts),
        images=tuple(images),
    )


_NEVER = -1e9  # a logit without any share; not infinite, since a batch may have a single item
