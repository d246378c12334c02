"""What controllers in virtual time share besides the catalog: the jobs, and the attempts of those on several devices.

It stands for what trainers tell each other and what is in checkpoints. It also keeps the figures of a run: when each
job trained first and ended, and how long the ranks of a gang had memory while other ranks of it had none.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from indb_tensile.bench.harness.virtual_time.trace_workload import TraceJob
from indb_tensile.errors import InvariantError
from indb_tensile.job import ClaimedJob, ClaimedRank, ClaimToken, JobId
from indb_tensile.scheduler.admission.pool import TrainerId

if TYPE_CHECKING:
    from indb_tensile.bench.harness.virtual_time.catalog_controller import CatalogController


@dataclass(slots=True, kw_only=True)
class SimulatedRank:
    """One rank: the controller that has it, and its plan once it has memory. `done` after its last step."""

    controller: "CatalogController"
    trainer: TrainerId
    job: ClaimedJob
    plan: int | None = None
    done: bool = False


@dataclass(slots=True, kw_only=True)
class GangAttempt:
    """The ranks of one attempt of a job. `admitted_s` is when the first of them had memory."""

    size: int
    ranks: dict[int, SimulatedRank] = field(default_factory=dict)
    admitted_s: float | None = None
    trains: bool = False

    def admit(self, now_s: float) -> None:
        """Note that a rank has memory."""
        if self.admitted_s is None:
            self.admitted_s = now_s

    @property
    def is_complete(self) -> bool:
        """Whether all ranks have memory."""
        return len(self.ranks) == self.size and all(rank.plan is not None for rank in self.ranks.values())

    def held_s(self, now_s: float) -> float:
        """Return for how long some rank has had memory."""
        return 0.0 if self.admitted_s is None else now_s - self.admitted_s


@dataclass(slots=True, kw_only=True)
class SharedState:
    """The state that all controllers of a run share. `notify` makes all of them look at the queue.

    `left` are the steps left of each job. `half_gang_s` has for each attempt of a gang how long a rank had memory
    while others had none, and `given_back` counts the attempts that ended before they trained.
    """

    jobs: dict[JobId, TraceJob] = field(default_factory=dict)
    left: dict[JobId, float] = field(default_factory=dict)
    attempts: dict[ClaimToken, GangAttempt] = field(default_factory=dict)
    began_s: dict[JobId, float] = field(default_factory=dict)
    ended_s: dict[JobId, float] = field(default_factory=dict)
    given_back: int = 0
    half_gang_s: list[float] = field(default_factory=list)
    notify: Callable[[], None] = lambda: None

    def attempt(self, gang: ClaimedRank) -> GangAttempt:
        """Return the attempt that a rank belongs to."""
        return self.attempts.setdefault(gang.attempt_claim, GangAttempt(size=gang.ranks))

    def give_back(self, attempt_claim: ClaimToken, now_s: float) -> None:
        """Note that an attempt has ended before it trained. Each of its ranks may say so."""
        attempt = self.attempts.pop(attempt_claim, None)
        if attempt is not None:
            if attempt.trains:
                raise InvariantError(f"attempt {attempt_claim} was given back while it trained")
            self.given_back += 1
            self.half_gang_s.append(attempt.held_s(now_s))

    def end(self, job: JobId, now_s: float) -> None:
        """Note the end of a job."""
        if job in self.ended_s:
            raise InvariantError(f"job {job} ended twice")
        self.ended_s[job] = now_s
