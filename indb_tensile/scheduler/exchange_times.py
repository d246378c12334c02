"""The times of exchanges with other devices, which run on the network's lane beside the operators.

The latency of an operator that waits for an exchange is the exchange's own time. What the operator then adds to an
iteration is only what is left of the exchange when the operator comes. The simulator (simulate.py) computes that for
each plan. Searches for plans, and sums of latencies, take it from the captured order without waits for copies.

Measured latencies have in them what exchanges and operators on one processor cost each other. In latencies from which
a first training is foretold it is missing, and `beside_each_other` adds it.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import StepGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTime:
    """The time of an exchange for which the step waits, and of the same one beside the operators of the step.

    If all of it runs beside operators, these end `lost_ns` later.
    """

    alone_ns: int
    beside_ns: int
    lost_ns: int

    def __post_init__(self) -> None:
        if not (0 <= self.lost_ns <= self.beside_ns and 0 <= self.alone_ns <= self.beside_ns):
            raise InvariantError(
                f"an exchange of {self.alone_ns} ns takes {self.beside_ns} ns beside operators, "
                f"which lose {self.lost_ns} ns"
            )

    @classmethod
    def free(cls, time_ns: int) -> "ExchangeTime":
        """Return the time of an exchange that costs operators nothing."""
        return cls(alone_ns=time_ns, beside_ns=time_ns, lost_ns=0)

    def then(self, other: "ExchangeTime") -> "ExchangeTime":
        """Return the time of both, one after the other."""
        return ExchangeTime(
            alone_ns=self.alone_ns + other.alone_ns,
            beside_ns=self.beside_ns + other.beside_ns,
            lost_ns=self.lost_ns + other.lost_ns,
        )

    def stretched(self, multiple: float) -> "ExchangeTime":
        """Return this multiple of the time."""
        alone_ns, beside_ns, lost_ns = (round(multiple * ns) for ns in (self.alone_ns, self.beside_ns, self.lost_ns))
        return ExchangeTime(alone_ns=alone_ns, beside_ns=beside_ns, lost_ns=lost_ns)

    def ending_with(self, others: Iterable["ExchangeTime"]) -> "ExchangeTime":
        """Return the time of this transfer, if it ends when those of other ranks have ended, too."""
        every = [self, *others]
        return ExchangeTime(
            alone_ns=max(time.alone_ns for time in every),
            beside_ns=max(time.beside_ns for time in every),
            lost_ns=self.lost_ns,
        )

    def with_work(self, work_ns: int) -> "ExchangeTime":
        """Return the time of this transfer with work of the exchange's thread, which shares the processors likewise.

        Where transfers take a processor from the operators, the work does so for its whole time.
        """
        share = min(1.0, self.lost_ns / max(1, self.alone_ns))
        lost_ns = round(share * work_ns)
        return self.then(ExchangeTime(alone_ns=work_ns, beside_ns=work_ns + lost_ns, lost_ns=lost_ns))


def blocking_ns(graph: StepGraph, latency_ns: Sequence[int]) -> tuple[int, ...]:
    """Return the nanoseconds of each operator, and of one that waits for an exchange those for which it waits."""
    if not any(operator.awaits is not None for operator in graph.operators):
        return tuple(latency_ns)
    steps = [*zip(graph.operators, latency_ns, strict=True)]
    exchange_ns = {operator.awaits: ns for operator, ns in steps if operator.awaits is not None}
    ends_ns: dict[int, int] = {}
    now_ns = free_ns = 0
    result_ns = []
    for operator, latency in steps:
        own_ns = latency if operator.awaits is None else max(0, ends_ns[operator.awaits] - now_ns)
        now_ns += own_ns
        result_ns.append(own_ns)
        if operator.starts is not None:
            free_ns = ends_ns[operator.starts] = max(now_ns, free_ns) + exchange_ns[operator.starts]
    return tuple(result_ns)


def beside_each_other(
    graph: StepGraph, latency_ns: Sequence[int], exchanges: Mapping[int, ExchangeTime]
) -> tuple[int, ...]:
    """Return the latencies that operators and exchanges have if they run beside each other in the captured order.

    `latency_ns` has those of operators without exchanges, and `exchanges` the time of each exchange by its number. An
    operator takes longer by what exchanges beside it take of the processor. The latency of an operator that waits for
    an exchange is the time from the beginning of the exchange to its end.
    """
    lane = _BusyLane()
    result_ns: list[float] = []
    for operator, own_ns in zip(graph.operators, latency_ns, strict=True):
        if operator.awaits is None:
            result_ns.append(lane.compute(own_ns))
        else:
            lane.await_end(operator.awaits)
            result_ns.append(lane.taken_ns.pop(operator.awaits))
        if operator.starts is not None:
            lane.start(operator.starts, exchanges[operator.starts])
    return tuple(map(round, result_ns))


@dataclass(slots=True)
class _UnderWay:
    """An exchange that was started, and the part of it that is left."""

    number: int
    time: ExchangeTime
    begin_ns: float
    left: float = 1.0


class _BusyLane:
    """The clock of a step, and the exchanges under way, of which the first one runs."""

    def __init__(self) -> None:
        self.taken_ns: dict[int, float] = {}  # by the exchanges that have ended
        self._now_ns = 0.0
        self._queue: deque[_UnderWay] = deque()

    def start(self, number: int, time: ExchangeTime) -> None:
        """Queue an exchange, which runs after those before it."""
        self._queue.append(_UnderWay(number, time, self._now_ns))

    def compute(self, own_ns: float) -> float:
        """Run an operator that takes `own_ns` alone. Return how long it takes."""
        begin_ns, left_ns = self._now_ns, own_ns
        while left_ns > 0 and self._queue:
            first = self._queue[0]
            pace = 1 - first.time.lost_ns / max(1, first.time.beside_ns)  # of the operator
            rest_ns = first.left * first.time.beside_ns
            if left_ns < rest_ns * pace:
                first.left -= left_ns / pace / first.time.beside_ns
                self._now_ns += left_ns / pace
                return self._now_ns - begin_ns
            left_ns -= rest_ns * pace
            self._end_first(rest_ns)
        self._now_ns += left_ns
        return self._now_ns - begin_ns

    def await_end(self, number: int) -> None:
        """Wait until this exchange has ended. Meanwhile nothing else needs the processor."""
        while number not in self.taken_ns:
            self._end_first(self._queue[0].left * self._queue[0].time.alone_ns)

    def _end_first(self, rest_ns: float) -> None:
        self._now_ns += rest_ns
        ended = self._queue.popleft()
        self.taken_ns[ended.number] = self._now_ns - ended.begin_ns
        if self._queue:
            self._queue[0].begin_ns = self._now_ns
