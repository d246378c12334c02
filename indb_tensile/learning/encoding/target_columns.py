"""Combines the columns of a target of several columns to one: numbers to vectors, booleans to flags.

So the rest of the package handles one target column, an array of one shape, whether the table has one or several.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from indb_tensile.errors import MissingError
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, Columns, TableData
from indb_tensile.learning.storage.row_storage import MEMORY, RowStorage, row_blocks
from indb_tensile.request.task_rules import check_target_columns


def with_combined(table: TableData, name: str, columns: Sequence[str], task: str) -> TableData:
    """Return the table with one more column, `name`, that combines these; the same table if there are none.

    Raises RequestError for columns that cannot be combined for this task.
    """
    if not columns:
        return table
    whole = combined(table.columns, columns, task, table.storage)
    return replace(table, columns={**table.columns, name: whole})


def combined(columns: Columns, names: Sequence[str], task: str, storage: RowStorage = MEMORY) -> ColumnData:
    """Return the columns as one column of arrays. A row without one of the values has no target at all.

    Integers beyond 53 bits lose their last digits, as all numbers that a network learns from.
    """
    parts = [columns[name] for name in names]
    check_target_columns(task, {own: part.kind.value for own, part in zip(names, parts, strict=True)})
    flags = all(part.kind is ColumnKind.BOOLEAN for part in parts)
    rows = len(parts[0].missing)
    values = storage.array(rows, (len(parts),), np.bool_ if flags else np.float64)
    missing = storage.array(rows, (), np.bool_)
    for start, end in row_blocks(rows) if rows else ():
        values.write(start, np.stack([part.values[start:end] for part in parts], axis=1))
        missing.write(start, np.any([part.missing[start:end] for part in parts], axis=0))
    return ColumnData(
        kind=ColumnKind.ARRAY,
        values=values.values,
        missing=missing.values,
        all_finite=all(part.all_finite or part.kind is not ColumnKind.FLOAT for part in parts),
    )


def require_columns(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> None:
    """Raise MissingError for a row that lacks a column of the target."""
    for name in names:
        if any(name not in row for row in rows):
            raise MissingError(f'a row has no target column "{name}"')
