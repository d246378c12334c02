"""One step graph under search: keep, swap or make again, gap by gap, judged by the exact load and time.

The search itself is native (native/planner), since a plan for ten thousand operators has to be there within a
second. This is its border: step graphs and links go in, plans come out. Which limits are searched, in what
manner, and which of the results is taken is a policy's business.
"""

from collections.abc import Sequence
from math import ceil

from indb_tensile._planner import Manner, Search
from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, Stage, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.rewrite import effective, effective_latency, repeatable, rewrite

__all__ = ["Manner", "StepSearch"]


class StepSearch:
    """The choices for one graph, executed in a given order; nothing is chosen at first.

    `executions` is the order before anything is made again, empty for the captured one. `share` is the part of
    each lane that the job may count on. `away` are persistent tensors that the graph never accesses and that
    stay on the host.
    """

    def __init__(
        self,
        graph: StepGraph,
        latency_ns: Sequence[int],
        link: Link,
        *,
        executions: tuple[Execution, ...] = (),
        share: float = 1.0,
        away: frozenset[TensorId] = frozenset(),
    ) -> None:
        self.graph = graph
        self._executions = executions
        self._away = away
        start = Plan(policy="", executions=executions)
        self.base = rewrite(graph, executions).graph if executions else graph
        self._link, self._share = link, share
        self._search = _search(self.base, effective_latency(latency_ns, start), link, share, away)

    @property
    def peak_bytes(self) -> int:
        """The most bytes on the device at once."""
        return self._search.peak_bytes

    @property
    def iteration_ns(self) -> int:
        """Nanoseconds of one iteration alone on its share of the lanes."""
        return self._search.iteration_ns

    def clear(self) -> None:
        """Keep everything."""
        self._search.clear()

    @property
    def lane_ns(self) -> int:
        """How long both lanes together copy in one iteration."""
        return self._search.lane_ns

    @property
    def layouts(self) -> int:
        """How many sets of choices were laid out so far: the unit in which searching is rationed."""
        return self._search.layouts

    @property
    def operators(self) -> int:
        """How many operators run before anything is made again."""
        return len(self.base.operators)

    def exhaust(self) -> None:
        """Swap everything for as long as possible: the least memory that swapping gives, whatever it costs."""
        self._search.exhaust()

    def lower(self, limit_bytes: int, manner: Manner, *, most: int) -> bool:
        """Go on from what is chosen until the peak is within the limit.

        False where nothing lowers it further, or laying out `most` sets of choices did not suffice.
        """
        return self._search.lower(limit_bytes, manner, most)

    def prune(self, limit_bytes: int, most: int) -> None:
        """Try to take back that many choices, the most expensive first."""
        self._search.prune(limit_bytes, most)

    def improve(self, limit_bytes: int, manner: Manner, *, most: int, seed: int) -> int:
        """Large-neighbourhood search: undo around random places and lower again, keep what is faster."""
        return self._search.improve(limit_bytes, manner, most, seed)

    def retime(self, latency_ns: Sequence[int]) -> None:
        """The same choices with other latencies."""
        timed = _timed(
            self.base, effective_latency(latency_ns, Plan(policy="", executions=self._executions)), self._link
        )
        out_ns, in_ns = _lanes(self.base, self._link, self._share)
        self._search.retime(latency_ns=timed, out_ns=out_ns, in_ns=in_ns)

    @property
    def choices(self) -> list[tuple[int, int, int]]:
        """What is chosen, to be chosen again."""
        return self._search.choices

    def choose(self, choices: list[tuple[int, int, int]]) -> None:
        """Take what was chosen before."""
        self._search.choose(choices)

    def plan(self, policy: str) -> Plan:
        """What is chosen, as a plan."""
        order = self._search.order
        executions = self._order(order)
        graph = effective(self.graph, Plan(policy=policy, executions=executions))
        swaps = []
        for tensor, after, free, back, need, copies in self._search.moves:
            swap = Swap(
                tensor=_instance(self.base, graph, order[after], after, TensorId(tensor)),
                out_after=OpIndex(after),
                free_at=OpIndex(free % len(order)),
                in_at=OpIndex(back % len(order)),
                needed_by=OpIndex(need % len(order)),
                copies=copies,
            )
            swaps.append(swap)
        swaps.sort(key=lambda s: (s.tensor, s.out_after))
        return Plan(policy=policy, executions=executions, swaps=tuple(swaps), away=self._away)

    def _order(self, order: Sequence[int]) -> tuple[Execution, ...]:
        if self._executions:
            return tuple(self._executions[k] for k in order)
        if list(order) == list(range(len(self.graph.operators))):
            return ()
        return tuple(Execution(operator=OpIndex(k)) for k in order)


def _instance(base: StepGraph, final: StepGraph, operator: int, position: int, tensor: TensorId) -> TensorId:
    """The tensor of the final graph that stands where the operator accesses this one."""
    known, here = base.operators[operator], final.operators[position]
    for mine, theirs in ((known.reads, here.reads), (known.writes, here.writes)):
        if tensor in mine:
            return theirs[mine.index(tensor)]
    raise InvariantError(f"operator {operator} at position {position} does not access tensor {tensor}")


def _search(
    graph: StepGraph, latency_ns: Sequence[int], link: Link, share: float, away: frozenset[TensorId]
) -> Search:
    offset, access = [0], []
    for operator in graph.operators:
        access += [(int(t), t in operator.writes) for t in sorted({*operator.reads, *operator.writes})]
        offset.append(len(access))
    out_ns, in_ns = _lanes(graph, link, share)
    return Search(
        size_bytes=[0 if t.id in away else t.size_bytes for t in graph.tensors],
        persistent=[t.persistent for t in graph.tensors],
        out_ns=out_ns,
        in_ns=in_ns,
        latency_ns=_timed(graph, latency_ns, link),
        workspace_bytes=[op.workspace_bytes for op in graph.operators],
        upload=[op.stage is Stage.UPLOAD for op in graph.operators],
        repeatable=[_again(graph, k, ok) for k, ok in enumerate(repeatable(graph))],
        offset=offset,
        access=access,
    )


def _again(graph: StepGraph, index: int, ok: bool) -> bool:
    """An upload's batch is gone from the host's buffer when the next one is prepared."""
    return ok and graph.operators[index].stage is not Stage.UPLOAD


def _lanes(graph: StepGraph, link: Link, share: float) -> tuple[list[int], list[int]]:
    out_ns = [ceil(link.out_ns(t.size_bytes) / share) for t in graph.tensors]
    in_ns = [ceil(link.in_ns(t.size_bytes) / share) for t in graph.tensors]
    return out_ns, in_ns


def _timed(graph: StepGraph, latency_ns: Sequence[int], link: Link) -> list[int]:
    """Latencies with each upload's time on the lane to the device."""
    found = list(latency_ns)
    for index, operator in enumerate(graph.operators):
        if operator.stage is Stage.UPLOAD:
            found[index] = link.in_ns(sum(graph.tensors[t].size_bytes for t in {*operator.writes}))
    return found
