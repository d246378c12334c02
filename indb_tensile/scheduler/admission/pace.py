"""How much longer than was foretold jobs take, from what they have shown here.

Steps are foretold from iterations, and from what lies between two of them. A job also adopts plans, and before its
first step it is read, captured and copied to the device. Forecasts of when jobs are done contain both:

- the *pace* of a job that trains: the time since its turn began over the time that was foretold for the steps it has
  done since, with the jobs that were beside it. The pace of the whole training may differ, so it has bounds.
- the *preparation* of a job: from its claim until it follows its first plan, without the time for which it waits
  between its capture and the sending of that plan. The mean over the last jobs stands for the next one's.

Decisions do not use them. They know what lies between iterations by kind of job (overheads.py). The pace also
contains what happens once, such as a change of plans: memory and other jobs do not slow that down in the same way.
"""

from dataclasses import replace

from indb_tensile.scheduler.admission.completion_rule import planned_step_ns, training_beside
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.pool import JobStage, Member, Pool

_NEW_WEIGHT = 0.5
_LEAST_S = 5.0  # ticks are a second apart, and the first epoch of a short job says little
_LEAST, _MOST = 0.5, 4.0


def begin_pace(decision: Decision, member: Member) -> Member:
    """Note the start of a turn. At the first one, note how long the job's preparation took."""
    pool = decision.pool
    if member.trains and not member.parked:
        return member
    if not member.trains and member.ready_s is not None:
        took_s = max(0.0, member.ready_s - member.claimed_s) + max(0.0, pool.now_s - member.sent_s)
        mean_s = took_s if pool.prepare_s is None else pool.prepare_s + _NEW_WEIGHT * (took_s - pool.prepare_s)
        decision.pool = replace(pool, prepare_s=mean_s)
    return replace(member, began_s=pool.now_s, foretold_ns=0.0)


def add_steps(decision: Decision, member: Member, steps_left: float) -> Member:
    """Add the time that is foretold for the steps since the last report."""
    done, pool = member.steps_left - steps_left, decision.pool
    if member.plan is None or not 0 < done < float("inf") or member.stage is not JobStage.RUNNING:
        return member
    running = pool.running_set
    beside = training_beside(pool, member)
    step_ns = planned_step_ns(pool, member, member.plan, beside, unknown=running.calibrating, edges=running.preparing)
    return decision.put(replace(member, foretold_ns=member.foretold_ns + done * step_ns))


def pace(pool: Pool, member: Member) -> float:
    """Return how much longer than its iterations the job takes; 1 until it has shown that."""
    took_s = pool.now_s - member.began_s
    if took_s < _LEAST_S or not member.foretold_ns or member.stage is not JobStage.RUNNING:
        return 1.0
    return min(_MOST, max(_LEAST, took_s * 1e9 / member.foretold_ns))
