"""Stores texts with their sections in a file, as a trainer stores a table that is larger than its memory."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NoReturn

import numpy as np

from indb_tensile.bench.harness.tables.sample_tables import SampleTable
from indb_tensile.errors import InvariantError
from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.storage.columns import Column, ColumnData, ColumnKind, CopyEncoding, TableData
from indb_tensile.learning.storage.columnstore import ColumnStore
from indb_tensile.learning.storage.row_storage import FileStorage

_BLOCK_ROWS = 10_000
_KEPT_BYTES = 64 << 20  # of the different sections, which stay in memory
_WIRES = {
    "id": CopyEncoding(kind=ColumnKind.INTEGER, item=">i8"),
    "description": CopyEncoding(kind=ColumnKind.TEXT, item=""),
    "section": CopyEncoding(kind=ColumnKind.TEXT, item=""),
}


def stored_section_table(pairs: Iterable[tuple[str, str]], rows: int, directory: Path) -> SampleTable:
    """Return a table of these descriptions and sections whose `rows` rows are in an unnamed file in the directory.

    The pairs are read a block at a time, so they never need to be in memory together.
    """
    storage = FileStorage(directory)
    store = ColumnStore(
        _WIRES,
        stored=tuple(_WIRES),
        identity=("id",),
        limit_bytes=_KEPT_BYTES,
        refuse=_refuse,
        expected_rows=rows,
        unlike_texts=("description",),
    )
    store.move(storage)
    source = iter(pairs)
    while block := list(islice(source, _BLOCK_ROWS)):
        numbers = np.arange(store.rows + 1, store.rows + len(block) + 1)
        descriptions, sections = zip(*block, strict=True)
        columns = {
            "id": ColumnData(kind=ColumnKind.INTEGER, values=numbers, missing=np.zeros(len(block), np.bool_)),
            "description": column_of("description", ColumnKind.TEXT, list(descriptions)),
            "section": column_of("section", ColumnKind.TEXT, list(sections)),
        }
        store.add(columns, len(block))
    table = TableData(
        columns=store.columns(),
        described=tuple(
            Column(name=name, type=wire.kind.value, wire=wire, primary_key=name == "id")
            for name, wire in _WIRES.items()
        ),
        rows=store.rows,
        row_hash=store.row_hash(),
        digest="",
        storage=storage,
    )
    return SampleTable(name="debian", table=table, target="section", task=Task.CLASSIFICATION)


def _refuse(size_bytes: int) -> NoReturn:
    raise InvariantError(f"the sections of the texts take {size_bytes} bytes")
