"""Check that the rows of a COPY are joined to pages across blocks and tables, in order and within a bound."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.learning.decoding.copyrows import Run, Segment
from worker.serving.row_pages import MOST_ROWS, MOST_WAITING_BYTES, RowPages


def block(first: int, rows: int, row_bytes: int = 12) -> list[Segment]:
    """Return a block of rows of one number of eight bytes, in two segments if there are two rows or more."""
    data = b"".join((first + row).to_bytes(row_bytes, "big") for row in range(rows))
    whole = Run(data, rows, row_bytes, (row_bytes - 8,), (8,))
    return [whole] if rows == 1 else [whole.part(0, rows // 2), whole.part(rows // 2, rows)]


def numbers(page: Sequence[Segment]) -> list[int]:
    return [
        int.from_bytes(segment.data[start : start + 8], "big")
        for segment in page
        for start in segment.spans(0)[0].tolist()
    ]


def pages_of(sizes: Sequence[int], row_bytes: int = 12) -> list[list[int]]:
    """Return the pages of blocks of so many rows, whose numbers count from 0."""
    taken: list[list[int]] = []
    pages = RowPages(lambda page: taken.append(numbers(page)))
    first = 0
    for rows in sizes:
        pages.add(block(first, rows, row_bytes))
        first += rows
    pages.end()
    pages.end()
    return taken


@given(st.lists(st.integers(1, 3 * MOST_ROWS), max_size=6))
def test_pages_have_all_rows_in_order_and_all_but_the_first_blocks_and_the_last_are_full(sizes: list[int]) -> None:
    taken = pages_of(sizes)
    assert [number for page in taken for number in page] == list(range(sum(sizes)))
    first, rest = (sizes[0], sum(sizes[1:])) if sizes else (0, 0)
    assert [len(page) for page in taken] == [
        size for rows in (first, rest) for size in [MOST_ROWS] * (rows // MOST_ROWS) + [rows % MOST_ROWS] if size
    ]


def test_small_tables_share_a_page_and_the_first_one_does_not_wait() -> None:
    assert [len(page) for page in pages_of([10, *[10] * 1000])] == [10, 4096, 4096, 1808]


def test_large_rows_wait_within_a_bound() -> None:
    row_bytes = MOST_WAITING_BYTES // 8
    assert [len(page) for page in pages_of([1] * 20, row_bytes)] == [1, 8, 8, 3]
