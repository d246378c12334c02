"""Recomputation: find the gaps in which tensors can be recomputed, price them, and build the plan that does it.

Instead of moving a tensor to the host and back, a plan can drop it after the access before a gap and run the
operators that make it once more, right before the access that ends the gap. These operators are the tensor's *cone*:
the operator that wrote it, the operators that wrote those inputs that are not resident at that moment, and so on up
to *sources* that are resident (TENSILE section IV-D, after Capuchin and SuperNeurons). rewrite.py defines the meaning
of an order of execution with re-runs. This module finds such orders.

A gap can be recomputed if its whole cone is safe while no other tensor is dropped: every operator of the cone is
repeatable, nothing has updated what it reads or makes since it ran, and it is not an upload. Dropping several such
gaps together is also always safe. A cone that loses a source gets that source's own cone, and a tensor that was not
updated before the later of two moments was not updated before the earlier one.

Batch normalisation needs special treatment, because it reads running statistics that are updated right after it. Such
an update, of a buffer that no operator accesses later in the step, is put off until the last re-run is over, so a
re-run computes the same statistics as the first run.

We differ from the papers in two points. Sources may be recomputed or swapped themselves (TENSILE takes only tensors
that are never released: see `Cone.sources`). A policy chooses for each gap whether a tensor that is recomputed early,
as an input of another tensor, stays until it is needed itself (SuperNeurons' speed-centric way) or not
(memory-centric).

A caller takes three steps:

1. `Recomputation(graph, latency_ns)`; its `gaps` are the candidates.
2. `cone(gap, dropped)` prices one candidate beside others that are dropped already.
3. `plan(policy, dropped, swaps)` builds the plan. Swaps are given as they would be without any recomputation; a swap
  returns early enough if a cone reads its tensor while it is away. `order` gives the executions alone, for a caller
  that places swaps in the rewritten graph.

An order of execution without re-runs (updates beside gradients, split updates) can be given as `base`. Operators,
tensors, gaps and swaps then refer to the graph of that order.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, Role, Stage, StepGraph, TensorId
from indb_tensile.scheduler.memory.peak import Gap, accesses, gaps
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.recomputation.carry import RerunOrder, carried
from indb_tensile.scheduler.rewrite import captured_order, execution_ns, repeatable, rewrite

_NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cone:
    """The operators that make a gap's tensor again, in their order. The last of them writes the tensor.

    `sources` are the tensors read that are resident already, persistent tensors included, sorted by id. `made` are
    the tensors that the operators write, sorted by id. At worst all of `made` have to fit on the device at once.
    """

    gap: Gap
    operators: tuple[OpIndex, ...]
    sources: tuple[TensorId, ...]
    made: tuple[TensorId, ...]
    time_ns: int


class Recomputation:
    """The tensors of one graph that can be recomputed. An instance does not change, and no query depends on earlier
    ones.
    """

    def __init__(
        self,
        graph: StepGraph,
        latency_ns: Sequence[int],
        base: Sequence[Execution] = (),
        *,
        cache: PlanCache | None = None,
    ) -> None:
        self._cache = PlanCache() if cache is None else cache
        self._captured = graph
        self._base = tuple(base) or captured_order(graph, self._cache)
        self.graph = graph
        if base:
            rewritten = rewrite(graph, base, self._cache)
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
        """Return whether the tensor can be dropped and recomputed in this gap."""
        return gap in self._safe_gaps

    def cone(self, gap: Gap, dropped: Iterable[Gap] = (), *, retained: Collection[TensorId] = ()) -> Cone:
        """Return the cone of the gap's tensor while the dropped gaps' tensors are not resident either.

        A swapped tensor counts as resident. `retained` are tensors that are kept past their last access, as sources.
        """
        self._check((gap,))
        moment = gap.needed_by
        gone = {d.tensor for d in dropped if d.out_after < moment <= d.needed_by}

        def resident(tensor: TensorId) -> bool:
            return tensor not in gone and (tensor in retained or self._alive(tensor, moment))

        operators = self._closure((gap.tensor,), resident)
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
        self, dropped: Collection[Gap], *, brief: Collection[Gap] = (), retained: Collection[TensorId] = ()
    ) -> tuple[Execution, ...]:
        """Return every operator in order, and before each operator that needs a dropped tensor the cone that
        recomputes it.

        A dropped gap's tensor that is recomputed early, as an input of another tensor, stays until the gap ends. If
        the gap is in `brief`, the tensor is dropped at once and recomputed once more.
        """
        turns = self._turns(dropped, frozenset(brief), frozenset(retained))
        return tuple(self._base[k] for k in turns.order)

    def extra_ns(self, executions: Sequence[Execution]) -> int:
        """Return how much longer this order computes than the order without re-runs."""
        by_operator = dict(zip(self._base, self.latency_ns, strict=True))
        return sum(by_operator[e] for e in executions) - sum(self.latency_ns)

    def plan(
        self,
        policy: str,
        dropped: Collection[Gap],
        swaps: Iterable[Swap] = (),
        *,
        brief: Collection[Gap] = (),
        retained: Collection[TensorId] = (),
        away: frozenset[TensorId] = frozenset(),
    ) -> Plan:
        """Return the plan that drops these gaps' tensors, recomputes them and swaps others.

        If a cone cuts a swap's gap in two, only the longer part is swapped. A swap of a tensor that is recomputed
        inside its gap is left out, because it is needless.
        """
        turns = self._turns(dropped, frozenset(brief), frozenset(retained))
        executions = tuple(self._base[k] for k in turns.order)
        final = rewrite(self._captured, executions, self._cache).graph
        carried_swaps = carried(self.graph, final, self.latency_ns, turns, swaps)
        plain = executions == captured_order(self._captured, self._cache)
        return Plan(policy=policy, executions=() if plain else executions, swaps=carried_swaps, away=away)

    # --- the order ---------------------------------------------------------------------------------------------

    def _turns(self, dropped: Collection[Gap], brief: frozenset[Gap], retained: frozenset[TensorId]) -> RerunOrder:
        self._check(dropped)
        leaving = {(gap.tensor, gap.out_after) for gap in dropped}
        passing = {(gap.tensor, gap.out_after) for gap in brief}
        resident = [tensor.persistent for tensor in self.graph.tensors]
        since: list[int] = [_NEVER] * len(resident)  # the last access so far in this order, which identifies the gap
        reruns: list[list[OpIndex]] = []
        for index, touched in enumerate(self._touched):
            missing = [t for t in touched if not resident[t] and self._maker(t) < index]
            again = self._closure(missing, resident.__getitem__)
            reruns.append(again)
            for tensor in {t for k in again for t in self.graph.operators[k].writes}:
                resident[tensor] |= self._alive(tensor, index) and (tensor, since[tensor]) not in passing
            for tensor in touched:
                since[tensor] = index
                over = index == self._accesses[tensor][-1]
                stays = tensor in retained if over else (tensor, index) not in leaving
                resident[tensor] = stays or self._persistent(tensor)
        return RerunOrder.laid(reruns, self._put_off(reruns))

    def _put_off(self, reruns: Sequence[Sequence[OpIndex]]) -> dict[int, int]:
        """Return the turn in which each update that has to wait runs."""
        turn_of: dict[int, int] = {}
        for turn, again in enumerate(reruns):
            for tensor in {t for k in again for t in self.graph.operators[k].reads}:
                for writer in self._writers[tensor]:
                    if writer < turn and writer in self._deferrable and self._reads_before(again, tensor, writer):
                        turn_of[writer] = turn
        return turn_of

    def _reads_before(self, operators: Iterable[OpIndex], tensor: TensorId, writer: int) -> bool:
        return any(k < writer and tensor in self.graph.operators[k].reads for k in operators)

    def _closure(self, tensors: Iterable[TensorId], resident: Callable[[TensorId], bool]) -> list[OpIndex]:
        """Return the operators that make the tensors from resident tensors, in the order of the graph."""
        operators: set[int] = set()
        pending = list(tensors)
        while pending:
            maker = self._maker(pending.pop())
            if maker not in operators:
                operators.add(maker)
                pending += [
                    t for t in self.graph.operators[maker].reads if not self._persistent(t) and not resident(t)
                ]
        return [OpIndex(k) for k in sorted(operators)]

    def _check(self, checked: Iterable[Gap]) -> None:
        for gap in checked:
            if not self.safe(gap):
                name = self.graph.tensors[gap.tensor].name
                raise InvariantError(f"tensor {gap.tensor} ({name}) cannot be made again in {gap}")

    # --- what is safe ------------------------------------------------------------------------------------------

    def _find_latest(self) -> list[int]:
        """Return for each tensor the last operator before which its whole cone may run again.

        That is the last moment at which each input of the tensor's maker is resident unchanged, or can be recomputed,
        and the maker's outputs have not been updated. One walk suffices, because an operator's inputs come before it.
        """
        latest = [_NEVER] * len(self.graph.tensors)
        for index, operator in enumerate(self.graph.operators):
            if self._repeatable[index] and operator.stage is not Stage.UPLOAD:
                until = min(self._next_update(t, index) for t in operator.writes)
                until = min((until, *(self._available_until(t, index, latest) for t in operator.reads)))
                for tensor in operator.writes:
                    latest[tensor] = until
        return latest

    def _available_until(self, tensor: TensorId, reader: int, latest: Sequence[int]) -> int:
        """Return the last operator before which the tensor exists, or can be recomputed, with the value that this
        reader read.
        """
        changed = self._next_update(tensor, reader)
        if self._persistent(tensor):
            return changed
        until = min(changed, self._accesses[tensor][-1])
        as_made = not any(self._maker(tensor) < writer < reader for writer in self._writers[tensor])
        return max(until, latest[tensor]) if as_made else until

    def _next_update(self, tensor: TensorId, since: int) -> int:
        """Return the next operator that updates the tensor and cannot be put off. Past the end if there is none."""
        updates = (k for k in self._writers[tensor] if k > since and k not in self._deferrable)
        return next(updates, len(self.graph.operators))

    def _find_deferrable(self) -> frozenset[int]:
        """Return the updates of buffers that may run later: no operator accesses their outputs afterwards or updates
        their inputs.
        """
        deferrable = set()
        for index, operator in enumerate(self.graph.operators):
            written = {*operator.writes}
            if not written or operator.random or any(self.graph.tensors[t].role is not Role.BUFFER for t in written):
                continue
            ends = all(self._accesses[t][-1] == index for t in written)
            steady = all(self._writers[t][-1:] < (index,) for t in operator.reads if t not in written)
            if ends and steady:
                deferrable.add(index)
        return frozenset(deferrable)

    def _persistent(self, tensor: TensorId) -> bool:
        return self.graph.tensors[tensor].persistent

    def _alive(self, tensor: TensorId, moment: int) -> bool:
        """Return whether the tensor is still accessed at that moment or later."""
        return self._accesses[tensor][-1] >= moment

    def _maker(self, tensor: TensorId) -> int:
        """Return the operator that first writes the tensor. A persistent tensor may have none."""
        writers = self._writers[tensor]
        return writers[0] if writers else _NEVER


def _writers(graph: StepGraph) -> list[tuple[int, ...]]:
    """Return for each tensor the operators that write it, in order."""
    writers_of: list[list[int]] = [[] for _ in graph.tensors]
    for index, operator in enumerate(graph.operators):
        for tensor in sorted({*operator.writes}):
            writers_of[tensor].append(index)
    return [tuple(writers) for writers in writers_of]
