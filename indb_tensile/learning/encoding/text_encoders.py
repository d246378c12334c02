"""Encoders that convert texts and sets of labels to numbers.

An encoder is fitted once on the training rows; afterwards it is plain data. A missing text, like each frequent text,
has a place of its own unless a replacement was chosen (`fill`).
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.encoding.encoders import MISSING_CATEGORY, Missing, require
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, ColumnRows
from indb_tensile.learning.storage.moments import FIT_BLOCK_NUMBERS, Matrix
from indb_tensile.learning.storage.row_storage import MEMORY, RowStorage, row_blocks

OTHER_CATEGORY = "(other)"
# Distinct values per row. Names of persons stay below this bound, identifiers with a few duplicates do not.
_NEARLY_UNIQUE = 0.95
_FEWEST_UNIQUE = 20  # with fewer rows, all values of a useful column may differ
_FEWEST_EMBEDDED_ROWS = 3  # training rows of a text that gets a vector of its own
_FOLDS = 5  # a category's mean for a training row is that of the other four fifths of the rows
_PRIOR_ROWS = 10.0  # the mean of all rows counts as much as this many rows of a category


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The one-hot encoder of a text column.

    The result has one column per frequent category, one for all other texts and one for missing texts.
    """

    name: str
    categories: tuple[str, ...]
    required: bool = False

    @classmethod
    def fit(
        cls, name: str, data: ColumnRows, most: int, missing: Missing, fill: str | None = None
    ) -> tuple["Texts", "TextFacts"]:
        """Fit the encoder to the `most` most frequent texts of the training rows.

        Among equally frequent texts the first in text order is kept. `fill` replaces missing texts.
        """
        return _most_frequent(name, len(data), _counted(data, fill), most, missing)

    def apply(self, data: ColumnData) -> Matrix:
        """Encode a column as (rows, categories + 2), with a single 1 per row."""
        positions = self.places(data)
        hot = np.zeros((len(positions), len(self.categories) + 2))
        hot[np.arange(len(positions)), positions] = 1.0
        return hot

    def places(self, data: ColumnData) -> npt.NDArray[np.int64]:
        """Return the column of the 1 in each row of the result."""
        if self.required:
            require(self.name, data.missing)
        absent = len(self.categories) + 1
        positions = (
            absent if is_missing else self._position(text)
            for text, is_missing in zip(data.values, data.missing, strict=True)
        )
        return np.fromiter(positions, np.int64, len(data.missing))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result."""
        return tuple(f"{self.name} = {c}" for c in (*self.categories, OTHER_CATEGORY, MISSING_CATEGORY))

    def _position(self, text: str) -> int:
        # JSON pads a char(n) with blanks. COPY's decoder (binaryvalues.py) strips the blanks.
        positions, other = self._positions, len(self.categories)
        return positions.get(text, positions.get(text.rstrip(" "), other))

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {category: position for position, category in enumerate(self.categories)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFacts:
    """How many texts of a column's training rows its categories cover.

    `known_rows` are the rows that are not NULL, `distinct` is the number of different texts in them, and `other_rows`
    is the number of rows whose text is none of the kept `categories`.
    """

    name: str
    rows: int
    known_rows: int
    distinct: int
    categories: int
    other_rows: int

    @property
    def other_share(self) -> float:
        """Return the share of the known rows whose texts the network cannot tell apart."""
        return self.other_rows / self.known_rows if self.known_rows else 0.0

    @property
    def nearly_unique(self) -> bool:
        """Return whether (nearly) every row has a different text.

        Nothing can be learned from such a column.
        """
        return self.known_rows >= _FEWEST_UNIQUE and self.distinct >= _NEARLY_UNIQUE * self.known_rows


def _counted(data: ColumnRows, fill: str | None = None) -> Counter[str]:
    """Return the number of rows of each text."""
    counts: Counter[str] = Counter()
    for block in filled_blocks(data, fill, FIT_BLOCK_NUMBERS):
        counts.update(block.values[~block.missing].tolist())
    return counts


def filled_blocks(data: ColumnRows, fill: str | None, rows: int) -> Iterator[ColumnData]:
    """Yield copies of a text column's rows in their order, in which `fill` replaces missing texts."""
    return (block if fill is None else filled(block, fill) for block in data.blocks(rows))


def _most_frequent(
    name: str, rows: int, counts: Counter[str], most: int, missing: Missing
) -> tuple[Texts, TextFacts]:
    frequent = sorted(counts, key=lambda text: (-counts[text], text))[:most]
    facts = TextFacts(
        name=name,
        rows=rows,
        known_rows=counts.total(),
        distinct=len(counts),
        categories=len(frequent),
        other_rows=counts.total() - sum(counts[text] for text in frequent),
    )
    return Texts(name=name, categories=tuple(sorted(frequent)), required=missing == "error"), facts


@dataclass(frozen=True, kw_only=True)
class Codes:
    """The encoder of a text column as the number of its category, for a network that embeds categories.

    All other texts have one number, and missing texts another one.
    """

    name: str
    categories: tuple[str, ...]
    required: bool = False

    @classmethod
    def fit(
        cls, name: str, data: ColumnRows, most: int, missing: Missing, fill: str | None = None
    ) -> tuple["Codes", "TextFacts"]:
        """Fit the encoder to the `most` most frequent texts that several training rows have.

        A vector for a text of fewer rows would be learned from their noise; together they train that of all other
        texts. `fill` replaces missing texts.
        """
        counts = _counted(data, fill)
        several = sum(count >= _FEWEST_EMBEDDED_ROWS for count in counts.values())
        texts, facts = _most_frequent(name, len(data), counts, min(most, several), missing)
        return cls(name=name, categories=texts.categories, required=texts.required), facts

    def apply(self, data: ColumnData) -> Matrix:
        """Encode a column as (rows, 1)."""
        return self._one_hot.places(data)[:, None].astype(np.float64)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of the only column of the result."""
        return (f"{self.name} category",)

    @property
    def size(self) -> int:
        """Return how many categories there are, with that of other and that of missing texts."""
        return len(self.categories) + 2

    @cached_property
    def _one_hot(self) -> "Texts":
        return Texts(name=self.name, categories=self.categories, required=self.required)


@dataclass(frozen=True, kw_only=True)
class Ordinals:
    """The encoder of a text column as one number: the text's place in an order, from -1 to 1.

    A second column is 1 for a text that is missing or not in the order; such a text has the place 0.
    """

    name: str
    order: tuple[str, ...]
    required: bool = False

    def apply(self, data: ColumnData) -> Matrix:
        """Encode a column as (rows, 2)."""
        if self.required:
            require(self.name, data.missing)
        unknown = (0.0, 1.0)
        pairs = [
            unknown if is_missing else self._pair(text)
            for text, is_missing in zip(data.values, data.missing, strict=True)
        ]
        return np.array(pairs, np.float64).reshape(-1, 2)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result."""
        return f"{self.name} place", f"{self.name} {OTHER_CATEGORY}"

    def _pair(self, text: str) -> tuple[float, float]:
        place = self._places.get(text, self._places.get(text.rstrip(" ")))
        last = max(len(self.order) - 1, 1)
        return (0.0, 1.0) if place is None else (2.0 * place / last - 1.0, 0.0)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {text: place for place, text in enumerate(self.order)}


@dataclass(frozen=True, kw_only=True)
class Hashed:
    """The encoder of a text column by a hash of the text: one column per bucket, and one for missing texts.

    It keeps no text, so it also suits columns whose values are secret or too many.
    """

    name: str
    buckets: int
    required: bool = False

    def apply(self, data: ColumnData) -> Matrix:
        """Encode a column as (rows, buckets + 1), with a single 1 per row."""
        if self.required:
            require(self.name, data.missing)
        known: dict[str, int] = {}
        hot = np.zeros((len(data.missing), self.buckets + 1))
        for row, (text, is_missing) in enumerate(zip(data.values, data.missing, strict=True)):
            if is_missing:
                hot[row, self.buckets] = 1.0
                continue
            if text not in known:
                known[text] = self._bucket(text)
            hot[row, known[text]] = 1.0
        return hot

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result."""
        return (*(f"{self.name} #{bucket + 1}" for bucket in range(self.buckets)), f"{self.name} {MISSING_CATEGORY}")

    def _bucket(self, text: str) -> int:
        # A char(n) is padded with blanks in JSON, and not in COPY's stream.
        digest = hashlib.blake2b(text.rstrip(" ").encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % self.buckets


@dataclass(frozen=True, kw_only=True)
class TargetMeans:
    """The encoder of a text column by the mean of the target in the rows of each text (Micci-Barreca 2001).

    `means` has the means of each category, of all other texts, and of missing texts. The means are pulled towards
    those of all training rows by `_PRIOR_ROWS`, so a rare text says little. For two classes the mean is the share of
    the second one; for more classes there is one column per class.
    """

    name: str
    categories: tuple[str, ...]
    means: tuple[tuple[float, ...], ...]
    required: bool = False

    @classmethod
    def fit(
        cls,
        name: str,
        data: ColumnRows,
        most: int,
        missing: Missing,
        goal: "Goal",
        *,
        fill: str | None = None,
        storage: RowStorage = MEMORY,
    ) -> tuple["TargetMeans", "TextFacts", Matrix]:
        """Fit the encoder to the training rows, whose encoded target is `goal`. `fill` replaces missing texts.

        Also returns the encoding of the training rows themselves, in `storage`. It is computed out of fold, because a
        mean that includes the row's own target would tell the network the answer.
        """
        one_hot, facts = Texts.fit(name, data, most, missing, fill)
        size = len(one_hot.categories) + 2
        step = max(1, FIT_BLOCK_NUMBERS // goal.columns)
        codes, start = storage.array(len(data), (), np.int64), 0  # of each row's fold and place
        sums, counts = np.zeros((_FOLDS * size, goal.columns)), np.zeros(_FOLDS * size, np.int64)
        draw = np.random.default_rng(0)
        for texts, values in zip(filled_blocks(data, fill, step), goal.blocks(step), strict=True):
            block = draw.permutation(len(values)) % _FOLDS * size + one_hot.places(texts)
            np.add.at(sums, block, values)
            counts += np.bincount(block, minlength=len(counts))
            codes.write(start, block)
            start += len(block)
        by_fold, rows_by_fold = sums.reshape(_FOLDS, size, -1), counts.reshape(_FOLDS, size)
        others = [np.arange(_FOLDS) != fold for fold in range(_FOLDS)]
        tables = [_smoothed_means(by_fold[other].sum(axis=0), rows_by_fold[other].sum(axis=0)) for other in others]
        of_training = _looked_up(np.concatenate(tables), codes.values, step, storage)
        means = tuple(map(tuple, _smoothed_means(by_fold.sum(axis=0), rows_by_fold.sum(axis=0)).tolist()))
        encoder = cls(name=name, categories=one_hot.categories, means=means, required=one_hot.required)
        return encoder, facts, of_training

    def apply(self, data: ColumnData) -> Matrix:
        """Encode a column as (rows, columns of the target)."""
        return self._table[self._one_hot.places(data)]

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result."""
        count = len(self.means[0])
        return tuple(f"{self.name} mean" if count == 1 else f"{self.name} mean {i + 1}" for i in range(count))

    @cached_property
    def _one_hot(self) -> "Texts":
        return Texts(name=self.name, categories=self.categories, required=self.required)

    @cached_property
    def _table(self) -> Matrix:
        return np.array(self.means)


@dataclass(frozen=True, slots=True)
class Goal:
    """The target of the training rows as the numbers whose means are computed.

    `blocks` yields the rows in blocks (rows, columns) of as many rows as it is called with.
    """

    columns: int
    blocks: Callable[[int], Iterator[Matrix]]


def _smoothed_means(sums: Matrix, counts: npt.NDArray[np.int64]) -> Matrix:
    """Return the mean of each place from its sum and its rows; a place without rows has the mean of all rows."""
    prior: Matrix = sums.sum(axis=0) / max(1, int(counts.sum()))
    means: Matrix = (sums + _PRIOR_ROWS * prior) / (counts[:, None] + _PRIOR_ROWS)
    return means


def _looked_up(table: Matrix, codes: npt.NDArray[np.int64], step: int, storage: RowStorage) -> Matrix:
    """Return the row of the table for each code, in `storage`."""
    whole = storage.array(len(codes), table.shape[1:], np.float64)
    for start, end in row_blocks(len(codes), step):
        whole.write(start, table[codes[start:end]])
    return whole.values


@dataclass(frozen=True, kw_only=True)
class LabelSets:
    """The encoder of a column of label sets: several 1s per row, one for each label.

    The result has one column per frequent label, one for all other labels, and one for a missing set. An empty set is
    not missing: it has no 1 at all.
    """

    name: str
    categories: tuple[str, ...]
    required: bool = False

    @classmethod
    def fit(cls, name: str, data: ColumnRows, most: int, missing: Missing) -> tuple["LabelSets", "TextFacts"]:
        """Fit the encoder to the `most` most frequent labels of the training rows.

        Among equally frequent labels the first in text order is kept.
        """
        counts: Counter[str] = Counter()
        for block in data.blocks(FIT_BLOCK_NUMBERS):
            counts.update(chain.from_iterable(block.values[~block.missing]))
        one_hot, facts = _most_frequent(name, len(data), counts, most, missing)
        return cls(name=name, categories=one_hot.categories, required=one_hot.required), facts

    def apply(self, data: ColumnData) -> Matrix:
        """Encode a column as (rows, categories + 2)."""
        if self.required:
            require(self.name, data.missing)
        other = len(self.categories)
        hot = np.zeros((len(data.missing), other + 2))
        for row, (labels, is_missing) in enumerate(zip(data.values, data.missing, strict=True)):
            places = [other + 1] if is_missing else [self._place(label) for label in labels]
            hot[row, places] = 1.0
        return hot

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result."""
        return tuple(f"{self.name} has {c}" for c in (*self.categories, OTHER_CATEGORY, MISSING_CATEGORY))

    def _place(self, label: str) -> int:
        places = self._places
        return places.get(label, places.get(label.rstrip(" "), len(self.categories)))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {category: place for place, category in enumerate(self.categories)}


def most_frequent_text(data: ColumnRows) -> str | None:
    """Return the most frequent text, the first in text order of equally frequent ones; None if all are missing."""
    counts = _counted(data)
    return min(counts, key=lambda text: (-counts[text], text)) if counts else None


def filled(data: ColumnData, fill: str) -> ColumnData:
    """Return a text column in which `fill` replaces missing texts."""
    if not data.missing.any():
        return data
    values = data.values.copy()
    values[data.missing] = fill
    return ColumnData(kind=ColumnKind.TEXT, values=values, missing=np.zeros_like(data.missing))
