"""The channel between device and host in TENSILE's model: one transfer at a time, in free intervals.

TENSILE section IV-C treats the PCIe channel as exclusive: while one tensor is swapped, in whichever direction, no
other one is. Our link has two lanes, and tensile+ plans with both. This module follows the paper, which plans fewer
copies than the link could take. The paper does not say what happens where an iteration meets the next. The iteration
repeats, so the channel is cyclic: an interval taken in one iteration is taken in all of them, and an interval that
passes the end continues at the start.
"""

from bisect import bisect_left, bisect_right


class Channel:
    """The intervals of a repeating iteration that are taken by transfers. The other intervals are free."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._starts: list[int] = []  # within one period, apart from each other, in order
        self._ends: list[int] = []

    def earliest(self, ready_ns: int, due_ns: int, duration_ns: int) -> int | None:
        """Return the first start of a transfer in a free interval between these times; None if there is none."""
        start_ns = ready_ns
        while start_ns + duration_ns <= due_ns:
            busy = self._first_after(start_ns)
            if busy is None or busy[0] >= start_ns + duration_ns:
                return start_ns
            start_ns = busy[1]
        return None

    def latest(self, ready_ns: int, due_ns: int, duration_ns: int) -> int | None:
        """Return the last start of a transfer in a free interval between these times; None if there is none."""
        start_ns = due_ns - duration_ns
        while start_ns >= ready_ns:
            busy = self._last_before(start_ns + duration_ns)
            if busy is None or busy[1] <= start_ns:
                return start_ns
            start_ns = busy[0] - duration_ns
        return None

    def take(self, start_ns: int, duration_ns: int) -> None:
        """Occupy a free interval."""
        for first_ns, last_ns in self._parts(start_ns, duration_ns):
            at = bisect_left(self._starts, first_ns)
            low, high = at, at
            if at and self._ends[at - 1] == first_ns:
                low, first_ns = at - 1, self._starts[at - 1]
            if at < len(self._starts) and self._starts[at] == last_ns:
                high, last_ns = at + 1, self._ends[at]
            self._starts[low:high], self._ends[low:high] = [first_ns], [last_ns]

    def give_back(self, start_ns: int, duration_ns: int) -> None:
        """Free an occupied interval."""
        for first_ns, last_ns in self._parts(start_ns, duration_ns):
            at = bisect_right(self._starts, first_ns) - 1
            pieces = ((self._starts[at], first_ns), (last_ns, self._ends[at]))
            left = [(start, end) for start, end in pieces if start < end]
            self._starts[at : at + 1] = [start for start, _ in left]
            self._ends[at : at + 1] = [end for _, end in left]

    def busy(self) -> tuple[tuple[int, int], ...]:
        """Return the occupied intervals of one period."""
        return tuple(zip(self._starts, self._ends, strict=True))

    def _first_after(self, time_ns: int) -> tuple[int, int] | None:
        """Return the first busy interval that ends after this time."""
        if not self._starts:
            return None
        period, rest_ns = divmod(time_ns, self._period_ns)
        at = bisect_right(self._ends, rest_ns)
        if at == len(self._starts):
            period, at = period + 1, 0
        return self._starts[at] + period * self._period_ns, self._ends[at] + period * self._period_ns

    def _last_before(self, time_ns: int) -> tuple[int, int] | None:
        """Return the last busy interval that starts before this time."""
        if not self._starts:
            return None
        period, rest_ns = divmod(time_ns, self._period_ns)
        at = bisect_left(self._starts, rest_ns) - 1
        if at < 0:
            period, at = period - 1, len(self._starts) - 1
        return self._starts[at] + period * self._period_ns, self._ends[at] + period * self._period_ns

    def _parts(self, start_ns: int, duration_ns: int) -> list[tuple[int, int]]:
        """Return the interval within one period, in two parts if it passes the end."""
        start_ns %= self._period_ns
        end_ns = start_ns + duration_ns
        if end_ns <= self._period_ns:
            return [(start_ns, end_ns)]
        return [(start_ns, self._period_ns), (0, end_ns - self._period_ns)]
