"""Decodes the images of a training once, before the rows are divided, and finds those that cannot be read.

Blocks of rows are decoded on both cores. The result depends on each value alone, and the chosen size and channels on
the whole of them, so neither depends on the order of the rows.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError
from indb_tensile.learning.columns import ColumnData, ColumnKind, Columns, Rows, TableData
from indb_tensile.learning.feature_options import FeatureOptions
from indb_tensile.learning.image_decoding import ImageForm, ImageHeader, Unreadable, decode, read_header
from indb_tensile.learning.image_encoders import READABLE
from indb_tensile.learning.row_storage import RowStorage, row_blocks
from indb_tensile.request.image_rules import FORMATS, LONGEST_CHOSEN_SIDE

_BLOCK_ROWS = 64
_RELEASED_BLOCKS = 64  # decoded before the pages of a file are released
_THREADS = max(1, min(4, len(os.sched_getaffinity(0))))
_MOST_NAMED = 5  # most rows that a message names
_PLAIN_KEYS = (ColumnKind.TEXT, ColumnKind.INTEGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRows:
    """The number of rows that a training leaves out because their image in `column` cannot be read.

    `named` has a text for each of the first of them, with the row's key and the reason.
    """

    column: str
    rows: int
    named: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedImages:
    """The decoded columns of images, the rows whose images can be read, and those that cannot, by column."""

    columns: Columns = field(default_factory=dict)
    readable: Rows
    skipped: tuple[SkippedRows, ...] = ()


def decode_images(
    table: TableData,
    features: Sequence[str],
    options: FeatureOptions,
    known: Rows,
    forms: Mapping[str, ImageForm],
) -> DecodedImages:
    """Decode the images of the rows that have a target.

    `forms` are those of the version that the training starts from. Raises DataError for an image that cannot be read,
    unless its column skips them, and if no image of a column can be read.
    """
    names = [name for name in features if table.columns[name].kind is ColumnKind.IMAGE]
    columns: dict[str, ColumnData] = {}
    readable, skipped = known, []
    for name in names:
        data = table.columns[name]
        form = _form(name, data, known, options, forms.get(name))
        pixels, faults = _decoded(data, known, form, table.storage)
        columns[name] = ColumnData(kind=data.kind, values=pixels, missing=data.missing)
        if faults:
            if not options.skips_errors(name):
                raise _unreadable(table, name, faults)
            readable = readable[~np.isin(readable, np.array(sorted(faults)))]
            named = tuple(_fault_text(table, row, faults[row]) for row in sorted(faults)[:_MOST_NAMED])
            skipped.append(SkippedRows(column=name, rows=len(faults), named=named))
    return DecodedImages(columns=columns, readable=readable, skipped=tuple(skipped))


def chosen_form(
    headers: Sequence[ImageHeader], name: str, options: FeatureOptions, start: ImageForm | None = None
) -> ImageForm:
    """Return the requested form of a column's images; what is not requested is that of `start`, or of the headers.

    The size is the median height and width, reduced to sides of at most 128. Images without colours are grey.
    """
    size, channels = options.image_size(name), options.image_channels(name)
    resize = options.image_resize(name)
    if size is None and start is not None:
        size = start.height, start.width
    if channels is None and start is not None:
        channels = start.channels
    if size is None:
        height, width = (_median([getattr(header, side) for header in headers]) for side in ("height", "width"))
        share = min(1.0, LONGEST_CHOSEN_SIDE / max(height, width))
        size = max(1, round(height * share)), max(1, round(width * share))
    if channels is None:
        channels = 1 if all(header.grey for header in headers) else 3
    return ImageForm(height=size[0], width=size[1], channels=channels, resize=resize)


def _median(sides: Sequence[int]) -> int:
    return sorted(sides)[len(sides) // 2]


def _form(name: str, data: ColumnData, known: Rows, options: FeatureOptions, start: ImageForm | None) -> ImageForm:
    present = known[~data.missing[known]]
    wanted = options.image_size(name) or start, options.image_channels(name) or start
    if None not in wanted:
        return chosen_form((), name, options, start)
    headers, first = [], ""
    for row in present.tolist():
        header = read_header(data.values[row])
        if isinstance(header, ImageHeader):
            headers.append(header)
        else:
            first = first or header.reason
    if not headers:
        fault = (
            f'no value of column "{name}" is an image that can be read'
            if len(present)
            else f'column "{name}" is NULL in all rows'
        )
        raise DataError(
            fault,
            detail=f"The first value {first}." if first else "",
            hint=f"Images are bytea of these formats: {', '.join(FORMATS)}. Leave the column out with exclude.",
        )
    return chosen_form(headers, name, options, start)


def _decoded(
    data: ColumnData, known: Rows, form: ImageForm, storage: RowStorage
) -> tuple[npt.NDArray[np.uint8], dict[int, str]]:
    """Return the pixels of all rows, zeros for rows that are not known, and the faults by row."""
    rows = len(data.missing)
    whole = storage.array(rows, form.shape, np.uint8)
    wanted = np.zeros(rows, np.bool_)
    wanted[known] = True

    def decode_rows(bounds: tuple[int, int]) -> dict[int, str]:
        start, end = bounds
        block = np.zeros((end - start, *form.shape), np.uint8)
        faults = {}
        for row in range(start, end):
            if wanted[row] and not data.missing[row]:
                image = decode(data.values[row], form)
                if isinstance(image, Unreadable):
                    faults[row] = image.reason
                else:
                    block[row - start] = image
        whole.write(start, block)
        return faults

    faults: dict[int, str] = {}
    blocks = list(row_blocks(rows, _BLOCK_ROWS))
    with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="decoding") as threads:
        for first in range(0, len(blocks), _RELEASED_BLOCKS):
            for own in threads.map(decode_rows, blocks[first : first + _RELEASED_BLOCKS]):
                faults |= own
            storage.release()
    return whole.values, faults


def _unreadable(table: TableData, name: str, faults: Mapping[int, str]) -> DataError:
    first = min(faults)
    others = [_fault_text(table, row, faults[row]) for row in sorted(faults)[1:_MOST_NAMED]]
    more = f" {len(faults)} rows have such values; the next are: {'; '.join(others)}." if others else ""
    return DataError(
        f'column "{name}", {row_title(table, first)}: the value {faults[first]}',
        detail=f"Training stops at such values since on_error is stop.{more}",
        hint=f'{READABLE} To leave such rows out: preprocess => \'{{"on_error": "skip"}}\'.',
    )


def _fault_text(table: TableData, row: int, reason: str) -> str:
    return f"{row_title(table, row)} {reason}"


def row_title(table: TableData, row: int) -> str:
    """Name a row by its primary key, or else by its place in the table."""
    keys = [(name, table.columns.get(name)) for name in table.key]
    if keys and all(data is not None and data.kind in _PLAIN_KEYS for _, data in keys):
        return ", ".join(f"{name} {data.values[row]}" for name, data in keys if data is not None)
    return f"row {row + 1}"


def skipped_sentence(skipped: Sequence[SkippedRows]) -> str:
    """Return a sentence on the rows that are left out, after a blank, or an empty text."""
    parts = [f'{own.rows} rows of column "{own.column}"' for own in skipped]
    return f" Left out, since their images cannot be read: {' and '.join(parts)}." if parts else ""
