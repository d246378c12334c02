"""Check tensile_trace: who may ask for a recording, what the trainer sees and stores, and who may read the trace."""

import json
from datetime import datetime

import msgspec
import pytest

from indb_tensile.catalog import jobs, plans, traces
from indb_tensile.catalog.jobs import Progress
from indb_tensile.catalog.plans import PlanRecord
from indb_tensile.catalog.stored_recordings import encode_recording
from indb_tensile.errors import MissingError
from indb_tensile.job import ClaimedJob
from indb_tensile.monitor import job_trace
from indb_tensile.monitor.job_pictures import job_learning_picture, job_plan_picture
from indb_tensile.scheduler.document import Document
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.timing.job_runs import Event, EventKind
from indb_tensile.scheduler.timing.recorded_iterations import (
    Pause,
    PauseKind,
    RecordedIterations,
    Recording,
)
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database

from .conftest import Connection, refused, value

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

P, A = TensorId(0), TensorId(1)
ASK = "select tensile_trace(%s)"


def report(worker: Connection, job: ClaimedJob) -> datetime | None:
    return jobs.report_progress(worker, job.job, job.claim, Progress(epoch=1, epochs=2, step=1, steps=9))


def test_only_the_owner_of_a_job_that_trains_may_ask_and_wrong_values_are_refused(
    database: Database, alice: Connection, bob: Connection, admin: Connection
) -> None:
    job = enqueue(alice)
    assert refused(alice, ASK, job).message == f"job {job} has not started"
    with database.connect("tensile_worker") as worker:
        claimed = claim(worker, register(worker))
    assert refused(bob, ASK, job).message == f"there is no job {job}"
    assert tuple(refused(admin, ASK, job)) == (
        "42501",
        f"job {job} belongs to another role",
        'Role "postgres" may see the job, and may not trace it.',
        "Its owner can trace it.",
    )
    for arguments, message in (
        ("iterations => 0", "iterations is 0"),
        ("iterations => null", "iterations is null"),
        ("seconds => 'NaN'", "seconds is NaN"),
        ("starts_in => -1", "starts_in is -1"),
    ):
        assert refused(alice, f"select tensile_trace(%s, {arguments})", job).message == message
    forged = refused(alice, "update tensile.traces set recording = ''")
    locked = refused(alice, "do $$ begin lock table tensile.traces in exclusive mode; end $$")
    assert (forged.sqlstate, locked.sqlstate) == ("42501", "42501")
    row = "insert into tensile.traces (job_id, iterations, seconds, starts_at, requested_at)"
    assert refused(bob, f"{row} values (%s, 1, 1, now(), now())", claimed.job).sqlstate == "42501"


def test_the_trainer_answers_the_newest_request_and_only_the_owner_reads_the_trace(
    database: Database, alice: Connection, bob: Connection, admin: Connection
) -> None:
    enqueue(alice)
    with database.connect("tensile_worker") as worker:
        job = claim(worker, register(worker))
        assert report(worker, job) is None
        first = value(alice, ASK, job.job)
        assert report(worker, job) == first
        second = value(alice, "select tensile_trace(%s, iterations => 2, seconds => 3, starts_in => 60)", job.job)
        assert report(worker, job) == second
        request = traces.find_request(worker, job.job)
        assert request is not None
        assert (request.requested_at, request.iterations, request.seconds) == (second, 2, 3)
        assert 0 < request.starts_in_s <= 60
        store(worker, job, first)
        assert job_trace.trace_state(alice, job.job, second)["recorded"] is False
        store(worker, job, second)
        assert report(worker, job) is None
    assert job_trace.trace_state(alice, job.job, second)["recorded"] is True
    admin.execute("set role tensile_monitor")
    for stranger in (bob, admin):
        with pytest.raises(MissingError, match="no trace that you may read"):
            job_trace.trace_text(stranger, [job.job])
    events = json.loads(job_trace.trace_text(alice, [job.job]))["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [name.split(";")[0] for name in named.values()] == [
        f"job {job.job}: net, planned",
        f"job {job.job}: net, measured",
    ]
    shown = [{(e["cat"], e["name"]) for e in events if e["ph"] == "X" and e["pid"] == track} for track in named]
    foretold = {
        ("compute", "first"),
        ("compute", "make"),
        ("compute", "make (recomputed)"),
        ("compute", "last"),
        ("swap out", "swap out of p"),
        ("swap in", "swap in of p"),
    }
    assert shown[0] >= foretold
    assert shown[1] == {
        ("compute", "first"),
        ("compute", "make (recomputed)"),
        ("late swap-out", "late swap-out of p"),
        ("waiting at a gate", "waiting at a gate"),
        ("iteration", "iteration under plan 1, recorded as number 1"),
        ("pause", "shifted: parked for other jobs"),
    }


def test_who_sees_the_plan_of_a_job_sees_its_picture(database: Database, alice: Connection, bob: Connection) -> None:
    enqueue(alice, "m")
    with database.connect("tensile_worker") as worker:
        job = claim(worker, register(worker))
        with pytest.raises(MissingError, match="has no plan that can be drawn"):
            job_plan_picture(alice, job.job)
        with pytest.raises(MissingError, match="has finished no epoch yet"):
            job_learning_picture(alice, job.job)
        store(worker, job, value(alice, ASK, job.job))
        figures = {"loss": 0.5, "learning_rate": 0.01, "r2": 0.25}
        progress = Progress(epoch=1, epochs=2, step=9, steps=9, figures=figures)
        jobs.report_progress(worker, job.job, job.claim, progress)
    drawn = job_plan_picture(alice, job.job)
    assert f"Job {job.job}: m, plan 1.1 of policy test" in drawn
    assert [mark in drawn for mark in ("p, 100 B: copy to the host", "20 B: made again")] == [True, True]
    curves = job_learning_picture(alice, job.job)
    assert [panel in curves for panel in ("Loss", "r2, on the validation rows", "Learning rate")] == [True] * 3
    assert "learning_rate, on" not in curves
    for draw in (job_plan_picture, job_learning_picture):
        with pytest.raises(MissingError, match="there is no job"):
            draw(bob, job.job)


def store(worker: Connection, job: ClaimedJob, requested_at: datetime) -> None:
    """Store a plan, a graph and a recording, as the controller and the trainer do."""
    executions = tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 1, 2))
    swap = Swap(tensor=P, out_after=OpIndex(0), free_at=OpIndex(1), in_at=OpIndex(2), needed_by=OpIndex(3))
    plan = Plan(policy="test", executions=executions, swaps=(swap,))
    record = PlanRecord(generation=1, reason="start", policy="test")
    plans.record_plan(worker, job.job, job.claim, record, msgspec.to_builtins((plan,)))
    document = Document(name="net", graph=graph(), latency_ns=(900, 800, 700))
    assert traces.save_job_graph(worker, job.job, job.claim, document)

    def event(kind: EventKind, operator: int, tensor: TensorId | None, start_ns: int, end_ns: int) -> Event:
        return Event(job=0, kind=kind, operator=OpIndex(operator), tensor=tensor, start_ns=start_ns, end_ns=end_ns)

    part = RecordedIterations(
        generation=1,
        iterations=((1000, 4000),),
        events=(
            event(EventKind.COMPUTE, 0, None, 1000, 2000),
            event(EventKind.LATE_OUT, 1, P, 2000, 2100),
            event(EventKind.COMPUTE, 2, None, 2100, 2200),
            event(EventKind.GATE, 4, None, 3900, 4000),
        ),
        used_bytes=((1000, 120),),
    )
    pause = Pause(kind=PauseKind.PARKED, start_ns=100, end_ns=900)
    recording = encode_recording(Recording(epoch_ns=0, parts=(part,), pauses=(pause,)))
    traces.save_trace(worker, job.job, job.claim, requested_at, recording)


def graph() -> StepGraph:
    def operator(name: str, stage: Stage, reads: tuple[TensorId, ...], writes: tuple[TensorId, ...]) -> Operator:
        return Operator(name=name, signature=name, stage=stage, reads=reads, writes=writes)

    return StepGraph(
        tensors=(
            Tensor(id=P, name="p", size_bytes=100, role=Role.PARAMETER),
            Tensor(id=A, name="a", size_bytes=20, role=Role.ACTIVATION),
        ),
        operators=(
            operator("first", Stage.FORWARD, (P,), ()),
            operator("make", Stage.FORWARD, (), (A,)),
            operator("last", Stage.BACKWARD, (P, A), ()),
        ),
    )
