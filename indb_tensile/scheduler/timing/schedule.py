"""What jobs that share a budget by phases wait for: gates that each passes at planned operators.

Phases between jobs hold only where they are enforced. phases/offsets.py makes a schedule, phases/gates.py enforces
it, judges/cuts.py judges whether it does, and simulate.py says what it costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Gate:
    """`operator` of a job's iteration starts only when another job's `after_operator` has ended.

    Iterations count from the round's first one of that job; negative ones belong to earlier rounds.
    """

    job: int
    iteration: int
    operator: int
    after_job: int
    after_iteration: int
    after_operator: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Jobs that keep to a budget together, whatever time their operators take, as long as all pass these gates.

    A job comes to the gates of its operator `k` when boundary `k` has given back what it gives back, and takes no
    memory before it has passed them. `after_operator` has ended when the boundary after it has given back. All jobs
    begin with their iteration 0, before its first gates; a gate that waits for a negative iteration is then open.
    What a job does between iterations, such as running its other graphs, it does before the gates of operator 0.
    """

    jobs: tuple[int, ...]  # their ids; gates count them by position
    iterations: tuple[int, ...]  # of each job in a round
    gates: tuple[Gate, ...]
    budget_bytes: int

    def __post_init__(self) -> None:
        count = len(self.jobs)
        if len(set(self.jobs)) < count or len(self.iterations) != count or min(self.iterations, default=1) < 1:
            raise InvariantError(f"schedule of jobs {self.jobs}: {self.iterations} iterations in a round")
        for gate in self.gates:
            own = 0 <= gate.job < count and 0 <= gate.iteration < self.iterations[gate.job] and gate.operator >= 0
            if not own or not 0 <= gate.after_job < count or gate.after_job == gate.job or gate.after_operator < 0:
                raise InvariantError(
                    f"schedule of jobs {self.jobs}, iterations {self.iterations}: no such gate: {gate}"
                )

    def of(self, position: int) -> dict[tuple[int, int], tuple[Gate, ...]]:
        """One job's gates by iteration of the round and operator."""
        found: dict[tuple[int, int], tuple[Gate, ...]] = {}
        for gate in self.gates:
            if gate.job == position:
                at = gate.iteration, gate.operator
                found[at] = (*found.get(at, ()), gate)
        return found

    def among(self, ids: Sequence[int]) -> "Schedule":
        """The same schedule, of which the jobs are positions among these ids instead of ids."""
        return replace(self, jobs=tuple(ids.index(job) for job in self.jobs))

    def called(self, ids: Sequence[int]) -> "Schedule":
        """The same schedule, of which the jobs are positions, with the jobs' ids in their place."""
        return replace(self, jobs=tuple(ids[job] for job in self.jobs))
