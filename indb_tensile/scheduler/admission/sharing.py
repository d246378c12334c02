"""Divide the device's budget among jobs: plan them together, and let waiting jobs in.

A division only sets *targets*, which become plans one step at a time (plan_targets.py). Grants are whole regions, so
the sum of *rounded* peaks has to fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from indb_tensile.job import Blame, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    AskPlanner,
)
from indb_tensile.scheduler.admission.calibration_room import calibrate, make_room
from indb_tensile.scheduler.admission.completion_rule import StartRule, gains_by, with_trade_offs
from indb_tensile.scheduler.admission.decision import Decision, planned
from indb_tensile.scheduler.admission.fair_turns import (
    foretold_fair_ends_ns,
    in_fair_order,
    is_awaited,
    is_overdue,
    keeps_place,
)
from indb_tensile.scheduler.admission.memory_correction import make_memory
from indb_tensile.scheduler.admission.oversized_job import least_limit, too_large
from indb_tensile.scheduler.admission.plan_targets import (
    end_member,
    fit_members,
    held_bytes,
    promise_bytes,
    promised_bytes,
    remember_plans,
    reserved_bytes,
    send_plans,
    set_targets,
    waits_for_memory,
)
from indb_tensile.scheduler.admission.pool import (
    Interrupted,
    JobStage,
    Member,
    PlanReason,
    Pool,
    Sharing,
)
from indb_tensile.scheduler.admission.preemption import higher_that_leaves, let_return, make_way
from indb_tensile.scheduler.admission.questions import Unanswered
from indb_tensile.scheduler.admission.region_fit import beside, fit, fits
from indb_tensile.scheduler.admission.shift_rule import give_up, shift
from indb_tensile.scheduler.admission.trainer_assignment import holds_queue, is_waiting_rank
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.sizes import size

# Plans are improved if a job goes on for this long. Improving the plans of two small networks took 1 to 10 s of a
# processor, which on a device without a GPU is taken from the jobs, and gains a few per cent.
_WORTH_IMPROVING_NS = 120_000_000_000


def divide(decision: Decision) -> None:
    """Do the planning that is due, until it is done or the planner has to be asked. If it was asked, wait for its
    answer.
    """
    while decision.pool.due is not None and not decision.pool.asked and not decision.pool.forming:
        pool_before, order_count = decision.pool, len(decision.orders)
        try:
            decision.pool = replace(pool_before, due=None)
            _replan(decision, pool_before.due or PlanReason.START)
        except Unanswered as unanswered:
            decision.pool = replace(pool_before, asked=True, last_choice=decision.pool.last_choice)
            del decision.orders[order_count:]
            decision.order(AskPlanner(question=unanswered.question))


def _replan(decision: Decision, reason: PlanReason) -> None:
    """Plan all jobs together and set their targets. Let a waiting job in if it fits.

    If the budget has become too small for the running jobs, or they need more memory than was planned, the youngest
    goes back to the queue until the others fit. If the planner finds no plan although the present plans fit, the
    present plans stay. They stay as well if a job came and none started: plans take a moment to make and to adopt,
    and would hardly differ.
    """
    if _let_in(decision, reason):
        return
    running = decision.pool.at(JobStage.RUNNING)
    if reason is PlanReason.START and not decision.pool.shrunk and _all_are_planned(decision.pool, running):
        return
    decision.pool = replace(decision.pool, shrunk=False)
    budget_bytes = decision.pool.budget_bytes - reserved_bytes(decision.pool)
    renewed = _renewed(decision, running, budget_bytes) if reason is PlanReason.DRIFT else None
    plans = fit_members(decision, running, budget_bytes) if renewed is None else renewed
    if renewed is None:
        decision.pool = replace(decision.pool, improvable=len(running) > 1)
    if not isinstance(plans, Infeasible):
        set_targets(decision, running, plans, reason)
    elif make_memory(decision, reason):
        return
    elif promised_bytes(decision.pool) > decision.pool.budget_bytes:
        youngest = decision.pool.at(JobStage.RUNNING, JobStage.CALIBRATING)[-1]
        end_member(
            decision, youngest, Interrupted(reason="the device's budget was lowered", blame=Blame.NOBODY), reason
        )


def _all_are_planned(pool: Pool, running: tuple[Member, ...]) -> bool:
    planned_for = all(m.plan is not None or m.target is not None for m in running)
    return planned_for and not any(m.outdated for m in running) and promised_bytes(pool) <= pool.budget_bytes


def advance(decision: Decision) -> None:
    """Take every step that is safe now: send plans, then begin a calibration."""
    send_plans(decision)
    calibrate(decision)


def improve(decision: Decision) -> None:
    """Have the present plans improved once all jobs follow them, if the jobs run for long enough after that."""
    pool = decision.pool
    if not pool.improvable or pool.due is not None or pool.asked or pool.round is not None:
        return
    if not is_worth_improving(pool):
        return
    if all(member.settled for member in pool.at(JobStage.RUNNING)):
        decision.pool = replace(pool, improvable=False)
        decision.plan_anew(PlanReason.DRIFT)
        divide(decision)


def is_worth_improving(pool: Pool) -> bool:
    """Return whether some running job goes on for long enough to gain from seconds of planning."""
    return left_ns(pool) > _WORTH_IMPROVING_NS


def left_ns(pool: Pool) -> float:
    """Return for how long the running job that ends last goes on."""
    followed = ((m, m.plan) for m in pool.at(JobStage.RUNNING) if m.plan is not None)
    return max((member.steps_left * plan.forecast.iteration_ns for member, plan in followed), default=0.0)


def _let_in(decision: Decision, reason: PlanReason) -> bool:
    """Let in the first waiting job that fits, or make room to calibrate it. Return True if that, or the end of a job,
    was decided.

    The other jobs are tried when this job's plan is decided. A job that was overtaken often enough lets no other job
    past.
    """
    limited = [_within_quota(decision, m) for m in decision.pool.at(JobStage.WAITING, JobStage.UNMEASURED)]
    waiting = [member for member in limited if member is not None and not _goes_after_leaving(decision, member)]
    let_return(decision, waiting)
    if decision.pool.sharing is Sharing.COMPLETION:
        measured = [with_trade_offs(decision, m) if m.stage is JobStage.WAITING else m for m in waiting]
        ends_ns = foretold_fair_ends_ns(decision.pool)
        waiting = in_fair_order(decision.pool, measured, ends_ns)
        if shift(decision, [m for m in waiting if m.stage is JobStage.WAITING], ends_ns):
            return True
    else:
        waiting = _ranks_first(waiting)
    rule = _start_rule(decision, _up_to_holder(decision.pool, waiting))
    while True:
        known_sets = rule.known_sets if rule is not None else 0
        if _let_in_first(decision, waiting, reason, rule):
            return True
        # Plans that were slower than foretold may have changed the choice to a job that had been passed over by then.
        if rule is None or not rule.choice.starts or rule.known_sets == known_sets:
            return False


def _let_in_first(decision: Decision, waiting: list[Member], reason: PlanReason, rule: StartRule | None) -> bool:
    """Let in the first of the waiting jobs that the rule starts and that fits. Return True as `_let_in` does."""
    present = _Present.of(decision.pool)
    for place, head in enumerate(waiting):
        if _try(decision, waiting[place:], reason, rule, present):
            return True
        if _lets_nobody_past(decision.pool, head):
            why = _reason_to_go_first(head)
            for later in waiting[place + 1 :]:
                decision.wait(later, f"its turn: job {head.job.job} {why}")
            return False
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """What is asked of the pool for each waiting job. With a thousand of them it has to be computed once.

    `awaited` are the jobs that others left the device for. No job is added while waiting jobs are tried. `lowest` has
    the lowest priority of the running jobs of each owner.
    """

    awaited: frozenset[JobId]
    lowest: dict[int, int]

    @classmethod
    def of(cls, pool: Pool) -> Self:
        lowest: dict[int, int] = {}
        for member in pool.at(JobStage.RUNNING):
            owner, priority = member.job.owner_oid, member.job.priority
            lowest[owner] = min(priority, lowest.get(owner, priority))
        return cls(awaited=frozenset(m.aside_for for m in pool.members if m.aside_for is not None), lowest=lowest)

    def runs_lower(self, head: Member) -> bool:
        """Return whether a job of the same owner with a lower priority runs."""
        return self.lowest.get(head.job.owner_oid, head.job.priority) < head.job.priority


def _try(
    decision: Decision, waiting: list[Member], reason: PlanReason, rule: StartRule | None, present: _Present
) -> bool:
    """Let the first of these jobs in if it may start now. Return True if it was let in, or ended."""
    head = waiting[0]
    if head.stage is JobStage.UNMEASURED:
        return make_room(decision, head, reason)
    if head.job.job in present.awaited and is_awaited(decision.pool, head):
        if _admit(decision, head, reason, None):
            return True
        give_up(decision, head)
        return False
    if rule is not None and rule.considers(head.job.job) and not _may_start(decision, head, rule, present):
        return False
    return (
        _admit_into_free_memory(decision, head, reason, rule)
        or _admit_together(decision, waiting, reason, rule)
        or _admit(decision, head, reason, rule)
    )


def _may_start(decision: Decision, head: Member, rule: StartRule, present: _Present) -> bool:
    """Return whether the waiting job was chosen to start now. Running jobs may be set aside for it.

    If it was chosen and would hardly raise the throughput beside jobs with lower priorities, it takes their place.
    """
    chosen = head.job.job in rule.choice.starts
    if not chosen:
        decision.wait(head, rule.waiting_text(head.job.job))
        if present.runs_lower(head) or keeps_place(decision.pool, head):
            make_way(decision, head)
    elif present.runs_lower(head) and not rule.is_worth_a_delay(head.job.job) and make_way(decision, head):
        decision.wait(head, "jobs of a lower priority to leave the device")
        return False
    return chosen


def _goes_after_leaving(decision: Decision, waiting: Member) -> bool:
    """Return whether a job of a higher priority, which is leaving the device, goes before this waiting one."""
    if decision.pool.sharing is not Sharing.COMPLETION:
        return False
    higher = higher_that_leaves(decision.pool, waiting)
    if higher is not None:
        decision.wait(waiting, f"its turn: job {higher.job.job} has a higher priority, and leaves the device first")
    return higher is not None


def _within_quota(decision: Decision, head: Member) -> Member | None:
    """Limit the waiting job to the rest of its owner's quota. Return None if it needs more than that."""
    quota_bytes = head.job.owner_limit_bytes
    if quota_bytes is None:
        return head
    others = [m for m in decision.pool.members if m.job.owner_oid == head.job.owner_oid and m.job != head.job]
    used_bytes = sum(map(held_bytes, others))
    left_bytes = decision.pool.whole(max(0, quota_bytes - used_bytes))
    own_bytes = least_limit(head.job.spec.memory_limit_bytes, quota_bytes)
    least = decision.planner.least_bytes(replace(planned(head), limit_bytes=own_bytes))
    need_bytes = max(head.need_bytes, decision.pool.regions(least))
    if not used_bytes or need_bytes <= left_bytes:
        limited = replace(planned(head), limit_bytes=least_limit(own_bytes, left_bytes))
        return decision.put(replace(head, workload=limited, over_quota=False))
    text = (
        f"at least {size(need_bytes)} of its owner's quota of {size(quota_bytes)} of device memory, of which the "
        f"owner's other jobs have {size(used_bytes)}"
    )
    decision.put(replace(decision.wait(head, text), over_quota=True))
    return None


def _start_rule(decision: Decision, waiting: list[Member]) -> StartRule | None:
    """Return the rule that says which of the jobs start now; None if every job starts that fits."""
    heads = tuple(member for member in waiting if member.stage is JobStage.WAITING)
    if decision.pool.sharing is not Sharing.COMPLETION or not heads:
        return None
    return StartRule(decision, heads, decision.pool.budget_bytes - reserved_bytes(decision.pool))


def _lets_nobody_past(pool: Pool, head: Member) -> bool:
    """Return whether no job that comes later may be let in before this one."""
    return (
        holds_queue(head) or is_waiting_rank(head) or (pool.sharing is Sharing.COMPLETION and is_overdue(pool, head))
    )


def _ranks_first(waiting: list[Member]) -> list[Member]:
    """Return the jobs in the order of their claims, except that ranks come before jobs that were not overtaken often
    enough. Behind them, the other devices of their jobs would hold memory for long.
    """
    return sorted(waiting, key=lambda member: (not holds_queue(member), not is_waiting_rank(member)))


def _reason_to_go_first(head: Member) -> str:
    if is_waiting_rank(head):
        return "goes first, because its other devices wait for this one"
    why = f"was overtaken {head.overtaken} times" if holds_queue(head) else "has yet to do its first step"
    return f"waits longer and {why}"


def _up_to_holder(pool: Pool, waiting: list[Member]) -> list[Member]:
    """Return the jobs up to the first that lets no other past. If the rule could prefer a later job, each of the two
    would wait for the other, and nothing would run.
    """
    holder = next((place for place, member in enumerate(waiting) if _lets_nobody_past(pool, member)), len(waiting))
    return waiting[: holder + 1]


def _admit_into_free_memory(decision: Decision, head: Member, reason: PlanReason, rule: StartRule | None) -> bool:
    """Let the job in beside plans that stay as they are, if all the memory that it can use is free or is being given
    back, and it would keep that memory in the next division. Return True if it was let in.

    So a job need not wait until others are planned anew, which takes up to a second. These keep their plans, unless
    some of them could use what is left.
    """
    pool_bytes = decision.pool.free_bytes + decision.pool.lent_bytes + decision.pool.returning_bytes
    free_bytes = min(pool_bytes, decision.pool.budget_bytes - promised_bytes(decision.pool))
    if rule is None or not head.trade_offs or decision.pool.regions(head.trade_offs[0].peak_bytes) > free_bytes:
        return False
    running = decision.pool.at(JobStage.RUNNING)
    present = [m.plan if m.target is None else m.target.plan for m in running]
    known = tuple(plan for plan in present if plan is not None)
    if len(known) < len(running) or not rule.keeps_all_memory(head.job.job):
        return False
    plans = fit_members(decision, (head,), free_bytes)
    if isinstance(plans, Infeasible) or not rule.confirms((head.job.job,), (*known, *plans)):
        return False
    head = decision.wait(head, None)
    set_targets(decision, (head,), plans, reason)
    decision.pool = replace(decision.pool, improvable=bool(running))
    _count_overtaking(decision, head)
    left_bytes = decision.pool.budget_bytes - promised_bytes(decision.pool)
    gains = any(gains_by(m, promise_bytes(m), left_bytes) for m in running)
    decision.plan_anew(reason if gains else PlanReason.START)  # the next job may fit as well
    return True


def _admit_together(decision: Decision, waiting: list[Member], reason: PlanReason, rule: StartRule | None) -> bool:
    """Plan all jobs that the rule starts now, if these are several, together with the running jobs.

    Return True if they were let in. Otherwise they are tried one by one. If they were always let in one by one, the
    first would be planned, and would move its tensors, once for each of the others.
    """
    if rule is None:
        return False
    heads = [m for m in waiting if m.stage is JobStage.WAITING and m.job.job in rule.choice.starts]
    if len(heads) < 2 or any(_lets_nobody_past(decision.pool, head) for head in heads[:-1]):
        return False
    running = decision.pool.at(JobStage.RUNNING)
    together = (*running, *heads)
    plans = fit_members(decision, together, decision.pool.budget_bytes - reserved_bytes(decision.pool))
    if isinstance(plans, Infeasible) or not rule.confirms(tuple(m.job.job for m in heads), plans):
        return False
    heads = [decision.wait(head, None) for head in heads]
    set_targets(decision, (*running, *heads), plans, reason)
    decision.pool = replace(decision.pool, improvable=True)
    for head in heads:
        _count_overtaking(decision, head)
    if decision.pool.at(JobStage.WAITING, JobStage.UNMEASURED):
        decision.plan_anew(reason)
    return True


def _admit(decision: Decision, head: Member, reason: PlanReason, rule: StartRule | None) -> bool:
    """Plan the waiting job together with the running jobs. Return True if it was let in, or ended."""
    together = (*decision.pool.at(JobStage.RUNNING), head)
    plans = fit_members(decision, together, decision.pool.budget_bytes - reserved_bytes(decision.pool))
    if not isinstance(plans, Infeasible) and rule is not None and not rule.confirms((head.job.job,), plans):
        decision.wait(head, rule.waiting_text(head.job.job))
        make_way(decision, head)
        return False
    if not isinstance(plans, Infeasible):
        head = decision.wait(head, None)
        set_targets(decision, (*together[:-1], head), plans, reason)
        decision.pool = replace(decision.pool, improvable=len(together) > 1)
        _count_overtaking(decision, head)
        if decision.pool.at(JobStage.WAITING, JobStage.UNMEASURED):
            decision.plan_anew(reason)  # the next job may fit as well
        return True
    own_bytes = least_limit(head.job.spec.memory_limit_bytes, head.job.owner_limit_bytes)
    # without the memory of its owner's other jobs, because those will end
    unshared = replace(planned(head), limit_bytes=own_bytes)
    alone = fit(decision.planner, decision.pool, (unshared,), budget_bytes=decision.pool.budget_bytes)
    if isinstance(alone, Infeasible):
        end_member(decision, head, too_large(decision, head, alone), reason)
        return True
    decision.wait(
        head, waits_for_memory(decision, decision.planner.least_bytes(planned(head)), plans.shortfall_bytes)
    )
    return False


def _count_overtaking(decision: Decision, member: Member) -> None:
    """Count for each earlier job that still waits for memory that this job was let in past it. In fair order a job
    is not overtaken by one that comes before it, whichever was claimed first.
    """
    queue: Sequence[Member] = [
        member if m.job.claim == member.job.claim else m
        for m in decision.pool.members
        if m.job.claim == member.job.claim or m.stage in (JobStage.WAITING, JobStage.UNMEASURED)
    ]
    if decision.pool.sharing is Sharing.COMPLETION:
        queue = in_fair_order(decision.pool, queue)
    for earlier in queue:
        if earlier.job.claim == member.job.claim:
            return
        decision.put(replace(earlier, overtaken=earlier.overtaken + 1))


def _renewed(decision: Decision, members: tuple[Member, ...], budget_bytes: int) -> tuple[JobPlan, ...] | None:
    """Return the planner's renewal of the plans that all members follow, if its grants fit into the budget."""
    followed = tuple(m.plan for m in members if m.plan is not None)
    if not members or len(followed) < len(members):  # all members may have been cancelled since
        return None
    workloads = tuple(planned(m) for m in members)
    whole_bytes = decision.pool.whole(max(0, budget_bytes))
    requested = tuple(beside(decision.pool, w) for w in workloads)
    plans = decision.planner.renew(
        requested, followed, budget_bytes=whole_bytes, thorough=is_worth_improving(decision.pool)
    )
    if plans is None or not fits(decision.planner, decision.pool, workloads, plans, budget_bytes=whole_bytes):
        return None
    remember_plans(decision, members, plans, budget_bytes)
    return plans
