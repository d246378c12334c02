"""What each rank of a training lets the others know of its step, and the iteration that follows for all of them.

A rank's controller knows the graph and the plan of its own rank. Of another rank it needs only the time that passes
there between one exchange and the next, because ranks meet at nothing but exchanges. Copies that are late, other jobs
on the device and a slower device are all in these times. `PublishedStep` has them, as the other ranks read them.

`iteration_together` computes the iteration of all ranks from their steps. An exchange begins when the last rank has
started it and the exchange before it has ended. Times between exchanges are constants here. `simulate_ranks`
(simulate_ranks.py) also has copies that go on during a wait, and exchanges that take a processor from operators, for
which it needs all graphs and plans.

A measured exchange contains the waits for the other ranks. The rank that comes to it last waits for nobody, so the
least of the ranks' measured times is that of the exchange (`exchange_times`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import StepGraph

# Iterations within which the distances between the ranks repeat. Otherwise the later half is averaged.
_MOST = 24
_ALMOST = 0.05  # a rank that is slower than the others by less than this share of its time keeps nobody waiting
MOST_EXCHANGES = 2_000  # in a step; a network of two gigabytes has as many buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStep:
    """One iteration of a rank under its plan, without waits for other ranks.

    `events` are in the order of the step: k where the rank starts its exchange k, and -1 - k where it waits for its
    end. `work_ns` is the time before each event, and after the last one. `exchange_ns` is the time of each exchange
    as this rank sees it; if `measured`, the waits for other ranks are in it.

    `iteration_ns` is the whole iteration as this rank foretells it. `least_ns` is that under the fastest plan that
    the device could have for this rank. With `yields` the rank follows a slower plan only because other ranks are no
    faster.
    """

    events: tuple[int, ...]
    work_ns: tuple[int, ...]
    exchange_ns: tuple[int, ...]
    measured: bool = False
    iteration_ns: int = 0
    least_ns: int = 0
    yields: bool = False

    def __post_init__(self) -> None:
        count = len(self.exchange_ns)
        if count > MOST_EXCHANGES:
            raise InvariantError(f"a rank's step has {count} exchanges, more than {MOST_EXCHANGES}")
        starts = [event for event in self.events if event >= 0]
        waits = [-1 - event for event in self.events if event < 0]
        if starts != [*range(count)] or sorted(waits) != starts:
            raise InvariantError(f"a rank's step starts exchanges {starts} and waits for {waits}, of {count} in all")
        place = {event: at for at, event in enumerate(self.events)}
        if any(place[-1 - k] < place[k] for k in range(count)):
            raise InvariantError("a rank's step waits for an exchange that it has not started")
        if len(self.work_ns) != len(self.events) + 1:
            raise InvariantError(f"a rank's step has {len(self.work_ns)} times for {len(self.events)} events")
        if min((*self.work_ns, *self.exchange_ns, self.iteration_ns, self.least_ns)) < 0 or not sum(
            (*self.work_ns, *self.exchange_ns)
        ):
            raise InvariantError("a rank's step takes no time, or less")

    def alone_ns(self, times_ns: Sequence[int]) -> int:
        """Return the iteration if the others are never late, and exchanges take these times."""
        return round(_period_ns((self,), times_ns))

    def needed_ns(self, times_ns: Sequence[int]) -> int:
        """Return the iteration that the others cannot make shorter: a rank that yields would follow a faster plan."""
        own_ns = self.alone_ns(times_ns)
        return min(own_ns, self.least_ns) if self.yields else own_ns

    def scaled(self, work_ns: float) -> "PublishedStep":
        """Return the step of a rank that spends so long between exchanges in all."""
        before_ns = sum(self.work_ns)
        if before_ns <= 0 or work_ns <= 0:
            return self
        return replace(self, work_ns=tuple(round(ns * work_ns / before_ns) for ns in self.work_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRanks:
    """What is known of the other ranks of a training: the step of each that has let it be known, by its number.

    `needed_ns` is the longest iteration that one of them needs, or 0 if nothing is known of them. A rank gains
    nothing by a plan that is faster than that.
    """

    steps: tuple[tuple[int, PublishedStep], ...] = ()
    needed_ns: int = 0

    @classmethod
    def of(cls, steps: Sequence[tuple[int, PublishedStep]], own: PublishedStep | None = None) -> "OtherRanks":
        """Return what follows from these steps, and from that of this rank, which knows the times of exchanges, too.

        Ranks that make other exchanges than the first of all these do not count.
        """
        first = own or next((step for _, step in steps), None)
        if first is None:
            return cls()
        exchanges = len(first.exchange_ns)
        alike = tuple((rank, step) for rank, step in sorted(steps, key=_number) if _makes(step, exchanges))
        times_ns = exchange_times([step for _, step in alike] + ([own] if own else []))
        return cls(steps=alike, needed_ns=max((step.needed_ns(times_ns) for _, step in alike), default=0))

    def true_exchanges(self, own_ns: Sequence[int]) -> tuple[int, ...]:
        """Return the times of exchanges that this rank has measured, without its waits for other ranks."""
        measured = [step.exchange_ns for _, step in self.steps if step.measured and _makes(step, len(own_ns))]
        return tuple(map(min, zip(own_ns, *measured, strict=True)))

    def with_own(self, rank: int, step: PublishedStep) -> tuple[tuple[int, PublishedStep], ...]:
        """Return the steps of all ranks that are known, this one included, by number."""
        others = tuple(row for row in self.steps if row[0] != rank and _makes(row[1], len(step.exchange_ns)))
        return tuple(sorted((*others, (rank, step)), key=_number))


@dataclass(frozen=True, slots=True, kw_only=True)
class GangForecast:
    """The iteration of all ranks together, and the number of the rank that needs most time for one by itself.

    `slowest` is None if another rank needs nearly as long.
    """

    iteration_ns: int
    slowest: int | None


def iteration_together(steps: Sequence[tuple[int, PublishedStep]]) -> GangForecast:
    """Return what is foretold for these ranks, which make the same exchanges.

    No rank's own iteration is longer. Raises InvariantError if the ranks make different numbers of exchanges.
    """
    if len({len(step.exchange_ns) for _, step in steps}) != 1:
        raise InvariantError(f"ranks make different numbers of exchanges: {[len(s.exchange_ns) for _, s in steps]}")
    times_ns = exchange_times([step for _, step in steps])
    own_ns = sorted(((_period_ns((step,), times_ns), rank) for rank, step in steps), reverse=True)
    is_alone = len(own_ns) > 1 and own_ns[0][0] > (1 + _ALMOST) * own_ns[1][0]
    return GangForecast(
        iteration_ns=round(_period_ns([step for _, step in steps], times_ns)),
        slowest=own_ns[0][1] if is_alone else None,
    )


def latencies_without_waits(graph: StepGraph, latency_ns: Sequence[int], others: OtherRanks) -> tuple[int, ...]:
    """Return the latencies that a rank has measured, without its waits for these other ranks.

    The latency of an operator that waits for an exchange is the time of the exchange.
    """
    if not others.steps:
        return tuple(latency_ns)
    places = {op.awaits: k for k, op in enumerate(graph.operators) if op.awaits is not None}
    ordered = [places[number] for number in sorted(places)]
    true_ns = list(latency_ns)
    for place, ns in zip(ordered, others.true_exchanges([latency_ns[place] for place in ordered]), strict=True):
        true_ns[place] = ns
    return tuple(true_ns)


def exchange_times(steps: Sequence[PublishedStep]) -> tuple[int, ...]:
    """Return the time of each exchange once all ranks have come to it.

    A foretold one takes as long as the slowest rank says, because each message needs its sender and its receiver. Of
    a measured one the least time counts.
    """
    measured = [step.exchange_ns for step in steps if step.measured]
    foretold = [step.exchange_ns for step in steps if not step.measured]
    slowest = [tuple(map(max, zip(*foretold, strict=True)))] if foretold else []
    return tuple(map(min, zip(*measured, *slowest, strict=True)))


def _makes(step: PublishedStep, exchanges: int) -> bool:
    return len(step.exchange_ns) == exchanges


def _number(row: tuple[int, PublishedStep]) -> int:
    return row[0]


def _period_ns(steps: Sequence[PublishedStep], times_ns: Sequence[int]) -> float:
    """Return the mean iteration, from the moments at which ranks begin iterations.

    Each moment is the latest of sums of times, so the distances between ranks repeat sooner or later.
    """
    if len(steps) == 1 and not times_ns:
        return float(sum(steps[0].work_ns))
    clocks_ns = [0] * len(steps)
    seen: dict[tuple[int, ...], int] = {}
    begins_ns: list[int] = []
    while len(begins_ns) <= _MOST:
        begins_ns.append(max(clocks_ns))
        distances = tuple(begins_ns[-1] - clock for clock in clocks_ns)
        if distances in seen:
            first = seen[distances]
            return (begins_ns[-1] - begins_ns[first]) / (len(begins_ns) - 1 - first)
        seen[distances] = len(begins_ns) - 1
        clocks_ns = _after_iteration(steps, times_ns, clocks_ns)
    half = _MOST // 2
    return (begins_ns[_MOST] - begins_ns[half]) / (_MOST - half)


def _after_iteration(steps: Sequence[PublishedStep], times_ns: Sequence[int], begins_ns: Sequence[int]) -> list[int]:
    """Return when each rank has done one more iteration."""
    runs = [_Run(step, begin_ns) for step, begin_ns in zip(steps, begins_ns, strict=True)]
    ends_ns: list[int] = []
    for number, time_ns in enumerate(times_ns):
        starts_ns = [run.until_start(number, ends_ns) for run in runs]
        ends_ns.append(max(*starts_ns, ends_ns[-1] if ends_ns else 0) + time_ns)
    return [run.until_end(ends_ns) for run in runs]


class _Run:
    """One iteration of one rank, as far as it has come."""

    def __init__(self, step: PublishedStep, begin_ns: int) -> None:
        self._step, self._now_ns, self._next = step, begin_ns, 0

    def until_start(self, number: int, ends_ns: Sequence[int]) -> int:
        """Return when the rank starts this exchange. Those before it end at `ends_ns`."""
        while True:
            event = self._step.events[self._next]
            self._pass(event, ends_ns)
            if event == number:
                return self._now_ns

    def until_end(self, ends_ns: Sequence[int]) -> int:
        for event in self._step.events[self._next :]:
            self._pass(event, ends_ns)
        return self._now_ns + self._step.work_ns[-1]

    def _pass(self, event: int, ends_ns: Sequence[int]) -> None:
        self._now_ns += self._step.work_ns[self._next]
        self._next += 1
        if event < 0:
            self._now_ns = max(self._now_ns, ends_ns[-1 - event])
