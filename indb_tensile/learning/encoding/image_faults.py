"""The error that names rows whose images cannot be read, and the count of such rows that are left out instead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indb_tensile.errors import DataError
from indb_tensile.learning.encoding.image_encoders import READABLE
from indb_tensile.learning.storage.columns import ColumnKind, TableData
from indb_tensile.learning.storage.page_release import empties

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


class RowTitles:
    """Names the rows of a table by their primary key, or else by their place in the table.

    The titles stay right when the columns of `features` have been encoded, which may empty them.
    """

    def __init__(self, table: TableData, features: Sequence[str]) -> None:
        keys = [(name, table.columns.get(name)) for name in table.key]
        plain = [(name, data.values) for name, data in keys if data is not None and data.kind in _PLAIN_KEYS]
        self._keys: list[tuple[str, Any]] = []
        if len(plain) == len(keys):
            self._keys = [
                (name, values.copy() if name in features and empties(values) else values) for name, values in plain
            ]

    def of(self, row: int) -> str:
        """Return the title of a row."""
        return ", ".join(f"{name} {values[row]}" for name, values in self._keys) or f"row {row + 1}"


def skipped_rows(column: str, faults: Mapping[int, str], titles: RowTitles) -> SkippedRows:
    """Return the rows with these faults, by their places in the table, as left out."""
    named = tuple(_fault_text(titles, row, faults[row]) for row in sorted(faults)[:_MOST_NAMED])
    return SkippedRows(column=column, rows=len(faults), named=named)


def skipped_sentence(skipped: Sequence[SkippedRows]) -> str:
    """Return a sentence on the rows that are left out, after a blank, or an empty text."""
    parts = [f'{own.rows} rows of column "{own.column}"' for own in skipped]
    return f" Left out, since their images cannot be read: {' and '.join(parts)}." if parts else ""


def unreadable_error(column: str, faults: Mapping[int, str], titles: RowTitles, *, complete: bool) -> DataError:
    """Return the error for a column whose images in the rows with these faults cannot be read.

    With `complete` there are no other such rows.
    """
    first, *others = sorted(faults)
    named = [_fault_text(titles, row, faults[row]) for row in others[: _MOST_NAMED - 1]]
    count = f"{len(faults)} rows" if complete else f"At least {len(faults)} rows"
    more = f" {count} have such values; the next are: {'; '.join(named)}." if named else ""
    return DataError(
        f'column "{column}", {titles.of(first)}: the value {faults[first]}',
        detail=f"Training stops at such values since on_error is stop.{more}",
        hint=f'{READABLE} To leave such rows out: preprocess => \'{{"on_error": "skip"}}\'.',
    )


def _fault_text(titles: RowTitles, row: int, reason: str) -> str:
    return f"{titles.of(row)} {reason}"
