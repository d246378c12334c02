"""Gates: points at which jobs that share a budget in phases wait for each other.

Offsets between the phases of jobs hold only if they are enforced. phases/phase_offsets.py makes a schedule,
phases/gates.py adds the gates that enforce it, judges/gate_check.py checks the gates, and simulate.py computes what
the schedule costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Gate:
    """A rule: `operator` of a job's iteration starts only after another job's `after_operator` has ended.

    Iterations are counted from the first iteration of the round of that job. Negative iterations belong to earlier
    rounds.
    """

    job: int
    iteration: int
    operator: int
    after_job: int
    after_iteration: int
    after_operator: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The gates under which jobs keep to a budget together, however long their operators take.

    A job reaches the gates of its operator `k` when it has given back all memory that boundary `k` gives back. The
    job takes no memory before it has passed the gates. `after_operator` has ended when the boundary after it has
    given back its memory. All jobs begin with their iteration 0, before its first gates. A gate that waits for a
    negative iteration is then open. Work between iterations, such as running the job's other graphs, happens before
    the gates of operator 0.
    """

    jobs: tuple[int, ...]  # ids of the jobs; gates refer to jobs by position in this tuple
    iterations: tuple[int, ...]  # number of iterations of each job in a round
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
        """Return the gates of the job at this position, by iteration of the round and operator."""
        gates: dict[tuple[int, int], tuple[Gate, ...]] = {}
        for gate in self.gates:
            if gate.job == position:
                at = gate.iteration, gate.operator
                gates[at] = (*gates.get(at, ()), gate)
        return gates

    def among(self, ids: Sequence[int]) -> "Schedule":
        """Return the same schedule with each job's id replaced by its position among `ids`."""
        return replace(self, jobs=tuple(ids.index(job) for job in self.jobs))

    def called(self, ids: Sequence[int]) -> "Schedule":
        """Return the same schedule with each job's position replaced by its id from `ids`."""
        return replace(self, jobs=tuple(ids[job] for job in self.jobs))
