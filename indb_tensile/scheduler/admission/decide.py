"""decide(): decide which jobs start, wait, shrink, grow and end. The controller only carries out the orders.

A controller claims one job at a time, whenever a trainer is ready for it. A job that waits for memory does not block
later jobs that fit: they are let in past it. To prevent starvation, this happens at most `MOST_OVERTAKEN` times. Then
the waiting job blocks the queue, and no job is claimed or let in before it. A rank of a job that several devices
train blocks the queue at once, because the other devices may hold memory for it meanwhile. A job that waits for its
owner's quota blocks no other job. At most `entering_jobs` jobs of one owner are prepared at once.

The stages of a job: claimed -> capturing -> (unmeasured -> calibrating) -> waiting -> running -> closing -> ending. A
job that closes has given back all memory, and its trainer publishes the version. The outcome of a job is written only
when its trainer has exited and its memory is free. A running job may leave the device and come back:
running -> parking -> parked -> waiting -> running (parking.py).

TENSILE (section IV-D) plans anew when the operators' summed latency has moved by more than a threshold, |s' - s| / s.
We also plan anew when a job starts or ends and when the budget changes. We blend measurements in with an exponential
weight, as the paper does. Drift does not interrupt a transition between two divisions.

decide() never waits for a plan. If the planner has no answer yet, the division of the memory is given up without
effect, and its question goes out as an order. The answer comes back as an event, and the division is made again from
its start:

    event -> decide -> divide: all answers stored? -- yes --> targets, orders
                ^                  | no: Unanswered
                |                  v
                +-- Answered <- planning thread <- order AskPlanner

questions.py has the details; docs/developer/architecture.md has an example, turn by turn.
"""

from dataclasses import replace

from indb_tensile.errors import InvariantError
from indb_tensile.job import Blame
from indb_tensile.scheduler.admission.admission_orders import (
    CancelJob,
    EndMethod,
    EndTrainer,
    FailJob,
    Order,
    RecordAdoption,
    ReleaseTrainer,
    RequeueJob,
)
from indb_tensile.scheduler.admission.batch_loans import expect_free, keep_batch_loans, loan_changed
from indb_tensile.scheduler.admission.closing import departed, published
from indb_tensile.scheduler.admission.completion_rule import contention_measured, note_startup
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.equal_graphs import with_known_graphs
from indb_tensile.scheduler.admission.events import (
    Adoption,
    Answered,
    BatchLoan,
    BudgetChange,
    Calibration,
    CancelRequest,
    Capture,
    Claim,
    ClaimLoss,
    ContentionChange,
    Correction,
    Departure,
    Event,
    Exit,
    Failure,
    Finish,
    Holding,
    IdleDevice,
    Measurement,
    Misplacement,
    Overrun,
    Parking,
    PauseChange,
    PlacesChange,
    PriorityChange,
    QueueChange,
    RanksChange,
    RoundLeft,
    Silence,
    SpareReady,
    Stall,
    StepsLeft,
    Stop,
    Tick,
)
from indb_tensile.scheduler.admission.exit_outcome import outcome_of
from indb_tensile.scheduler.admission.fair_turns import begin_turn, credit, enter, settle
from indb_tensile.scheduler.admission.idle_devices import hand_over
from indb_tensile.scheduler.admission.measurements import note_change, ranks_changed, record_measurement
from indb_tensile.scheduler.admission.memory_correction import correct_memory, place_again
from indb_tensile.scheduler.admission.oversized_job import least_limit
from indb_tensile.scheduler.admission.pace import add_steps, begin_pace
from indb_tensile.scheduler.admission.parking import mark_paused, park, parked
from indb_tensile.scheduler.admission.pool import (
    Broken,
    Cancelled,
    Fault,
    Interrupted,
    JobStage,
    Lost,
    Member,
    Outcome,
    Planner,
    PlanReason,
    Pool,
    Succeeded,
    TrainerId,
)
from indb_tensile.scheduler.admission.preemption import change_priorities, end_first_turn, let_return
from indb_tensile.scheduler.admission.rounds import keep_round, round_left
from indb_tensile.scheduler.admission.running_set import watch
from indb_tensile.scheduler.admission.set_review import review
from indb_tensile.scheduler.admission.sharing import advance, divide, improve
from indb_tensile.scheduler.admission.shift_rule import let_shifted_return, look_again
from indb_tensile.scheduler.admission.soon_starts import start_soon
from indb_tensile.scheduler.admission.trainer_assignment import assign_and_claim, lengthened, tick
from indb_tensile.scheduler.workload import Workload, least_bytes

_TIMEOUT = "57014"  # query_canceled: the SQLSTATE that statement_timeout raises


def decide(pool: Pool, event: Event, planner: Planner) -> tuple[Pool, tuple[Order, ...]]:
    """Return the pool after this event, and the orders to carry out in sequence. Pure. Events that come too late
    change nothing.
    """
    decision = Decision(pool, planner)
    if not isinstance(event, StepsLeft | Tick):
        settle(decision)
    _fold(decision, event)
    _settle_if_due(decision)
    note_change(decision, event)
    if not decision.pool.stopping:
        if isinstance(event, Measurement):
            review(decision)
        park(decision)
        divide(decision)
        let_return(decision, decision.pool.at(JobStage.WAITING, JobStage.UNMEASURED))
        let_shifted_return(decision)
        if isinstance(event, Tick):
            look_again(decision)
            _settle_if_due(decision)
            divide(decision)
        park(decision)  # jobs that the division has set aside
        divide(decision)
        advance(decision)
        improve(decision)
        keep_round(decision)
        keep_batch_loans(decision)
        assign_and_claim(decision)
        watch(decision)
    return decision.pool, tuple(decision.orders)


def _settle_if_due(decision: Decision) -> None:
    """Advance the fair schedule if jobs are about to be planned, since a job that no plan can fit then ends."""
    if decision.pool.due is not None:
        settle(decision)


def finished(pool: Pool) -> bool:
    """Return whether a stopping pool has no members, spare trainers or claims left."""
    return pool.stopping and not (pool.members or pool.spares or pool.leaving or pool.claiming)


def _fold(decision: Decision, event: Event) -> None:  # noqa: C901 - a table: one line per kind of event
    match event:
        case SpareReady(trainer=trainer):
            _spare_ready(decision, trainer)
        case Claim():
            _claimed(decision, event)
        case Capture():
            _captured(decision, event)
        case Calibration():
            _calibrated(decision, event)
        case Adoption():
            _adopted(decision, event)
        case Parking():
            parked(decision, event)
        case PauseChange(paused=paused):
            mark_paused(decision, paused)
        case PriorityChange(priorities=priorities):
            change_priorities(decision, priorities)
        case RanksChange():
            ranks_changed(decision, event)
        case Holding():
            _holding(decision, event)
        case BatchLoan():
            loan_changed(decision, event)
        case Measurement():
            record_measurement(decision, event)
        case Correction():
            correct_memory(decision, event)
        case Misplacement():
            place_again(decision, event)
        case StepsLeft():
            _stepped(decision, event)
        case RoundLeft():
            round_left(decision, event)
        case Departure():
            departed(decision, event)
        case Finish():
            published(decision, event)
        case Failure():
            _failed(decision, event)
        case Exit():
            _exited(decision, event)
        case Overrun(trainer=trainer):
            _overrun(decision, trainer)
        case Silence(trainer=trainer):
            _silent(decision, trainer)
        case Stall(trainer=trainer, silent_s=silent_s):
            _stalled(decision, trainer, silent_s)
        case CancelRequest(job=job):
            _end_job(decision, decision.pool.of_job(job), Cancelled(), EndMethod.TERMINATE)
        case ClaimLoss(claim=claim):
            _end_job(decision, decision.pool.of_claim(claim), Lost(), EndMethod.KILL)
        case BudgetChange(budget_bytes=budget_bytes):
            decision.pool = replace(decision.pool, budget_bytes=budget_bytes)
            decision.plan_anew(PlanReason.BUDGET)
        case PlacesChange(max_jobs=max_jobs):
            decision.pool = replace(decision.pool, max_jobs=max_jobs)
        case ContentionChange(contention=contention):
            contention_measured(decision, contention)
        case IdleDevice(budget_bytes=budget_bytes):
            hand_over(decision, budget_bytes)
        case Answered():
            decision.pool = replace(decision.pool, asked=False)
        case QueueChange():
            decision.pool = replace(decision.pool, queue_empty=False)
        case Tick():
            decision.pool = expect_free(decision.pool)
            tick(decision, event)
        case Stop():
            _stop(decision)


# --- a job's way in --------------------------------------------------------------------------------------------


def _spare_ready(decision: Decision, trainer: TrainerId) -> None:
    spares = tuple(replace(s, ready=True) if s.trainer == trainer else s for s in decision.pool.spares)
    decision.pool = replace(decision.pool, spares=spares, failed_starts=0, spawn_pause_ticks=0)


def _claimed(decision: Decision, claim: Claim) -> None:
    decision.pool = replace(decision.pool, claiming=False, queue_empty=claim.job is None)
    if claim.job is None:
        return
    member = Member(job=claim.job, claimed_s=decision.pool.now_s)
    if decision.pool.stopping:
        _settle(decision, replace(member, stage=JobStage.ENDING, outcome=_controller_stops()))
        return
    decision.pool = replace(decision.pool, members=(*decision.pool.members, member))


def _captured(decision: Decision, capture: Capture) -> None:
    member = decision.pool.of_trainer(capture.trainer)
    if member is None or member.stage is not JobStage.CAPTURING:
        return
    workload = _workload(decision, member, capture)
    if workload is None:
        return
    member = replace(
        member,
        workload=workload,
        corrected_ns=workload.latency_ns[0],
        alone_ns=workload.step_ns,
        steps=capture.steps,
        steps_left=capture.steps,
        alternates=capture.alternates,
        stage=JobStage.WAITING,
    )
    if capture.unknown:
        need_bytes = decision.pool.regions(least_bytes(workload))
        member = replace(member, stage=JobStage.UNMEASURED, need_bytes=need_bytes)
    enter(decision, member)
    decision.plan_anew(PlanReason.START)


def _calibrated(decision: Decision, calibration: Calibration) -> None:
    member = decision.pool.of_trainer(calibration.trainer)
    if member is None or member.stage is not JobStage.CALIBRATING:
        return
    workload = _workload(decision, member, calibration)
    if workload is None:
        return
    needed_bytes = member.granted_bytes + calibration.overflow_bytes
    member = decision.grant(member, 0)
    member = replace(
        member,
        workload=workload,
        corrected_ns=workload.latency_ns[0],
        alone_ns=workload.step_ns,
        trade_offs=(),
        stage=JobStage.WAITING,
    )
    if calibration.overflow_bytes > 0:
        member = replace(member, stage=JobStage.UNMEASURED, need_bytes=decision.pool.regions(needed_bytes))
    decision.put(member)
    decision.plan_anew(PlanReason.START)


def _workload(decision: Decision, member: Member, graphs: Capture | Calibration) -> Workload | None:
    """Return the workload of these graphs. If they break the rules, fail the job (not the controller) and return
    None.
    """
    try:
        return Workload(
            job=member.job.job,
            graphs=with_known_graphs(decision.pool, graphs.graphs),
            latency_ns=graphs.latency_ns,
            limit_bytes=least_limit(member.job.spec.memory_limit_bytes, member.job.owner_limit_bytes),
            batch=decision.pool.batch,
            copy_loss=graphs.copy_loss,
        )
    except InvariantError as error:
        decision.end(member, Broken(fault=Fault.of(error)), EndMethod.TERMINATE)
        return None


# --- while it runs ---------------------------------------------------------------------------------------------


def _adopted(decision: Decision, adoption: Adoption) -> None:
    member = decision.pool.of_trainer(adoption.trainer)
    if member is None or member.stage is not JobStage.RUNNING or adoption.generation != member.generation:
        return
    member = begin_turn(begin_pace(decision, member))
    member = decision.grant(replace(member, adopted=adoption.generation), member.planned_bytes)
    member = replace(member, lent_bytes=0, returning=False)  # a loan is given back with the old plan
    decision.put(replace(member, host_bytes=member.planned_host_bytes, parked=False))
    decision.order(RecordAdoption(job=member.job.job, claim=member.job.claim, generation=adoption.generation))


def _holding(decision: Decision, holding: Holding) -> None:
    member = decision.pool.of_trainer(holding.trainer)
    if member is not None:
        held_bytes = max(member.granted_bytes, holding.held_bytes)
        decision.put(replace(member, held_bytes=held_bytes, returned=False))


def _stepped(decision: Decision, progress: StepsLeft) -> None:
    member = decision.pool.of_trainer(progress.trainer)
    if member is not None:
        member = note_startup(decision, member, progress.startup_ns)
        credit(decision, add_steps(decision, member, progress.steps_left), progress.steps_left)
        end_first_turn(decision, member)
        start_soon(decision)


# --- and out ---------------------------------------------------------------------------------------------------


def _failed(decision: Decision, failure: Failure) -> None:
    member = decision.pool.of_trainer(failure.trainer)
    if member is None or member.stage is JobStage.ENDING:
        return
    outcome: Outcome = Broken(fault=failure.fault, needs_bytes=failure.needs_bytes)
    if failure.retry:
        outcome = Interrupted(reason=failure.fault.message, blame=failure.blame, fault=failure.fault)
    if failure.retry and failure.lost:
        # A job that ran on the device may have caused its loss: the second time in the same phase counts as the job's
        # fault.
        outcome = Interrupted(
            reason=failure.fault.message,
            blame=Blame.UNCLEAR if member.measured or member.disturbed else Blame.OTHERS,
            fault=failure.fault,
            waits_for=f"a device that works: {failure.fault.message}",
        )
    decision.end(member, outcome, EndMethod.LET_EXIT)
    if failure.lost:
        losses = decision.pool.losses + 1
        pause_ticks = lengthened(losses)
        decision.pool = replace(decision.pool, losses=losses, claim_pause_ticks=pause_ticks)


def _overrun(decision: Decision, trainer: TrainerId) -> None:
    member = decision.pool.of_trainer(trainer)
    if member is None or member.stage is JobStage.ENDING:
        return
    fault = Fault(
        sqlstate=_TIMEOUT,
        message=f"job {member.job.job} ran for longer than its max_runtime of {member.job.spec.max_runtime_s} s",
        hint="Raise max_runtime, or train for fewer epochs.",
    )
    decision.end(member, Broken(fault=fault), EndMethod.TERMINATE)


def _silent(decision: Decision, trainer: TrainerId) -> None:
    """End a trainer that does not answer. Its memory would never be given back, and the plans of all other jobs wait
    for it.
    """
    if all(trainer != owing for owing, _ in decision.pool.owing):
        return
    member = decision.pool.of_trainer(trainer)
    if member is None:
        # its exit is handled like that of a trainer that died early
        decision.order(EndTrainer(trainer=trainer, method=EndMethod.KILL))
    else:
        reason = f"its trainer did not take up plan {member.generation}"
        if member.stage is JobStage.PARKING:
            reason = "its trainer did not leave the device"
        decision.end(member, Interrupted(reason=reason, blame=Blame.UNCLEAR), EndMethod.KILL)


def _stalled(decision: Decision, trainer: TrainerId, silent_s: float) -> None:
    """End a trainer that makes no progress, for example after SIGSTOP. Nothing else would ever end it."""
    member = decision.pool.of_trainer(trainer)
    if member is None or member.stage not in (JobStage.RUNNING, JobStage.CLOSING) or member.parked:
        return
    reason = f"its trainer made no progress for {silent_s:.0f} s"
    decision.end(member, Interrupted(reason=reason, blame=Blame.UNCLEAR), EndMethod.KILL)


def _end_job(decision: Decision, member: Member | None, outcome: Cancelled | Lost, method: EndMethod) -> None:
    """Set the outcome, unless one is decided already. A cancel replaces another attempt; a lost claim replaces all
    but success.
    """
    replaceable = Interrupted | None if isinstance(outcome, Cancelled) else Interrupted | Broken | Cancelled | None
    if member is None or not isinstance(member.outcome, replaceable):
        return
    if member.trainer is None:
        _drop(decision, replace(member, stage=JobStage.ENDING, outcome=outcome))
    else:
        decision.end(member, outcome, method)


def _exited(decision: Decision, exit_: Exit) -> None:
    member = decision.pool.of_trainer(exit_.trainer)
    if member is None:
        _spare_exited(decision, exit_.trainer)
        return
    decision.order(ReleaseTrainer(trainer=exit_.trainer))
    if member.outcome is None:
        member = replace(member, stage=JobStage.ENDING, outcome=outcome_of(exit_), target=None)
    _drop(decision, member)
    # After a success the device was divided when the trainer said so. Only jobs that still wait may gain.
    decision.plan_anew(PlanReason.START if isinstance(member.outcome, Succeeded) else PlanReason.END)


def _spare_exited(decision: Decision, trainer: TrainerId) -> None:
    pool = decision.pool
    spare = next((s for s in pool.spares if s.trainer == trainer), None)
    if spare is None and trainer not in pool.leaving:
        return
    decision.order(ReleaseTrainer(trainer=trainer))
    pool = replace(
        pool, spares=tuple(s for s in pool.spares if s.trainer != trainer), leaving=pool.leaving - {trainer}
    )
    if spare is not None and not spare.ready:
        failed_starts = pool.failed_starts + 1
        pause_ticks = lengthened(failed_starts)
        pool = replace(pool, failed_starts=failed_starts, spawn_pause_ticks=pause_ticks)
    decision.pool = pool


def _drop(decision: Decision, member: Member) -> None:
    members = tuple(m for m in decision.pool.members if m.job.claim != member.job.claim)
    decision.pool = replace(decision.pool, members=members)
    _settle(decision, member)


def _settle(decision: Decision, member: Member) -> None:
    """Write the outcome of the job, unless it is already written or no longer ours to write."""
    job, claim = member.job.job, member.job.claim
    match member.outcome:
        case Broken(fault=fault, needs_bytes=needs_bytes):
            decision.order(FailJob(job=job, claim=claim, fault=fault, needs_bytes=needs_bytes))
        case Interrupted(reason=reason, blame=blame, fault=fault, waits_for=waits_for):
            decision.order(
                RequeueJob(job=job, claim=claim, reason=reason, blame=blame, fault=fault, waits_for=waits_for)
            )
        case Cancelled():
            decision.order(CancelJob(job=job, claim=claim))
        case Succeeded() | Lost() | None:
            pass


def _stop(decision: Decision) -> None:
    decision.pool = replace(decision.pool, stopping=True)
    for member in decision.pool.members:
        if member.trainer is None:
            _drop(decision, replace(member, stage=JobStage.ENDING, outcome=_controller_stops()))
        elif member.outcome is None:
            decision.end(member, _controller_stops(), EndMethod.TERMINATE)
    spares = tuple(s.trainer for s in decision.pool.spares)
    for trainer in spares:
        decision.order(EndTrainer(trainer=trainer, method=EndMethod.TERMINATE))
    decision.pool = replace(decision.pool, spares=(), leaving=decision.pool.leaving | frozenset(spares))


def _controller_stops() -> Interrupted:
    return Interrupted(reason="its controller was stopped", blame=Blame.NOBODY)
