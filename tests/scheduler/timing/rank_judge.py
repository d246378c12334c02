"""Judges what is foretold of ranks that train together: an event-driven simulation of its own.

It goes from operator to operator of the graph that runs, and shares no code with the simulators: neither stops of an
iteration nor lanes. It is slow, and it goes on until the state of all ranks repeats.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from indb_tensile.scheduler.graph import Stage
from indb_tensile.scheduler.rewrite import effective, effective_latency
from indb_tensile.scheduler.timing.simulate_ranks import RankRun

_MOST_ITERATIONS = 100
# A step is a list of actions. ("copy", lane, swap, ns), ("wait", lane, swap), ("start",), ("await", number) and
# ("compute", ns); lane 0 leads to the host and lane 1 back.
Action = tuple[Any, ...]


def mean_iterations_ns(ranks: Sequence[RankRun]) -> list[float] | None:
    """Return the mean time of an iteration of each rank; None if their state does not repeat soon."""
    return _Judgement(ranks).run()


class _Judgement:
    """All ranks at one moment, and the exchange that is next or under way."""

    def __init__(self, ranks: Sequence[RankRun]) -> None:
        self.ranks = ranks
        self.judged = [_Judged(_actions(rank)) for rank in ranks]
        self.now, self.ended, self.left = 0.0, 0, 1.0

    def run(self) -> list[float] | None:
        first = self.judged[0]
        seen: dict[Any, list[list[float]]] = {}
        while len(first.begun) < _MOST_ITERATIONS:
            new = len(first.begun)
            self._settle()
            if len(first.begun) > new:
                state = self._state()
                if state in seen:
                    return [
                        (rank.begun[-1] - then[-1]) / (len(rank.begun) - len(then))
                        for rank, then in zip(self.judged, seen[state], strict=True)
                    ]
                seen[state] = [list(rank.begun) for rank in self.judged]
            self._pass_time()
        return None

    def _settle(self) -> None:
        """Let everything happen that takes no time."""
        happened = True
        while happened:
            happened = sum(_go_on(rank, self.now, self.ended) for rank in self.judged) > 0
            if not happened and self._runs() and self.left * self._whole() == 0:
                self.ended, self.left, happened = self.ended + 1, 1.0, True

    def _state(self) -> tuple[Any, ...]:
        iterations = len(self.judged[0].begun)
        # Means are taken between two beginnings of an iteration, which must lie equally long before the two states.
        states = tuple(
            (rank.state(), len(rank.begun) - iterations, round(self.now - rank.begun[-1], 2)) for rank in self.judged
        )
        return states, round(self.left, 9), self.ended - iterations * len(self.ranks[0].exchanges)

    def _runs(self) -> bool:
        return all(rank.started > self.ended for rank in self.judged)

    def _whole(self) -> float:
        """Return the time of the whole next exchange at the present pace."""
        times = [rank.exchanges[self.ended % len(rank.exchanges)] for rank in self.ranks if rank.exchanges]
        shares = [self._share(rank.host) for rank in self.ranks]
        return max(
            (t.alone_ns * (1 - share) + t.beside_ns * share for t, share in zip(times, shares, strict=False)),
            default=0.0,
        )

    def _share(self, host: str) -> float:
        here = [own.computes for rank, own in zip(self.ranks, self.judged, strict=True) if rank.host == host]
        return sum(here) / len(here)

    def _pace(self, number: int) -> float:
        rank = self.ranks[number]
        if not self.judged[number].computes:
            return 0.0
        if not self._runs() or self._whole() == 0:
            return 1.0
        lost = rank.exchanges[self.ended % len(rank.exchanges)].lost_ns
        return 1 - self._share(rank.host) * lost / self._whole()

    def _pass_time(self) -> None:
        paces = [self._pace(number) for number in range(len(self.ranks))]
        whole, runs = self._whole(), self._runs()
        lanes = [
            (lane, rank.link.duplex if all(own.lanes) else 1.0)
            for rank, own in zip(self.ranks, self.judged, strict=True)
            for lane in own.lanes
            if lane
        ]
        events = [own.left / pace for own, pace in zip(self.judged, paces, strict=True) if pace > 0]
        events += [lane[0][1] / speed for lane, speed in lanes]
        passed = min([*events, *([self.left * whole] if runs else [])])
        self.now += passed
        for lane, speed in lanes:
            lane[0][1] = _less(lane[0][1], passed * speed)
        for own, pace in zip(self.judged, paces, strict=True):
            own.left = _less(own.left, passed * pace)
            for number, lane in enumerate(own.lanes):
                if lane and lane[0][1] == 0:
                    own.under_way.discard((number, lane.pop(0)[0]))
        if runs:
            self.left = _less(self.left * whole, passed) / whole


@dataclass
class _Judged:
    """One rank: its actions, and how far it has come."""

    actions: list[Action]
    next: int = 0
    left: float = 0.0  # of the operator
    waits: Action | None = None
    started: int = 0
    begun: list[float] = field(default_factory=list)  # when iterations began
    lanes: tuple[list[list[Any]], list[list[Any]]] = field(default_factory=lambda: ([], []))  # [swap, rest] in order
    under_way: set[tuple[int, int]] = field(default_factory=set)  # copies as (lane, swap)

    @property
    def computes(self) -> bool:
        return self.left > 0

    def state(self) -> tuple[Any, ...]:
        lanes = tuple(tuple((swap, round(rest)) for swap, rest in lane) for lane in self.lanes)
        return self.next, round(self.left), self.waits, lanes


def _actions(rank: RankRun) -> list[Action]:
    run = rank.run
    graph = effective(run.graph, run.plan)
    count = len(graph.operators)
    latencies = effective_latency(run.latency_ns, run.plan)
    actions: list[Action] = []
    for k, (operator, latency_ns) in enumerate(zip(graph.operators, latencies, strict=True)):
        compute_ns = latency_ns
        if k > 0 and graph.operators[k - 1].starts is not None:
            actions.append(("start",))
        sizes = [graph.tensors[swap.tensor].size_bytes for swap in run.plan.swaps]
        for number, (swap, size) in enumerate(zip(run.plan.swaps, sizes, strict=True)):
            if swap.copies and (swap.out_after + 1) % count == k:
                actions.append(("copy", 0, number, rank.link.out_ns(size)))
                compute_ns += run.copy_loss.ns(size)
        if k == 0:
            actions.append(("compute", rank.between_ns))
        actions += [("wait", 0, number) for number, swap in enumerate(run.plan.swaps) if swap.free_at == k]
        for number, (swap, size) in enumerate(zip(run.plan.swaps, sizes, strict=True)):
            if swap.in_at == k:
                actions.append(("copy", 1, number, rank.link.in_ns(size)))
                compute_ns += run.copy_loss.ns(size)
        actions += [("wait", 1, number) for number, swap in enumerate(run.plan.swaps) if swap.needed_by == k]
        if operator.stage is Stage.UPLOAD:
            written = sum(graph.tensors[tensor].size_bytes for tensor in set(operator.writes))
            actions += [("copy", 1, -1 - k, rank.link.in_ns(written)), ("wait", 1, -1 - k)]
            compute_ns -= latency_ns
        if operator.awaits is not None:
            actions.append(("await", operator.awaits))
            compute_ns -= latency_ns
        actions.append(("compute", compute_ns))
    return actions


def _go_on(rank: _Judged, now: float, ended: int) -> bool:
    """Do the next action if the rank is free. Return whether it was."""
    if rank.left > 0:
        return False
    if rank.waits is not None:
        kind, *rest = rank.waits
        if (kind == "await" and rest[0] >= ended) or (kind == "wait" and tuple(rest) in rank.under_way):
            return False
        rank.waits = None
    if rank.next == 0:
        rank.begun.append(now)
    kind, *rest = rank.actions[rank.next]
    rank.next = (rank.next + 1) % len(rank.actions)
    if kind == "start":
        rank.started += 1
    elif kind == "copy":
        lane, swap, duration_ns = rest
        rank.lanes[lane].append([swap, float(duration_ns)])
        rank.under_way.add((lane, swap))
    elif kind == "wait":
        rank.waits = ("wait", *rest)
    elif kind == "await":
        exchanges = sum(action[0] == "await" for action in rank.actions)
        rank.waits = ("await", (len(rank.begun) - 1) * exchanges + rest[0])
    else:
        rank.left = float(rest[0])
    return True


def _less(rest: float, done: float) -> float:
    return 0.0 if rest - done < 1e-4 else rest - done
