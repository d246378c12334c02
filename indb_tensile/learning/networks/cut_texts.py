"""Leaves out tokens of encoded rows that are padding in all rows of a batch: the last ones of one column.

Padding stands behind the tokens of a text and has no effect on a network (token_networks.py), which recognises rows
without it by their width. If there are several columns of tokens, the longest one is cut.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, takewhile

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from indb_tensile.errors import RequestError
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.networks.token_networks import longest_column

Rows = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]

_SHORTEST = 8  # tokens of a prediction; shorter ones would take hardly less time


@dataclass(frozen=True, kw_only=True)
class CutColumn:
    """The numbers of an encoded row that are the tokens of the column that is cut: those from `begin` to `end`."""

    begin: int
    end: int
    name: str = ""

    @cached_property
    def pass_lengths(self) -> tuple[int, ...]:
        """Return the lengths to which texts of predictions are cut: powers of two, so there are few shapes."""
        return (
            *takewhile(lambda length: length < self.length, (_SHORTEST << place for place in count())),
            self.length,
        )

    @property
    def length(self) -> int:
        """Return the tokens of a whole row."""
        return self.end - self.begin

    def moved(self, places: int) -> "CutColumn":
        """Return the column so many places further behind, as it is in narrow rows (narrow_rows.py)."""
        return replace(self, begin=self.begin + places, end=self.end + places)

    def cut(self, rows: Tensor, length: int) -> Tensor:
        """Return a copy of rows (rows, width) with the first `length` tokens of the column."""
        return torch.cat([rows[:, : self.begin + length], rows[:, self.end :]], dim=1)


def passes_of_short_rows(rows: Rows, column: CutColumn, most: int) -> Iterator[tuple[Places, Rows]]:
    """Yield the places of at most `most` rows (rows, width) of like length, and these rows cut to that length.

    Every row is in one of the passes.
    """
    needed = np.count_nonzero(rows[:, column.begin : column.end], axis=1)
    of_row = np.searchsorted(column.pass_lengths, needed)
    for bucket in sorted(set(of_row.tolist())):
        places = np.flatnonzero(of_row == bucket)
        missing = column.length - column.pass_lengths[bucket]
        for start in range(0, len(places), most):
            own = places[start : start + most]
            whole = rows if len(own) == len(rows) else rows[own]
            yield own, np.delete(whole, slice(column.end - missing, column.end), axis=1) if missing else whole


def cut_column(preprocessor: Preprocessor) -> CutColumn:
    """Return the longest column of tokens. Raises RequestError if there is none, or if rows have images."""
    recipe = preprocessor.recipe
    columns = recipe.network_tokens or recipe.tokens
    if not columns:
        raise RequestError(
            'hyperparams: "length_buckets" needs texts that are read as tokens, and no column is',
            hint='Leave it out, or read a column as tokens: preprocess => \'{"encode": {"body": "tokens"}}\'.',
        )
    if recipe.images:
        raise RequestError(
            f'hyperparams: "length_buckets" cannot be combined with images, and column "{recipe.images[0].name}" '
            "has them",
            hint="Leave it out: the time of a batch is that of its images.",
        )
    lengths = [column.length for column in columns]
    own, width = longest_column(lengths), math.prod(preprocessor.input_shape)
    begin = width - sum(lengths[own:])
    return CutColumn(begin=begin, end=begin + lengths[own], name=columns[own].name)
