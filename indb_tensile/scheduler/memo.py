"""Cache of values that follow from a graph alone, for as long as the graph lives. The cache is bounded and has no
visible effect.

A job is planned, judged, simulated and planned again with one graph object, and each time the same rewriting and the
same arrays are needed. Entries are looked up by the identity of the graph, because comparing graphs by value is slow.
The cache does not keep the graph alive, and a cached value must not refer to its graph.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from indb_tensile.scheduler.graph import StepGraph

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[_Value]):
    graph: weakref.ref[StepGraph]
    key: tuple[object, ...]
    value: _Value


class Memo(Generic[_Value]):
    """The latest `most` results, by graph and by a key of everything else that the result depends on."""

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
