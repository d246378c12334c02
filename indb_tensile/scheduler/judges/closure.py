"""The heaviest closed set of a directed graph: a set of nodes that contains, with each node, all that it needs.

By a minimum cut (Picard, "Maximal closure of a graph and applications to combinatorial problems", Management Science,
1976): what nodes of positive weight bring flows along the needs to nodes of negative weight, which take no more than
they cost; what cannot flow away is what a closed set gains at most. The flow is Dinic's: level by level.
"""

from collections.abc import Sequence


def heaviest_closure(weights: Sequence[int], needs: Sequence[tuple[int, int]]) -> int:
    """The largest sum of weights of a closed set; the empty one weighs 0. (a, b) stands for: a needs b."""
    flow = _Flow(weights, needs)
    while flow.level():
        flow.push()
    return sum(flow.brings)


class _Flow:
    """What nodes still bring and still take. Along a need anything may flow, against it what has flown along it."""

    def __init__(self, weights: Sequence[int], needs: Sequence[tuple[int, int]]) -> None:
        self.brings = [max(0, weight) for weight in weights]
        self._takes = [max(0, -weight) for weight in weights]
        self._heads: list[int] = []
        self._room: list[int] = []  # by arc; the one against it is its number with the last bit turned
        self._arcs: list[list[int]] = [[] for _ in weights]
        anything = sum(self.brings) + 1
        for first, second in dict.fromkeys(needs):
            self._arcs[first].append(len(self._heads))
            self._arcs[second].append(len(self._heads) + 1)
            self._heads += [second, first]
            self._room += [anything, 0]
        self._level: list[int] = []
        self._next: list[int] = []

    def level(self) -> bool:
        """Number the nodes by their distance from what brings something; False where nothing can flow any more."""
        level = [0 if brings else -1 for brings in self.brings]
        reached = [node for node, brings in enumerate(self.brings) if brings]
        sinks = any(self._takes[node] for node in reached)
        for node in reached:
            for arc in self._arcs[node]:
                head = self._heads[arc]
                if level[head] < 0 and self._room[arc]:
                    level[head] = level[node] + 1
                    sinks = sinks or self._takes[head] > 0
                    reached.append(head)
        self._level = level
        self._next = [0] * len(level)
        return sinks

    def push(self) -> None:
        """Let flow what can flow without going back a level."""
        for source in range(len(self.brings)):
            while self.brings[source] and self._path(source):
                pass

    def _path(self, source: int) -> bool:
        """Push along one path to a node that still takes; False where there is none left."""
        path: list[int] = []
        node = source
        while not self._takes[node]:
            arc = self._onward(node)
            if arc is not None:
                path.append(arc)
                node = self._heads[arc]
            elif not path:
                return False
            else:  # a dead end
                self._level[node] = -1
                node = self._heads[path.pop() ^ 1]
        amount = min(self.brings[source], self._takes[node], *(self._room[arc] for arc in path))
        self.brings[source] -= amount
        self._takes[node] -= amount
        for arc in path:
            self._room[arc] -= amount
            self._room[arc ^ 1] += amount
        return True

    def _onward(self, node: int) -> int | None:
        """The next arc from this node to the next level."""
        arcs = self._arcs[node]
        while self._next[node] < len(arcs):
            arc = arcs[self._next[node]]
            if self._room[arc] and self._level[self._heads[arc]] == self._level[node] + 1:
                return arc
            self._next[node] += 1
        return None
