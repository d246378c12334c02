"""Chooses the form of the images of a training, and decodes those that decide which rows take part.

Of a column with `on_error` skip, the images are decoded before the rows are divided, because rows whose image cannot
be read are left out. The images of other columns are pending: they are decoded while the training goes on
(pending_images.py). The result depends on each value alone, and the chosen size and channels on all of them, so
neither depends on the order of the rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.encoding.image_decoding import ImageForm, ImageHeader, read_header
from indb_tensile.learning.encoding.image_faults import RowTitles, SkippedRows, skipped_rows
from indb_tensile.learning.encoding.pending_images import PendingImages, decode_blocks, decode_rows
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, Columns, Rows, TableData
from indb_tensile.learning.storage.row_storage import RowStorage, row_blocks
from indb_tensile.request.image_rules import FORMATS, LONGEST_CHOSEN_SIDE

_BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedImages:
    """The columns of images as decoded ones, the rows that take part, and those that cannot, by column.

    Of the columns of `pending` only a sample is decoded. It is None without such columns.
    """

    columns: Columns = field(default_factory=dict)
    readable: Rows
    skipped: tuple[SkippedRows, ...] = ()
    pending: PendingImages | None = None

    def sample(self, train: Rows) -> Rows | None:
        """Decode a sample of the training rows' pending images. Returns its rows; None if no images are pending.

        Raises DataError if one of the sample cannot be read.
        """
        return None if self.pending is None else self.pending.sample(train)


def decode_images(
    table: TableData,
    features: Sequence[str],
    options: FeatureOptions,
    known: Rows,
    forms: Mapping[str, ImageForm],
) -> DecodedImages:
    """Decode the images of the columns that skip errors, in the rows that have a target.

    `forms` are those of the version that the training starts from. Raises DataError if no image of a column can be
    read.
    """
    columns: dict[str, ColumnData] = {}
    pending: dict[str, ImageForm] = {}
    titles, readable, skipped = RowTitles(table, features), known, []
    for name in features:
        data = table.columns[name]
        if data.kind is not ColumnKind.IMAGE:
            continue
        form = _form(name, data, known, options, forms.get(name))
        if not options.skips_errors(name):
            pending[name] = form
            continue
        pixels, faults = _decoded(data, known, form, table.storage)
        columns[name] = replace(data, values=pixels)
        if faults:
            readable = readable[~np.isin(readable, np.array(sorted(faults)))]
            skipped.append(skipped_rows(name, faults, titles))
    images = PendingImages(table, pending, readable, titles) if pending else None
    return DecodedImages(
        columns=columns if images is None else {**columns, **images.columns},
        readable=readable,
        skipped=tuple(skipped),
        pending=images,
    )


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

    def decode_block(bounds: tuple[int, int]) -> dict[int, str]:
        start, end = bounds
        block = np.zeros((end - start, *form.shape), np.uint8)
        faults = decode_rows(
            data,
            (start + np.flatnonzero(wanted[start:end])).tolist(),
            form,
            lambda row, image: block.__setitem__(row - start, image),
        )
        whole.write(start, block)
        return faults

    faults = decode_blocks(list(row_blocks(rows, _BLOCK_ROWS)), decode_block, storage)
    return whole.values, faults
