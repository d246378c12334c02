"""Preparing takes little memory beside the columns that were read, because tensors replace the columns."""

from pathlib import Path

import numpy as np

from indb_tensile.job import Task
from indb_tensile.learning.storage.columns import Column, ColumnData, ColumnKind, CopyEncoding, TableData
from indb_tensile.learning.storage.splits import row_hashes
from indb_tensile.learning.training.preparation import assemble
from tests.learning.tables import spec

ROWS, COLUMNS = 400_000, 20
FLOAT = CopyEncoding(kind=ColumnKind.FLOAT, item=">f8")


def random_table(rows: int) -> TableData:
    """Return a table as it is read. No column has a NULL, so none has a mask of its own."""
    draw = np.random.default_rng(7)
    names = [*(f"f{i}" for i in range(COLUMNS)), "y"]
    missing = np.broadcast_to(np.False_, rows)
    columns = {name: ColumnData(kind=ColumnKind.FLOAT, values=draw.random(rows), missing=missing) for name in names}
    described = tuple(Column(name=name, type="double precision", wire=FLOAT) for name in names)
    hashes = row_hashes([columns["f0"]], rows)
    return TableData(columns=columns, described=described, rows=rows, row_hash=hashes, digest="")


def memory_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def test_preparing_takes_less_memory_than_the_columns_beside_them() -> None:
    specification = spec("y", Task.REGRESSION, architecture={"type": "mlp"})
    assemble(random_table(1000), specification, consume=True)  # imports
    table = random_table(ROWS)
    columns_bytes = sum(data.values.nbytes for data in table.columns.values())
    before_bytes = memory_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    prepared = assemble(table, specification, consume=True)
    # Encoding without consuming the columns took four times their memory. Now it takes half of their memory, and a
    # tenth more in a process that has run other tests.
    assert memory_bytes("VmHWM") - before_bytes < 0.75 * columns_bytes
    # Tensors and held-out rows take half of the columns' memory. The allocator may keep some of what was freed.
    grown_bytes = memory_bytes("VmRSS") - before_bytes
    assert grown_bytes < 0.1 * columns_bytes, "the columns are freed while the tensors are made"
    assert prepared.train.rows + prepared.valid.rows + prepared.test.rows == ROWS
