"""Estimates the memory for the rows of a training before they are read: from statistics, sizes and types.

Rows are read into columns, and then encoded as tensors (block_encoding.py). Each column's memory is released as the
column is encoded, so memory never holds the columns and the tensors in full. In addition the rows of the test part
are kept as they were read, so that another version of the model can be evaluated on them. Rows that do not fit into
memory are stored in a file (row_storage.py), which has space for both in full.

A table that does not fit is refused before hours are spent on reading it. Statistics are only estimates, so the
actual size is also checked while the table is read (columnstore.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from indb_tensile.errors import HostMemoryError, MemoryLimitError, RowFileError
from indb_tensile.learning.encoding import feature_options
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.encoding.pending_images import most_sampled
from indb_tensile.learning.encoding.tokens import LONGEST_CHOSEN
from indb_tensile.learning.storage.columns import Column, ColumnKind, CopyEncoding
from indb_tensile.learning.storage.columnstore import stored_bytes
from indb_tensile.learning.storage.moments import FIT_BLOCK_NUMBERS
from indb_tensile.request.image_rules import CHANNELS
from indb_tensile.sizes import size

_MIB = 1024 * 1024
# Per row: the hash, the position among the rows with a target, the position in the part, and temporary memory.
_ROW_BYTES = 8 + 8 + 8 + 8
_TARGET_BYTES = 8
_LABELS = 32  # assumed number of labels of a target of label sets, because statistics count different sets
# Upper bound of the memory for blocks that are decoded or encoded and of memory that the C library does not return.
_WORK_BYTES = 64 * _MIB
# Most numbers that a timestamp is encoded as: epoch, sine and cosine of month, weekday and hour, and an indicator.
_TIME_NUMBERS = 8
# Per number, while an encoder is fitted to a block of a column (one column at a time): the float64 value and
# intermediate results.
_FIT_BYTES_PER_NUMBER = 40
# Per row of a file: hashes, draws, positions among the rows with a target and in the parts, and their copies.
_FILE_ROW_BYTES = 80
_SORTED_COPY_ROW_BYTES = 8  # per row: the copy of a column that a fit sorts; columns of arrays are not sorted
_POINTER_ROW_BYTES = 8  # per row of a column of Python objects
_UNKNOWN_SIDE = 64  # pixels of an image whose size is not requested, before it is read
_TEXT_BYTES = 57  # size of a str object without its characters
_CODE_BYTES = 100  # memory of each different text of a column in a file (coded_texts.py)
_SHARED_TEXTS = 65_536  # up to this number of different texts, equal texts share one object (copyrows.py)
_OBJECTS = (ColumnKind.TEXT, ColumnKind.LABELS, ColumnKind.DOCUMENT)  # values are Python objects
_ARRAY_HEADER_BYTES = 24  # header of a stored array of one dimension
_POINTER_BYTES = 18  # size in the statistics of a value that is stored out of line (TOAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistics:
    """The statistics of ANALYZE for one column: mean width of stored values, distinct values, share of NULLs."""

    width_bytes: float
    distinct: float
    null_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The size and the columns of a table as PostgreSQL's statistics give them before the table is read.

    `analyzed` is true if ANALYZE or VACUUM counted the rows; otherwise `rows` is estimated from the size on disk.
    `wires` says how COPY sends each column, and has only the columns that are read. `columns` has no entry for a
    column without statistics. `shapes` contains the shapes of arrays, once a first array has been read. `test_rows`
    is the number of rows of a separate test table, which `rows` includes; None if a share of the rows is used for
    testing.
    """

    rows: int
    analyzed: bool
    stored_bytes: int
    columns: Mapping[str, ColumnStatistics]
    wires: Mapping[str, CopyEncoding]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    test_rows: int | None = None

    def with_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> "Statistics":
        """Return a copy that has these shapes of arrays, which are known after the first rows were read."""
        return replace(self, shapes=shapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMemoryLimits:
    """The memory that a trainer may use for rows, and the disk for rows that exceed it.

    `limit_bytes` is the setting's limit, `host_bytes` is all memory of the machine, and `free_bytes` is free now.
    `disk_bytes` is free in `directory`; None if no rows may be stored there.
    """

    limit_bytes: int
    host_bytes: int
    free_bytes: int
    disk_bytes: int | None = None
    directory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """The estimated memory for the rows of a training.

    `columns_bytes` is the size of all columns as they are read, with the combined column of several targets and the
    pixels of images that are decoded before the rows are encoded. `kept_bytes` is the part of it that stays in memory
    until all rows are encoded: the targets, image files, and columns of Python objects (texts, labels and documents),
    whose memory cannot be released page by page. `distinct_texts_bytes` is what stays in memory of texts if the rows
    are in a file: each different text once, but none of those that are read as tokens. `encoded_bytes` is the size of
    the tensors, `held_out_bytes` that of the test rows as they were read, and `fit_bytes` the temporary memory of
    fitting an encoder, or of a sample of decoded images.
    """

    statistics: Statistics
    columns_bytes: int
    kept_bytes: int
    distinct_texts_bytes: int
    encoded_bytes: int
    held_out_bytes: int
    fit_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Return the estimated peak of memory.

        The peak occurs while encoders are fitted, when encoding begins, or when encoding ends.
        """
        fitting = self.columns_bytes + self.fit_bytes
        encoding_begins = self.columns_bytes + self.held_out_bytes
        encoding_ends = self.kept_bytes + self.encoded_bytes + self.held_out_bytes
        work = min(_WORK_BYTES, self.columns_bytes + self.encoded_bytes)
        return max(fitting, encoding_begins, encoding_ends) + self.statistics.rows * _ROW_BYTES + work

    @property
    def file_bytes(self) -> int:
        """Return the space on disk of rows that are stored in a file, with a copy of a column for fits."""
        return (
            self.columns_bytes
            + self.encoded_bytes
            + self.statistics.rows * (_FILE_ROW_BYTES + _SORTED_COPY_ROW_BYTES)
        )

    def fits_memory(self, memory: RowMemoryLimits) -> bool:
        """Return whether the rows fit into memory now."""
        return self.peak_bytes <= min(memory.limit_bytes, memory.host_bytes, memory.free_bytes)

    def figures(self) -> dict[str, Any]:
        """Return the estimate as plain data for the job's history."""
        return {
            "rows": self.statistics.rows,
            "analyzed": self.statistics.analyzed,
            "stored_bytes": self.statistics.stored_bytes,
            "columns_bytes": self.columns_bytes,
            "encoded_bytes": self.encoded_bytes,
            "held_out_bytes": self.held_out_bytes,
            "peak_bytes": self.peak_bytes,
            "file_bytes": self.file_bytes,
        }

    def check(self, table: str, memory: RowMemoryLimits) -> None:
        """Raise an error if the rows fit neither into memory nor into a file.

        Raises RowFileError if the disk has too little space, and MemoryLimitError if the texts of rows in a file
        exceed the limit. For rows that may not be stored in a file, raises MemoryLimitError if they can never fit,
        and HostMemoryError if they do not fit now.
        """
        if self.fits_memory(memory):
            return
        if memory.disk_bytes is not None:
            self._check_texts(table, memory)
            self._check_disk(table, memory, memory.disk_bytes)
            return
        needs = f"the rows of table {table} need about {size(self.peak_bytes)} of memory"
        if self.peak_bytes > memory.limit_bytes:
            raise MemoryLimitError(
                f"{needs}, more than the {size(memory.limit_bytes)} that a trainer may use for them "
                "(read_limit_bytes)",
                detail=f"{self._detail()} {size(memory.free_bytes)} are free now.",
                hint=f"{self._hint()}, or let the administrator raise TENSILE_READ_LIMIT_BYTES.",
            )
        if self.peak_bytes > memory.host_bytes:
            raise MemoryLimitError(
                f"{needs}, more than the {size(memory.host_bytes)} that the machine or its container has",
                detail=f"{self._detail()} {size(memory.free_bytes)} are free now.",
                hint=f"{self._hint()}, or give the machine or the container more memory.",
            )
        if self.peak_bytes > memory.free_bytes:
            raise HostMemoryError(
                f"{needs}, and {size(memory.free_bytes)} are free now",
                detail=f"{self._detail()} The limit for a trainer is {size(memory.limit_bytes)} (read_limit_bytes).",
                hint=f"{self._hint()}, let fewer jobs run at a time (max_jobs), or give the machine more memory.",
            )

    def _check_texts(self, table: str, memory: RowMemoryLimits) -> None:
        if self.distinct_texts_bytes > memory.limit_bytes:
            raise MemoryLimitError(
                f"the different texts of table {table} need about {size(self.distinct_texts_bytes)} of memory, more "
                f"than the {size(memory.limit_bytes)} that a trainer may use for rows (read_limit_bytes)",
                detail=f"{self._detail()} Rows that do not fit into memory are stored in a file, and their texts in "
                "memory.",
                hint=f"{self._hint()}, or let the administrator raise TENSILE_READ_LIMIT_BYTES.",
            )

    def _check_disk(self, table: str, memory: RowMemoryLimits, disk_bytes: int) -> None:
        if self.file_bytes > disk_bytes:
            raise RowFileError(
                f"the rows of table {table} need about {size(self.file_bytes)} on the disk of {memory.directory}, "
                f"and {size(disk_bytes)} are free",
                detail=f"{self._detail()} They would need about {size(self.peak_bytes)} of memory, of which a "
                f"trainer may use {size(memory.limit_bytes)} (read_limit_bytes); {size(memory.free_bytes)} are free.",
                hint=f"{self._hint()}, free some space, or let the administrator name a directory on another disk "
                "with TENSILE_ROWS_DIRECTORY.",
            )

    def _detail(self) -> str:
        basis = (
            "by its statistics" if self.statistics.analyzed else "guessed from its size, since it was never analyzed"
        )
        return (
            f"About {self.statistics.rows} rows, {basis}: {size(self.columns_bytes)} as they are read, "
            f"{size(self.encoded_bytes)} encoded, {size(self.held_out_bytes)} held out for evaluation; on disk "
            f"the table takes {size(self.statistics.stored_bytes)}."
        )

    def _hint(self) -> str:
        analyze = "" if self.statistics.analyzed else "Run ANALYZE on the table, so that its rows are known; "
        advice = "leave columns out with exclude, or train on a sample (tensile_train_query, with tablesample)"
        return analyze + advice if analyze else advice[0].upper() + advice[1:]


def estimate_memory(
    statistics: Statistics,
    *,
    targets: Sequence[str],
    described: Sequence[Column],
    options: FeatureOptions,
    test_size: float,
    features: Sequence[str] = (),
) -> MemoryEstimate:
    """Estimate the memory for the columns of `statistics.wires`, with `targets` as the training's target.

    `described` tells the primary key. A key column that is neither a target nor one of `features` is read but not
    stored. An array column counts as zero while its shape is unknown, that is, while neither statistics nor a value
    give the shape; it is counted after its first array has arrived.
    """
    if statistics.test_rows is not None:
        test_size = min(1.0, statistics.test_rows / max(1, statistics.rows))
    rows, keys = statistics.rows, {column.name for column in described if column.primary_key}
    stored_names = [name for name in statistics.wires if name not in keys or name in (*targets, *features)]
    columns = {name: _column_bytes(statistics, name) for name in stored_names}
    width = sum(_encoded_numbers(statistics, name, options) for name in stored_names if name not in targets)
    outputs = sum(_target_numbers(statistics, name) for name in targets)
    combined_bytes = 8 * rows * len(targets) if len(targets) > 1 else 0  # target_columns.py
    images = [name for name in stored_names if statistics.wires[name].kind is ColumnKind.IMAGE]
    pixels_bytes = rows * sum(_image_bytes(options, name) for name in images)
    kept_names = [
        n for n in stored_names if n in targets or statistics.wires[n].kind in (*_OBJECTS, ColumnKind.IMAGE)
    ]
    tokens = 0 if images else sum(_tokens(statistics, name, options) for name in stored_names if name not in targets)
    early_bytes = rows * sum(_image_bytes(options, name) for name in images if options.skips_errors(name))
    columns_bytes, train_rows = sum(columns.values()) + combined_bytes + early_bytes, round(rows * (1 - test_size))
    sample_bytes = _sample_bytes(options, [name for name in images if not options.skips_errors(name)], train_rows)
    return MemoryEstimate(
        statistics=statistics,
        columns_bytes=columns_bytes,
        kept_bytes=sum(columns[name] for name in kept_names) + combined_bytes,
        distinct_texts_bytes=sum(
            _distinct_texts_bytes(statistics, name)
            for name in stored_names
            if name in targets or options.encoding(name) != feature_options.TOKENS  # a file has such texts themselves
        ),
        # Features and outputs take 4 bytes each, but tokens 2 (narrow_rows.py), except the first output: it counts as
        # 8, because it may be the number of a class.
        encoded_bytes=rows * (4 * (width + outputs - 1) - 2 * tokens + _TARGET_BYTES) + pixels_bytes,
        held_out_bytes=round(test_size * columns_bytes),
        fit_bytes=max(
            sample_bytes, max((_fit_bytes(statistics, name, train_rows) for name in stored_names), default=0)
        ),
    )


def _target_numbers(statistics: Statistics, name: str) -> int:
    """Return how many numbers of an encoded target come from this column: one for each element or label."""
    if name not in statistics.wires:
        return 1
    if statistics.wires[name].kind is ColumnKind.LABELS:
        return _LABELS
    return max(1, _elements(statistics, name))


def _fit_bytes(statistics: Statistics, name: str, train_rows: int) -> int:
    """Return the memory that fitting this column's encoder needs in addition to the column."""
    return min(train_rows * max(1, _elements(statistics, name)), FIT_BLOCK_NUMBERS) * _FIT_BYTES_PER_NUMBER


def _column_bytes(statistics: Statistics, name: str) -> int:
    """Return the memory of the column as it is read."""
    wire, analyzed, rows = statistics.wires[name], statistics.columns.get(name), statistics.rows
    mask_bytes = rows if analyzed is not None and analyzed.null_share > 0 else 0
    if wire.kind is ColumnKind.IMAGE:  # statistics count large values as pointers, and the table's size has them
        width_bytes = 0.0 if analyzed is None else analyzed.width_bytes
        return round(max(rows * width_bytes, statistics.stored_bytes)) + (_POINTER_ROW_BYTES + 1) * rows  # and a mask
    if wire.kind in _OBJECTS:
        if analyzed is None:
            # Nothing is known of the texts, and a lower bound refuses no table wrongly.
            return _POINTER_ROW_BYTES * rows
        texts = analyzed.distinct if analyzed.distinct <= _SHARED_TEXTS else rows
        return round(_POINTER_ROW_BYTES * rows + texts * (_TEXT_BYTES + analyzed.width_bytes)) + mask_bytes
    return (
        rows * stored_bytes(wire) * (_elements(statistics, name) if wire.kind is ColumnKind.ARRAY else 1) + mask_bytes
    )


def _sample_bytes(options: FeatureOptions, names: Sequence[str], train_rows: int) -> int:
    """Return the memory of a sample of images, of the columns that are decoded while a training goes on."""
    row_bytes = sum(_image_bytes(options, name) for name in names)
    return row_bytes * min(train_rows, most_sampled(row_bytes)) if names else 0


def _image_bytes(options: FeatureOptions, name: str) -> int:
    """Return the bytes of a decoded image of the column."""
    height, width = options.image_size(name) or (_UNKNOWN_SIDE, _UNKNOWN_SIDE)
    return height * width * (options.image_channels(name) or max(CHANNELS.values()))


def _distinct_texts_bytes(statistics: Statistics, name: str) -> int:
    """Return the memory of the texts of a column whose rows are in a file; 0 for numbers and without statistics."""
    analyzed = statistics.columns.get(name)
    if statistics.wires[name].kind not in _OBJECTS or analyzed is None:
        return 0
    return round(analyzed.distinct * (_TEXT_BYTES + _CODE_BYTES + analyzed.width_bytes))


def _elements(statistics: Statistics, name: str) -> int:
    """Return the number of elements in one array of the column; 0 for other columns and for unknown shapes."""
    wire, analyzed, shape = statistics.wires[name], statistics.columns.get(name), statistics.shapes.get(name)
    if wire.kind is not ColumnKind.ARRAY:
        return 0
    if shape is not None:
        return int(np.prod(shape))
    if analyzed is None or analyzed.width_bytes <= _POINTER_BYTES or not wire.item:
        return 0
    return max(0, round((analyzed.width_bytes - _ARRAY_HEADER_BYTES) / np.dtype(wire.item).itemsize))


def _encoded_numbers(statistics: Statistics, name: str, options: FeatureOptions) -> int:
    """Return how many numbers of an encoded row come from this column."""
    analyzed, kind = statistics.columns.get(name), statistics.wires[name].kind
    indicator = int(options.missing_rule(name, kind) == "indicator")
    distinct = None if analyzed is None else round(analyzed.distinct)
    match kind:
        case ColumnKind.TEXT:
            return text_numbers(options, name, distinct)
        case ColumnKind.LABELS:  # statistics count distinct sets, not labels
            return 2 + options.most_categories(name)
        case ColumnKind.DOCUMENT:
            paths = options.document_paths([name])
            return sum(
                text_numbers(options, path.name, None) if path.kind is ColumnKind.TEXT else _TIME_NUMBERS
                for path in paths
            )
        case ColumnKind.INTEGER | ColumnKind.FLOAT | ColumnKind.BOOLEAN | ColumnKind.DURATION:
            return 1 + indicator
        case ColumnKind.ARRAY:
            return _elements(statistics, name) + indicator
        case ColumnKind.IMAGE:  # images are stored as bytes, and counted by _image_bytes
            return 0
        case _:
            return _TIME_NUMBERS


def _tokens(statistics: Statistics, name: str, options: FeatureOptions) -> int:
    """Return how many numbers of an encoded row are tokens of this column."""
    reads = statistics.wires[name].kind is ColumnKind.TEXT and options.encoding(name) == feature_options.TOKENS
    return _encoded_numbers(statistics, name, options) if reads else 0


def text_numbers(options: FeatureOptions, name: str, distinct: int | None, means: int = 1) -> int:
    """Return how many numbers a text column becomes.

    `distinct` is the number of its different texts, or None if it is unknown. `means` is the number of target means
    that encode a text.
    """
    categories = options.most_categories(name)
    match options.encoding(name):
        case "onehot":  # two more: one for all other texts, and one for missing values
            return 2 + (categories if distinct is None else min(categories, distinct))
        case "hash":
            return 1 + categories
        case "target":
            return means
        case feature_options.EMBEDDED:
            return 1
        case feature_options.TOKENS:
            return options.token_length(name) or min(LONGEST_CHOSEN, options.longest or LONGEST_CHOSEN)
        case _:  # "ordinal", or a list of texts in order: the number of the text, and an indicator
            return 2
