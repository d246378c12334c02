"""The parts of a split as tensors: encoded block by block in the table's order, straight into their final arrays.

A block is encoded in float64 and rounded once to float32. With `consume` the pages of the columns are given back as
soon as all that is made of them is written (pages.py): columns and tensors are never both there in full.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.columns import Columns, Rows
from indb_tensile.learning.features import Preprocessor, Tensor32
from indb_tensile.learning.pages import discard

ENCODE_BLOCK_NUMBERS = 1 << 18  # encoded at a time: what is in work stays in the cache


def encode(
    columns: Columns, preprocessor: Preprocessor, parts: Sequence[Rows], *, consume: bool = False
) -> list[Tensor32]:
    """The rows of each part, which ascend, as (rows, *input_shape). No row is in two parts.

    With `consume` the features' columns are of no use afterwards. A value that may not be missing must not be: its
    row would be counted from the block's first one.
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
    """The rows of all parts between `start` and `end`, encoded, and where each part's are among them."""
    names = preprocessor.recipe.features
    if sum(map(len, chosen)) == end - start:
        return preprocessor.transform({name: columns[name].part(start, end) for name in names}), [
            part - start for part in chosen
        ]
    every = np.sort(np.concatenate(chosen))  # the others have no target
    block = preprocessor.transform({name: columns[name].take(every) for name in names})
    return block, [np.searchsorted(every, part) for part in chosen]
