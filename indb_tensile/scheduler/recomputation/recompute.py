"""Recomputation: which tensors can be made again in which gaps, what that costs, and the plan that does it.

Instead of moving a tensor to the host and back, a plan can let go of it after the access before a gap and run the
operators that make it once more, right before the access that ends the gap. Those operators are its *cone*: the
one that wrote it and, for each input that is not there at that moment, the one that wrote that, and so on up to
*sources* that are there (TENSILE section IV-D, after Capuchin and SuperNeurons). rewrite.py says what an order of
execution with re-runs means; here such orders are found.

A gap can be recomputed if its whole cone is safe with nothing else let go of: every operator in it is repeatable,
nobody has updated what it reads or makes since it ran, and it is no upload. Letting go of several such gaps
together is always safe as well: a cone that loses a source gets that source's own cone, and what was not updated
before the later of two moments was not updated before the earlier one.

One thing stands in the way of networks with batch normalisation: it reads running statistics that are updated right
after it. Such an update, of a buffer that nothing else accesses later in the step, is put off until the last re-run
is over (SCHEDULER.md: statistics of a second run are discarded).

Where we differ from the papers: sources may be recomputed or swapped themselves (TENSILE takes only those never
released: see `Cone.sources`), and a policy chooses for each gap whether a tensor that is made in passing, for
another one's sake, stays until it is needed itself (SuperNeurons' speed-centric way) or not (memory-centric).

A caller goes three steps:

1. `Recomputation(graph, latency_ns)`; its `gaps` are the candidates.
2. `cone(gap, dropped)` prices one candidate beside others that are dropped already.
3. `plan(policy, dropped, swaps)` builds the plan. Swaps are given as they would stand without any recomputation;
   a swap whose tensor a cone reads while it is away returns early enough for that. `order` gives the executions
   alone, for a caller that places swaps in the rewritten graph.

An order of execution without re-runs (updates beside gradients, split ones) can be given as `base`: operators,
tensors, gaps and swaps then are those of the graph that it amounts to.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, Role, Stage, StepGraph, TensorId
from indb_tensile.scheduler.memory.peak import Gap, accesses, gaps
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.recomputation.carry import Turns, carried
from indb_tensile.scheduler.rewrite import captured_order, execution_ns, repeatable, rewrite

_NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cone:
    """What makes a gap's tensor again: `operators` in their order, the last of which writes it, and what they read.

    `sources` are the tensors read that are there already, persistent ones included, by id. `made` are those that
    the operators write, by id: all of them have to fit on the device at once at worst.
    """

    gap: Gap
    operators: tuple[OpIndex, ...]
    sources: tuple[TensorId, ...]
    made: tuple[TensorId, ...]
    time_ns: int


class Recomputation:
    """One graph's tensors that can be made again. It does not change; every question is answered anew."""

    def __init__(self, graph: StepGraph, latency_ns: Sequence[int], base: Sequence[Execution] = ()) -> None:
        self._captured = graph
        self._base = tuple(base) or captured_order(graph)
        self.graph = graph
        if base:
            rewritten = rewrite(graph, base)
            if rewritten.reruns:
                raise InvariantError(f"base runs operators again: {sorted(rewritten.reruns)[:5]}")
            self.graph = rewritten.graph
        self.latency_ns = tuple(execution_ns(latency_ns[e.operator], e.parts) for e in self._base)
        self._accesses = accesses(self.graph)
        self._writers = _writers(self.graph)
        self._touched = [tuple(sorted({*op.reads, *op.writes})) for op in self.graph.operators]
        self._repeatable = repeatable(self.graph)
        self._deferrable = self._find_deferrable()
        self._latest = self._find_latest()
        self.gaps = tuple(gap for gap in gaps(self.graph) if gap.needed_by <= self._latest[gap.tensor])
        self._safe_gaps = frozenset(self.gaps)

    # --- questions ---------------------------------------------------------------------------------------------

    def safe(self, gap: Gap) -> bool:
        """Whether this is one of the gaps in which the tensor can be let go of and made again."""
        return gap in self._safe_gaps

    def cone(self, gap: Gap, dropped: Iterable[Gap] = (), *, held: Collection[TensorId] = ()) -> Cone:
        """What it takes to make the gap's tensor again where the dropped gaps' tensors are not there either.

        A swapped tensor counts as there. `held` are tensors that are kept past their last access, as sources.
        """
        self._check((gap,))
        moment = gap.needed_by
        gone = {d.tensor for d in dropped if d.out_after < moment <= d.needed_by}

        def here(tensor: TensorId) -> bool:
            return tensor not in gone and (tensor in held or self._alive(tensor, moment))

        operators = self._closure((gap.tensor,), here)
        made = {t for k in operators for t in self.graph.operators[k].writes}
        read = {t for k in operators for t in self.graph.operators[k].reads}
        return Cone(
            gap=gap,
            operators=tuple(operators),
            sources=tuple(sorted(read - made)),
            made=tuple(sorted(made)),
            time_ns=sum(self.latency_ns[k] for k in operators),
        )

    def order(
        self, dropped: Collection[Gap], *, brief: Collection[Gap] = (), held: Collection[TensorId] = ()
    ) -> tuple[Execution, ...]:
        """Every operator, and before each that needs a tensor let go of the cone that makes it again.

        A dropped gap's tensor that is made early, for another one's sake, stays until the gap ends, unless the gap
        is among the `brief` ones: then it is made once more.
        """
        turns = self._turns(dropped, frozenset(brief), frozenset(held))
        return tuple(self._base[k] for k in turns.order)

    def extra_ns(self, executions: Sequence[Execution]) -> int:
        """How much longer this order computes than the one without re-runs."""
        by_operator = dict(zip(self._base, self.latency_ns, strict=True))
        return sum(by_operator[e] for e in executions) - sum(self.latency_ns)

    def plan(
        self,
        policy: str,
        dropped: Collection[Gap],
        swaps: Iterable[Swap] = (),
        *,
        brief: Collection[Gap] = (),
        held: Collection[TensorId] = (),
        away: frozenset[TensorId] = frozenset(),
    ) -> Plan:
        """The plan that drops these gaps' tensors, makes them again and swaps others.

        Of a swap whose gap a cone cuts in two the longer part remains, and a swap of a tensor that is made again
        meanwhile is needless and left out.
        """
        turns = self._turns(dropped, frozenset(brief), frozenset(held))
        executions = tuple(self._base[k] for k in turns.order)
        final = rewrite(self._captured, executions).graph
        found = carried(self.graph, final, self.latency_ns, turns, swaps)
        plain = executions == captured_order(self._captured)
        return Plan(policy=policy, executions=() if plain else executions, swaps=found, away=away)

    # --- the order ---------------------------------------------------------------------------------------------

    def _turns(self, dropped: Collection[Gap], brief: frozenset[Gap], held: frozenset[TensorId]) -> Turns:
        self._check(dropped)
        leaving = {(gap.tensor, gap.out_after) for gap in dropped}
        passing = {(gap.tensor, gap.out_after) for gap in brief}
        here = [tensor.persistent for tensor in self.graph.tensors]
        since: list[int] = [_NEVER] * len(here)  # the last access in this order's time, which tells the gap
        reruns: list[list[OpIndex]] = []
        for index, touched in enumerate(self._touched):
            missing = [t for t in touched if not here[t] and self._maker(t) < index]
            again = self._closure(missing, here.__getitem__)
            reruns.append(again)
            for tensor in {t for k in again for t in self.graph.operators[k].writes}:
                here[tensor] |= self._alive(tensor, index) and (tensor, since[tensor]) not in passing
            for tensor in touched:
                since[tensor] = index
                over = index == self._accesses[tensor][-1]
                stays = tensor in held if over else (tensor, index) not in leaving
                here[tensor] = stays or self._kept(tensor)
        return Turns.laid(reruns, self._put_off(reruns))

    def _put_off(self, reruns: Sequence[Sequence[OpIndex]]) -> dict[int, int]:
        """For each update that has to wait the turn in which it runs."""
        found: dict[int, int] = {}
        for turn, again in enumerate(reruns):
            for tensor in {t for k in again for t in self.graph.operators[k].reads}:
                for writer in self._writers[tensor]:
                    if writer < turn and writer in self._deferrable and self._reads_before(again, tensor, writer):
                        found[writer] = turn
        return found

    def _reads_before(self, operators: Iterable[OpIndex], tensor: TensorId, writer: int) -> bool:
        return any(k < writer and tensor in self.graph.operators[k].reads for k in operators)

    def _closure(self, wanted: Iterable[TensorId], here: Callable[[TensorId], bool]) -> list[OpIndex]:
        """The operators that make what is wanted from what is here, in the order of the graph."""
        found: set[int] = set()
        todo = list(wanted)
        while todo:
            maker = self._maker(todo.pop())
            if maker not in found:
                found.add(maker)
                todo += [t for t in self.graph.operators[maker].reads if not self._kept(t) and not here(t)]
        return [OpIndex(k) for k in sorted(found)]

    def _check(self, wanted: Iterable[Gap]) -> None:
        for gap in wanted:
            if not self.safe(gap):
                name = self.graph.tensors[gap.tensor].name
                raise InvariantError(f"tensor {gap.tensor} ({name}) cannot be made again in {gap}")

    # --- what is safe ------------------------------------------------------------------------------------------

    def _find_latest(self) -> list[int]:
        """For each tensor the last operator before which its whole cone may run again.

        As late as each of its maker's inputs is there unchanged, or can itself be made again, and its outputs have
        not been updated. One walk: an operator's inputs come before it.
        """
        latest = [_NEVER] * len(self.graph.tensors)
        for index, operator in enumerate(self.graph.operators):
            if self._repeatable[index] and operator.stage is not Stage.UPLOAD:
                until = min(self._changed(t, index) for t in operator.writes)
                until = min((until, *(self._there(t, index, latest) for t in operator.reads)))
                for tensor in operator.writes:
                    latest[tensor] = until
        return latest

    def _there(self, tensor: TensorId, reader: int, latest: Sequence[int]) -> int:
        """The last operator before which the tensor is, or can be made, as this operator read it."""
        changed = self._changed(tensor, reader)
        if self._kept(tensor):
            return changed
        until = min(changed, self._accesses[tensor][-1])
        as_made = not any(self._maker(tensor) < writer < reader for writer in self._writers[tensor])
        return max(until, latest[tensor]) if as_made else until

    def _changed(self, tensor: TensorId, since: int) -> int:
        """The next operator that updates the tensor and cannot be put off; past the end if none does."""
        updates = (k for k in self._writers[tensor] if k > since and k not in self._deferrable)
        return next(updates, len(self.graph.operators))

    def _find_deferrable(self) -> frozenset[int]:
        """Updates of buffers that may run later: of what nothing accesses any more, from what nobody updates."""
        found = set()
        for index, operator in enumerate(self.graph.operators):
            written = {*operator.writes}
            if not written or operator.random or any(self.graph.tensors[t].role is not Role.BUFFER for t in written):
                continue
            ends = all(self._accesses[t][-1] == index for t in written)
            steady = all(self._writers[t][-1:] < (index,) for t in operator.reads if t not in written)
            if ends and steady:
                found.add(index)
        return frozenset(found)

    def _kept(self, tensor: TensorId) -> bool:
        return self.graph.tensors[tensor].persistent

    def _alive(self, tensor: TensorId, moment: int) -> bool:
        """Whether the tensor is still accessed at that moment or later."""
        return self._accesses[tensor][-1] >= moment

    def _maker(self, tensor: TensorId) -> int:
        """The operator that writes the tensor first; for a persistent one none has to."""
        writers = self._writers[tensor]
        return writers[0] if writers else _NEVER


def _writers(graph: StepGraph) -> list[tuple[int, ...]]:
    """For each tensor the operators that write it, in order."""
    found: list[list[int]] = [[] for _ in graph.tensors]
    for index, operator in enumerate(graph.operators):
        for tensor in sorted({*operator.writes}):
            found[tensor].append(index)
    return [tuple(writers) for writers in found]
