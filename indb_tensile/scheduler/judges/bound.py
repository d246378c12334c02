"""A proven bound: bytes below which the peak of no plan is whose iterations take at most a given time.

It holds for one job alone, and for every plan that the checker accepts, swaps at any boundaries and with any host
copies, operators run again anywhere and in chains, updates in any parts, in which those operators that nothing moves
(moments.py: all but the optimizer's and updates of buffers) run for the first time in the captured order. All
policies plan like that; `covers` tells. `iteration_ns` is the mean of a steady state: of a time after which the lanes
stand as they stood before. In such a time each lane has copied whatever an iteration queues, as often as there were
iterations, and a plan does the same in each of them.

Why it is one. Let T be that mean, C the sum of all operators' latencies, an upload's being its copy, and S = T - C:
operators run again, parts' starts and waits take S together. Take any fixed operator k and the moment of its first
run. What k reads and writes and its workspace are on the device. Consider what else is needed.

1. *What must be there or come back.* A persistent tensor that any operator accesses has a value at all times, and is
   on the device or away by a swap. For one that does not persist, let w be the fixed operator before k that wrote
   the version which some operator j needs that surely runs later: j is fixed and follows k, or its dependencies put
   it behind a fixed operator from k on. Either what j reads was written before the moment, and then it is on the
   device or away by a swap; or w runs again between the moment and j. There is no third way, since j sees exactly
   that version, and w's first run was before the moment.
2. *What a swap takes.* What is away at the moment is so in every iteration. It is copied in once between k's end and
   its next access, so before j begins. Where its value is written in each iteration, it is copied out once between
   that write's end and k's begin. The lane is busy with it for at least `in_ns` and `out_ns`, alone.
3. *How much time there is for it.* Between k's end and j's begin only those operators run that may lie between. With
   s of S spent behind the moment until the iteration's end and S - s before it, that is at most s and their
   latencies; where the window crosses the iteration's end at most S and their latencies, since it is part of the
   time from one moment at k to the next, which is T on average. So all items due by j together take no more of the
   in-lane, less uploads in between; and all items written since w, from w to k, no more of the out-lane than S - s
   (or S) and the latencies in between. Movable operators count in every window in which they may run.
4. *What running again takes.* Behind the moment, each operator that runs again its latency: together at most s. And
   what it reads in turn, if it does not persist and k does not access it, was held at the moment (its bytes count),
   swapped (2, 3) or made again.
5. An update's own state in parts may be away in parts; a part's copy takes at least that part of the whole's time.

So the least sum of bytes under these constraints is a bound on what is on the device at k, hence on the peak.
Allowing fractions of tensors makes it smaller, thus keeps it a bound; so does charging a value that several operators
read again to only one of them, and looking at some windows only. By Lagrange's argument any prices of at least zero,
for lane time in each window and for running again, give a bound too: let every item take the cheapest of holding,
swapping and making it again, along the forest of what needs what, take off all that there is of time at these prices,
and let s take the end that makes the bound less. Prices are improved by supergradient steps (Held and Karp's method
for the travelling salesman); where they are not the best ones that costs bytes, and not the proof.

6. *Several peaks in turn*, as micro-batches have. Cut the captured order into zones; a zone lasts from the first run
of its first fixed operator to that of the next zone's. What is spent of S in all zones is S together, so of any r
zones there is one that spends at most S / r. For a moment in that zone, windows that lie within the zone (from an
operator of it, until one of it or the next zone's first) have S / r where they had S, and so has what runs again
before such an operator; windows that reach beyond keep S, and what runs again for later ones takes S at most by a
count of its own. So the least of the r bounds, one for each zone with S / r, is a bound. The zones are cut where
little is held between two peaks (`_zones`); a graph with one peak has one zone, and nothing changes.

What it leaves out (docs/results.md, "The least overhead and the bound"): within a zone one moment is looked at by
itself, so a lane may serve each moment as if no other needed it, and what was made again takes no memory of its own
before it is read. Plans for an overhead of 10 % are up to twice the bound; how much of that is the bound is open.

It takes time in proportion to operators and accesses: `_COARSE` + `_FINE` moments are looked at whatever the graph's
size, and each takes fewer steps where it has more items (`_WORK`).

The peak is also at least every operator's own working set (`least_bytes`), whatever the time; of state that only one
update accesses, a part as small as one likes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf

import numpy as np

from indb_tensile.scheduler.graph import OpIndex, StepGraph
from indb_tensile.scheduler.judges.moments import Flags, Floats, Ints, Moments, movable
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.rewrite import own_state

_COARSE, _FINE = 10, 4  # moments that are looked at first, along the iteration, and then where most is promised
_ZONES = 16  # into which an iteration with several peaks is cut at most: each costs as much as a moment
_LEAST_DEPTH = 0.1  # of the highest peak, that less is held between two peaks
_COARSE_STEPS, _STEPS, _LEAST_STEPS = 40, 150, 20
_WORK = 1_500  # items from which on fewer steps have to do
_FIRST_STEP, _LAST_STEP = 1.0, 0.003  # in prices that are 1 where a byte moved costs as much as a byte held
_MOMENTUM = 0.5
_AGAIN_PRICE = 3.0  # the unit of the price of running again, in bytes by all nodes' cost
_WINDOWS = 4  # of each lane, by the bytes of what is due in them, besides the largest
_SURE = 1 - 1e-9  # of what floating point adds up
_ROUNDING_NS = 0.01  # for each tensor: the simulator ends a copy within a thousandth of a nanosecond


def bound_bytes(graph: StepGraph, latency_ns: Sequence[int], link: Link, iteration_ns: int) -> int:
    """The least peak that a plan of one job can have whose iterations take so long, or less."""
    moments = Moments(graph, latency_ns, link)
    slack_ns = iteration_ns + 1 + _ROUNDING_NS * len(graph.tensors) - float(moments.cost_ns.sum())
    found = least_bytes(graph)
    held = moments.held_bytes()
    fixed = np.flatnonzero(moments.fixed)
    chosen, away = [], []
    for part in np.array_split(fixed, min(_COARSE, len(fixed))) if len(fixed) else ():
        position = int(part[np.argmax(held[part])])
        least = _Relaxation(moments, position, max(0.0, slack_ns)).least(_COARSE_STEPS)
        chosen.append(position)
        away.append(held[position] - least)
        found = max(found, ceil(least * _SURE))
    if chosen:
        promised = held[fixed] - np.interp(fixed, chosen, away)  # as much is away as at the moments nearby
        for position in fixed[np.argsort(-promised, kind="stable")[:_FINE]].tolist():
            if held[position] * _SURE > found:
                least = _Relaxation(moments, position, max(0.0, slack_ns)).least(_STEPS)
                found = max(found, ceil(least * _SURE))
        found = max(found, _together(moments, held, max(0.0, slack_ns), found))
    return found


def _together(moments: Moments, held: Floats, slack_ns: float, found: int) -> int:
    """The bound of several peaks in turn, if it is above what was found: one of them has only its part of slack."""
    zones = sorted(_zones(held, moments.fixed), key=lambda zone: (-held[zone[0] : zone[1]].max(), zone))
    for count in sorted({len(zones), len(zones) // 2, 2}, reverse=True):
        least = inf if 2 <= count <= len(zones) else 0.0
        for start, stop in zones[:count]:
            if least * _SURE <= found:
                break
            zone = _Zone(start=start, stop=stop, slack_ns=slack_ns / count)
            position = start + int(np.argmax(held[start:stop]))
            least = min(least, _Relaxation(moments, position, slack_ns, zone).least(_STEPS))
        found = max(found, ceil(least * _SURE))
    return found


def _zones(held: Floats, fixed: Flags) -> list[tuple[int, int]]:
    """The iteration cut where little is held between two peaks, the deepest cuts first."""
    places = np.flatnonzero(fixed)
    load = held[places]
    cuts: list[int] = []
    segments = [(0, len(places))]
    while segments and len(cuts) + 1 < _ZONES:
        first, stop = segments.pop()
        one = load[first:stop]
        depth = np.minimum(np.maximum.accumulate(one), np.maximum.accumulate(one[::-1])[::-1]) - one
        inner = int(np.argmax(depth))
        if depth[inner] < _LEAST_DEPTH * load.max():
            continue
        cuts.append(first + inner)
        segments += [(first, first + inner), (first + inner, stop)]
        segments.sort(key=lambda segment: (segment[1] - segment[0], segment))
    ends = [0, *(int(places[cut]) for cut in sorted(cuts)), len(held)]
    return [(start, stop) for start, stop in pairwise(ends) if stop > start and fixed[start:stop].any()]


def least_bytes(graph: StepGraph) -> int:
    """What the largest operator needs, whatever the time; its own state in parts may be as good as nothing."""
    own = own_state(graph)
    return max(
        operator.workspace_bytes
        + sum(graph.tensors[t].size_bytes for t in {*operator.reads, *operator.writes} - {*own.get(k, ())})
        for k, operator in zip(map(OpIndex, range(len(graph.operators))), graph.operators, strict=True)
    )


def covers(graph: StepGraph, plan: Plan) -> bool:
    """Whether the bound speaks of this plan: first runs of what nothing moves are in the captured order."""
    first = dict.fromkeys(execution.operator for execution in plan.executions)
    kept = [k for k in first if not movable(graph, graph.operators[k])]
    return all(earlier < later for earlier, later in pairwise(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Zone:
    """A stretch of the captured order, and the part of all slack that may be spent between its ends."""

    start: int
    stop: int
    slack_ns: float


class _Relaxation:
    """The least that is on the device at one moment, as a function of prices that can only be too low for it.

    Prices: for each window of the in-lane, from k until `_until`; for each of the out-lane, from `_from` to k; for
    running again within the zone, and beyond it. A window's price is paid by all items whose windows lie within it.
    """

    def __init__(self, moments: Moments, position: int, slack_ns: float, zone: _Zone | None = None) -> None:
        self._moment = found = moments.moment(position)
        self._zone = zone or _Zone(start=0, stop=moments.count, slack_ns=slack_ns)
        self._inside = found.inside(self._zone.stop)
        link = moments.link
        self._in_bytes = link.per_copy_ns * link.in_bytes_per_s / 1e9 + found.size_bytes
        self._out_bytes = np.where(
            found.copied, link.per_copy_ns * link.out_bytes_per_s / 1e9 + found.size_bytes, 0.0
        )
        self._again = _AGAIN_PRICE * found.size_bytes[: found.must].sum() / max(1.0, found.cost_ns.sum())
        self._windows(moments, slack_ns)

    def least(self, steps: int) -> float:
        """The greatest bound found in so many steps; fewer for very many items."""
        steps = max(_LEAST_STEPS, min(steps, steps * _WORK // max(1, len(self._moment.size_bytes))))
        prices = np.zeros(len(self._until) + len(self._from) + 2)
        prices[[len(self._until) - 1, len(self._until)]] = 0.4
        prices[-2:] = 1.0, 0.0 if self._inside.all() else 1.0
        best = self._moment.own_bytes
        way = np.zeros(len(prices))
        for step in np.geomspace(_FIRST_STEP, _LAST_STEP, steps):
            value, slope = self._value(prices)
            best = max(best, value)
            slope[(prices <= 0) & (slope < 0)] = 0
            norm = float(np.sqrt((slope**2).sum()))
            if norm == 0:
                break
            way = _MOMENTUM * way + (1 - _MOMENTUM) / norm * slope
            prices = np.maximum(0.0, prices + step * way)
        return best

    def _windows(self, moments: Moments, slack_ns: float) -> None:
        """Some windows of both lanes, each with the bytes that can be copied in it without any slack."""
        found, k, n, zone = self._moment, self._moment.position, moments.count, self._zone
        busy = np.concatenate(([0.0], np.cumsum(np.where(moments.fixed, moments.cost_ns, 0))))
        idle = np.concatenate(([0.0], np.cumsum(np.where(moments.fixed & ~moments.upload, moments.cost_ns, 0))))
        moved = np.zeros(n + 1)
        np.add.at(moved, moments.after[~moments.fixed] + 1, moments.cost_ns[~moments.fixed])
        moved = np.cumsum(moved)  # of movable operators that may run before each position
        weight = np.where(np.arange(len(found.due)) < found.must, found.size_bytes, 0)
        ends = self._until = np.unique([*_cuts(found.due, weight), zone.stop, n, n + max(1, k)])
        turn = np.maximum(ends - n, 0)
        within = np.minimum(ends, n)
        ahead_ns = idle[within] - idle[k + 1] + idle[turn] + moved[within]
        self._in_room, in_turns = ahead_ns * moments.link.in_bytes_per_s / 1e9, ends > zone.stop
        starts = self._from = np.unique(
            [*-_cuts(-found.since[found.copied], weight[found.copied]), zone.start, 0, k - n]
        )
        turn = np.where(starts < 0, busy[n] - busy[np.minimum(starts + n + 1, n)], 0)
        within = np.where(starts < 0, 0, starts + 1)
        behind_ns = busy[k] - busy[np.minimum(within, k)] + turn + np.where(starts < 0, moved[n], moved[k])
        self._out_room, out_turns = behind_ns * moments.link.out_bytes_per_s / 1e9, starts < zone.start
        inward, outward = (rate / 1e9 for rate in (moments.link.in_bytes_per_s, moments.link.out_bytes_per_s))
        turned = slack_ns * np.concatenate((in_turns * inward, out_turns * outward, [0.0, self._again]))
        behind = np.concatenate((~in_turns * inward, 0.0 * starts, [self._again, 0.0]))
        before = np.concatenate((0.0 * ends, ~out_turns * outward, [0.0, 0.0]))
        self._behind = turned + zone.slack_ns * behind
        self._before = turned + zone.slack_ns * before
        self._in_of = np.searchsorted(ends, found.due)
        self._out_of = np.maximum(np.searchsorted(starts, found.since, side="right") - 1, 0)

    def _value(self, prices: Floats) -> tuple[float, Floats]:
        """The bound at these prices, and in which direction it grows."""
        found = self._moment
        inward, outward = prices[: len(self._until)], prices[len(self._until) : -2]
        moving = self._in_bytes * np.cumsum(inward[::-1])[::-1][self._in_of]
        moving += self._out_bytes * np.cumsum(outward)[self._out_of]
        costs = np.minimum(found.size_bytes, moving)
        held, again = self._cheapest(costs, self._again * np.where(self._inside, prices[-2], prices[-1]))
        again_bytes = self._again * np.array(
            [float(found.cost_ns[again & where].sum()) for where in (self._inside, ~self._inside)]
        )
        value = found.own_bytes + float(costs[held].sum()) + float(prices[-2:] @ again_bytes)
        moved = held & (moving < found.size_bytes)
        inward_use = np.bincount(self._in_of[moved], self._in_bytes[moved], len(inward)).cumsum()
        outward_use = np.bincount(self._out_of[moved], self._out_bytes[moved], len(outward))[::-1].cumsum()[::-1]
        slope = np.concatenate((inward_use - self._in_room, outward_use - self._out_room, again_bytes))
        room = np.concatenate((self._in_room, self._out_room, [0.0, 0.0])) + self._slack_room(prices)
        slope -= self._slack_room(prices)
        return value - float(prices @ room), slope

    def _slack_room(self, prices: Floats) -> Floats:
        """What slack adds to the amount that each price is of: spent behind the moment or before it, as is worse."""
        behind, before = self._behind, self._before
        return behind if float(prices @ behind) >= float(prices @ before) else before

    def _cheapest(self, costs: Floats, again_price: Floats) -> tuple[Flags, Flags]:
        """Which items are held or swapped and which nodes run again, for the least sum of costs."""
        found = self._moment
        nodes = len(found.cost_ns)
        own = found.node >= 0
        keep = np.bincount(found.node[own], costs[own], nodes)
        again = again_price * found.cost_ns + np.bincount(found.leaf_node, costs[found.leaf_item], nodes)
        has = found.parent >= 0
        read = np.where(has, costs[found.through], 0.0)
        for level in found.levels:  # unless its reader runs again nobody needs what is read
            up = found.parent[level]
            inner = level[has[level]]
            np.add.at(keep, up[has[level]], np.minimum(keep, again)[inner])
            np.add.at(again, up[has[level]], np.minimum(keep + read, again)[inner])
        made = np.zeros(nodes, dtype=bool)
        needed = np.zeros(nodes, dtype=bool)
        for level in reversed(found.levels):
            needed[level] = has[level] & made[found.parent[level]]
            made[level] = again[level] < keep[level] + np.where(needed[level], read[level], 0.0)
        held = np.arange(len(costs)) < found.must
        held[own] = ~made[found.node[own]]
        held[found.through[needed & ~made]] = True
        held[found.leaf_item[made[found.leaf_node]]] = True
        return held, made


def _cuts(values: Ints, weight: Floats) -> Ints:
    """Values that divide the weight evenly, by value."""
    if not weight.sum():
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(weight[order])
    marks = np.searchsorted(upto, np.linspace(0, upto[-1], _WINDOWS + 1)[1:])
    return values[order][np.minimum(marks, len(order) - 1)]
