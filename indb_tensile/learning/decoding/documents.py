"""Values of json and jsonb documents at chosen paths, as columns of their own."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indb_tensile.errors import DataError
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, Columns, CopyEncoding
from indb_tensile.learning.storage.columnstore import StoredColumn
from indb_tensile.learning.storage.row_storage import MEMORY, RowStorage, row_blocks

_LONGEST_INTEGER = 400  # characters: a double has up to 309 digits


@dataclass(frozen=True, kw_only=True)
class DocumentPath:
    """A chosen path: the name of the new column, the column of the documents, and the keys from the outside in.

    A key of digits is a position in a list, from 0; a negative one counts from the end.
    """

    name: str
    column: str
    steps: tuple[str, ...]
    kind: ColumnKind

    def value(self, document: Any) -> Any:
        """Return the value at the path, or None if the document has none there."""
        for step in self.steps:
            if isinstance(document, dict):
                document = document.get(step)
            elif isinstance(document, list):
                document = _element(document, step)
            else:
                return None
        return document


def with_derived(
    columns: Columns, paths: Sequence[DocumentPath], storage: RowStorage = MEMORY, *, first_row: int = 0
) -> Columns:
    """Return the columns with those that the paths of their documents become, in `storage`.

    Documents are decoded in blocks of rows. The different texts at a path are in memory, as those of any column of
    texts are. Raises DataError with column and row for a value that is not of the path's kind; rows are counted from
    `first_row`.
    """
    derived: dict[str, ColumnData] = {}
    for column in dict.fromkeys(path.column for path in paths):
        own = [path for path in paths if path.column == column]
        derived |= _derived(columns[column], own, storage, first_row)
    return {**columns, **derived} if derived else columns


def _derived(
    documents: ColumnData, paths: Sequence[DocumentPath], storage: RowStorage, first_row: int
) -> dict[str, ColumnData]:
    rows = len(documents.missing)
    if rows <= _BLOCK_ROWS and storage is MEMORY:
        return _of_block(documents, paths, first_row)
    stored = {path.name: StoredColumn(CopyEncoding(kind=path.kind, item="")) for path in paths}
    for column in stored.values():
        if storage is not MEMORY:
            column.move(storage, rows)
    for start, end in row_blocks(rows, _BLOCK_ROWS):
        for name, block in _of_block(documents.part(start, end), paths, first_row + start).items():
            stored[name].add(block)
    return {name: column.whole() for name, column in stored.items()}


def _of_block(documents: ColumnData, paths: Sequence[DocumentPath], first_row: int) -> dict[str, ColumnData]:
    decoded = list(_decoded(paths[0].column, documents, first_row))
    return {path.name: _column(path, [path.value(document) for document in decoded], first_row) for path in paths}


_BLOCK_ROWS = 1 << 14  # decoded documents take many times the memory of their texts


def with_values(row: Mapping[str, Any], paths: Sequence[DocumentPath]) -> dict[str, Any]:
    """Return a row from SQL, whose documents are decoded, with the values at the paths."""
    return {**row, **{path.name: path.value(row[path.column]) for path in paths}}


def _element(values: list[Any], step: str) -> Any:
    if not step.removeprefix("-").isdecimal():
        return None
    place = int(step)
    return values[place] if -len(values) <= place < len(values) else None


def _decoded(name: str, data: ColumnData, first_row: int) -> Iterator[Any]:
    """Yield the documents of a column. NULL is None, as the document null is."""
    for row, (text, is_missing) in enumerate(zip(data.values[:], data.missing, strict=True), first_row):
        try:
            yield None if is_missing else json.loads(text, parse_int=_integer)
        except RecursionError:
            hint = "Store what the model needs in a column of its own, or leave it out with exclude."
            raise DataError(f'column "{name}", row {row + 1}: the document is nested too deep', hint=hint) from None


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)


def _column(path: DocumentPath, values: Sequence[Any], first_row: int) -> ColumnData:
    try:
        return column_of(path.name, path.kind, values)
    except DataError:
        for row, value in enumerate(values, first_row):
            _require_kind(path, value, row)
        raise


def _require_kind(path: DocumentPath, value: Any, row: int) -> None:
    try:
        column_of(path.name, path.kind, [value])
    except DataError as error:
        error.message = error.message.replace(f'"{path.name}"', f'"{path.name}", row {row + 1}', 1)
        error.hint = "Correct the document, or choose the path with another kind in preprocess."
        raise
