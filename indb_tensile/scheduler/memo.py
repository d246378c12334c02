"""What follows from a graph alone, remembered for as long as the graph lives: pure in effect, and bounded.

A job is planned, judged, foretold and planned again with one graph object, and each time the same rewriting and the
same arrays are needed. They are found again by the graph's identity, which costs nothing to compare. The graph is not
kept alive, and what is remembered must not refer to it.
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
    """The latest `most` results, by graph and whatever else they follow from."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: tuple[_Entry[_Value], ...] = ()  # the latest first; replaced whole, never changed

    def get(self, graph: StepGraph, key: tuple[object, ...], make: Callable[[], _Value]) -> _Value:
        """What was made before for this graph and an equal key, or else is made now."""
        entries = self._entries
        for entry in entries:
            if entry.graph() is graph and len(entry.key) == len(key) and entry.key == key:
                return entry.value
        made = _Entry(weakref.ref(graph, self._forget), key, make())
        self._entries = (made, *self._entries[: self._most - 1])
        return made.value

    def _forget(self, graph: weakref.ref[StepGraph]) -> None:
        self._entries = tuple(entry for entry in self._entries if entry.graph is not graph)
