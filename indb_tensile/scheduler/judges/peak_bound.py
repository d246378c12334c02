"""Compute a proven lower bound of the peak of every plan whose iterations take at most a given time.

The bound holds for one job alone, and for every plan that the checker accepts (swaps at any boundaries and with any
host copies, operators re-run anywhere and in chains, updates in any parts) in which fixed operators run for the first
time in the captured order. Fixed operators are all but the optimizer's and updates of buffers (bound_moments.py). All
policies plan like that; `covers` checks it. `iteration_ns` is the mean of a steady state, that is of a time after
which the lanes' state repeats. In such a time each lane has copied everything that an iteration queues as often as
there were iterations, and a plan does the same in each of them.

Proof. Let T be that mean, C the sum of all operators' latencies (an upload's being its copy), and S = T - C the
slack: re-run operators, the launches of parts and waits take S together. Take any fixed operator k and the moment of
its first run. The tensors that k reads and writes and its workspace are on the device. Consider what else is needed.

1. *Values that are resident or come back.* A persistent tensor that any operator accesses has a value at all times,
  and is on the device or away by a swap. For a tensor that does not persist, let w be the fixed operator before k
  that wrote the version which some operator j needs, where j certainly runs later: j is fixed and follows k, or its
  dependencies put it behind a fixed operator from k on. Either the value that j reads was written before the moment,
  and then it is on the device or away by a swap; or w runs again between the moment and j. There is no third
  possibility, because j reads exactly that version, and w's first run was before the moment.
2. *The cost of a swap.* A value that is away at the moment is away in every iteration. It is copied in once between
  k's end and its next access, so before j begins. If its value is written in each iteration, it is copied out once
  between that write's end and k's begin. The lane is busy with the copies for at least `in_ns` and `out_ns`, alone.
3. *The time for swaps.* Between k's end and j's begin only those operators run that may lie between. If s of S is
  spent between the moment and the iteration's end and S - s before the moment, the time for the copy is at most s
  plus their latencies. If the window crosses the iteration's end, it is at most S plus their latencies, because it is
  part of the time from one moment at k to the next, which is T on average. So all items due by j together take no
  more of the in-lane, less uploads in between. All items written since w, from w to k, take no more of the out-lane
  than S - s (or S) plus the latencies in between. Movable operators count in every window in which they may run.
  An update that may have run before k or may run after it is on one side: it runs once, all its parts one after the
  other, in the same order in every iteration. If it follows, its old state comes in between k's end and the
  iteration's end, and its gradient is needed (1). If it precedes, its new state goes out between the fixed operator
  after which it may run and k, and comes in within the next turn. Its own time counts only on its side. Each update
  takes the cheaper side.
4. *The cost of running again.* After the moment, each operator that runs again costs its latency, at most s together.
  An input of it that does not persist, and that k does not access, was resident at the moment (its bytes count),
  swapped (2, 3) or made again.
5. An update's own state in parts may be away in parts. A part's copy takes at least that part of the whole copy's
  time.

So the least sum of bytes under these constraints is a bound of the bytes on the device at k, hence of the peak. Three
relaxations make the sum smaller, so it remains a bound: fractions of tensors are allowed, a value that several re-run
operators read is charged to only one of them, and only some windows are examined. By Lagrange's argument any
nonnegative prices, for lane time in each window and for running again, also give a bound: let every item take the
cheapest of keeping, swapping and recomputing, along the forest of dependencies, subtract the total available time at
these prices, and choose the end of s's range that makes the bound smaller. Prices are improved by supergradient steps
(Held and Karp's method for the travelling salesman). Prices that are not optimal weaken the bound, but not the proof.

6. *Several peaks in turn*, as micro-batches have. Cut the captured order into zones. A zone lasts from the first run
  of its first fixed operator to that of the next zone's. All zones together spend S. Give each zone a part of S, with
  the sum S; then at least one zone spends no more than its part. For a moment in that zone, windows that lie within
  the zone (from an operator of it, until an operator of it or the next zone's first) have this part where they had S,
  and so has everything that runs again before such an operator. Windows that reach beyond the zone keep S, and what
  runs again for later operators takes at most S, counted separately. So the least of the zones' bounds, each with its
  part, is a bound for any parts. They are equal at first; then zones with a higher bound get more (`_together`). The
  zones are cut where the load between two peaks is low, the deepest cuts first, in several numbers (`_cut_places`): a
  zone that ends within a micro-batch leaves most of its windows with S. A graph with one peak has one zone, and
  nothing changes.

The bound is not tight (docs/results/planning.md, "The least overhead and the bound"): within a zone each moment is
examined by itself, so a lane may serve each moment as if no other moment needed it, and recomputed tensors take no
memory of their own before they are read. These relaxations do not make the bound loose: linear programs over 91
moments of VGG-16 and 10 of BERT at once, with the lanes' time between moments and memory for what is made again, gave
no higher bound at an EOR of 1.02. What remains are fractions: of tensors that are copied whole, and of an update that
is half before a moment and half behind it. With VGG-16's largest update on one side of each moment, the program's
optimum is 1 to 5 % higher. Two moments together decide that optimum, so a case for each place of the update does not
raise this bound. Where few tensors are large, whole tensors matter more: for U-Nets of one level the bound is 19 to
29 % below the optimum for whole tensors, which plans reach (bench/harness/planning/whole_tensors.py; "How far from
the best" in docs/developer/planner.md).

The time is proportional to operators and accesses: `_COARSE` + `_FINE` moments are examined for any size of the
graph, and a moment with more items takes fewer steps (`_WORK`).

The peak is also at least every operator's own working set (`least_bytes`), for any time; of state that only one
update accesses, an arbitrarily small part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np

from indb_tensile.scheduler.graph import OpIndex, StepGraph
from indb_tensile.scheduler.judges.bound_moments import Flags, Floats, Ints, Moment, Moments, movable
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.rewrite import own_state

# moments that are examined first, along the iteration, and then where the bound is expected to be highest
_COARSE, _FINE = 10, 4
_ZONES = 16  # the most zones of an iteration with several peaks; each costs as much as a moment
# The first cuts part micro-batches, and further cuts part the peaks within each of them. A micro-batch that is cut
# has copies that go beyond its zone, and these may take all slack. So few zones are tried beside many.
_FEW_ZONES = (2, 3, 4, 8)
_DIVISIONS = 4  # how often the slack is divided between the same zones
_EVENING = 0.7  # the power of a zone's bound by which its part of the slack is changed
_NEARLY = 0.9  # Zones are given up if a bound of them is below this part of the best bound.
_LEAST_DEPTH = 0.1  # The load between two peaks has to be lower by this fraction of the highest peak.
_COARSE_STEPS, _STEPS, _LEAST_STEPS = 40, 200, 20
_WORK = 1_500  # number of items above which fewer steps are made
_FIRST_STEP, _LAST_STEP = 1.0, 0.003  # in units in which a price of 1 makes a moved byte cost as much as a kept byte
_MOMENTUM = 0.5
# the unit of the price of running again: the bytes of all items divided by the cost of all nodes, times this
_AGAIN_PRICE = 3.0
# Windows of each lane, at quantiles of the bytes due in them, besides the largest. With many windows the lane's time
# before each access is counted more exactly, but more prices have to be found, so few windows are tried as well.
# Measured at EOR 1.02: with 40 besides 4 windows the bound of VGG-16 rises from 1,758 to 1,961 MB, that of BERT from
# 2,695 to 2,744, and those of five other networks hardly change.
_WINDOWS = (4, 40)
_SURE = 1 - 1e-9  # a factor below 1 that covers floating-point errors
_ROUNDING_NS = 0.01  # tolerance for each tensor: the simulator ends a copy within a thousandth of a nanosecond


def bound_bytes(graph: StepGraph, latency_ns: Sequence[int], link: Link, iteration_ns: int) -> int:
    """Return a lower bound of the peak of every plan of one job whose iterations take at most `iteration_ns`."""
    moments = Moments(graph, latency_ns, link)
    slack_ns = iteration_ns + 1 + _ROUNDING_NS * len(graph.tensors) - float(moments.cost_ns.sum())
    best_bound = least_bytes(graph)
    held_bytes = moments.held_bytes()
    fixed = np.flatnonzero(moments.fixed)
    chosen, away = [], []
    for part in np.array_split(fixed, min(_COARSE, len(fixed))) if len(fixed) else ():
        position = int(part[np.argmax(held_bytes[part])])
        least = _Relaxation(moments.moment(position), moments, max(0.0, slack_ns)).least(_COARSE_STEPS)
        chosen.append(position)
        away.append(held_bytes[position] - least)
        best_bound = max(best_bound, ceil(least * _SURE))
    if chosen:
        # as many bytes are away as at the examined moments nearby
        expected = held_bytes[fixed] - np.interp(fixed, chosen, away)
        for position in fixed[np.argsort(-expected, kind="stable")[:_FINE]].tolist():
            if held_bytes[position] * _SURE > best_bound:
                least = _least_at(moments, position, max(0.0, slack_ns))
                best_bound = max(best_bound, ceil(least * _SURE))
        best_bound = max(best_bound, _together(moments, held_bytes, max(0.0, slack_ns), best_bound))
    return best_bound


def _together(moments: Moments, held_bytes: Floats, slack_ns: float, best_bound: int) -> int:
    """Return the bound of several peaks in turn, if it is higher than `best_bound`. At least one zone has only its
    part of the slack.
    """
    cuts = _cut_places(held_bytes, moments.fixed)
    for count in sorted({len(cuts) + 1, len(cuts) // 2 + 1, *_FEW_ZONES}):
        if not 2 <= count <= len(cuts) + 1:
            continue
        zones = list(pairwise((0, *sorted(cuts[: count - 1]), len(held_bytes))))
        parts = np.full(count, 1 / count)
        for round_number in range(_DIVISIONS):
            least = _least_of_zones(moments, held_bytes, zones, slack_ns * parts, best_bound)
            best_bound = max(best_bound, ceil(least.min() * _SURE))
            # A zone that is not examined, or whose bound is far below the best, cannot be raised by a little slack.
            if least.min() < _NEARLY * best_bound or round_number + 1 == _DIVISIONS:
                break
            # A zone whose bound is higher than the others' gets more of the slack, which lowers its bound.
            parts = parts * (least / least.mean()) ** _EVENING
            parts /= parts.sum()
    return best_bound


def _least_of_zones(
    moments: Moments, held_bytes: Floats, zones: Sequence[tuple[int, int]], slacks_ns: Floats, best_bound: int
) -> Floats:
    """Return the bound of each zone's highest moment with its slack. Zero from the first zone on that is too low."""
    least = np.zeros(len(zones))
    order = sorted(range(len(zones)), key=lambda number: held_bytes[slice(*zones[number])].max())
    for number in order:
        start, stop = zones[number]
        zone = _Zone(start=start, stop=stop, slack_ns=float(slacks_ns[number]))
        position = start + int(np.argmax(held_bytes[start:stop]))
        least[number] = _least_at(moments, position, float(slacks_ns.sum()), zone)
        if least[number] < _NEARLY * best_bound:
            break
    return least


def _least_at(moments: Moments, position: int, slack_ns: float, zone: "_Zone | None" = None) -> float:
    """Return the greatest bound of the bytes at this moment, with few windows and with many."""
    moment = moments.moment(position)
    return max(_Relaxation(moment, moments, slack_ns, zone, windows=count).least(_STEPS) for count in _WINDOWS)


def _cut_places(held_bytes: Floats, fixed: Flags) -> list[int]:
    """Return the operators before which the load between two peaks is low, the deepest first."""
    places = np.flatnonzero(fixed)
    load = held_bytes[places]
    cuts: list[int] = []
    segments = [_deepest(load, 0, len(places))]
    while segments and len(cuts) + 1 < _ZONES:
        depth, first, inner, stop = segments.pop(0)
        if depth == 0 or -depth < _LEAST_DEPTH * load.max():
            break
        cuts.append(int(places[inner]))
        segments = sorted((*segments, _deepest(load, first, inner), _deepest(load, inner, stop)))
    return cuts


def _deepest(load: Floats, first: int, stop: int) -> tuple[float, int, int, int]:
    """Return the lowest load between two peaks of this segment: the negative depth, the segment's start, the place of
    the lowest load, and the segment's end.
    """
    part = load[first:stop]
    if not len(part):
        return 0.0, first, first, stop
    rising, falling = np.maximum.accumulate(part), np.maximum.accumulate(part[::-1])[::-1]
    depth = np.minimum(rising, falling) - part
    inner = int(np.argmax(depth))
    return -float(depth[inner]), first, first + inner, stop


def least_bytes(graph: StepGraph) -> int:
    """Return the largest operator's working set. Its own state may be in arbitrarily small parts, so it does not
    count.
    """
    own = own_state(graph)
    return max(
        operator.workspace_bytes
        + sum(graph.tensors[t].size_bytes for t in {*operator.reads, *operator.writes} - {*own.get(k, ())})
        for k, operator in zip(map(OpIndex, range(len(graph.operators))), graph.operators, strict=True)
    )


def covers(graph: StepGraph, plan: Plan) -> bool:
    """Return whether the bound holds for this plan: first runs of fixed operators are in the captured order."""
    first = dict.fromkeys(execution.operator for execution in plan.executions)
    fixed = [k for k in first if not movable(graph, graph.operators[k])]
    return all(earlier < later for earlier, later in pairwise(fixed))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Zone:
    """A part of the captured order, and the share of all slack that may be spent between its ends."""

    start: int
    stop: int
    slack_ns: float


class _Relaxation:
    """A lower bound of the bytes on the device at one moment, as a function of prices.

    Prices: one for each window of the in-lane, from k until `_until`; one for each window of the out-lane, from
    `_from` to k; one for running again within the zone, and one beyond it. Every item whose window lies within a
    priced window pays that window's price.
    """

    def __init__(
        self,
        moment: Moment,
        moments: Moments,
        slack_ns: float,
        zone: _Zone | None = None,
        *,
        windows: int = _WINDOWS[0],
    ) -> None:
        self._moment = moment
        self._zone = zone or _Zone(start=0, stop=moments.count, slack_ns=slack_ns)
        self._inside = moment.inside(self._zone.stop)
        link = moments.link
        self._in_bytes = link.per_copy_ns * link.in_bytes_per_s / 1e9 + moment.size_bytes
        self._out_bytes = np.where(
            moment.copied, link.per_copy_ns * link.out_bytes_per_s / 1e9 + moment.size_bytes, 0.0
        )
        updates = moment.updates
        self._state_in = link.per_copy_ns * link.in_bytes_per_s / 1e9 + updates.size_bytes
        self._state_out = link.per_copy_ns * link.out_bytes_per_s / 1e9 + updates.size_bytes
        self._again = _AGAIN_PRICE * moment.size_bytes[: moment.must].sum() / max(1.0, moment.cost_ns.sum())
        self._windows(moments, slack_ns, windows)

    def least(self, steps: int) -> float:
        """Return the greatest bound found in `steps` steps; fewer steps for very many items."""
        steps = max(_LEAST_STEPS, min(steps, steps * _WORK // max(1, len(self._moment.size_bytes))))
        prices = np.zeros(len(self._until) + len(self._from) + 2)
        prices[[len(self._until) - 1, len(self._until)]] = 0.4
        prices[-2:] = 1.0, 0.0 if self._inside.all() else 1.0
        best = self._moment.own_bytes
        direction = np.zeros(len(prices))
        for step in np.geomspace(_FIRST_STEP, _LAST_STEP, steps):
            value, slope = self._value(prices)
            best = max(best, value)
            slope[(prices <= 0) & (slope < 0)] = 0
            norm = float(np.sqrt((slope**2).sum()))
            if norm == 0:
                break
            direction = _MOMENTUM * direction + (1 - _MOMENTUM) / norm * slope
            prices = np.maximum(0.0, prices + step * direction)
        return best

    def _windows(self, moments: Moments, slack_ns: float, count: int) -> None:
        """Choose some windows of both lanes, each with the bytes that can be copied in it without any slack."""
        moment, k, n, zone = self._moment, self._moment.position, moments.count, self._zone
        busy = np.concatenate(([0.0], np.cumsum(np.where(moments.fixed, moments.cost_ns, 0))))
        idle = np.concatenate(([0.0], np.cumsum(np.where(moments.fixed & ~moments.upload, moments.cost_ns, 0))))
        updates = moment.updates
        movable = ~moments.fixed
        movable[updates.operator] = False
        moved = np.zeros(n + 1)
        np.add.at(moved, moments.after[movable] + 1, moments.cost_ns[movable])
        moved = np.cumsum(moved)  # latencies of the other movable operators that may run before each position
        either = float(updates.cost_ns.sum())  # in every window that crosses the iteration's end
        weight = np.where(np.arange(len(moment.due)) < moment.must, moment.size_bytes, 0)
        due = np.concatenate((moment.due, updates.due_old, updates.due_new))
        sizes = np.concatenate((weight, updates.size_bytes, updates.size_bytes))
        ends = self._until = np.unique([*_cuts(due, sizes, count), zone.stop, n, n + max(1, k)])
        turn = np.maximum(ends - n, 0)
        within = np.minimum(ends, n)
        ahead_ns = idle[within] - idle[k + 1] + idle[turn] + moved[within] + np.where(ends > n, either, 0)
        self._in_room, in_turns = ahead_ns * moments.link.in_bytes_per_s / 1e9, ends > zone.stop
        since = np.concatenate((moment.since[moment.copied], updates.since_new))
        sizes = np.concatenate((weight[moment.copied], updates.size_bytes))
        starts = self._from = np.unique([*-_cuts(-since, sizes, count), zone.start, 0, k - n])
        turn = np.where(starts < 0, busy[n] - busy[np.minimum(starts + n + 1, n)], 0)
        within = np.where(starts < 0, 0, starts + 1)
        behind_ns = busy[k] - busy[np.minimum(within, k)] + turn + np.where(starts < 0, moved[n] + either, moved[k])
        self._out_room, out_turns = behind_ns * moments.link.out_bytes_per_s / 1e9, starts < zone.start
        inward, outward = (rate / 1e9 for rate in (moments.link.in_bytes_per_s, moments.link.out_bytes_per_s))
        # what an update's own time adds to the windows in which it may run
        self._after_room = np.where(ends <= n, inward, 0.0)
        self._before_room = np.where(starts >= 0, outward, 0.0)
        turned = slack_ns * np.concatenate((in_turns * inward, out_turns * outward, [0.0, self._again]))
        behind = np.concatenate((~in_turns * inward, 0.0 * starts, [self._again, 0.0]))
        before = np.concatenate((0.0 * ends, ~out_turns * outward, [0.0, 0.0]))
        self._behind = turned + zone.slack_ns * behind
        self._before = turned + zone.slack_ns * before
        self._in_of, self._in_old, self._in_new = (
            np.searchsorted(ends, due) for due in (moment.due, updates.due_old, updates.due_new)
        )
        self._out_of, self._out_old, self._out_new = (
            np.maximum(np.searchsorted(starts, since, side="right") - 1, 0)
            for since in (moment.since, updates.since_old, updates.since_new)
        )

    def _value(self, prices: Floats) -> tuple[float, Floats]:
        """Return the bound at these prices, and its gradient."""
        moment, updates = self._moment, self._moment.updates
        inward, outward = prices[: len(self._until)], prices[len(self._until) : -2]
        in_price, out_price = np.cumsum(inward[::-1])[::-1], np.cumsum(outward)
        moving = self._in_bytes * in_price[self._in_of] + self._out_bytes * out_price[self._out_of]
        costs = np.minimum(moment.size_bytes, moving)
        old = self._state_in * in_price[self._in_old] + self._state_out * out_price[self._out_old]
        new = self._state_in * in_price[self._in_new] + self._state_out * out_price[self._out_new]
        later, earlier = self._sides(old, new, prices)
        read = np.flatnonzero(updates.gradient >= 0)
        gradient = updates.gradient[read]
        gained = np.maximum(0.0, earlier - later)[read]
        runs_instead = gained < costs[gradient]  # keeping or moving the gradient costs more than to update before
        costs[gradient] = np.minimum(costs[gradient], gained)
        kept_items, again = self._cheapest(costs, self._again * np.where(self._inside, prices[-2], prices[-1]))
        again_bytes = self._again * np.array(
            [float(moment.cost_ns[again & where].sum()) for where in (self._inside, ~self._inside)]
        )
        value = moment.own_bytes + float(costs[kept_items].sum()) + float(prices[-2:] @ again_bytes)
        value += float(np.minimum(later, earlier).sum())
        moved = kept_items & (moving < moment.size_bytes)
        moved[gradient[runs_instead]] = False
        before = earlier <= later
        before[read[runs_instead & kept_items[gradient]]] = True
        use = self._use(moved, before, old, new)
        slope = np.concatenate((*use, again_bytes))
        room = np.concatenate((self._in_room, self._out_room, [0.0, 0.0]))
        slope -= room + self._slack_room(prices)
        return value - float(prices @ (room + self._slack_room(prices))), slope

    def _sides(self, old: Floats, new: Floats, prices: Floats) -> tuple[Floats, Floats]:
        """Return what each update's state costs, less the value of the update's own time to the lanes, if the update
        runs after the moment, and if it runs before.
        """
        updates = self._moment.updates
        inward, outward = prices[: len(self._until)], prices[len(self._until) : -2]
        count = len(updates.cost_ns)
        later: Floats = -updates.cost_ns * float(inward @ self._after_room)
        earlier: Floats = -updates.cost_ns * float(outward @ self._before_room)
        later = later + np.bincount(updates.of, np.minimum(updates.size_bytes, old), count)
        earlier = earlier + np.bincount(updates.of, np.minimum(updates.size_bytes, new), count)
        return later, earlier

    def _use(self, moved: Flags, before: Flags, old: Floats, new: Floats) -> tuple[Floats, Floats]:
        """Return the bytes that pass each window, less those that the updates' own time adds to it."""
        updates = self._moment.updates
        ran = before[updates.of]
        sizes = updates.size_bytes
        moved_old, moved_new = ~ran & (old < sizes), ran & (new < sizes)
        into: Floats = np.zeros(len(self._until))
        out: Floats = np.zeros(len(self._from))
        into = into + np.bincount(self._in_of[moved], self._in_bytes[moved], len(into))
        out = out + np.bincount(self._out_of[moved], self._out_bytes[moved], len(out))
        for which, window_in, window_out in (
            (moved_old, self._in_old, self._out_old),
            (moved_new, self._in_new, self._out_new),
        ):
            into = into + np.bincount(window_in[which], self._state_in[which], len(into))
            out = out + np.bincount(window_out[which], self._state_out[which], len(out))
        into, out = into.cumsum(), out[::-1].cumsum()[::-1]
        into = into - self._after_room * float(updates.cost_ns[~before].sum())
        return into, out - self._before_room * float(updates.cost_ns[before].sum())

    def _slack_room(self, prices: Floats) -> Floats:
        """Return the bytes that slack adds for each price: spent after the moment or before it,
        whichever is worse.
        """
        behind, before = self._behind, self._before
        return behind if float(prices @ behind) >= float(prices @ before) else before

    def _cheapest(self, costs: Floats, again_price: Floats) -> tuple[Flags, Flags]:
        """Return which items are kept or swapped and which nodes run again, for the least sum of costs."""
        moment = self._moment
        nodes = len(moment.cost_ns)
        own = moment.node >= 0
        keep = np.bincount(moment.node[own], costs[own], nodes)
        again = again_price * moment.cost_ns + np.bincount(moment.leaf_node, costs[moment.leaf_item], nodes)
        has = moment.parent >= 0
        read = np.where(has, costs[moment.through], 0.0)
        for level in moment.levels:  # an input is needed only if its reader runs again
            up = moment.parent[level]
            inner = level[has[level]]
            np.add.at(keep, up[has[level]], np.minimum(keep, again)[inner])
            np.add.at(again, up[has[level]], np.minimum(keep + read, again)[inner])
        rerun_nodes = np.zeros(nodes, dtype=bool)
        needed = np.zeros(nodes, dtype=bool)
        for level in reversed(moment.levels):
            needed[level] = has[level] & rerun_nodes[moment.parent[level]]
            rerun_nodes[level] = again[level] < keep[level] + np.where(needed[level], read[level], 0.0)
        kept_items = np.arange(len(costs)) < moment.must
        kept_items[own] = ~rerun_nodes[moment.node[own]]
        kept_items[moment.through[needed & ~rerun_nodes]] = True
        kept_items[moment.leaf_item[rerun_nodes[moment.leaf_node]]] = True
        return kept_items, rerun_nodes


def _cuts(values: Ints, weight: Floats, count: int) -> Ints:
    """Return values that divide the weight into this many equal parts, in ascending order."""
    if not weight.sum():
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(weight[order])
    marks = np.searchsorted(upto, np.linspace(0, upto[-1], count + 1)[1:])
    return values[order][np.minimum(marks, len(order) - 1)]
