"""Pairs of a query and an item: which rows have the same item, and how well items are ranked for queries.

The network returns two vectors for a row, that of its query and that of its item (two_towers.py). Two rows have the
same item if the columns of their items have the same values.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.encoding.target_columns import require_columns
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind
from indb_tensile.learning.storage.row_storage import MEMORY, RowStorage, row_blocks
from indb_tensile.learning.storage.splits import row_hashes
from indb_tensile.request.pair_sides import ITEM

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]

MOST_JUDGED = 5_000  # most pairs of an evaluation: each query is compared with each of their items
_RANKED = 10  # of the metric recall_at_10
_BLOCK = 512  # queries that are compared with all items at a time
_EXACT = 1 << 24  # whole numbers below this are exact in single precision


@dataclass(frozen=True, kw_only=True)
class PairEncoding:
    """The meaning of the outputs of two towers: `width` numbers of the query's vector, then those of the item's.

    `items` are the columns of the item.
    """

    items: tuple[str, ...]
    width: int = 0

    def features(self, side: str, features: Sequence[str]) -> tuple[str, ...]:
        """Return those of the features that describe this side."""
        return tuple(name for name in features if (name in self.items) == (side == ITEM))

    def similarities(self, outputs: Array) -> npt.NDArray[np.float64]:
        """Return the cosine of the angle between the two vectors of each row, from -1 to 1."""
        query, item = self.vectors(outputs)
        similarities: npt.NDArray[np.float64] = np.einsum("ij,ij->i", query, item).astype(np.float64)
        return similarities

    def vectors(self, outputs: Array) -> tuple[Array, Array]:
        """Return the vectors of the queries and of the items, both of length 1."""
        halves = outputs[:, : self.width], outputs[:, self.width :]
        query, item = (
            half / np.maximum(np.linalg.norm(half, axis=1, keepdims=True), np.finfo(np.float32).tiny)
            for half in halves
        )
        return query, item

    def metrics(self, outputs: Array, numbers: Numbers) -> dict[str, float]:
        """Return how high the item of each row is ranked among all items of these rows, by the similarity.

        Rows beyond the first MOST_JUDGED are not judged, and their items are no candidates. Rows whose outputs are
        not finite rank their items last.
        """
        outputs, numbers = outputs[:MOST_JUDGED], numbers[:MOST_JUDGED]
        query, item = self.vectors(np.nan_to_num(outputs.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0))
        _, firsts, places = np.unique(numbers, return_index=True, return_inverse=True)
        candidates, ranks = item[firsts], np.empty(len(query))
        for start in range(0, len(query), _BLOCK):
            scores = query[start : start + _BLOCK] @ candidates.T
            ranks[start : start + _BLOCK] = mean_ranks(scores, places[start : start + _BLOCK])
        ranks[~np.isfinite(outputs).all(axis=1)] = len(candidates)
        return rank_metrics(ranks)


def popularity_metrics(train: Numbers, numbers: Numbers) -> dict[str, float]:
    """Return the metrics of rows with these items if items are ranked by their frequency in the training rows."""
    distinct, places = np.unique(numbers[:MOST_JUDGED], return_inverse=True)
    counts = _counts(train, distinct)
    ordered = np.sort(counts)
    ends, begins = (np.searchsorted(ordered, counts, side=side) for side in ("right", "left"))
    ranks = (len(counts) - ends) + (ends - begins + 1) / 2
    return rank_metrics(ranks[places])


def item_numbers(columns: Sequence[ColumnData], storage: RowStorage = MEMORY) -> ColumnData:
    """Return a number for each row: equal ones for equal values of these columns, which describe an item."""
    rows = len(columns[0].missing)
    numbers = storage.array(rows, (), np.int64)
    for start, end in row_blocks(rows) if rows else ():
        own = row_hashes([column.part(start, end) for column in columns], end - start)
        numbers.write(start, own.view(np.int64))
    return ColumnData(kind=ColumnKind.INTEGER, values=numbers.values, missing=np.zeros(rows, np.bool_))


def item_numbers_of_rows(rows: Sequence[Mapping[str, Any]], items: Sequence[str]) -> Numbers:
    """Return such numbers for rows from SQL. Raises MissingError if a row lacks one of the columns."""
    require_columns(rows, items)
    texts = (json.dumps([row[name] for name in items], sort_keys=True) for row in rows)
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.fromiter((int.from_bytes(own, "little", signed=True) for own in digests), np.int64, len(rows))


def loss_targets(parts: Sequence[Numbers]) -> list[npt.NDArray[np.float32]]:
    """Return what the loss takes for the rows of each part: a number of the item, and the logarithm of its frequency.

    The frequency is that among the rows of the first part; an item that it lacks counts as one that occurs once. The
    numbers are exact in single precision. Of more than 16 million items some have equal numbers, and are not
    compared with one another.
    """
    distinct = np.unique(np.concatenate(list(parts)))
    frequency = np.maximum(_counts(parts[0], distinct), 1) / max(1, len(parts[0]))
    logarithms = np.log(frequency).astype(np.float32)
    targets = []
    for own in parts:
        places = np.searchsorted(distinct, own)
        targets.append(np.stack([(places % _EXACT).astype(np.float32), logarithms[places]], axis=1))
    return targets


def item_ranges(parts: Sequence[tuple[str, int, int]], items: Sequence[str]) -> tuple[int, ...]:
    """Return where the numbers of these items are in an encoded row: where each range begins, and where it ends.

    A part is a feature, and where its numbers begin and end.
    """
    ranges: list[int] = []
    for feature, begin, end in parts:
        if feature not in items or begin == end:
            continue
        if ranges and ranges[-1] == begin:
            ranges[-1] = end
        else:
            ranges += [begin, end]
    return tuple(ranges)


def mean_ranks(scores: Array, places: Array) -> npt.NDArray[np.float64]:
    """Return the rank of one candidate in each row of scores, from 1 on: of equal scores the mean of their ranks."""
    own = scores[np.arange(len(scores)), places][:, None]
    greater, equal = (scores > own).sum(axis=1), (scores == own).sum(axis=1)
    ranks: npt.NDArray[np.float64] = greater + (equal + 1) / 2
    return ranks


def rank_metrics(ranks: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return the metrics of the ranks of items, which count from 1."""
    return {
        "mrr": float(np.mean(1 / ranks)),
        "recall_at_1": float(np.mean(ranks <= 1)),
        "recall_at_10": float(np.mean(ranks <= _RANKED)),
    }


def _counts(rows: Numbers, distinct: Numbers) -> Numbers:
    """Return how often each of these ascending numbers is among the rows."""
    ordered = np.sort(rows)
    ends = np.searchsorted(ordered, distinct, side="right")
    counts: Numbers = ends - np.searchsorted(ordered, distinct, side="left")
    return counts
