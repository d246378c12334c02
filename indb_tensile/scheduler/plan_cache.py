"""A cache of values that follow from a graph alone, such as its rewriting for a plan. The caller owns the cache.

A job is planned, judged, simulated and planned again with one graph object, and each time the same rewriting and the
same arrays are needed. Whoever plans makes a `PlanCache` and passes it down: a planner for as long as it lives, a
simulation for one call. A function that gets no cache computes the value each time. A cache never changes a result:
it saves time, it is bounded, and its memory is freed with its owner.

Entries are looked up by the identity of the graph, because comparing graphs by value is slow. The cache does not keep
a graph alive, and a cached value must not refer to its graph. Several threads may share a cache: an entry that one
thread adds may get lost when another adds one at the same moment, and is then computed again.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from indb_tensile.scheduler.graph import StepGraph

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedKind(Generic[_Value]):
    """One kind of cached value: its name, and the number of values of this kind that a cache keeps."""

    name: str
    most: int


@dataclass(frozen=True, slots=True)
class _Entry(Generic[_Value]):
    graph: weakref.ref[StepGraph]
    key: tuple[object, ...]
    value: _Value


class GraphTable(Generic[_Value]):
    """The latest `most` values of one kind, by graph and by a key of everything else that the value depends on."""

    def __init__(self, most: int) -> None:
        self._most = most
        # the latest first; replaced as a whole, never changed in place
        self._entries: tuple[_Entry[_Value], ...] = ()

    def get(self, graph: StepGraph, key: tuple[object, ...], make: Callable[[], _Value]) -> _Value:
        """Return the cached value for this graph and an equal key. If there is none, make the value and cache it."""
        entries = self._entries
        for entry in entries:
            if entry.graph() is graph and len(entry.key) == len(key) and entry.key == key:
                return entry.value
        entry = _Entry(weakref.ref(graph, self._forget), key, make())
        self._entries = (entry, *self._entries[: self._most - 1])
        return entry.value

    def _forget(self, graph: weakref.ref[StepGraph]) -> None:
        self._entries = tuple(entry for entry in self._entries if entry.graph is not graph)


class PlanCache:
    """Values of several kinds, each kind in a table of its own."""

    def __init__(self) -> None:
        self._tables: dict[str, GraphTable[Any]] = {}

    def get(
        self, kind: CachedKind[_Value], graph: StepGraph, key: tuple[object, ...], make: Callable[[], _Value]
    ) -> _Value:
        """Return the value of this kind for this graph and an equal key. If there is none, make it and cache it."""
        table = self._tables.get(kind.name)
        if table is None:
            table = self._tables.setdefault(kind.name, GraphTable(kind.most))
        value: _Value = table.get(graph, key, make)
        return value


def cached(
    cache: PlanCache | None,
    kind: CachedKind[_Value],
    graph: StepGraph,
    key: tuple[object, ...],
    make: Callable[[], _Value],
) -> _Value:
    """Return the value from the cache, if there is a cache. Otherwise make the value."""
    return make() if cache is None else cache.get(kind, graph, key, make)
