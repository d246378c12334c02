"""Corrects a job's latencies by its trainer's measurements, and requests new plans when the latencies have drifted.

A job that is prepared (read, captured or calibrated) takes CPU time from the trainers for some seconds, so latencies
that are measured meanwhile are wrong soon afterwards. So are those of a report that covers time before a job came,
went, or adopted another plan. Such a measurement is called disturbed. Up to `_MOST_DISTURBED` of them in a row do not
count for plans and for contention. Later ones do: if jobs come all the time, the disturbance is the usual state.
"""

from dataclasses import replace

from indb_tensile.scheduler.admission.admission_orders import RecordMeasurement
from indb_tensile.scheduler.admission.completion_rule import note_between, observe
from indb_tensile.scheduler.admission.decision import Decision, true_latencies
from indb_tensile.scheduler.admission.events import (
    Adoption,
    Calibration,
    Capture,
    Departure,
    Event,
    Exit,
    Failure,
    Finish,
    Measurement,
    Parking,
    RanksChange,
)
from indb_tensile.scheduler.admission.gang_forecast import hear_ranks, plan_for_others
from indb_tensile.scheduler.admission.plan_targets import renew_forecasts
from indb_tensile.scheduler.admission.pool import JobStage, Member, PlanReason
from indb_tensile.scheduler.admission.running_set import measured_throughput
from indb_tensile.scheduler.exchange_times import blocking_ns
from indb_tensile.scheduler.timing.latency import correct, drift
from indb_tensile.scheduler.timing.rank_steps import latencies_without_waits

# Weight of a measurement in its mean with the present value. A report is already a mean of iterations.
NEW_WEIGHT = 0.5
_MOST_DISTURBED = 8  # trainers report about once a second, and a preparation takes some seconds
_PREPARING = (JobStage.CLAIMED, JobStage.CAPTURING, JobStage.CALIBRATING)
# Events that change what runs on the device.
_CHANGES = (Capture, Calibration, Adoption, Parking, Departure, Finish, Failure, Exit)


def note_change(decision: Decision, event: Event) -> None:
    """Mark the other running jobs, so that their next measurement does not count, if the event changes what runs.

    The measurements of the event's own job begin anew when it adopts a plan.
    """
    if isinstance(event, _CHANGES):
        members = tuple(
            replace(m, changed=True) if m.stage is JobStage.RUNNING and m.trainer != event.trainer else m
            for m in decision.pool.members
        )
        decision.pool = replace(decision.pool, members=members)


def record_measurement(decision: Decision, measurement: Measurement) -> None:
    """Order the measurement's record in the catalog, and count it for plans unless it was disturbed."""
    member = decision.pool.of_trainer(measurement.trainer)
    if member is None or member.workload is None or member.stage is not JobStage.RUNNING:
        return
    if len(measurement.latency_ns) != len(member.corrected_ns) or measurement.generation > member.adopted:
        return
    throughput = measured_throughput(decision, member, measurement.iteration_ns)
    decision.order(
        RecordMeasurement(job=member.job.job, claim=member.job.claim, measurement=measurement, throughput=throughput)
    )
    decision.pool = replace(decision.pool, losses=0, claim_pause_ticks=0)  # a measurement shows that the device works
    if _is_disturbed(decision, member):
        return
    graph = member.workload.graphs[0]
    # a rank's waits for others are no work of its operators
    compute_ns = sum(blocking_ns(graph, latencies_without_waits(graph, measurement.latency_ns, member.others)))
    decision.pool, member = observe(decision.pool, member, compute_ns)
    note_between(decision, member, measurement.step_ns, measurement.iteration_ns, compute_ns)
    if measurement.last:
        return  # later jobs of this kind gain from it; this one needs no plan any more
    # Operators were calibrated alone, so the first measurement beside other jobs replaces the calibrated latency
    weight = NEW_WEIGHT if member.measured else 1.0
    corrected_ns = correct(member.corrected_ns, measurement.latency_ns, weight)
    copied = member.copies_measured or (member.plan is not None and member.plan.swaps > 0)
    member = replace(
        member, corrected_ns=corrected_ns, measured=True, copies_measured=copied, disturbed=0, changed=False
    )
    member = decision.put(_with_share(member, measurement))
    if decision.pool.due is not None or not all(m.settled for m in decision.pool.at(JobStage.RUNNING)):
        return  # a transition between two divisions is not interrupted
    # Measurements are compared with the forecasts for these latencies, even for a plan that is about to be replaced.
    renew_forecasts(decision)
    planned_ns = member.workload.latency_ns[0] if member.workload is not None else ()
    if drift(planned_ns, true_latencies(member)) > decision.pool.drift_threshold:
        decision.plan_anew(PlanReason.DRIFT)
    plan_for_others(decision, decision.pool.of_trainer(measurement.trainer) or member)


def ranks_changed(decision: Decision, change: RanksChange) -> None:
    """Take over what the other ranks of a job have let be known: forecasts, and later the plans, count with it."""
    member = decision.pool.of_claim(change.claim)
    if member is None or member.stage is JobStage.ENDING:
        return
    member = hear_ranks(decision, member, change.steps)
    if member.stage is JobStage.RUNNING and decision.pool.due is None:
        renew_forecasts(decision)
        plan_for_others(decision, member)


def _with_share(member: Member, measurement: Measurement) -> Member:
    """Return the member with the measured `graph_share` (see messages.py), which changes once for each plan.

    The share is part of a question to the planner. If the noise of each measurement changed the question, no answer
    would be used.
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
