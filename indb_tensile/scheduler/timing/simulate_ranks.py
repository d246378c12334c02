"""The simulator of the ranks of one training: computes the time of their steps together, under a plan for each rank.

Each rank has a device with copy lanes of its own, and may have another plan, budget and link than the others. An
exchange begins when the last rank has started it and the exchange before it has ended, and it ends for all ranks at
once. So a rank that is late, as its copies are, makes all others wait, and their waits are counted.

Ranks on one host share its processors with their exchanges. Where all ranks of a host compute beside an exchange, it
takes the time that was measured so, and their operators lose what was measured; where none does, it takes the time
that was measured alone. In between both grow with the share of the host's ranks that compute. The slowest rank's time
of an exchange counts, because each message needs its sender and its receiver.

This is a fluid simulation: between two events every operator and the exchange under way progress at a constant pace.
`simulate` (simulate.py) foretells several jobs on one device, with the exchanges of each as measured latencies. With
equal plans and exchanges that cost operators nothing both give the same times.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.graph import Stage
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.next_batch import batch_tensors, uploads_ahead_from
from indb_tensile.scheduler.memory.peak import peak
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.timing.copy_flow import Copy, Flow, Lane
from indb_tensile.scheduler.timing.iteration_stops import IterationStop, stops_of
from indb_tensile.scheduler.timing.job_runs import Forecast, JobRun
from indb_tensile.scheduler.timing.rank_steps import PublishedStep

# Iterations of the first rank within which the state of all ranks repeats. Otherwise the later half is averaged.
_MOST = 24
_ALMOST_NS = 1e-3  # the remainder below which an operator or an exchange counts as done, because of rounding
_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """The step of one rank under its plan, on a device of its own behind `link`.

    The latencies of `run` are those without other ranks; of an operator that waits for an exchange they do not count.
    `exchanges` has the time of each exchange as this rank sees it. `between_ns` passes before the first operator of
    each iteration, since the last one of the iteration before. The rank computes then, too.
    """

    run: JobRun
    exchanges: tuple[ExchangeTime, ...]
    link: Link
    host: str = ""
    between_ns: int = 0

    def __post_init__(self) -> None:
        started = sum(operator.starts is not None for operator in self.run.graph.operators)
        if started != len(self.exchanges):
            raise InvariantError(f"rank run: times of {len(self.exchanges)} exchanges for {started} exchanges")
        operators = zip(self.run.graph.operators, self.run.latency_ns, strict=True)
        computed = any(op.stage is Stage.UPLOAD or (op.awaits is None and ns) for op, ns in operators)
        if not computed and not any(time.alone_ns for time in self.exchanges):
            raise InvariantError("rank run: its step takes no time")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankForecast:
    """The mean iteration of one rank in steady state. Of `forecast.exchange_ns` it waits `late_ns` for late ranks."""

    forecast: Forecast
    late_ns: int


def simulate_ranks(ranks: Sequence[RankRun], *, cache: PlanCache | None = None) -> tuple[RankForecast, ...]:
    """Run all ranks from their home states until the pattern repeats. Return each rank's mean iteration.

    Raises InvariantError if the ranks do not make the same number of exchanges.
    """
    counts = {len(rank.exchanges) for rank in ranks}
    if len(counts) != 1:
        raise InvariantError(f"ranks make different numbers of exchanges in a step: {sorted(counts)}")
    return _Gang(ranks, PlanCache() if cache is None else cache).forecasts()


def without_waits(ranks: Sequence[RankRun]) -> tuple[RankRun, ...]:
    """Return ranks whose exchanges were measured, without what each of them waited for the others meanwhile.

    The rank that comes last to an exchange waits for nobody. So the shortest of the ranks' times is the exchange's.
    """
    times = [
        min(own, key=lambda time: time.alone_ns) for own in zip(*(rank.exchanges for rank in ranks), strict=True)
    ]
    return tuple(replace(rank, exchanges=tuple(times)) for rank in ranks)


def step_of_rank(rank: RankRun, *, cache: PlanCache | None = None) -> PublishedStep:
    """Return what other ranks need to know of this one's mean iteration in steady state."""
    gang = _Gang([rank], PlanCache() if cache is None else cache)
    gang.forecasts()
    events, work_ns = gang.ranks[0].own_work()
    return PublishedStep(events=events, work_ns=work_ns, exchange_ns=tuple(time.alone_ns for time in rank.exchanges))


# --- one rank ----------------------------------------------------------------------------------------------------


class _Cause(IntEnum):
    """What a rank's time is spent on."""

    COMPUTE = 0
    LATE_OUT = 1
    LATE_IN = 2
    UPLOAD = 3
    EXCHANGE = 4  # the rest of an exchange that is under way
    LATE_RANK = 5  # an exchange that another rank has not come to yet


@dataclass(slots=True)
class _Activity:
    """What a rank does until something ends: an operator, a copy, or the exchange of this number."""

    cause: _Cause
    left_ns: float = 0.0
    copy: Copy | None = None
    exchange: int = 0

    @property
    def computes(self) -> bool:
        return self.cause is _Cause.COMPUTE


class _Rank:
    """The progress of one rank, its counters, and its program: a generator of what it does one after another."""

    def __init__(self, rank: RankRun, cache: PlanCache) -> None:
        run, self.rank = rank.run, rank
        self.graph = effective(run.graph, run.plan, cache)
        batch = batch_tensors(run.graph, run.batch)
        self._stops = stops_of(
            self.graph,
            run.plan,
            run.latency_ns,
            rank.link,
            frozenset(),
            every=False,
            copy_loss=run.copy_loss,
            batch=batch,
            ahead_from=uploads_ahead_from(run.graph, run.plan, batch, cache, beside=run.beside),
        )
        self.flow = Flow(rank.link.duplex)
        self.totals = [0.0] * len(_Cause)
        self.marks: list[tuple[float, ...]] = []  # (time, *totals) at each iteration's start
        self.window = (0, 0)  # the rank is measured between these two marks
        self._met: list[
            tuple[int, float]
        ] = []  # events of `PublishedStep`, and when they came without waits for ranks
        self.started = 0  # exchanges since the beginning
        self._position = 0  # of the stop in the iteration
        self._outs: list[Copy | None] = [None] * len(run.plan.swaps)  # the latest copies of each swap
        self._ins: list[Copy | None] = [None] * len(run.plan.swaps)
        self._ahead: dict[int, Copy] = {}  # uploads for the next iteration, by operator
        self._program = self._activities()
        self.activity = next(self._program)

    @property
    def iterations(self) -> int:
        """The number of iterations that have begun."""
        return len(self.marks)

    def act(self, ended: int) -> bool:
        """Go on to what the rank does next if its activity has ended. Return whether it has.

        `ended` exchanges have ended since the beginning.
        """
        if not self._has_ended(ended):
            return False
        self.activity = next(self._program)
        return True

    def own_work(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return events and times of `PublishedStep` for the window that was measured."""
        first, last = self.window
        count = 2 * len(self.rank.exchanges)
        events = tuple(event for event, _ in self._met[first * count : (first + 1) * count])
        sums_ns = [0.0] * (count + 1)
        for number in range(first, last):
            met_ns = [ns for _, ns in self._met[number * count : (number + 1) * count]]
            begin_ns, end_ns = (_without_exchanges(self.marks[mark]) for mark in (number, number + 1))
            for place, (before, after) in enumerate(pairwise((begin_ns, *met_ns, end_ns))):
                sums_ns[place] += after - before
        return events, tuple(round(total_ns / (last - first)) for total_ns in sums_ns)

    def state(self) -> tuple[object, ...]:
        """Return all of the past that matters to what comes, and how long the present iteration has run, rounded.

        Means are taken from one iteration's start to another one's, so these must be equally long ago.
        """
        copies = (*self._outs, *self._ins, *self._ahead.values(), self.activity.copy)
        left_ns = tuple(0 if copy is None else round(copy.left_ns, 2) for copy in copies)
        begun_ns = round(self.flow.now_ns - self.marks[-1][0], 2)
        return self._position, self.activity.cause, round(self.activity.left_ns, 2), left_ns, begun_ns

    def _has_ended(self, ended: int) -> bool:
        activity = self.activity
        if activity.copy is not None:
            return activity.copy.done_ns <= self.flow.now_ns
        if activity.computes:
            return activity.left_ns <= _ALMOST_NS
        return activity.exchange < ended

    def _activities(self) -> Iterator[_Activity]:
        yield _Activity(_Cause.COMPUTE)
        exchanges = len(self.rank.exchanges)
        while True:
            begun = len(self.marks) * exchanges
            self.marks.append((self.flow.now_ns, *self.totals))
            for position, stop in enumerate(self._stops):
                self._position = position
                yield from self._pass(stop, begun)

    def _pass(self, stop: IterationStop, begun: int) -> Iterator[_Activity]:
        """Start what starts at this boundary, wait for what it needs, and compute until the next one."""
        self._start_after_operator(stop)
        if stop.operator == 0 and self.rank.between_ns:
            yield _Activity(_Cause.COMPUTE, left_ns=float(self.rank.between_ns))
        for swap in stop.frees:
            yield from _wait(self._outs[swap], _Cause.LATE_OUT)
        for swap, duration_ns in stop.ins:
            self._ins[swap] = self.flow.queue(Lane.IN, 0, duration_ns)
        for operator, duration_ns in stop.ahead:
            self._ahead[operator] = self.flow.queue(Lane.IN, 0, duration_ns)
        for swap in stop.needs:
            yield from _wait(self._ins[swap], _Cause.LATE_IN)
        if stop.upload_ns:
            ahead = self._ahead.pop(stop.operator, None)
            yield from _wait(ahead or self.flow.queue(Lane.IN, 0, stop.upload_ns), _Cause.UPLOAD)
        if stop.awaits is not None:
            self._meet(-1 - stop.awaits)
            yield _Activity(_Cause.EXCHANGE, exchange=begun + stop.awaits)
        if stop.compute_ns:
            yield _Activity(_Cause.COMPUTE, left_ns=float(stop.compute_ns))

    def _start_after_operator(self, stop: IterationStop) -> None:
        """Start the exchange and the copies out that follow the operator before this boundary."""
        if stop.starts is not None:
            self.started += 1
            self._meet(stop.starts[0])
        for swap, duration_ns in stop.outs:
            self._outs[swap] = self.flow.queue(Lane.OUT, 0, duration_ns)

    def _meet(self, event: int) -> None:
        self._met.append((event, _without_exchanges((self.flow.now_ns, *self.totals))))


def _without_exchanges(mark: Sequence[float]) -> float:
    """Return the time of a mark less all waits for exchanges before it."""
    return mark[0] - mark[1 + _Cause.EXCHANGE] - mark[1 + _Cause.LATE_RANK]


def _wait(copy: Copy | None, cause: _Cause) -> Iterator[_Activity]:
    if copy is not None:
        yield _Activity(cause, copy=copy)


# --- all ranks in the order of time ------------------------------------------------------------------------------


class _Gang:
    """The event loop: all ranks, their hosts, and the exchange that is next or under way."""

    def __init__(self, ranks: Sequence[RankRun], cache: PlanCache) -> None:
        self.ranks = [_Rank(rank, cache) for rank in ranks]
        self._cache = cache
        self._now_ns = 0.0
        self._ended = 0  # exchanges
        self._left = 1.0  # of the next exchange
        self._on_host = Counter(rank.host for rank in ranks)

    def forecasts(self) -> tuple[RankForecast, ...]:
        """Run until the state of all ranks at an iteration's start equals that of an earlier iteration."""
        first = self.ranks[0]
        seen: dict[tuple[object, ...], list[int]] = {}
        while min(rank.iterations for rank in self.ranks) <= _MOST:
            before = first.iterations
            self._act()
            if first.iterations > before:
                state, reached = self._state(), [rank.iterations - 1 for rank in self.ranks]
                if state in seen:
                    return self._measured(seen[state], reached)
                seen.setdefault(state, reached)
            self._advance()
        ends = [rank.iterations - 1 for rank in self.ranks]
        return self._measured([end // 2 for end in ends], ends)

    def _measured(self, firsts: Sequence[int], lasts: Sequence[int]) -> tuple[RankForecast, ...]:
        for rank, *window in zip(self.ranks, firsts, lasts, strict=True):
            rank.window = (window[0], window[1])
        return tuple(_forecast(rank, self._cache) for rank in self.ranks)

    def _state(self) -> tuple[object, ...]:
        first = self.ranks[0]
        exchanges = len(first.rank.exchanges)
        ahead = tuple(rank.iterations - first.iterations for rank in self.ranks)
        states = tuple(rank.state() for rank in self.ranks)
        return ahead, states, self._ended - first.iterations * exchanges, round(self._left, 9)

    def _act(self) -> None:
        """Let all ranks go on until each of them does something that takes time."""
        while True:
            acted = False
            for rank in self.ranks:
                while rank.act(self._ended):
                    acted = True
            if self._under_way and self._duration_ns() * self._left <= _ALMOST_NS:
                self._ended, self._left = self._ended + 1, 1.0
                acted = True
            if not acted:
                return

    @property
    def _under_way(self) -> bool:
        """Whether all ranks have come to the next exchange."""
        return all(rank.started > self._ended for rank in self.ranks)

    def _advance(self) -> None:
        """Advance the time to the next event."""
        under_way = self._under_way
        duration_ns = self._duration_ns() if under_way else _NEVER
        paces = [self._pace(rank, duration_ns) if rank.activity.computes else 0.0 for rank in self.ranks]
        times_ns = [rank.activity.left_ns / pace for rank, pace in zip(self.ranks, paces, strict=True) if pace > 0]
        times_ns += [rank.flow.next_ns() - self._now_ns for rank in self.ranks if rank.activity.copy is not None]
        if under_way:
            times_ns.append(self._left * duration_ns)
        passed_ns = min(times_ns, default=_NEVER)
        if passed_ns == _NEVER:
            waits = ", ".join(f"rank {number} for {rank.activity}" for number, rank in enumerate(self.ranks))
            raise InvariantError(f"all ranks wait for each other: {waits}")
        self._now_ns += passed_ns
        for rank, pace in zip(self.ranks, paces, strict=True):
            rank.flow.advance(self._now_ns)
            rank.activity.left_ns -= passed_ns * pace
            is_late = rank.activity.cause is _Cause.EXCHANGE and not under_way
            rank.totals[_Cause.LATE_RANK if is_late else rank.activity.cause] += passed_ns
        if under_way:
            self._left -= passed_ns / duration_ns

    def _duration_ns(self) -> float:
        """Return the time of the whole next exchange if all ranks go on as they do now."""
        number = self._ended % len(self.ranks[0].rank.exchanges)
        return max(self._exchange_ns(rank, rank.rank.exchanges[number]) for rank in self.ranks)

    def _exchange_ns(self, rank: _Rank, time: ExchangeTime) -> float:
        return time.alone_ns + (time.beside_ns - time.alone_ns) * self._busy_share(rank)

    def _busy_share(self, rank: _Rank) -> float:
        """Return the share of the ranks on the host of this one that compute now."""
        host = rank.rank.host
        busy = [other for other in self.ranks if other.rank.host == host and other.activity.computes]
        return len(busy) / self._on_host[host]

    def _pace(self, rank: _Rank, duration_ns: float) -> float:
        """Return the pace of this rank's operator, beside an exchange that takes so long in all."""
        if duration_ns in (0.0, _NEVER):
            return 1.0
        number = self._ended % len(rank.rank.exchanges)
        return 1 - self._busy_share(rank) * rank.rank.exchanges[number].lost_ns / duration_ns


def _forecast(rank: _Rank, cache: PlanCache) -> RankForecast:
    first, last = rank.window
    means = [round((b - a) / (last - first)) for a, b in zip(rank.marks[first], rank.marks[last], strict=True)]
    graph, swaps = rank.graph, rank.rank.run.plan.swaps
    forecast = Forecast(
        iteration_ns=means[0],
        compute_ns=means[1 + _Cause.COMPUTE],
        stall_out_ns=means[1 + _Cause.LATE_OUT],
        stall_in_ns=means[1 + _Cause.LATE_IN],
        upload_ns=means[1 + _Cause.UPLOAD],
        exchange_ns=means[1 + _Cause.EXCHANGE] + means[1 + _Cause.LATE_RANK],
        peak_bytes=peak(rank.rank.run.graph, rank.rank.run.plan, cache),
        out_bytes=sum(graph.tensors[s.tensor].size_bytes for s in swaps if s.copies),
        in_bytes=sum(graph.tensors[s.tensor].size_bytes for s in swaps),
    )
    return RankForecast(forecast=forecast, late_ns=means[1 + _Cause.LATE_RANK])
