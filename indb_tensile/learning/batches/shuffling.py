"""Puts the training rows of an epoch into a random order that reads a large table's file in blocks.

A part of at most `WINDOW_BYTES` is shuffled as a whole. In a larger part, blocks of adjacent rows are put into a
random order, and as many blocks as fit into a window are shuffled together. So a batch has rows from a thousand
places of the table, and each byte is read once in an epoch. The order does not depend on where the rows are stored: a
training in memory and one from a file have the same batches.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.encoding.pending_images import AwaitedRows
from indb_tensile.learning.storage.block_cache import ArrayRows, BlockCache, RowSource
from indb_tensile.learning.storage.row_storage import MEMORY

WINDOW_BYTES = 32 << 20  # two windows are in memory while a batch has rows of both
SHUFFLED_BLOCK_BYTES = 64 << 10  # large enough for a disk to read at nearly full speed


def shuffled_windows(part: Part, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the positions of all rows in a random order, window by window. A row counts as `ordered_bytes`.

    The rows of the next window are read ahead.
    """
    rows, storage = part.x, part.storage
    if len(rows) * part.ordered_bytes <= WINDOW_BYTES:
        yield torch.randperm(len(rows), generator=generator)
        return
    block_rows = _block_rows(part)
    blocks = torch.randperm(-(-len(rows) // block_rows), generator=generator)
    windows = torch.split(blocks, _window_blocks())
    for number, window in enumerate(windows):
        for upcoming in windows[number : number + 2] if number == 0 else windows[number + 1 : number + 2]:
            starts = (upcoming * block_rows).tolist()
            storage.read_ahead(rows.numpy(), [(start, min(start + block_rows, len(rows))) for start in starts])
        positions = (window[:, None] * block_rows + torch.arange(block_rows)).flatten()
        positions = positions[positions < len(rows)]
        yield positions[torch.randperm(len(positions), generator=generator)]


def row_sources(part: Part, batch_rows: int, *, scattered: bool = False) -> tuple[RowSource, RowSource]:
    """Return the sources from which batches of at most `batch_rows` shuffled rows are gathered.

    The rows of a batch are from adjacent windows, or `scattered`: each may be from another window.
    """
    storage, x, y = part.storage, part.x, part.y
    if storage is MEMORY:
        return _awaited(ArrayRows(x.numpy()), part), ArrayRows(y.numpy())
    block_rows = _block_rows(part)
    windows = 2 + batch_rows // (block_rows * _window_blocks())  # those that one batch may have rows of
    most = len(x) if len(x) * part.ordered_bytes <= WINDOW_BYTES else windows * _window_blocks()
    if scattered:
        most = max(most, batch_rows)
    cache = BlockCache(storage, x.numpy(), block_rows, most)
    return _awaited(cache, part, block_rows), BlockCache(storage, y.numpy(), block_rows, most)


def ordered_rows(part: Part) -> RowSource:
    """Return the source of a pass over the encoded rows in order."""
    return _awaited(ArrayRows(part.x.numpy()), part)


def _awaited(rows: RowSource, part: Part, block_rows: int = 1) -> RowSource:
    return rows if part.images is None else AwaitedRows(rows, part.images, part.rows, block_rows)


def _block_rows(part: Part) -> int:
    return max(1, SHUFFLED_BLOCK_BYTES // part.ordered_bytes)


def _window_blocks() -> int:
    return max(1, WINDOW_BYTES // SHUFFLED_BLOCK_BYTES)
