"""A job ends in two steps: it gives back its memory after the last training step, and then its version is published.

    running -- Departure --> closing -- Finish --> ending -- Exit --> its place is free

The version is evaluated and stored by the host, so the device's memory is free for the next job meanwhile. If the
trainer is killed while the job closes, the job returns to the queue and goes on from its last checkpoint.
"""

from dataclasses import replace

from indb_tensile.scheduler.admission.admission_orders import EndMethod
from indb_tensile.scheduler.admission.completion_rule import note_closing, note_last_step
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.events import Departure, Finish
from indb_tensile.scheduler.admission.pool import JobStage, PlanReason, Succeeded


def departed(decision: Decision, departure: Departure) -> None:
    """Free the memory of a job that trains no more. The ledger confirms when others can have it.

    The trainer never follows a plan, or an order to park, that was sent meanwhile.
    """
    member = decision.pool.of_trainer(departure.trainer)
    if member is None or member.stage not in (JobStage.RUNNING, JobStage.PARKING) or not member.trains:
        return
    note_last_step(decision, member, departure.steps_left)
    member = decision.grant(decision.wait(member, None), 0)
    member = replace(member, stage=JobStage.CLOSING, target=None, set_aside=False, aside_for=None, moving=False)
    member = replace(member, plan=None, planned_bytes=0, lent_bytes=0, returning=False)
    decision.put(replace(member, host_bytes=0, planned_host_bytes=0))
    decision.plan_anew(PlanReason.END)


def published(decision: Decision, finish: Finish) -> None:
    """Let the trainer of a published version exit."""
    member = decision.pool.of_trainer(finish.trainer)
    if member is None:
        return
    note_closing(decision, member, finish.closing_ns)
    had_memory = member.stage is not JobStage.CLOSING
    if member.stage is JobStage.ENDING:  # the trainer was told to end, but had already published
        decision.put(replace(member, outcome=Succeeded()))
    else:
        decision.end(member, Succeeded(), EndMethod.LET_EXIT)
    if had_memory:
        decision.plan_anew(PlanReason.END)  # while its trainer exits; the plans are sent when its memory is free
