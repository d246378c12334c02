"""Encodes the rows of each part of a split as tensors, block by block in the table's order.

A block is encoded in float64, rounded once to float32, and written directly to the final arrays. With `consume` the
pages of the columns are returned to the system as soon as the tensors made from them are written (page_release.py),
so the columns and the tensors are never both in memory in full.
"""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.storage.columns import Columns, Rows
from indb_tensile.learning.storage.moments import Matrix
from indb_tensile.learning.storage.page_release import discard
from indb_tensile.learning.storage.row_storage import MEMORY, RowStorage

ENCODE_BLOCK_NUMBERS = 1 << 18  # numbers encoded at a time, so that a block fits into the cache
_RELEASED_NUMBERS = 1 << 23  # numbers encoded before the pages of a file are released
_THREADS = max(1, min(4, len(os.sched_getaffinity(0))))  # blocks are encoded side by side; numpy lets threads run


def encode(
    columns: Columns,
    preprocessor: Preprocessor,
    parts: Sequence[Rows],
    *,
    consume: bool = False,
    storage: RowStorage = MEMORY,
    own_numbers: Sequence[tuple[int, Matrix]] = (),
) -> list[npt.NDArray[Any]]:
    """Return the encoded rows of each part, shape (rows, *input_shape), in `storage`.

    Rows with images are in their compact form (packed_rows.py), and their columns of images are decoded. Rows with
    tokens are narrow (narrow_rows.py).
    The positions in each part ascend, and no row is in two parts. With `consume` the feature columns are unusable
    afterwards. Each of `own_numbers` (rows of the first part, numbers) replaces the numbers of these rows from a
    position in an encoded row on. The caller must have checked that no required value is missing: an error raised
    here would number the rows from the block's first row.
    """
    shape, features, form = preprocessor.input_shape, preprocessor.recipe.features, preprocessor.packed_form
    narrow = preprocessor.narrow_form
    row_shape, dtype = _stored_form(preprocessor)
    encoded = [storage.array(len(part), row_shape, dtype) for part in parts]
    rows = len(columns[features[0]].missing)
    step = max(1, ENCODE_BLOCK_NUMBERS // max(1, int(np.prod(shape))))

    def encode_rows(start: int) -> None:
        end = min(start + step, rows)
        bounds = [np.searchsorted(part, (start, end)).tolist() for part in parts]
        chosen = [part[low:high] for part, (low, high) in zip(parts, bounds, strict=True)]
        if any(len(part) for part in chosen):
            block, places = _block(columns, preprocessor, chosen, start, end)
            taken = [block[place] for place in places]
            for position, numbers in own_numbers:
                flat = taken[0].reshape(len(taken[0]), math.prod(shape)) if form is None else form.dense(taken[0])
                flat[:, position : position + numbers.shape[1]] = numbers[slice(*bounds[0])]
                if form is not None:
                    taken[0] = form.with_dense(taken[0], flat)
            for whole, (low, _), part in zip(encoded, bounds, taken, strict=True):
                whole.write(low, part if narrow is None else narrow.pack(part))
        if consume:
            for name in features:
                discard(columns[name].values, start, end)

    in_turn = max(1, _RELEASED_NUMBERS // ENCODE_BLOCK_NUMBERS) * step  # rows encoded before a file's pages are freed
    with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="encoding") as threads:
        for first in range(0, rows, in_turn):
            list(threads.map(encode_rows, range(first, min(first + in_turn, rows), step)))  # raises their exceptions
            storage.release()
    return [whole.values for whole in encoded]


def _stored_form(preprocessor: Preprocessor) -> tuple[tuple[int, ...], npt.DTypeLike]:
    """Return the shape and the type of a row as it is stored."""
    if preprocessor.packed_form is not None:
        return (preprocessor.packed_form.row_bytes,), np.uint8
    if preprocessor.narrow_form is not None:
        return (preprocessor.narrow_form.width,), np.int16
    return preprocessor.input_shape, np.float32


def _block(
    columns: Columns, preprocessor: Preprocessor, chosen: Sequence[Rows], start: int, end: int
) -> tuple[npt.NDArray[Any], list[npt.NDArray[np.int64]]]:
    """Encode the rows of all parts between `start` and `end`.

    Also returns the positions of each part's rows within the encoded block.
    """
    names = preprocessor.recipe.features
    if sum(map(len, chosen)) == end - start:
        return _transformed(preprocessor, {name: columns[name].part(start, end) for name in names}), [
            part - start for part in chosen
        ]
    positions = np.sort(np.concatenate(chosen))  # the other rows have no target
    block = _transformed(preprocessor, {name: columns[name].take(positions) for name in names})
    return block, [np.searchsorted(positions, part) for part in chosen]


def _transformed(preprocessor: Preprocessor, columns: Columns) -> npt.NDArray[Any]:
    form = preprocessor.packed_form
    return preprocessor.transform(columns) if form is None else preprocessor.transform_packed(columns, form)
