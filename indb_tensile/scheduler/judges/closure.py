"""Find the heaviest closed set of a directed graph: a set of nodes that contains, with each node, all nodes that it
needs.

The method is a minimum cut (Picard, "Maximal closure of a graph and applications to combinatorial problems",
Management Science, 1976). Flow goes from nodes of positive weight along the needs to nodes of negative weight, which
absorb at most the absolute value of their weight. The flow that cannot be absorbed is the largest weight of a closed
set. The maximum flow algorithm is Dinic's.
"""

from collections.abc import Sequence


def heaviest_closure(weights: Sequence[int], needs: Sequence[tuple[int, int]]) -> int:
    """Return the largest sum of weights of a closed set. The empty set weighs 0. The pair (a, b) means that a needs
    b.
    """
    flow = _Flow(weights, needs)
    while flow.level():
        flow.push()
    return sum(flow.brings)


class _Flow:
    """The residual flow network. The capacity along a need is unlimited; against a need it is the flow along the
    need.
    """

    def __init__(self, weights: Sequence[int], needs: Sequence[tuple[int, int]]) -> None:
        self.brings = [max(0, weight) for weight in weights]
        self._takes = [max(0, -weight) for weight in weights]
        self._heads: list[int] = []
        self._room: list[int] = []  # by arc; the number of the reverse arc differs in the last bit
        self._arcs: list[list[int]] = [[] for _ in weights]
        unlimited = sum(self.brings) + 1
        for first, second in dict.fromkeys(needs):
            self._arcs[first].append(len(self._heads))
            self._arcs[second].append(len(self._heads) + 1)
            self._heads += [second, first]
            self._room += [unlimited, 0]
        self._level: list[int] = []
        self._next: list[int] = []

    def level(self) -> bool:
        """Number the nodes by their distance from nodes with remaining supply. Return False if no more flow is
        possible.
        """
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
        """Push a blocking flow along arcs to the next level."""
        for source in range(len(self.brings)):
            while self.brings[source] and self._path(source):
                pass

    def _path(self, source: int) -> bool:
        """Push flow along one path to a node that can absorb it. Return False if there is no such path."""
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
        """Return the next arc from this node to the next level."""
        arcs = self._arcs[node]
        while self._next[node] < len(arcs):
            arc = arcs[self._next[node]]
            if self._room[arc] and self._level[self._heads[arc]] == self._level[node] + 1:
                return arc
            self._next[node] += 1
        return None
