"""Rows in the binary forms of record_send and COPY, whose bytes are written here by the source of PostgreSQL."""

import struct
from typing import Any

import numpy as np
import pytest

from indb_tensile.errors import InvariantError
from indb_tensile.learning.decoding.binary_rows import CopiedRows, SentRecords
from indb_tensile.learning.decoding.copyrows import row_segments
from indb_tensile.learning.storage.columns import ColumnKind, CopyEncoding

LONG = CopyEncoding(kind=ColumnKind.INTEGER, item=">i8")
FLOAT = CopyEncoding(kind=ColumnKind.FLOAT, item=">f8")
TEXT = CopyEncoding(kind=ColumnKind.TEXT, item="")
FIELDS = (("a", FLOAT), ("b", TEXT))


def record(*values: Any) -> bytes:
    """Return the image of a row of floats, texts, integers and NULLs."""
    parts = [struct.pack(">i", len(values))]
    for value in values:
        match value:
            case None:
                parts.append(struct.pack(">Ii", 25, -1))
            case str():
                parts.append(struct.pack(">Ii", 25, len(value.encode())) + value.encode())
            case float():
                parts.append(struct.pack(">Iid", 701, 8, value))
            case _:
                parts.append(struct.pack(">Iiq", 20, 8, value))
    return b"".join(parts)


@pytest.mark.parametrize("rows", [1, 63, 200])
def test_columns_and_slices_have_the_values_of_the_rows(rows: int) -> None:
    """A long run of rows of one layout is read in another way than few rows."""
    values = [(float(n), None if n % 90 == 7 else "x") for n in range(rows)]
    records = SentRecords(b"".join(record(*row) for row in values), rows, FIELDS)
    whole = records.columns
    assert whole["a"].values.tolist() == [a for a, _ in values]
    assert whole["b"].missing.tolist() == [b is None for _, b in values]
    part = records[rows // 2 : rows]
    assert len(part) == rows - rows // 2
    assert np.array_equal(part.columns["a"].values, whole["a"].values[rows // 2 :])
    assert records[0:rows] is records
    assert records.keys() is None


def test_keys_are_json_objects_also_where_a_key_is_a_feature() -> None:
    data = b"".join(record(0.5, "x", n, m) for n, m in ((1, 2), (-(2**63), None)))
    records = SentRecords(data, 2, FIELDS, key=(("a", LONG), ('100% "b"', LONG)))
    assert records.keys() == f'[{{"a": 1, "100% \\"b\\"": 2}},{{"a": {-(2**63)}, "100% \\"b\\"": null}}]'
    assert records[1:2].keys() == f'[{{"a": {-(2**63)}, "100% \\"b\\"": null}}]'


@pytest.mark.parametrize("rows", [1, 5, 150])
def test_copied_rows_have_the_columns_and_keys_of_images_of_the_same_rows(rows: int) -> None:
    """Their blocks may have a different number of rows than a slice."""
    values = [(float(n), None if n % 90 == 7 else "x", n) for n in range(rows)]
    data = b"".join(_copied(*row) for row in values)
    half = sum(len(_copied(*row)) for row in values[: rows // 2])
    segments = [*row_segments(data[:half], 0, 3)[0], *row_segments(data[half:], 0, 3)[0]]
    copied = CopiedRows(segments, (*FIELDS, ("id", LONG)), ("id",))
    records = SentRecords(b"".join(record(*row) for row in values), rows, FIELDS, (("id", LONG),))
    for begin, end in ((0, rows), (rows // 3, rows), (rows // 2 - 1, rows // 2 + 1), (0, 1)):
        begin = max(begin, 0)
        part, expected = copied[begin:end], records[begin:end]
        assert (len(part), part.keys()) == (len(expected), expected.keys())
        for name, _ in FIELDS:
            assert part.columns[name].values.tolist() == expected.columns[name].values.tolist()
            assert part.columns[name].missing.tolist() == expected.columns[name].missing.tolist()


def _copied(*values: Any) -> bytes:
    """Return a row of COPY: a shorter count than in an image, and no types."""
    return struct.pack(">h", len(values)) + _without_types(record(*values)[4:])


def _without_types(fields: bytes) -> bytes:
    parts = []
    while fields:
        end = 8 + max(0, struct.unpack_from(">i", fields, 4)[0])
        parts.append(fields[4:end])
        fields = fields[end:]
    return b"".join(parts)


@pytest.mark.parametrize(
    ("data", "rows"),
    [(record(1.0, "x") + b"\0\0\0", 1), (record(1.0, "x"), 2), (record(1.0), 1), (record("1", "x"), 1)],
)
def test_records_that_do_not_have_the_rows_are_an_internal_error(data: bytes, rows: int) -> None:
    with pytest.raises(InvariantError):
        _ = SentRecords(data, rows, FIELDS).columns
