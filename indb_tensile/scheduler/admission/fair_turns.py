"""Keep the fair schedule of one controller's jobs (completion/fair_shares.py), and order the jobs by this schedule.

The fair schedule advances by the work that running jobs report. A job that comes joins it with all its steps. A job
that its owner has paused makes no progress in the fair schedule.

Running jobs report many times a second, and an advance changes all jobs. So their work is only added up, until an
event comes that may change which jobs the fair schedule has, or how long they take (`settle`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.pool import JobStage, Member, Pool
from indb_tensile.scheduler.admission.trainer_assignment import holds_queue, is_waiting_rank
from indb_tensile.scheduler.completion.fair_shares import FairShare, advance, fair_ends_ns

# The part that counts of the time by which the fair schedule has ended a job before its true end. A late job goes
# before all others once that part exceeds what is left of it, and until its end. With 1, that was often: 2,000 s late
# and 2,000 s left meant that all jobs that came in 2,000 s waited, however short. With 0, a job could wait for ever
# behind shorter ones that keep coming.
_LATE_PART = 1 / 8
_STAGES = (
    JobStage.UNMEASURED,
    JobStage.CALIBRATING,
    JobStage.WAITING,
    JobStage.RUNNING,
    JobStage.PARKING,
    JobStage.PARKED,
)


def credit(decision: Decision, member: Member, steps_left: float) -> None:
    """Note the steps that are left of a job. What it has done since the last report advances the fair schedule."""
    if member.stage is JobStage.ENDING or not 0 <= steps_left < float("inf"):
        return
    work_ns = (member.steps_left - steps_left) * member.alone_ns
    decision.put(replace(member, steps_left=steps_left))
    if work_ns > 0:
        decision.pool = replace(decision.pool, fair_due_ns=decision.pool.fair_due_ns + work_ns)


def settle(decision: Decision) -> None:
    """Advance the fair schedule by the work that jobs have reported since it was advanced last."""
    pool = decision.pool
    work_ns = pool.fair_due_ns
    if not work_ns:
        return
    left_ns, ends_ns = advance(_shares(pool), work_ns)
    members = tuple(_settled(m, left_ns, ends_ns, pool.fair_clock_ns) for m in pool.members)
    decision.pool = replace(pool, members=members, fair_clock_ns=pool.fair_clock_ns + work_ns, fair_due_ns=0.0)


def _settled(
    member: Member, left_ns: Mapping[JobId, float], ends_ns: Mapping[JobId, float], clock_ns: float
) -> Member:
    """Return the member with what the fair schedule has left of it, and with its fair end if it has one now.

    An owner's jobs of lower priorities stay as they are. To make a new member takes as long as all else here.
    """
    job = member.job.job
    if job not in left_ns:
        return member
    left, end_ns = left_ns[job] / member.alone_ns, clock_ns + ends_ns[job] if job in ends_ns else None
    if left == member.fair_left and end_ns == member.fair_end_ns:
        return member
    return replace(member, fair_left=left, fair_end_ns=end_ns)


def enter(decision: Decision, member: Member) -> Member:
    """Let a captured job join the fair schedule."""
    return decision.put(replace(member, fair_left=member.steps_left, fair_end_ns=None, ready_s=decision.pool.now_s))


def begin_turn(member: Member) -> Member:
    """Return the job at the moment at which it begins or goes on to train: a quantum is counted from here."""
    if member.trains and not member.parked:
        return member
    return replace(member, turn_steps=member.steps_left, made_way="")


def in_fair_order(pool: Pool, members: Sequence[Member], ends_ns: Mapping[int, float] | None = None) -> list[Member]:
    """Return the jobs in the order in which they should run.

    First come jobs for which others have left the device already, then jobs whose first step is overdue, and then all
    others as the fair schedule ends them. An owner's places in this order are given to its jobs by their priorities,
    so a priority delays no job of another owner. A job whose first step is overdue keeps its place. `ends_ns` are
    foretold_fair_ends_ns(pool), if they are known.
    """
    ends_ns = foretold_fair_ends_ns(pool) if ends_ns is None else ends_ns
    awaited = {other.aside_for for other in pool.members}
    # Jobs that have made way for a rank before precede an early rank.
    early = any(is_early_rank(pool, member) for member in members)

    def place(member: Member) -> tuple[float, ...]:
        first = member.job.job in awaited and is_awaited(pool, member)
        ready_s = (member.ready_s or 0.0) if is_overdue(pool, member) else float("inf")
        later = early and not (member.stage is JobStage.WAITING and member.yielded)
        return (not first, not holds_queue(member), later, ready_s, ends_ns.get(member.job.claim, float("inf")))

    places = sorted(members, key=place)
    kept = frozenset(member.job.claim for member in places if keeps_place(pool, member))
    by_owner: dict[int, list[Member]] = {}
    for member in places:
        if member.job.claim not in kept:
            by_owner.setdefault(member.job.owner_oid, []).append(member)
    turns = {owner: iter(sorted(jobs, key=lambda m: -m.job.priority)) for owner, jobs in by_owner.items()}
    return [member if member.job.claim in kept else next(turns[member.job.owner_oid]) for member in places]


def foretold_fair_ends_ns(pool: Pool) -> dict[int, float]:
    """Return by claim when the fair schedule ends each job, and the work that is left of the job is done after that.

    Of the time that has passed since the fair schedule ended a job, a part is subtracted.
    """
    ends_ns = fair_ends_ns(_shares(pool))
    clock_ns = pool.fair_clock_ns + pool.fair_due_ns
    known = {m.job.claim: m.fair_end_ns - clock_ns for m in pool.members if m.fair_end_ns is not None}
    known |= {m.job.claim: ends_ns[m.job.job] - pool.fair_due_ns for m in pool.members if m.job.job in ends_ns}
    counted = {claim: ns if ns > 0 else _LATE_PART * ns for claim, ns in known.items()}
    left_ns = {m.job.claim: m.steps_left * m.alone_ns for m in pool.members if m.job.claim in counted}
    return {claim: counted[claim] + ns for claim, ns in left_ns.items()}


def is_overdue(pool: Pool, member: Member) -> bool:
    """Return whether the job has been ready for its first step for longer than `first_step_s`.

    A rank of a job that several devices train is overdue at once: its other ranks may hold memory until this one has
    some.
    """
    if member.stage is not JobStage.WAITING or member.trains or member.ready_s is None:
        return False
    return is_waiting_rank(member) or pool.now_s - member.ready_s >= pool.first_step_s


def keeps_place(pool: Pool, member: Member) -> bool:
    """Return whether the job also goes before higher jobs of its owner, because its first step is overdue.

    A rank does not: it never leaves the device, so they would wait until it ends.
    """
    return member.job.gang is None and is_overdue(pool, member)


def is_early_rank(pool: Pool, member: Member) -> bool:
    """Return whether the job is a rank that goes before others although it has not waited for `first_step_s`.

    Jobs that have made way for a rank before do not make way for it, so gangs that follow each other starve nobody.
    """
    return is_waiting_rank(member) and pool.now_s - (member.ready_s or 0.0) < pool.first_step_s


def is_awaited(pool: Pool, member: Member) -> bool:
    """Return whether another job leaves the device, or has left it, so that this waiting job can start."""
    if member.stage is not JobStage.WAITING or member.paused:
        return False
    return any(other.aside_for == member.job.job for other in pool.members)


def _shares(pool: Pool) -> list[FairShare]:
    return [
        FairShare(
            job=m.job.job,
            owner=m.job.owner_oid,
            weight=m.job.owner_weight,
            priority=m.job.priority,
            left_ns=m.fair_left * m.alone_ns,
        )
        for m in pool.members
        if m.stage in _STAGES and not m.paused and m.fair_left and m.alone_ns > 0
    ]
