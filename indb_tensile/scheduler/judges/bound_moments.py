"""Compute what every plan has to keep on the device, or bring back, while an operator runs.

peak_bound.py adds these requirements up to a bound.

Optimizer operators and updates of buffers may run early or late (search/reorder.py). The other operators are *fixed*:
the first run of each comes in the captured order. Positions here are captured positions of fixed operators. A movable
operator runs between known positions: after the fixed operators whose results it needs, and, if it overwrites a
persistent tensor, after the fixed operators that read the old value.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.rewrite import repeatable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_BEFORE, _NOTHING = -1, -2  # the value that the previous iteration left, and no value at all
_NEVER = -(2**40)  # a position before all others
# The longest chain of re-run operators whose cost is charged. What lies behind it costs nothing, so the bound stays
# valid for any value: a larger one makes it tighter and takes more time.
_DEEPEST = 6


def movable(graph: StepGraph, operator: Operator) -> bool:
    """Return whether plans may move the operator: an optimizer's operator, or an update of buffers alone."""
    buffers = bool(operator.writes) and all(graph.tensors[t].role is Role.BUFFER for t in operator.writes)
    return operator.stage is Stage.OPTIMIZER or operator.splittable or buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The items that are on the device, or away at a price, while fixed operator `position` runs for the first time.

    An item is a value of a tensor. The first `must` items are needed after the moment in any case, the others only if
    a node runs again. A node is an operator that may run again. Positions of the next iteration count on from those
    of this one.
    """

    position: int
    own_bytes: float  # of the tensors that the operator accesses, and of its workspace
    must: int
    # by item
    size_bytes: Floats
    since: Ints  # the operator after which the item may leave
    due: Ints  # the operator before which the item is back
    copied: Flags  # whether the item has to be copied to the host in each iteration
    node: Ints  # the node that can recompute the item, -1 for none
    # by node
    cost_ns: Floats
    parent: Ints  # the node that reads the result, -1 for none
    through: Ints  # the item that the parent reads
    levels: tuple[Ints, ...]  # the nodes in an order in which each comes before its parent
    # by pair of a node and an item that it reads and that no node makes
    leaf_node: Ints
    leaf_item: Ints
    updates: "Updates"  # movable operators that may have run before the moment or may run after it

    def inside(self, stop: int) -> Flags:
        """Return which nodes, if they run again, run before this operator, because their results are
        needed by then.
        """
        due = np.zeros(len(self.cost_ns), dtype=np.int64)
        own = np.flatnonzero(self.node >= 0)
        np.maximum.at(due, self.node[own], self.due[own])
        for level in reversed(self.levels):  # a reader comes before the maker of its input
            inner = level[self.parent[level] >= 0]
            due[inner] = np.maximum(due[inner], due[self.parent[inner]])
        inside: Flags = due <= stop
        return inside


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """Movable operators that may run on either side of one moment, each with the persistent tensors that it alone
    writes.

    A tensor has two windows for its copies: one if the update has not run yet, and another if it has run.
    """

    # by update
    operator: Ints
    cost_ns: Floats
    gradient: Ints  # the item that the update reads, and that is needed until the update has run; -1 for none
    # by tensor
    of: Ints  # the number of its update
    size_bytes: Floats
    since_old: Ints  # the window before the update
    due_old: Ints
    since_new: Ints  # the window after the update
    due_new: Ints


class Moments:
    """The order that every plan of one graph keeps, and its moments."""

    def __init__(self, graph: StepGraph, latency_ns: Sequence[int], link: Link) -> None:
        self.graph, self.link = graph, link
        self.count = len(graph.operators)
        self.fixed: Flags = np.array([not movable(graph, op) for op in graph.operators])
        self.size_bytes = np.array([t.size_bytes for t in graph.tensors], dtype=np.float64)
        self.persistent: Flags = np.array([t.persistent for t in graph.tensors], dtype=bool)
        self.again: Flags = np.array(repeatable(graph)) & self.fixed
        self.cost_ns = np.array(latency_ns, dtype=np.float64)
        self.upload: Flags = np.array([op.stage is Stage.UPLOAD for op in graph.operators])
        for k in np.flatnonzero(self.upload):
            written = {*graph.operators[k].writes}
            self.cost_ns[k] = link.in_ns(sum(graph.tensors[t].size_bytes for t in written))
        # the fixed operator after which each operator runs; a fixed operator maps to itself
        self.after = np.arange(self.count)
        self._read()
        self._group()

    def held_bytes(self) -> Floats:
        """Return for each fixed operator the bytes that are resident at its moment or are needed later.

        The bound at an operator is never higher, because a plan may keep all of these bytes.
        """
        change = [0] * (self.count + 1)
        until: dict[tuple[int, int], int] = {}
        rows = (self._tensor[self._transient], self._version[self._transient], self._not_before[self._transient])
        for tensor, maker, reader in zip(*(row.tolist() for row in rows), strict=True):
            until[tensor, maker] = max(until.get((tensor, maker), 0), reader)
        makers: list[list[int]] = [[] for _ in self.graph.tensors]
        tensors = self.graph.tensors
        for (tensor, maker), reader in sorted(until.items()):
            change[maker + 1] += tensors[tensor].size_bytes
            change[max(reader, maker + 1)] -= tensors[tensor].size_bytes
            makers[tensor].append(maker)
        for k, op in enumerate(self.graph.operators):
            own = op.workspace_bytes
            for tensor in {*op.reads, *op.writes}:
                before = bisect_left(makers[tensor], k)  # a value is read at the latest when the next value is made
                inside = before and k < until[tensor, makers[tensor][before - 1]]
                own += 0 if tensors[tensor].persistent or inside else tensors[tensor].size_bytes
            change[k] += own
            change[k + 1] -= own
        total_bytes = np.cumsum(np.array(change[:-1], dtype=np.float64))
        return np.where(self.fixed, total_bytes + float(self.size_bytes[self.persistent & self._used].sum()), 0)

    def moment(self, position: int) -> Moment:
        """Return the moment at which this fixed operator runs."""
        operator = self.graph.operators[position]
        accessed = np.zeros(len(self.size_bytes), dtype=bool)
        accessed[np.array([*operator.reads, *operator.writes], dtype=np.int64)] = True
        open_updates = np.flatnonzero(self._update_after < position)
        grouped = np.zeros(len(accessed), dtype=bool)
        grouped[self._state[np.isin(self._state_of, open_updates)]] = True
        persisting = np.flatnonzero(self.persistent & self._used & ~accessed & ~grouped)
        due, since, copied = self._persisting(position)
        live = self._transient & (self._version < position) & (self._not_before > position) & ~accessed[self._tensor]
        transient = np.unique(self._tensor[live])
        soonest = np.full(len(accessed), self.count)
        np.minimum.at(soonest, self._tensor[live], self._not_after[live])
        maker = np.full(len(accessed), _NOTHING)
        maker[self._tensor[live]] = self._version[live]
        gradient, made = self._gradient[open_updates], self._gradient_maker[open_updates]
        pending = (made >= 0) & (made < position) & ~accessed[gradient] & (maker[gradient] == _NOTHING)
        transient = np.concatenate((transient, gradient[pending]))
        maker[gradient[pending]] = made[pending]
        must = len(persisting) + len(transient)
        gradient_item = np.full(len(open_updates), -1)
        gradient_item[pending] = np.arange(must - pending.sum(), must)
        chains = _Chains(self, accessed)
        values = list(zip(transient.tolist(), maker[transient].tolist(), strict=True))
        chains.grow(values, first=must)
        more = np.array([v for _, v in chains.items], dtype=np.int64)
        tensors = np.concatenate((persisting, transient, np.array([t for t, _ in chains.items], dtype=np.int64)))
        whose = np.concatenate((np.full(len(persisting), _NOTHING), maker[transient], np.full(len(more), _NOTHING)))
        return Moment(
            position=position,
            own_bytes=operator.workspace_bytes + float(self.size_bytes[accessed].sum()),
            must=must,
            size_bytes=self.size_bytes[tensors],
            since=np.concatenate((since[persisting], maker[transient], more)),
            due=np.concatenate((due[persisting], soonest[transient], np.full(len(more), self.count))),
            copied=np.concatenate((copied[persisting], np.ones(len(transient) + len(more), dtype=bool))),
            node=np.array([chains.number.get(w, -1) for w in whose.tolist()], dtype=np.int64),
            updates=self._updates(open_updates, gradient_item, position),
            **chains.fields(),
        )

    def _updates(self, open_updates: Ints, gradient_item: Ints, position: int) -> Updates:
        """Return these updates as they are at the moment of this fixed operator."""
        state = np.isin(self._state_of, open_updates)
        tensor, update = self._state[state], self._state_of[state]
        next_due = self.count + np.maximum(1, np.minimum(self._soonest[tensor], position))  # in the next iteration
        return Updates(
            operator=self._update[open_updates],
            cost_ns=self.cost_ns[self._update[open_updates]],
            gradient=gradient_item,
            of=np.searchsorted(open_updates, update),
            size_bytes=self.size_bytes[tensor],
            since_old=np.full(len(tensor), position - self.count),
            due_old=np.full(len(tensor), self.count),
            since_new=self._update_after[update],
            due_new=next_due,
        )

    def _group(self) -> None:
        """Collect the movable operators that alone write persistent tensors, which no fixed operator accesses
        afterwards.
        """
        movers: dict[int, set[int]] = {}
        last_fixed: dict[int, int] = {}
        for k, op in enumerate(self.graph.operators):
            for tensor in {*op.reads, *op.writes}:
                if self.fixed[k]:
                    last_fixed[tensor] = k
                else:
                    movers.setdefault(tensor, set()).add(k)
        fixed_writes = {int(t) for t in self._wrote[self.fixed[self._writer]]}
        charged: set[int] = set()
        updates: list[tuple[int, int, int]] = []
        state: list[tuple[int, int]] = []
        for k in np.flatnonzero(~self.fixed).tolist():
            mine = [
                t
                for t in sorted({*self.graph.operators[k].writes})
                if self.persistent[t]
                and movers[t] == {k}
                and t not in fixed_writes
                and last_fixed.get(t, -1) <= self.after[k]
            ]
            read = [
                (self.size_bytes[t], t, w)
                for t, w in self.needs[k]
                if w >= 0 and self.fixed[w] and not self.persistent[t] and t not in charged
            ]
            if mine:
                _, gradient, maker = max(read, default=(0.0, 0, -1))
                charged.add(gradient if read else -1)  # a value that several updates read is charged to one of them
                state += [(t, len(updates)) for t in mine]
                updates.append((k, gradient, maker))
        rows = np.array(updates, dtype=np.int64).reshape(-1, 3)
        self._update, self._gradient, self._gradient_maker = rows.T
        self._update_after = self.after[self._update]
        self._state, self._state_of = np.array(state, dtype=np.int64).reshape(-1, 2).T

    def _read(self) -> None:
        """Collect every access with the version that it reads, and the earliest and latest position of the access."""
        version = [_BEFORE if t.persistent else _NOTHING for t in self.graph.tensors]
        since: list[list[int]] = [[] for _ in self.graph.tensors]
        self.needs: list[list[tuple[int, int]]] = []
        rows = []
        writes = []
        for k, op in enumerate(self.graph.operators):
            touched = sorted({*op.reads, *op.writes})
            if not self.fixed[k]:
                waits = [version[t] for t in touched if version[t] >= 0]
                waits += [j for t in op.writes if self.graph.tensors[t].persistent for j in since[t]]
                self.after[k] = max((int(self.after[j]) for j in waits), default=-1)
            self.needs.append([(t, version[t]) for t in touched if version[t] != _NOTHING])
            rows += [(t, version[t], k) for t in touched]
            writes += [(t, k) for t in op.writes]
            for t in op.reads:
                since[t].append(k)
            for t in op.writes:
                version[t], since[t] = k, [k]
        self._tensor, self._version, operator = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        self._wrote, self._writer = np.array(writes, dtype=np.int64).reshape(-1, 2).T
        fixed = self.fixed[operator]
        # the access runs after all fixed operators before this position
        self._not_before = np.where(fixed, operator, self.after[operator] + 1)
        self._not_after = np.where(fixed, operator, self.count)
        self._used = np.zeros(len(self.size_bytes), dtype=bool)
        self._used[self._tensor] = True
        self._soonest = np.full(len(self.size_bytes), self.count)
        np.minimum.at(self._soonest, self._tensor, self._not_after)
        # accesses of a value of a tensor that does not persist, if a fixed operator made the value
        made = (self._version >= 0) & ~self.persistent[self._tensor]
        self._transient = made & self.fixed[np.maximum(self._version, 0)]

    def _persisting(self, position: int) -> tuple[Ints, Ints, Flags]:
        """Return by tensor, valid for persistent ones: the operator before which it has to be back, the operator
        after which it may be away, and whether it has to be copied to the host in each iteration.
        """
        due = np.full(len(self.size_bytes), 2 * self.count + 1)
        later = self._not_before > position
        np.minimum.at(due, self._tensor[later], self._not_after[later])
        next_due = self.count + np.maximum(1, np.minimum(self._soonest, position))  # in the next iteration
        since = np.full(len(self.size_bytes), _NEVER)
        sure = self.fixed[self._writer] & (self._writer < position)
        np.maximum.at(since, self._wrote[sure], self._writer[sure])
        previous = np.full(len(self.size_bytes), _NEVER)
        np.maximum.at(previous, self._wrote, np.maximum(self.after[self._writer], position) - self.count)
        return np.where(due > self.count, next_due, due), np.where(since >= 0, since, previous), previous > _NEVER


class _Chains:
    """Collect the operators that can recompute values, and the values that those need. Each value is charged to one
    reader.
    """

    def __init__(self, moments: Moments, accessed: Flags) -> None:
        self._all, self._accessed = moments, accessed
        self.items: list[tuple[int, int]] = []  # values, by tensor and maker, that only re-run operators need
        self.number: dict[int, int] = {}
        self._parent: dict[int, tuple[int, int]] = {}
        self._leaves: list[tuple[int, int]] = []

    def grow(self, values: list[tuple[int, int]], *, first: int) -> None:
        """Walk from the makers of these values back to values that are free. `first` is the number of the first
        further item.
        """
        again, persistent, fixed = self._all.again, self._all.persistent, self._all.fixed
        known = set(values)
        depth = {maker: 0 for _, maker in values if again[maker]}
        heap = [-maker for maker in depth]
        heapify(heap)
        while heap:
            reader = -heappop(heap)
            for tensor, maker in self._all.needs[reader]:
                free = persistent[tensor] or self._accessed[tensor] or maker < 0 or not fixed[maker]
                if free or (tensor, maker) in known:
                    continue
                known.add((tensor, maker))
                if not again[maker]:
                    self._leaves.append((reader, first + len(self.items)))
                    self.items.append((tensor, maker))
                elif maker not in self._parent and depth[reader] < _DEEPEST:
                    self._parent[maker] = (reader, first + len(self.items))
                    self.items.append((tensor, maker))
                    if maker not in depth:
                        heappush(heap, -maker)
                    depth[maker] = max(depth.get(maker, 0), depth[reader] + 1)
        self.number = {maker: node for node, maker in enumerate(sorted(depth))}

    def fields(self) -> dict[str, Any]:
        """Return the node fields of a Moment."""
        makers = sorted(self.number)
        parent = [self.number[self._parent[w][0]] if w in self._parent else -1 for w in makers]
        level = [0] * len(makers)
        for node, up in enumerate(parent):  # a reader comes after the maker of its input
            if up >= 0:
                level[up] = max(level[up], level[node] + 1)
        rows = np.array(level, dtype=np.int64)
        leaves = np.array([(self.number[w], item) for w, item in self._leaves], dtype=np.int64).reshape(-1, 2)
        return {
            "cost_ns": self._all.cost_ns[np.array(makers, dtype=np.int64)],
            "parent": np.array(parent, dtype=np.int64),
            "through": np.array([self._parent[w][1] if w in self._parent else 0 for w in makers], dtype=np.int64),
            "levels": tuple(np.flatnonzero(rows == number) for number in range(max(level, default=-1) + 1)),
            "leaf_node": leaves[:, 0],
            "leaf_item": leaves[:, 1],
        }
