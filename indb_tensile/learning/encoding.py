"""Encodes the rows of each part of a split as tensors, block by block in the table's order.

A block is encoded in float64, rounded once to float32, and written directly to the final arrays. With `consume` the
pages of the columns are returned to the system as soon as the tensors made from them are written (pages.py), so the
columns and the tensors are never both in memory in full.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.columns import Columns, Rows
from indb_tensile.learning.page_release import discard
from indb_tensile.learning.preprocessor import Preprocessor, Tensor32

ENCODE_BLOCK_NUMBERS = 1 << 18  # numbers encoded at a time, so that a block fits into the cache


def encode(
    columns: Columns, preprocessor: Preprocessor, parts: Sequence[Rows], *, consume: bool = False
) -> list[Tensor32]:
    """Return the encoded rows of each part, shape (rows, *input_shape).

    The positions in each part ascend, and no row is in two parts. With `consume` the feature columns are unusable
    afterwards. The caller must have checked that no required value is missing: an error raised here would number the
    rows from the block's first row.
    """
    shape, features = preprocessor.input_shape, preprocessor.recipe.features
    encoded = [np.empty((len(part), *shape), np.float32) for part in parts]
    rows = len(columns[features[0]].missing)
    step = max(1, ENCODE_BLOCK_NUMBERS // max(1, int(np.prod(shape))))
    for start in range(0, rows, step):
        end = min(start + step, rows)
        bounds = [np.searchsorted(part, (start, end)).tolist() for part in parts]
        chosen = [part[low:high] for part, (low, high) in zip(parts, bounds, strict=True)]
        if any(len(part) for part in chosen):
            block, places = _block(columns, preprocessor, chosen, start, end)
            for whole, (low, high), place in zip(encoded, bounds, places, strict=True):
                whole[low:high] = block[place]
        if consume:
            for name in features:
                discard(columns[name].values, start, end)
    return encoded


def _block(
    columns: Columns, preprocessor: Preprocessor, chosen: Sequence[Rows], start: int, end: int
) -> tuple[Tensor32, list[npt.NDArray[np.int64]]]:
    """Encode the rows of all parts between `start` and `end`.

    Also returns the positions of each part's rows within the encoded block.
    """
    names = preprocessor.recipe.features
    if sum(map(len, chosen)) == end - start:
        return preprocessor.transform({name: columns[name].part(start, end) for name in names}), [
            part - start for part in chosen
        ]
    positions = np.sort(np.concatenate(chosen))  # the other rows have no target
    block = preprocessor.transform({name: columns[name].take(positions) for name in names})
    return block, [np.searchsorted(positions, part) for part in chosen]
