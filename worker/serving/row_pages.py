"""Joins the rows of a COPY to pages of equal size, also across the blocks in which they arrive and across tables.

Each page is one exchange between a session and the service. Without this, each block of a COPY would end with a small
page, and so would each table of a partitioned one.
"""

from collections.abc import Callable, Sequence

from indb_tensile.learning.decoding.copyrows import Segment, grouped

MOST_ROWS = 4096  # equal to the most that a session sends in one request
MOST_WAITING_BYTES = 2 << 20  # of rows that do not fill a page: equal to the size of a block

TakePage = Callable[[list[Segment]], None]


class RowPages:
    """Calls `take` with the segments of each page.

    The rows of the first block do not wait for those of the next one. So its last page may have fewer rows, as have
    the very last page and pages of large rows.
    """

    def __init__(self, take: TakePage) -> None:
        self._take = take
        self._waiting: list[Segment] = []
        self._waiting_bytes = 0.0
        self._begun = False

    def add(self, segments: Sequence[Segment]) -> None:
        """Add the rows of a block, which share their data."""
        rows = _rows(segments)
        row_bytes = len(segments[0].data) / rows
        pages = list(grouped([*self._waiting, *segments], MOST_ROWS))
        for page in pages[:-1]:
            self._take(page)
        self._waiting = pages[-1]
        left = _rows(self._waiting)
        # More rows are left than the block had only if none were taken.
        self._waiting_bytes = left * row_bytes if left <= rows else self._waiting_bytes + rows * row_bytes
        if left == MOST_ROWS or self._waiting_bytes >= MOST_WAITING_BYTES or not self._begun:
            self.end()
        self._begun = True

    def end(self) -> None:
        """Hand over the rows that are left."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0.0
        if waiting:
            self._take(waiting)


def _rows(segments: Sequence[Segment]) -> int:
    return sum(segment.rows for segment in segments)
