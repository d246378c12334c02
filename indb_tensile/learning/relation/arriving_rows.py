"""Takes the decoded rows of a table while it is read: into memory, or into a file once they do not fit."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NoReturn

from indb_tensile.errors import DataError
from indb_tensile.learning.relation.locked_relation import DescribedRelation, LocatedRelation, ReadLimits
from indb_tensile.learning.relation.memory_estimate import Statistics
from indb_tensile.learning.storage.columns import Column, ColumnData, CopyEncoding
from indb_tensile.learning.storage.columnstore import ColumnStore
from indb_tensile.learning.storage.row_storage import MEMORY
from indb_tensile.sizes import size

StatisticsCallback = Callable[[tuple[Column, ...], Statistics], bool]  # returns whether the rows fit into memory


class ArrivingRows:
    """The rows of a relation, and of the tables of its parts, that have arrived so far.

    `stored`, `identity` and `unlike_texts` are those of ColumnStore. `on_statistics` is asked whether the rows fit
    into memory when the statistics are known, when the first arrays have given their shapes, and at the end if there
    were more rows than the statistics said. If they do not fit, the columns move to `limits.overflow`.
    """

    def __init__(
        self,
        described: DescribedRelation,
        wires: dict[str, CopyEncoding],
        *,
        stored: Sequence[str],
        identity: Sequence[str],
        unlike_texts: Collection[str],
        statistics: Statistics,
        limits: ReadLimits,
        on_statistics: StatisticsCallback,
    ) -> None:
        self._described, self._statistics = described, statistics
        self._limits, self._on_statistics = limits, on_statistics
        self.store = ColumnStore(
            wires,
            stored=stored,
            identity=identity,
            limit_bytes=limits.size_bytes,
            refuse=self._refuse,
            overflow=limits.overflow,
            expected_rows=statistics.rows,
            unlike_texts=unlike_texts,
        )
        self._place(statistics)

    def add(self, columns: dict[str, ColumnData], rows: int) -> None:
        """Store the columns of a block of rows."""
        shapes = {name: data.shape for name, data in columns.items() if data.shape} if not self.store.rows else {}
        if shapes:
            self._place(self._statistics.with_shapes(shapes))
        self.store.add(columns, rows)

    def check_row_size(self, row_bytes: int) -> None:
        """Raise DataError for a row that alone exceeds the limit. In the stream an array has up to twice its size."""
        used_bytes = self.store.size_bytes if self._limits.overflow is None else 0  # the store moves to a file
        if row_bytes > 2 * (self._limits.size_bytes - used_bytes):
            self._refuse(self.store.size_bytes + row_bytes)

    def end(self) -> None:
        """Ask again whether the rows fit into memory, if there are more than the statistics of the table said."""
        if self.store.rows > self._statistics.rows:
            shapes = {name: data.shape for name, data in self.store.columns().items() if data.shape}
            self._place(replace(self._statistics, rows=self.store.rows, shapes=shapes))

    def _place(self, known: Statistics) -> None:
        in_memory = self._on_statistics(self._described.columns, known)
        if not in_memory and self._limits.overflow is not None and self.store.storage is MEMORY:
            self.store.move(self._limits.overflow())

    def _refuse(self, size_bytes: int) -> NoReturn:
        texts = None if self.store.storage is MEMORY else self.store.largest_texts()
        located, stored_bytes = self._described.located, self._statistics.stored_bytes
        raise _too_large_error(located, self.store.rows, size_bytes, stored_bytes, self._limits, texts)


def _too_large_error(
    located: LocatedRelation,
    rows: int,
    size_bytes: int,
    stored_bytes: int,
    limits: ReadLimits,
    texts: tuple[str, int] | None,
) -> DataError:
    """Return the error for a table in memory, or in a file: then `texts` is the column with the largest texts."""
    subject, detail, read_as_tokens = f"table {located} takes", "", ""
    if texts is not None:
        subject = f"the different texts of table {located} take"
        detail = f'Those of column "{texts[0]}" take the most: {size(texts[1])}. '
        read_as_tokens = "read long texts as tokens (preprocess), which take no memory, "
    return DataError(
        f"{subject} more memory than a trainer may use to read it: {size(size_bytes)}, and the limit is "
        f"{size(limits.size_bytes)}",
        detail=f"{detail}That is after {rows} rows; on disk the table takes {size(stored_bytes)}, possibly "
        "compressed.",
        hint=f"Leave columns out with exclude, {read_as_tokens}train on fewer rows, or let the administrator raise "
        "TENSILE_READ_LIMIT_BYTES.",
    )
