"""A memory plan: which tensor leaves the device in which gap between two of its accesses, and when.

A *boundary* `k` is the moment before operator `k` starts. Residency begins and ends at boundaries that the plan
names. The peak is therefore a property of the plan and is the same on every run; only times vary.

Boundaries and operators are indices modulo the number of operators. A gap of a persistent tensor may cross the end of
the iteration (TENSILE section IV-C, across-iteration scheduling). Then `free_at`, `in_at` and `needed_by` may be
smaller than `out_after`.
"""

from dataclasses import dataclass

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, TensorId


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One tensor that leaves the device in one gap and returns before the access that ends the gap.

    In the (cyclic) order of time:

    - `out_after`: the last access before the gap. The copy to the host may start when this access has ended. If the
      host copy is still valid (`copies` is False), nothing is copied.
    - `free_at`: the boundary at which the memory is given back. Execution waits there for a late copy.
    - `in_at`: the boundary at which the memory is taken again and the copy back may start.
    - `needed_by`: the access that ends the gap. It waits for a late copy.

    The tensor is resident at operators out_after .. free_at - 1 and again from in_at on. It is away at free_at ..
    in_at - 1.
    """

    tensor: TensorId
    out_after: OpIndex
    free_at: OpIndex
    in_at: OpIndex
    needed_by: OpIndex
    copies: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One run of a captured operator, or of one of `parts` equal parts of it."""

    operator: OpIndex
    part: int = 0
    parts: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.part < self.parts:
            raise InvariantError(f"operator {self.operator}: part {self.part} of {self.parts}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The memory operations of one job in each iteration of one step graph.

    `executions` is the order in which operators run, if it is not the captured order. Operators may run again
    (recompute), earlier or later, or in parts. rewrite.py turns `executions` into the graph that then runs. All other
    positions and tensors of the plan refer to that graph.

    `release` frees a tensor that does not persist after its last access (liveness). Without it nothing is freed
    before the iteration ends (vanilla). `away` are persistent tensors that this graph never accesses and that stay on
    the host while it runs. Swaps are sorted by (tensor, out_after).
    """

    policy: str
    executions: tuple[Execution, ...] = ()
    swaps: tuple[Swap, ...] = ()
    release: bool = True
    away: frozenset[TensorId] = frozenset()

    def __post_init__(self) -> None:
        keys = [(s.tensor, s.out_after) for s in self.swaps]
        if keys != sorted(set(keys)):
            raise InvariantError(f"plan of policy {self.policy}: swaps are not sorted or repeat a gap: {keys}")

    @property
    def recomputed(self) -> int:
        """The number of executions that run an operator which has run before."""
        return sum(e.part == 0 for e in self.executions) - len({e.operator for e in self.executions})


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """No plan fits. `needed_bytes` is the least memory that the request needs, `budget_bytes` the memory that is
    available.
    """

    needed_bytes: int
    budget_bytes: int
    reason: str

    @property
    def shortfall_bytes(self) -> int:
        """The additional memory that the least plan would need."""
        return self.needed_bytes - self.budget_bytes
