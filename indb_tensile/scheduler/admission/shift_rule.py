"""Let running jobs leave the device for waiting jobs that come before them in fair order (completion/shifts.py).

A job leaves as in parking.py. The waiting job for which it leaves starts as soon as the memory is free, and then the
job that left waits for admission like a new one.

The cost of a change is foretold from the job's state and the link (shift_costs.py). A job stays for at least its
*quantum*, which is so long that a change takes at most `CHANGE_SHARE` of it. A job that has never left makes way
before its quantum is over for jobs that have not begun to train, if its whole training is longer than a quantum. So
short jobs that come just after a long one do not wait for the long one, and no two jobs displace each other by turns.
A job for which `parked_jobs` leaves no place in host memory saves a checkpoint instead, which costs more and so pays
more seldom. With `parked_jobs = 0` there are no shifts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from indb_tensile.scheduler.admission.completion_rule import demand_of, planned_steps_ns, seconds, shared_device
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.fair_turns import (
    foretold_fair_ends_ns,
    in_fair_order,
    is_awaited,
    is_overdue,
    keeps_place,
)
from indb_tensile.scheduler.admission.idle_devices import goes_soon
from indb_tensile.scheduler.admission.parking import bring_back, free_places, set_aside
from indb_tensile.scheduler.admission.pool import JobStage, Member, PlanReason, Pool, Sharing
from indb_tensile.scheduler.admission.shift_costs import change_ns, have_room, may_leave, may_leave_early
from indb_tensile.scheduler.completion.choose_starts import HORIZON
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, members
from indb_tensile.scheduler.completion.shifts import ShiftQuestion, choose_shift

_ON_THE_DEVICE = (JobStage.CALIBRATING, JobStage.RUNNING, JobStage.PARKING, JobStage.ENDING)


def shift(decision: Decision, waiting: Sequence[Member], ends_ns: Mapping[int, float]) -> bool:
    """Set running jobs aside if one of these waiting jobs should run in their place. Return whether it should.

    `ends_ns` are foretold_fair_ends_ns(pool), which takes milliseconds for a thousand jobs.
    """
    shift = _foretell_shift(decision.pool, waiting, ends_ns)
    if shift is None:
        return False
    leaving, first = shift
    left_ns = first.steps_left * first.alone_ns
    for member in leaving:
        made_way = f"it made way for job {first.job.job}"
        if decision.pool.time_of_day:
            made_way += f" at {decision.pool.time_of_day}"
        yielded = member.yielded or first.job.gang is not None
        member = replace(member, aside_for=first.job.job, made_way=made_way, yielded=yielded)
        member = set_aside(decision, member)
        decision.wait(member, f"job {first.job.job} to have its turn, of about {seconds(left_ns)}")
    decision.wait(first, f"{_names(leaving)} to leave the device for it")
    return True


def look_again(decision: Decision) -> None:
    """Have the memory divided again if a shift pays now: quanta end and first steps become overdue without events.

    It is also divided again if a first step is overdue while the device is free. No sequence of events is known to
    lead there, but if one did, the job would wait for ever, and the others with it. And it is divided again if a job
    that left for one of a higher priority may come back beside that one from now on.
    """
    pool = decision.pool
    if pool.due is not None or pool.asked:
        return
    returning = [m for m in pool.at(JobStage.WAITING) if 0 < m.away_until_s <= pool.now_s]
    if returning:
        for member in returning:
            decision.put(replace(member, away_until_s=0.0))
        decision.pool = replace(decision.pool, due=PlanReason.START)
        return
    waiting = [m for m in pool.at(JobStage.WAITING) if not m.paused and not m.over_quota]
    is_free = not pool.at(*_ON_THE_DEVICE)
    if is_free and any(is_overdue(pool, member) for member in waiting):
        decision.pool = replace(pool, due=PlanReason.START)
    elif _foretell_shift(pool, waiting) is not None:
        decision.pool = replace(pool, due=PlanReason.PARKING)


def let_shifted_return(decision: Decision) -> None:
    """Let jobs return that left for a job which runs by now, or does not wait any more."""
    for member in decision.pool.members:
        if member.aside_for is not None:
            awaited = decision.pool.of_job(member.aside_for)
            if awaited is None or not is_awaited(decision.pool, awaited):
                bring_back(decision, replace(member, aside_for=None))


def give_up(decision: Decision, awaited: Member) -> None:
    """Let the jobs return that left for a job which could not start after all."""
    for member in decision.pool.members:
        if member.aside_for == awaited.job.job:
            bring_back(decision, replace(member, aside_for=None))


def _foretell_shift(
    pool: Pool, waiting: Sequence[Member], ends_ns: Mapping[int, float] | None = None
) -> tuple[list[Member], Member] | None:
    running = pool.at(JobStage.RUNNING)
    if (
        not waiting
        or not _is_possible(pool)
        or not any(may_leave(pool, m) or may_leave_early(pool, m) for m in running)
    ):
        return None
    waiting = [member for member in waiting if not goes_soon(pool, member)]
    ends_ns = foretold_fair_ends_ns(pool) if ends_ns is None else ends_ns
    ordered = in_fair_order(pool, [m for m in (*running, *waiting) if m.trade_offs], ends_ns)
    if len(ordered) < len(running) + 1 or any(not m.trade_offs for m in running):
        return None
    # Only the first HORIZON waiting jobs count in the answer. To compute the demands of hundreds would take long.
    beyond = {m.job.claim for m in [m for m in ordered if m.stage is not JobStage.RUNNING][HORIZON:]}
    known = [m for m in ordered if m.job.claim not in beyond]
    places = free_places(pool)
    for saves in (False, True) if places > 0 else (True,):
        question = _question(pool, known, ends_ns, saves=saves)
        chosen = choose_shift(question) if question.is_open else None
        if chosen is None:  # if it costs more, it does not pay either
            return None
        leaving = [known[k] for k in members(chosen.leaving)]
        if saves or len(leaving) <= places:
            return (leaving, known[chosen.first]) if have_room(pool, leaving) else None
    return None


def _is_possible(pool: Pool) -> bool:
    """Return whether jobs may change places now: not while a change is under way."""
    if pool.sharing is not Sharing.COMPLETION or pool.link is None or pool.stopping:
        return False
    if min(pool.parked_jobs, pool.max_jobs - 1) < 1:
        return False
    if pool.at(JobStage.PARKING) or any(m.aside_for is not None for m in pool.members):
        return False
    return all(m.settled and m.adopted for m in pool.at(JobStage.RUNNING))


def _question(pool: Pool, known: Sequence[Member], ends_ns: Mapping[int, float], *, saves: bool) -> ShiftQuestion:
    """Return the question about these jobs, which are in fair order. The fair schedule has the ends `ends_ns`.

    If they save, none leaves early: a job that is claimed anew counts as one that has not begun to train.
    """
    running = sum(1 << k for k, m in enumerate(known) if m.stage is JobStage.RUNNING)
    numbers = members(running)
    followed = [(known[k], known[k].plan) for k in numbers]
    times = planned_steps_ns(pool, [(member, plan) for member, plan in followed if plan is not None])
    device = shared_device(pool, pool.budget_bytes - sum(m.granted_bytes for m in pool.at(JobStage.CALIBRATING)))
    return ShiftQuestion(
        forecasts=SetForecasts(
            tuple(demand_of(pool, m) for m in known), device, {running: times} if times else None, running
        ),
        order=tuple(range(len(known))),
        fair_ends_ns=tuple(ends_ns.get(m.job.claim, float("inf")) for m in known),
        change_ns=tuple(change_ns(pool, m, saves=saves) for m in known),
        running=running,
        movable=sum(1 << k for k in numbers if may_leave(pool, known[k], saves=saves)),
        beginning=0 if saves else sum(1 << k for k in numbers if may_leave_early(pool, known[k])),
        new=sum(1 << k for k, m in enumerate(known) if m.stage is JobStage.WAITING and not m.generation),
        overdue=sum(1 << k for k, m in enumerate(known) if is_overdue(pool, m)),
        kept=sum(1 << k for k, m in enumerate(known) if keeps_place(pool, m)),
    )


def _names(leaving: Sequence[Member]) -> str:
    return " and ".join(f"job {m.job.job}" for m in leaving)
