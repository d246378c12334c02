"""COPY's binary format is decoded. These tests write their bytes by PostgreSQL's documentation of the format."""

import struct
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import DataError, InvariantError
from indb_tensile.learning.decoding.copybinary import BLOCK_BYTES, SIGNATURE, CopyDecoder
from indb_tensile.learning.decoding.copyrows import KnownValues, grouped, row_segments
from indb_tensile.learning.storage.background_feed import BackgroundFeed
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, CopyEncoding
from indb_tensile.learning.storage.columnstore import ColumnStore

INT = CopyEncoding(kind=ColumnKind.INTEGER, item=">i4")
FLOAT = CopyEncoding(kind=ColumnKind.FLOAT, item=">f8")
BOOL = CopyEncoding(kind=ColumnKind.BOOLEAN, item=">u1")
TEXT = CopyEncoding(kind=ColumnKind.TEXT, item="")
DAY = CopyEncoding(kind=ColumnKind.DATE, item=">i4")
REALS = CopyEncoding(kind=ColumnKind.ARRAY, item=">f4")


def decode(
    data: bytes | bytearray,
    fields: Sequence[tuple[str, CopyEncoding]],
    *,
    piece_bytes: int = 2**30,
    block_bytes: int = BLOCK_BYTES,
) -> tuple[dict[str, ColumnData], int]:
    """Return the columns and the number of rows of a stream in pieces and blocks of these sizes."""
    names = [name for name, _ in fields]
    store = ColumnStore(dict(fields), stored=names, identity=names, limit_bytes=2**40, refuse=lambda _: None)
    decoder = CopyDecoder(fields, store.add, block_bytes)
    for start in range(0, len(data), piece_bytes):
        decoder.feed(data[start : start + piece_bytes])
    decoder.end()
    return store.columns(), store.rows


def field(wire: CopyEncoding, value: Any) -> bytes:
    if value is None:
        return struct.pack(">i", -1)
    body: bytes
    match wire.kind:
        case ColumnKind.TEXT:
            body = value.encode()
        case ColumnKind.ARRAY:
            body = array(value)
        case _:
            body = np.array(value, wire.item).tobytes()
    return struct.pack(">i", len(body)) + body


def array(values: Sequence[float | None], lower: int = 1) -> bytes:
    has_null = any(value is None for value in values)
    items = b"".join(struct.pack(">i", -1) if v is None else struct.pack(">if", 4, v) for v in values)
    return struct.pack(">iiiii", 1, has_null, 700, len(values), lower) + items


def stream(wires: Sequence[CopyEncoding], rows: Sequence[Sequence[Any]]) -> bytearray:
    body = b"".join(
        struct.pack(">h", len(wires)) + b"".join(field(wire, value) for wire, value in zip(wires, row, strict=True))
        for row in rows
    )
    return bytearray(SIGNATURE + bytes(8) + body + struct.pack(">h", -1))


def values(data: ColumnData) -> list[Any]:
    return [None if gone else value for value, gone in zip(data.values.tolist(), data.missing.tolist(), strict=True)]


_CELLS: dict[CopyEncoding, st.SearchStrategy[Any]] = {
    INT: st.integers(-(2**31), 2**31 - 1),
    FLOAT: st.floats(allow_nan=False),
    BOOL: st.booleans(),
    TEXT: st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5),
    REALS: st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[CopyEncoding], list[list[Any]]]:
    """Draw a table of a few distinct rows, each repeated, so that runs of one layout start and end anywhere."""
    wires = draw(st.lists(st.sampled_from(list(_CELLS)), min_size=1, max_size=4))
    row = st.tuples(*(st.none() | _CELLS[wire] for wire in wires)).map(list)
    blocks = draw(st.lists(st.tuples(row, st.integers(1, 200)), max_size=6))
    return wires, [cells for cells, times in blocks for _ in range(times)]


@given(tables(), st.integers(1, 3000), st.sampled_from([1, 100, 5000, BLOCK_BYTES]))
def test_written_rows_are_read_back_for_every_size_of_pieces_and_blocks(
    table: tuple[list[CopyEncoding], list[list[Any]]], piece_bytes: int, block_bytes: int
) -> None:
    wires, rows = table
    fields = [(str(i), wire) for i, wire in enumerate(wires)]
    columns, count = decode(stream(wires, rows), fields, piece_bytes=piece_bytes, block_bytes=block_bytes)
    assert count == len(rows)
    assert [values(columns[str(i)]) for i in range(len(wires))] == [
        [row[i] for row in rows] for i in range(len(wires))
    ]


def test_rows_of_varying_and_of_equal_length_keep_their_order() -> None:
    rows = [[i, "x" * (i % 7 if i < 5000 else 3)] for i in range(20_000)]
    columns, _ = decode(stream([INT, TEXT], rows), [("a", INT), ("b", TEXT)])
    assert columns["a"].values.tolist() == list(range(20_000))
    assert columns["b"].values.tolist() == [row[1] for row in rows]


def test_days_are_seconds_since_1970_and_infinity_stays_infinite() -> None:
    columns, _ = decode(stream([DAY], [[0], [-1], [2**31 - 1], [-(2**31)]]), [("d", DAY)])
    assert columns["d"].values.tolist() == [946_684_800.0, 946_598_400.0, np.inf, -np.inf]


@pytest.mark.parametrize("repeat", [1, 300])
@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (array([1.0, 2.0]), "the array has shape 2, the rows before it have 3"),
        (array([1.0, None, 3.0]), "the array contains NULL"),
        (array([1.0, 2.0, 3.0], lower=0), "subscripts start at 0, not at 1"),
        (struct.pack(">iii", 0, 0, 700), "the array is empty"),
    ],
)
def test_an_array_that_is_not_a_tensor_is_refused_with_its_row(raw: bytes, fault: str, repeat: int) -> None:
    good = struct.pack(">h", 1) + field(REALS, [1.0, 2.0, 3.0])
    bad = struct.pack(">hi", 1, len(raw)) + raw
    data = bytearray(SIGNATURE + bytes(8) + good * repeat + bad + good * repeat + struct.pack(">h", -1))
    with pytest.raises(DataError, match=f'column "a", row {repeat + 1}: .*{fault}'):
        decode(data, [("a", REALS)])


def test_the_first_array_is_checked_too() -> None:
    raw = array([1.0], lower=5)
    data = SIGNATURE + bytes(8) + struct.pack(">hi", 1, len(raw)) + raw + struct.pack(">h", -1)
    with pytest.raises(DataError, match="row 1: the array's subscripts start at 5"):
        decode(data, [("a", REALS)])


@pytest.mark.parametrize(
    "data",
    [
        b"PGDUMP",
        SIGNATURE + bytes(8),
        stream([INT], [[1]])[:-2],
        stream([INT, INT], [[1, 2]]),
        stream([FLOAT], [[1.0]]),
    ],
)
def test_a_malformed_stream_is_an_internal_error(data: bytes | bytearray) -> None:
    with pytest.raises(InvariantError):
        decode(data, [("a", INT)])


def test_decoding_a_stream_takes_the_memory_of_its_columns_and_of_a_few_blocks() -> None:
    numbers, rows, block_bytes = 20_000, 150, 1 << 18
    items = struct.pack(">if", 4, 1.5) * numbers
    raw = struct.pack(">iiiii", 1, 0, 700, numbers, 1) + items
    row = struct.pack(">hi", 1, len(raw)) + raw
    store = ColumnStore({"a": REALS}, stored=["a"], identity=["a"], limit_bytes=2**40, refuse=lambda _: None)
    decoder = CopyDecoder([("a", REALS)], store.add, block_bytes)
    decoder.feed(SIGNATURE + bytes(8))
    tracemalloc.start()
    try:
        for _ in range(rows):
            decoder.feed(row)
        decoder.feed(struct.pack(">h", -1))
        decoder.end()
        columns = store.columns()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert columns["a"].values.nbytes == 4 * numbers * rows == 12_000_000
    assert peak_bytes < 1.1 * 12_000_000 + 6 * block_bytes  # the stream has 24 MB


def test_columns_beyond_the_limit_are_refused_before_they_are_allocated() -> None:
    def refuse(size_bytes: int) -> None:
        raise DataError(f"{size_bytes} bytes")

    names = {"a": INT, "b": TEXT}
    store = ColumnStore(names, stored=["a", "b"], identity=["a"], limit_bytes=10_000, refuse=refuse)
    decoder = CopyDecoder(list(names.items()), store.add, block_bytes=1)
    decoder.feed(SIGNATURE + bytes(8))
    rows = [bytes(stream([INT, TEXT], [[i, f"text {i}"]])[19:-2]) for i in range(1000)]
    with pytest.raises(DataError, match="bytes"):
        any(map(decoder.feed, rows))
    assert store.size_bytes <= 10_000
    assert 60 < store.rows < 200


def test_a_text_that_is_not_utf8_is_refused_with_its_column_its_row_and_the_rows_key() -> None:
    columns = (("id", INT), ("word", TEXT))
    refused: list[int] = []
    decoder = CopyDecoder(columns, lambda _, rows: refused.append(rows), block_bytes=1, key=("id",))
    rows = stream([INT, TEXT], [[7 + i, "tea" if i < 3 else "caf?"] for i in range(5)]).replace(b"?", b"\xe9")
    head = rows.index(b"caf\xe9") - 14  # the fields' number, and the first field and the second one's length
    decoder.feed(rows[:head])
    with pytest.raises(DataError) as refusal:
        decoder.feed(rows[head:])
    error = refusal.value
    assert (refused, error.sqlstate) == ([3], "22021")
    assert error.message == 'column "word", row 4: the text is not valid UTF-8: caf\\xe9'
    assert error.detail.startswith("The row's key is id 10. The first byte at fault is 0xe9.")
    assert """convert_to("word", 'SQL_ASCII')""" in error.hint


def test_values_that_are_many_or_large_are_not_remembered() -> None:
    known: KnownValues[str] = KnownValues()
    for number in range(20):
        known.keep(bytes([number]) * (1 << 20), "large")
    assert not known
    for number in range(70_000):
        known.keep(number.to_bytes(3, "big"), "small")
    assert len(known) == 65_536
    others: KnownValues[str] = KnownValues()
    for number in range(1_000):
        others.keep(number.to_bytes(2, "big") * (1 << 14), "medium")
    assert len(others) == 512


@given(st.lists(st.integers(1, 200), max_size=6), st.integers(1, 90))
def test_groups_of_rows_have_all_rows_in_order(sizes: list[int], most_rows: int) -> None:
    values = [(n, "x" * (size % 7)) for place, size in enumerate(sizes) for n in range(place, place + size)]
    data = bytes(stream([INT, TEXT], values))[len(SIGNATURE) + 8 :]
    segments, _ = row_segments(data, 0, 2)
    groups = list(grouped(segments, most_rows))
    assert [sum(segment.rows for segment in group) for group in groups[:-1]] == [most_rows] * (len(groups) - 1)
    read = [
        int.from_bytes(segment.data[start : start + 4], "big")
        for group in groups
        for segment in group
        for start in segment.spans(0)[0].tolist()
    ]
    assert read == [number for number, _ in values]


def test_no_block_is_taken_after_a_failure() -> None:
    taken: list[int] = []

    def take(block: bytearray) -> None:
        taken.append(len(block))
        raise DataError("broken")

    def feed_all() -> None:
        with BackgroundFeed(take) as feed:
            for size in range(1, 4):
                feed.put(bytearray(size))

    with pytest.raises(DataError, match="broken"):
        feed_all()
    assert taken == [1]
