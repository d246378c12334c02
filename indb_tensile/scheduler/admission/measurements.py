"""Correct a job's latencies by its trainer's measurements, and have plans made anew when they have drifted.

While another job is read, captured or calibrated, it takes processor time from the trainers for some seconds.
Latencies that are measured meanwhile are soon outdated. The same holds for a report that covers time before a job
came, went, or adopted another plan. Up to `_MOST_DISTURBED` such measurements in a row do not count for plans and for
contention. Later ones do: where jobs come all the time, the disturbance is the usual state.
"""

from dataclasses import replace

from indb_tensile.scheduler.admission.admission_orders import RecordMeasurement
from indb_tensile.scheduler.admission.completion_rule import observe
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.events import (
    Adoption,
    Calibration,
    Capture,
    Event,
    Exit,
    Failure,
    Finish,
    Measurement,
    Parking,
)
from indb_tensile.scheduler.admission.plan_targets import renew_forecasts
from indb_tensile.scheduler.admission.pool import JobStage, Member, PlanReason
from indb_tensile.scheduler.admission.running_set import measured_throughput
from indb_tensile.scheduler.timing.latency import correct, drift

NEW_WEIGHT = 0.5  # weight of a measurement against the present value; reports are already means
_MOST_DISTURBED = 8  # Trainers report about once a second, and a preparation takes some seconds.
_PREPARING = (JobStage.CLAIMED, JobStage.CAPTURING, JobStage.CALIBRATING)
# Events that change what runs on the device.
_CHANGES = (Capture, Calibration, Adoption, Parking, Finish, Failure, Exit)


def note_change(decision: Decision, event: Event) -> None:
    """Let the next measurement of the other running jobs not count, if this event of a job changes what they run
    beside. The job's own measurements begin anew when it adopts a plan.
    """
    if isinstance(event, _CHANGES):
        members = tuple(
            replace(m, changed=True) if m.stage is JobStage.RUNNING and m.trainer != event.trainer else m
            for m in decision.pool.members
        )
        decision.pool = replace(decision.pool, members=members)


def measured(decision: Decision, measurement: Measurement) -> None:
    """Record the measurement, and count it for plans unless it was disturbed."""
    member = decision.pool.of_trainer(measurement.trainer)
    if member is None or member.workload is None or member.stage is not JobStage.RUNNING:
        return
    if len(measurement.latency_ns) != len(member.corrected_ns) or measurement.generation > member.adopted:
        return
    throughput = measured_throughput(decision, member, measurement.iteration_ns)
    decision.order(
        RecordMeasurement(job=member.job.job, claim=member.job.claim, measurement=measurement, throughput=throughput)
    )
    decision.pool = replace(decision.pool, losses=0, claim_pause_ticks=0)  # the device works
    if _is_disturbed(decision, member):
        return
    decision.pool, member = observe(decision.pool, member, sum(measurement.latency_ns))
    # operators were calibrated alone, so the first measurement beside other jobs replaces the calibrated latency
    weight = NEW_WEIGHT if member.measured else 1.0
    corrected_ns = correct(member.corrected_ns, measurement.latency_ns, weight)
    member = replace(member, corrected_ns=corrected_ns, measured=True, disturbed=0, changed=False)
    member = decision.put(_with_share(member, measurement))
    if decision.pool.due is not None or not all(m.settled for m in decision.pool.at(JobStage.RUNNING)):
        return  # a transition between two divisions is not interrupted
    # Measurements are compared with the forecasts for these latencies, even for a plan that is about to be replaced.
    renew_forecasts(decision)
    planned_ns = member.workload.latency_ns[0] if member.workload is not None else ()
    if drift(planned_ns, member.corrected_ns) > decision.pool.drift_threshold:
        decision.plan_anew(PlanReason.DRIFT)


def _with_share(member: Member, measurement: Measurement) -> Member:
    """Return the member with its graph's share of the time, once for each plan.

    The share is part of a question to the planner, whose answer would never be used if noise changed the question.
    """
    if member.share_generation == measurement.generation:
        return member
    return replace(member, graph_share=measurement.graph_share, share_generation=measurement.generation)


def _is_disturbed(decision: Decision, member: Member) -> bool:
    """Return whether this measurement does not count, and remember that."""
    preparing = bool(decision.pool.at(*_PREPARING))
    if member.disturbed >= _MOST_DISTURBED or not (preparing or member.changed):
        return False
    # The first measurement after a preparation contains iterations from before its end.
    decision.put(replace(member, disturbed=member.disturbed + 1, changed=preparing))
    return True
