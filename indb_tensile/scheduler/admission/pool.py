"""The state of one controller: its jobs, its trainers, its budget. These are values; `admission.decide` makes new
ones.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, Protocol, Self

from indb_tensile.errors import InvariantError, TensileError
from indb_tensile.job import Blame, ClaimedJob, ClaimToken, JobId
from indb_tensile.scheduler.admission.known_plans import KnownPlans
from indb_tensile.scheduler.admission.known_trade_offs import KnownTradeOffs
from indb_tensile.scheduler.admission.overheads import Overheads
from indb_tensile.scheduler.completion.choose_starts import KnownChoice
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.completion.set_forecasts import SlowSet
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.outgrown_operator import OutgrownOperator
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.policies.policy import Plans
from indb_tensile.scheduler.timing.job_runs import Compute, Forecast
from indb_tensile.scheduler.timing.rank_steps import OtherRanks, PublishedStep
from indb_tensile.scheduler.workload import Workload

TrainerId = NewType("TrainerId", int)  # numbered by the pool; a number is never used for a second process


class JobStage(StrEnum):
    """The stage of a claimed job at its controller."""

    CLAIMED = "claimed"  # no trainer yet
    CAPTURING = "capturing"  # its trainer reads the table and captures the graphs
    UNMEASURED = "unmeasured"  # needs a calibration grant and does not have it yet
    CALIBRATING = "calibrating"  # has the one calibration grant
    WAITING = "waiting"  # could be planned, but does not fit beside the other jobs
    RUNNING = "running"  # admitted: follows a plan, or will follow one soon
    PARKING = "parking"  # leaves the device at the end of its iteration
    PARKED = "parked"  # its state is in the host pool, its grant is 0, and it must not return yet
    CLOSING = "closing"  # has trained and given back all memory; its trainer publishes the version
    ENDING = "ending"  # its trainer is ending; the outcome is written when the trainer has exited


class Sharing(StrEnum):
    """When a waiting job is let in beside the jobs that run. `config.SHARING` lists the same values."""

    COMPLETION = "completion"  # if that makes all jobs end earlier (completion/choose_starts.py)
    ANY_PRICE = "any_price"  # if any plan fits, however slow the jobs become


class PlanReason(StrEnum):
    """The reason why all jobs were planned anew."""

    START = "start"
    END = "end"
    DRIFT = "drift"
    BUDGET = "budget"
    CALIBRATION = "calibration"
    PARKING = "parking"
    MEMORY = "memory"  # an operator needed more memory than was planned, or a block could not be placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The reason why a job cannot continue, as an SQL user reads it in `tensile.jobs`."""

    sqlstate: str
    message: str
    detail: str = ""
    hint: str = ""

    @classmethod
    def of(cls, error: TensileError) -> Self:
        """Return the fault with this error's SQLSTATE and texts."""
        return cls(sqlstate=error.sqlstate, message=error.message, detail=error.detail, hint=error.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The trainer has published the version and closed the job's row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The job failed for good, unless another controller has a budget of `needs_bytes`."""

    fault: Fault
    needs_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The job goes back to the queue and continues from its last checkpoint.

    `blame` says whether this counts as the job's own fault. `fault` holds more than the reason, if there is more to
    say. `waits_for` is what the job then waits for, if that is not simply its next attempt.
    """

    reason: str
    blame: Blame = Blame.JOB
    fault: Fault | None = None
    waits_for: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The job's owner cancelled it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The claim now belongs to another worker, so nothing may be written."""


Outcome = Succeeded | Broken | Interrupted | Cancelled | Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A plan that has been decided and not yet sent."""

    plan: JobPlan
    grant_bytes: int
    host_bytes: int  # bytes of the pinned pool that go with the plan
    reason: PlanReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One claimed job.

    `granted_bytes` is the present grant in the ledger, in whole regions. `held_bytes` is larger after a grant was
    lowered, until the ledger confirms that the returned memory is free.

    `generation` is that of the last plan sent, `adopted` that of the last plan that the trainer follows. They differ
    while a plan is in flight; then `granted_bytes` and `host_bytes` cover both plans. `need_bytes` is the least
    calibration grant. `corrected_ns` are the training step's latencies with all measurements since `workload` was
    planned blended in.

    `correction` is the number of the last correction of the job's workspaces (memory_correction.py), and
    `planned_correction` that of the last one that the plan which was sent last takes into account.

    `lent_bytes` of the grant are lent for the job's next batch (batch_loans.py), until the trainer has given them
    back; `returning` while it owes that, and `returned` until the ledger has confirmed that they are free. `loans`
    counts the orders to lend and to give back. A plan of the generation `refused_loan` gets no loan any more.

    A job is to leave the device while it is `paused`, `set_aside` or `moving`, and while it is `parked`, its state is
    in the host pool (parking.py). `parks` counts the orders to park.
    """

    job: ClaimedJob
    stage: JobStage = JobStage.CLAIMED
    trainer: TrainerId | None = None
    workload: Workload | None = None
    corrected_ns: tuple[int, ...] = ()
    disturbed: int = 0  # measurements in a row that did not count, because other jobs came, went or were prepared
    changed: bool = False  # True if what runs beside the job has changed since its last measurement
    measured: bool = False  # True if corrected_ns come from training, and not only from a calibration
    copies_measured: bool = False  # True if they come from a plan with swaps, so copies' cost is in them
    graph_share: float = 1.0  # see Workload; of the first measurement that counts under a plan
    share_generation: int = 0  # the generation of this plan
    granted_bytes: int = 0
    held_bytes: int = 0
    need_bytes: int = 0
    generation: int = 0
    adopted: int = 0
    steps: float = 1.0  # of the whole training
    alternates: bool = False  # full batches have several shapes, so iterations of graph 0 do not follow one another
    steps_left: float = 1.0
    # the plans that the job could follow, for its latencies when it was captured; none until they are needed
    trade_offs: tuple[TradeOff, ...] = ()
    alone_ns: int = 0  # sum of the training step's latencies while no other job runs
    plan: JobPlan | None = None  # the last plan sent
    planned_bytes: int = 0  # the grant that goes with `plan`
    planned_host_bytes: int = 0
    host_bytes: int = 0  # bytes of the pinned pool, until the trainer has exited
    target: Target | None = None
    waits_for: str | None = None
    overtaken: int = 0  # number of jobs that were claimed later and let in while this job waited for memory
    paused: bool = False  # its owner has asked that it does not train
    set_aside: bool = False  # the division of the memory lets others go first
    aside_for: JobId | None = None  # the waiting job that starts in its place, if it left in a shift
    moving: bool = False  # it is to leave, so that another controller continues it (idle_devices.py)
    stays: bool = False  # it should have moved, and could save no checkpoint that every host can read
    yielded: bool = False  # it has left the device for a rank of a job that several devices train
    parked: bool = False  # until the trainer follows its next plan
    parks: int = 0
    away_until_s: float = 0.0  # a quantum after it left for a job of a higher priority (preemption.py)
    made_way: str = ""  # for whom and since when it is away, in words, if it left in a shift and has not returned
    over_quota: bool = False  # it waits for its owner's other jobs
    ready_s: float | None = None  # the time (`Pool.now_s`) since which it could train
    stepped: bool = False  # its trainer has done a first step
    turn_steps: float = 0.0  # the steps that were left when it last began to train, or came back to the device
    # steps that the fair schedule has not done yet, and its clock when it has done them all (fair_turns.py)
    fair_left: float | None = None
    fair_end_ns: float | None = None
    # times (`Pool.now_s`) of its claim, its first plan, and its last turn, and what was foretold for the steps since
    claimed_s: float = 0.0
    sent_s: float = 0.0
    began_s: float = 0.0
    foretold_ns: float = 0.0
    # for a job of several devices: the step of this rank under `plan`, as the others know it, and theirs
    step: PublishedStep | None = None
    published: PublishedStep | None = None
    others: OtherRanks = OtherRanks()  # noqa: RUF009 - it is immutable
    recorded: Forecast | None = None  # the last one with waits for other ranks that was written
    correction: int = 0
    planned_correction: int = 0
    outgrown: tuple[OutgrownOperator, ...] = ()  # the operators of the last correction
    lent_bytes: int = 0
    returning: bool = False
    returned: bool = False
    loans: int = 0
    refused_loan: int = 0
    misplaced: int = 0  # number of generations in a row whose block the trainer could not place
    misplaced_generation: int = 0  # the last of them
    resend: bool = False  # True if a plan has to be sent even if it is the present one
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        if (self.stage is JobStage.ENDING) != (self.outcome is not None):
            raise InvariantError(f"job {self.job.job} is {self.stage} with the outcome {self.outcome}")
        if not 0 <= self.generation - self.adopted <= 1:
            raise InvariantError(
                f"job {self.job.job}: plan {self.generation} was sent while {self.adopted} is followed"
            )

    @property
    def in_flight(self) -> bool:
        """True if a plan was sent and the trainer has not reported yet that it follows the plan."""
        return self.generation != self.adopted

    @property
    def trains(self) -> bool:
        """True if the job has trained under a plan, here or in an earlier turn."""
        return self.adopted > 0

    @property
    def outdated(self) -> bool:
        """True if the last plan sent is for smaller workspaces than the job's, or could not be placed."""
        return self.planned_correction < self.correction or self.resend

    @property
    def settled(self) -> bool:
        """True if nothing is decided, sent or due for this job."""
        return not self.in_flight and self.target is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSet:
    """The jobs that train side by side. `speeds` are measured, relative to each job alone with all the memory."""

    jobs: tuple[JobId, ...] = ()
    calibrating: int = 0  # further jobs that compute with all that the device has
    preparing: int = 0  # further jobs that compute with one processor: prepared or published (running_set.py)
    speeds: tuple[tuple[JobId, float], ...] = ()
    low_reports: int = 0  # in a row, of a throughput below that of fewer jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """A trainer without a job. `ready` is True when it has imported its modules."""

    trainer: TrainerId
    ready: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRound:
    """Jobs that share memory in phases (rounds.py): their trainers by position, and the regions of the round.

    `pool_bytes` is what the round needs beside its members' own grants, `pooled_bytes` what it has so far. `left` are
    the trainers that iterate no more in the round, `played` those whose parts the controller plays.
    """

    number: int
    trainers: tuple[TrainerId, ...]
    pool_bytes: int
    pooled_bytes: int = 0
    leaving: bool = False  # all members were told to leave
    left: frozenset[TrainerId] = frozenset()
    played: frozenset[TrainerId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The state of one controller. `members` are in the order of their claims."""

    budget_bytes: int
    region_bytes: int
    host_pool_bytes: int | None = None  # None: no limit
    spare_trainers: int = 1
    max_jobs: int = 8
    # the most jobs of one owner that are prepared at once; more may wait for the device (trainer_assignment.py)
    entering_jobs: int = 2
    parked_jobs: int = 4  # the most jobs that wait in the host pool; further ones are saved, and their trainers end
    prepares_on_device: bool = False  # jobs are read and captured by what the device computes with
    batch: tuple[str, ...] = ()  # tensors that trainers upload ahead; empty where they never do
    link: Link | None = None  # between device and host; None: its speed is not known, and no job leaves in a shift
    first_step_s: float = 300.0  # a job that is ready for longer has its first quantum before others go on
    now_s: float = 0.0  # the time of the last tick
    prepare_s: float | None = None  # how long the last jobs took from their claims to their first plans (pace.py)
    overheads: Overheads = field(default_factory=Overheads)
    trade_offs: KnownTradeOffs = field(default_factory=KnownTradeOffs)
    plans: KnownPlans = field(default_factory=KnownPlans)
    time_of_day: str = ""  # now_s for people
    fair_clock_ns: float = 0.0  # the work that the fair schedule has done
    fair_due_ns: float = 0.0  # the work that it has yet to do for the same jobs (fair_turns.py)
    drift_threshold: float = 0.2
    sharing: Sharing = Sharing.ANY_PRICE
    max_slowdown: float = 3.0  # the most that a job may be slowed down by sharing, against alone with all the memory
    contention: Contention = Contention(points=((1, 1.0),))  # noqa: RUF009 - it is immutable
    slow_sets: tuple[SlowSet, ...] = ()  # which were undone (set_review.py)
    running_set: RunningSet = field(default_factory=RunningSet)
    last_choice: KnownChoice | None = None  # of jobs to start; repeated while a division waits for answers
    members: tuple[Member, ...] = ()
    spares: tuple[Spare, ...] = ()
    leaving: frozenset[TrainerId] = field(default_factory=frozenset)  # spare trainers that were told to end
    next_trainer: TrainerId = TrainerId(1)
    claiming: bool = False  # a claim is under way
    passed_over: frozenset[int] = frozenset()  # owners (oids) whose jobs the last claim left in the queue
    moves_trained: bool = False  # jobs that have trained may go to other controllers: each host finds checkpoints
    idle_reports: int = 0  # heartbeats in a row at which another controller had no job
    idle_bytes: int | None = None  # the budget of that controller; None if the last heartbeat knew of none
    queue_empty: bool = False  # the last claim returned no job; reset by the next tick or notification
    failed_starts: int = 0  # number of trainers in a row that died before they were ready
    spawn_pause_ticks: int = 0
    losses: int = 0  # number of times in a row that a trainer lost the device before it had measured anything on it
    claim_pause_ticks: int = 0
    due: PlanReason | None = None  # if set, all jobs have to be planned anew
    asked: bool = False  # the planner owes an answer
    shrunk: bool = False  # running jobs were planned for less memory, so that a job could be calibrated
    improvable: bool = False  # the present plans were made in little time, and were not improved since
    phases: bool = False  # jobs may run in rounds
    phases_ns: int = 120_000_000_000  # a round begins only if a running job goes on for at least this long
    round: ActiveRound | None = None
    rounds: int = 0  # number of rounds so far
    # the jobs and the generations of their plans for which a round was last looked for
    looked_for: tuple[tuple[JobId, int], ...] = ()
    stopping: bool = False

    @property
    def owing(self) -> frozenset[tuple[TrainerId, int]]:
        """The trainers that owe an answer, with the generation of the plan that they were sent, or 0 until they are
        ready, or the negative number of the order to park.
        """
        starting = {(spare.trainer, 0) for spare in self.spares if not spare.ready}
        adopting = {
            (member.trainer, member.generation)
            for member in self.at(JobStage.RUNNING)
            if member.trainer is not None and member.in_flight
        }
        parking = {(m.trainer, -m.parks) for m in self.at(JobStage.PARKING) if m.trainer is not None}
        return frozenset(starting | adopting | parking)

    @property
    def granted_bytes(self) -> int:
        """The sum of all grants in the ledger."""
        return sum(member.granted_bytes for member in self.members)

    @property
    def held_bytes(self) -> int:
        """The bytes that no other job can be granted: all grants, and the bytes of lowered grants that are not yet
        free.
        """
        return sum(member.held_bytes for member in self.members)

    @property
    def free_bytes(self) -> int:
        """The bytes that may be granted now. Never negative, even while a lowered budget is still exceeded."""
        pooled_bytes = 0 if self.round is None else self.round.pooled_bytes
        return max(0, self.whole(self.budget_bytes) - self.held_bytes - pooled_bytes)

    @property
    def returning_bytes(self) -> int:
        """The bytes beyond lowered grants: they are free as soon as trainers and ledger have given them back."""
        return self.held_bytes - self.granted_bytes

    @property
    def lent_bytes(self) -> int:
        """The bytes that running jobs are lent for their next batches, and give back when others need them."""
        return sum(member.lent_bytes for member in self.at(JobStage.RUNNING))

    @property
    def forming(self) -> bool:
        """True until all running jobs have joined the round. Until then nothing else is divided."""
        plans = [
            plan
            for m in self.at(JobStage.RUNNING)
            for plan in (m.plan if m.in_flight else None, m.target.plan if m.target is not None else None)
        ]
        return self.round is not None and any(plan is not None and plan.part is not None for plan in plans)

    @property
    def round_bytes(self) -> int:
        """The bytes that a round has or will have beside its members' grants."""
        return 0 if self.round is None else self.round.pool_bytes

    @property
    def free_host_bytes(self) -> float:
        """The bytes of the host pool that no member has."""
        limit_bytes = math.inf if self.host_pool_bytes is None else self.host_pool_bytes
        return limit_bytes - sum(member.host_bytes for member in self.members)

    def whole(self, size_bytes: int) -> int:
        """Round down to whole regions."""
        return size_bytes // self.region_bytes * self.region_bytes

    def regions(self, size_bytes: int) -> int:
        """Round up to whole regions, in bytes."""
        return -(-size_bytes // self.region_bytes) * self.region_bytes

    def of_job(self, job: JobId) -> Member | None:
        """Return the member that runs this job."""
        return next((m for m in self.members if m.job.job == job), None)

    def of_claim(self, claim: ClaimToken) -> Member | None:
        """Return the member that holds this claim."""
        return next((m for m in self.members if m.job.claim == claim), None)

    def of_trainer(self, trainer: TrainerId) -> Member | None:
        """Return the member that this trainer serves."""
        return next((m for m in self.members if m.trainer == trainer), None)

    def at(self, *stages: JobStage) -> tuple[Member, ...]:
        """Return the members in one of these stages."""
        return tuple(m for m in self.members if m.stage in stages)


class Planner(Protocol):
    """The interface of the planner for admission. The implementation knows the policy and the link.

    All methods but `foresee` and `rank_step`, which are fast, may raise `questions.Unanswered`.
    """

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        """Return plans for all workloads together, in their order, or why there are none."""
        ...

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        """Return the bytes that the job's tensors take once they have addresses: hardly more than the plan's peak."""
        ...

    def least_bytes(self, workload: Workload) -> int:
        """Return the smallest peak that this policy can give this job."""
        ...

    def trade_offs(self, workload: Workload) -> tuple[TradeOff, ...]:
        """Return the memory and time of the job's plans alone on the device; none if its own limit is too low."""
        ...

    def renew(
        self,
        workloads: tuple[Workload, ...],
        plans: tuple[JobPlan, ...],
        *,
        budget_bytes: int,
        thorough: bool = True,
    ) -> tuple[JobPlan, ...] | None:
        """Return better plans for the same jobs, or plans for drifted latencies; None if planning anew is better.

        With `thorough` the planner may spend seconds of processor time on better plans.
        """
        ...

    def plan_round(
        self,
        workloads: tuple[Workload, ...],
        plans: Plans,
        *,
        budget_bytes: int,
        region_bytes: int,
        compute: Compute,
    ) -> tuple[JobPlan, ...] | None:
        """Return plans for a round that is faster than these plans side by side, or None."""
        ...

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        """Return the same plans with new forecasts, side by side, for the workloads' latencies."""
        ...

    def rank_step(self, workload: Workload, plan: JobPlan) -> PublishedStep:
        """Return what the other ranks of the job need to know of this one's step under its plan."""
        ...
