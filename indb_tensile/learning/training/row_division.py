"""Divides the rows of a training into its parts: by the rule of its split, or by the tables that the split names."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from indb_tensile.errors import MissingError
from indb_tensile.job import JobSpec, SnapshotTable
from indb_tensile.learning.storage.columns import Rows, TableData
from indb_tensile.learning.storage.row_storage import gathered, positions_where
from indb_tensile.learning.storage.splits import Parts, Split, divide, divide_beside_tables


def divide_rows(table: TableData, known: Rows, split: Split) -> Parts:
    """Return the parts of the rows whose targets are known, which are numbered from 0. Raises DataError."""
    name = split.divider
    if name is not None and name not in table.columns:
        raise missing_divider_error(name)
    hashes = table.row_hash if len(known) == table.rows else gathered(table.row_hash, known, table.storage)
    if split.tables:
        sections = {part: _known_positions(table, known, part) for part in split.tables}
        own = int(np.searchsorted(known, table.own_rows))
        return divide_beside_tables(hashes[:own], sections, split, keyed=table.keyed, storage=table.storage)
    decisive = None if name is None else table.columns[name].take(known)
    return divide(hashes, split, decisive, keyed=table.keyed, storage=table.storage)


def row_numbers(table: TableData, known: Rows, parts: Parts) -> tuple[Rows, Rows, Rows]:
    """Return the table's row numbers of each part. `parts` number the rows whose targets are known."""
    each = (parts.train, parts.valid, parts.test)
    if len(known) == table.rows:
        return each
    train, valid, test = (gathered(known, part, table.storage) for part in each)
    return train, valid, test


def stored_rule(table: TableData, spec: JobSpec, parts: Parts) -> dict[str, Any]:
    """Return the rule by which the rows were divided, and what identifies a row for it."""
    rule = parts.rule | {"identity": list(table.identity), "timed": list(table.timed), "keyed": table.keyed}
    if spec.part_tables:
        rule["tables"] = {part: asdict(own.relation) for part, own in spec.part_tables.items()}
    return rule


def part_sections(table: TableData, snapshot: SnapshotTable, parts: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the ranges of the snapshot's rows that come from tables of parts. Refuses an incomplete snapshot."""
    if table.rows != snapshot.rows:
        raise MissingError(
            f"the job's snapshot table has {table.rows} rows, and had {snapshot.rows} when the job was enqueued",
            detail="In a database that was restored without the rows of schema tensile_data, the tables are empty.",
            hint="Call tensile_train again.",
        )
    test = snapshot.rows - snapshot.test_rows
    ranges = {"valid": (test - snapshot.valid_rows, test), "test": (test, snapshot.rows)}
    return {part: ranges[part] for part in parts}


def test_share(split: Split, snapshot: SnapshotTable | None) -> float:
    """Return the share of the rows that test, as far as it is known before they are read."""
    if snapshot is None or split.test is None:
        return split.test_size
    return snapshot.test_rows / max(1, snapshot.rows)


def require_key(split: Split, names: Sequence[str]) -> None:
    """Refuse a table without a column of the key that the split names."""
    for name in split.key or ():
        if name not in names:
            message = f'split: column "{name}" of the key does not exist in the table'
            raise MissingError(message, hint="Give another split => '...'.")


def _known_positions(table: TableData, known: Rows, part: str) -> Rows:
    """Return the positions within `known` of the rows that come from the table of this part."""
    mask = np.zeros(len(known), np.bool_)
    mask[slice(*np.searchsorted(known, table.sections[part]))] = True
    return positions_where(mask, table.storage)


def missing_divider_error(name: str) -> MissingError:
    """Return the error for a table without the column that divides its rows."""
    return MissingError(f'split: column "{name}" does not exist in the table', hint="Give another split => '...'.")
