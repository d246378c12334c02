"""Check plans: walk iterations operator by operator and report every broken rule.

This module shares no code with the planner, the rewriting or the peak analysis, and is simple on purpose: a plan is
trusted only if this module finds no fault. The walk starts from the home state (the tensors that the plan has on the
device at operator 0, and host copies only of tensors that are away there), because a trainer adopts a plan in this
state. Each step of the walk examines its operator's accesses and the swaps that act there, so the time grows with
operators, accesses and swaps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from indb_tensile.scheduler.graph import Operator, StepGraph, TensorId
from indb_tensile.scheduler.judges import gate_check
from indb_tensile.scheduler.judges.equivalence import judge
from indb_tensile.scheduler.judges.gate_check import JobLoads
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.timing.schedule import Schedule


def faults(graph: StepGraph, plan: Plan, *, limit_bytes: int | None = None) -> tuple[str, ...]:
    """Return every broken rule, in words. Empty for a plan that can be executed and keeps to the limit."""
    if plan.executions:
        verdict = judge(graph, plan.executions)
        if verdict.faults:
            return verdict.faults
        graph = verdict.graph
    messages = _malformed(graph, plan)
    if messages:
        return tuple(messages)
    walk = _walk(graph, plan)
    messages = list(dict.fromkeys(walk.faults))
    if limit_bytes is not None and max(walk.loads) > limit_bytes:
        messages.append(f"the peak of {max(walk.loads)} bytes is over the limit of {limit_bytes}")
    return tuple(messages)


def faults_together(
    jobs: Sequence[Sequence[tuple[StepGraph, Plan]]], *, budget_bytes: int, schedules: Sequence[Schedule] = ()
) -> tuple[str, ...]:
    """Return every broken rule of several jobs' plans under one budget. Each job is a sequence of (graph, plan)
    pairs.

    `schedules` refer to jobs by position. For jobs with a schedule, the most bytes count that they occupy in any
    order that their gates allow. For the other jobs the peaks are added.
    """
    messages = []
    for position, pairs in enumerate(jobs):
        for number, (graph, plan) in enumerate(pairs):
            messages += [f"job {position}, graph {number}: {fault}" for fault in faults(graph, plan)]
        shared = {tuple((t.id, t.size_bytes) for t in graph.tensors if t.persistent) for graph, _ in pairs}
        if len(shared) > 1:
            messages.append(f"job {position}: its graphs do not have the same persistent tensors")
    gated = [position for schedule in schedules for position in schedule.jobs]
    if len(set(gated)) < len(gated) or not all(0 <= position < len(jobs) for position in gated):
        messages.append(f"the schedules are of jobs {gated}, of {len(jobs)}")
    for schedule in schedules if not messages else ():
        messages += gate_check.faults([steps(jobs[position]) for position in schedule.jobs], schedule)
    if not messages and (total := together_bytes(jobs, schedules)) > budget_bytes:
        messages.append(f"the jobs' peaks are {total} bytes together, over the budget of {budget_bytes}")
    return tuple(messages)


def together_bytes(jobs: Sequence[Sequence[tuple[StepGraph, Plan]]], schedules: Sequence[Schedule]) -> int:
    """Return the most bytes of jobs whose plans and schedules break no rule."""
    gated = {position for schedule in schedules for position in schedule.jobs}
    alone = [max(peak(graph, plan) for graph, plan in pairs) for n, pairs in enumerate(jobs) if n not in gated]
    return sum(alone) + sum(gate_check.most_bytes([steps(jobs[n]) for n in s.jobs], s) for s in schedules)


def steps(pairs: Sequence[tuple[StepGraph, Plan]]) -> JobLoads:
    """Return a job's bytes during its training step, which is the first pair, and at the gates before each operator.

    The job's other graphs run before the gates of operator 0.
    """
    (graph, plan), *others = pairs
    if plan.executions:
        graph = judge(graph, plan.executions).graph
    walk = _walk(graph, plan)
    between = max((peak(*pair) for pair in others), default=0)
    waiting = (max(walk.waits[0], between), *walk.waits[1:])
    return JobLoads(running_bytes=tuple(walk.loads), waiting_bytes=waiting)


def peak(graph: StepGraph, plan: Plan) -> int:
    """Return the peak of a plan that breaks no rule, by walking it."""
    if plan.executions:
        graph = judge(graph, plan.executions).graph
    return max(_walk(graph, plan).loads)


class _State(StrEnum):
    ABSENT = "absent"  # has no memory and no value
    RESIDENT = "resident"
    LEAVING = "leaving"  # still on the device; its copy to the host may be under way
    AWAY = "away"
    RETURNING = "returning"  # has its memory again; its copy back may be under way


_OFF_DEVICE = (_State.ABSENT, _State.AWAY)


@dataclass(slots=True)
class _Walk:
    """The state of one walk: where every tensor is, which host copies are valid, and the faults so far."""

    graph: StepGraph
    plan: Plan
    last: dict[TensorId, int]  # the last operator that accesses each tensor
    dying: dict[int, list[TensorId]]  # the tensors that are released for good at each boundary
    state: dict[TensorId, _State]
    held_bytes: int
    moves: "_Moves"
    host: set[TensorId] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)  # bytes before each operator, before it takes any memory
    strict: bool = False
    # the tensors of each exchange that was started and not waited for, in order
    under_way: dict[int, frozenset[TensorId]] = field(default_factory=dict)

    def fault(self, text: str) -> None:
        if self.strict:
            self.faults.append(text)

    def exchange_of(self, tensor: TensorId) -> int | None:
        """Return the exchange under way that uses this tensor."""
        return next((number for number, own in self.under_way.items() if tensor in own), None)

    def name(self, tensor: TensorId) -> str:
        return f"tensor {tensor} ({self.graph.tensors[tensor].name})"

    def put(self, tensor: TensorId, state: _State) -> None:
        was_on = self.state[tensor] not in _OFF_DEVICE
        self.held_bytes += ((state not in _OFF_DEVICE) - was_on) * self.graph.tensors[tensor].size_bytes
        self.state[tensor] = state


@dataclass(frozen=True, slots=True)
class _Moves:
    """The plan's swaps by the boundary or operator at which they act, in the plan's order."""

    leave_after: dict[int, list[Swap]]
    free_at: dict[int, list[Swap]]
    take_at: dict[int, list[Swap]]
    needed_by: dict[int, list[Swap]]


def _moves(plan: Plan) -> _Moves:
    moves = _Moves({}, {}, {}, {})
    for swap in plan.swaps:
        moves.leave_after.setdefault(swap.out_after, []).append(swap)
        moves.free_at.setdefault(swap.free_at, []).append(swap)
        moves.take_at.setdefault(swap.in_at, []).append(swap)
        moves.needed_by.setdefault(swap.needed_by, []).append(swap)
    return moves


def _walk(graph: StepGraph, plan: Plan) -> _Walk:
    walk = _start(graph, plan)
    for index in range(len(graph.operators)):  # brings every swap that crosses the end into its steady state
        _step(walk, index)
    walk.strict = True
    _go_home(walk)
    for _ in range(2):
        walk.loads.clear()
        walk.waits.clear()
        for index in range(len(graph.operators)):
            _step(walk, index)
    return walk


def _start(graph: StepGraph, plan: Plan) -> _Walk:
    last = {t: index for index, op in enumerate(graph.operators) for t in (*op.reads, *op.writes)}
    dying: dict[int, list[TensorId]] = {}
    state = {}
    for tensor in graph.tensors:
        state[tensor.id] = _State.RESIDENT if tensor.persistent and tensor.id not in plan.away else _State.ABSENT
        if not tensor.persistent and tensor.id in last:
            boundary = (last[tensor.id] + 1) % len(graph.operators) if plan.release else 0
            dying.setdefault(boundary, []).append(tensor.id)
    for tensor_id in plan.away:
        state[tensor_id] = _State.AWAY
    resident_bytes = sum(t.size_bytes for t in graph.tensors if state[t.id] is _State.RESIDENT)
    return _Walk(graph, plan, last, dying, state, resident_bytes, _moves(plan))


def _go_home(walk: _Walk) -> None:
    """Discard every host copy that a trainer which starts at operator 0 would not have."""
    walk.host.clear()
    for swap in walk.plan.swaps:
        state = walk.state[swap.tensor]
        if swap.out_after != walk.last.get(swap.tensor) or state not in (_State.AWAY, _State.LEAVING):
            # a tensor that is away or leaving at the end of the iteration leaves by the swap after its last access
            continue
        away_at_zero = swap.in_at != 0 and (state is _State.AWAY or swap.free_at == 0)
        if away_at_zero or (state is _State.LEAVING and swap.copies):
            walk.host.add(swap.tensor)


def _step(walk: _Walk, index: int) -> None:
    operator = walk.graph.operators[index]
    _give_back(walk, index)
    walk.waits.append(walk.held_bytes)
    _take(walk, index)
    _run(walk, index, operator)
    _exchange(walk, index, operator)
    walk.loads.append(walk.held_bytes + operator.workspace_bytes)
    for swap in walk.moves.leave_after.get(index, ()):
        _leave(walk, swap)


def _give_back(walk: _Walk, index: int) -> None:
    for swap in walk.moves.free_at.get(index, ()):
        state = walk.state[swap.tensor]
        if state is not _State.LEAVING:
            walk.fault(f"{walk.name(swap.tensor)} gives memory back at {index} while {state}: {swap}")
            continue
        if swap.tensor not in walk.host:
            walk.fault(f"{walk.name(swap.tensor)} leaves at {index} without a valid host copy: {swap}")
        walk.put(swap.tensor, _State.AWAY)
    for tensor in walk.dying.get(index, ()):
        if (number := walk.exchange_of(tensor)) is not None:
            walk.fault(f"{walk.name(tensor)} is released at {index} while exchange {number} uses it")
        if walk.state[tensor] not in (_State.ABSENT, _State.RESIDENT):
            walk.fault(f"{walk.name(tensor)} is {walk.state[tensor]} when it is released at {index}")
        walk.put(tensor, _State.ABSENT)
        walk.host.discard(tensor)


def _take(walk: _Walk, index: int) -> None:
    for swap in walk.moves.take_at.get(index, ()):
        if walk.state[swap.tensor] is not _State.AWAY:
            walk.fault(f"{walk.name(swap.tensor)} takes memory at {index} while {walk.state[swap.tensor]}: {swap}")
            continue
        walk.put(swap.tensor, _State.RETURNING)
    for tensor in walk.graph.operators[index].writes:
        if walk.state[tensor] is _State.ABSENT:
            walk.put(tensor, _State.RESIDENT)


def _run(walk: _Walk, index: int, operator: Operator) -> None:
    due = {swap.tensor for swap in walk.moves.needed_by.get(index, ())}
    for tensor in sorted({*operator.reads, *operator.writes}):
        state = walk.state[tensor]
        if state is _State.RETURNING and tensor in due:
            walk.put(tensor, _State.RESIDENT)
        elif state is not _State.RESIDENT:
            walk.fault(f"operator {index} ({operator.name}) accesses {walk.name(tensor)}, which is {state}")
        due.discard(tensor)
    for tensor in sorted(due):
        walk.fault(f"{walk.name(tensor)} is swapped in for operator {index}, which does not access it")
    walk.host.difference_update(operator.writes)


def _exchange(walk: _Walk, index: int, operator: Operator) -> None:
    """Begin or end the operator's exchange. Between the two, only other exchanges access its tensors.

    Exchanges run one after another, and share memory that each needs while it runs.
    """
    accessed = frozenset((*operator.reads, *operator.writes))
    named = f"operator {index} ({operator.name})"
    if index == 0 and walk.under_way:
        walk.fault(f"exchange {min(walk.under_way)} is under way when the iteration begins")
    if operator.awaits is not None:
        if next(iter(walk.under_way), None) != operator.awaits or walk.under_way[operator.awaits] != accessed:
            walk.fault(f"{named} awaits exchange {operator.awaits}, of which it is not the end")
        walk.under_way.pop(operator.awaits, None)
    elif operator.starts is not None:
        walk.under_way[operator.starts] = accessed
    else:
        for tensor in sorted(accessed):
            if (number := walk.exchange_of(tensor)) is not None:
                walk.fault(f"{named} accesses {walk.name(tensor)} while exchange {number} uses it")


def _leave(walk: _Walk, swap: Swap) -> None:
    if (number := walk.exchange_of(swap.tensor)) is not None:
        walk.fault(f"{walk.name(swap.tensor)} leaves while exchange {number} uses it: {swap}")
    operator = walk.graph.operators[swap.out_after]
    if swap.tensor not in (*operator.reads, *operator.writes):
        walk.fault(f"{walk.name(swap.tensor)} leaves after operator {swap.out_after}, which does not access it")
    if walk.state[swap.tensor] is not _State.RESIDENT:
        walk.fault(f"{walk.name(swap.tensor)} leaves while {walk.state[swap.tensor]}: {swap}")
        return
    walk.put(swap.tensor, _State.LEAVING)
    if swap.copies:
        walk.host.add(swap.tensor)


def _malformed(graph: StepGraph, plan: Plan) -> list[str]:
    """Return the faults that prevent a walk: indices out of range, boundaries out of order."""
    count = len(graph.operators)
    messages = []
    swapped = {swap.tensor for swap in plan.swaps}
    for swap in plan.swaps:
        positions = (swap.out_after, swap.free_at, swap.in_at, swap.needed_by)
        if not 0 <= swap.tensor < len(graph.tensors) or not all(0 <= p < count for p in positions):
            messages.append(f"index out of range: {swap}")
            continue
        if not graph.tensors[swap.tensor].persistent and not swap.out_after < swap.needed_by:
            messages.append(f"tensor {swap.tensor} does not persist, but its swap crosses the end: {swap}")
        if not _in_order(swap, count):
            messages.append(f"boundaries not in the order out_after, free_at, in_at, needed_by: {swap}")
    for tensor in sorted(plan.away):
        if not 0 <= tensor < len(graph.tensors) or not graph.tensors[tensor].persistent:
            messages.append(f"tensor {tensor} is away, but is no persistent tensor")
        if tensor in swapped:
            messages.append(f"tensor {tensor} is away and is swapped")
    return messages


def _in_order(swap: Swap, count: int) -> bool:
    """Return whether the boundaries come in order after `out_after`, within one iteration."""
    free, back, need = (
        (position - swap.out_after - 1) % count for position in (swap.free_at, swap.in_at, swap.needed_by)
    )
    return free <= back <= need
