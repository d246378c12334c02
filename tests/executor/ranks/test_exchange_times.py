"""Check that a timed iteration measures exchanges by their own time, and shows them in a recording."""

import pytest

from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging, measuring
from indb_tensile.executor.run.iteration_recorder import IterationRecorder
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.timing.job_runs import EventKind
from indb_tensile.scheduler.timing.recorded_iterations import Recording
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import job_of
from tests.executor.ranks.rank_steps import steps_of
from tests.executor.ranks.rank_threads import on_ranks

SGD = OptimizerSettings(kind="sgd", clip_norm=0.5)


def test_latency_of_a_wait_is_the_time_of_its_exchange_which_a_recording_shows() -> None:
    job = job_of("mlp", 0, SGD, Passes(micro_batch_size=4))
    steps = [steps_of(job, RankShare(rank=rank, ranks=2)) for rank in range(2)]

    def run(rank: int, group: RankGroup) -> tuple[tuple[int, ...], Recording]:
        device = MemoryDevice()
        runner = Runner(device, job.state(), steps[rank], sample_every=1)
        with exchanging(group):
            runner.adopt((LIVENESS,) * 3, 1)
            for _ in range(3):
                runner.train(*job.batches[0], 0.1)
            measured = runner.measured()
            runner.recorder = IterationRecorder(device, most_iterations=2, until_ns=0)
            for _ in range(2):
                runner.train(*job.batches[0], 0.1)
        recording = runner.recorder.recording()
        runner.close()
        assert measured is not None
        return measured.latency_ns, recording

    for latency_ns, recording in on_ranks(2, run):
        operators = steps[0][0].graph.operators
        starts = [k for k, operator in enumerate(operators) if operator.starts is not None]
        waits = [k for k, operator in enumerate(operators) if operator.awaits is not None]
        assert all(latency_ns[k] > 0 for k in waits)
        events = [event for part in recording.parts for event in part.events]
        shown = {
            kind: [e for e in events if e.kind is kind] for kind in (EventKind.EXCHANGE, EventKind.LATE_EXCHANGE)
        }
        assert [event.operator for event in shown[EventKind.EXCHANGE]] == starts * 2
        assert [event.operator for event in shown[EventKind.LATE_EXCHANGE]] == waits * 2
        assert all(event.end_ns > event.start_ns for event in shown[EventKind.EXCHANGE])


@pytest.mark.by_day("2")
@pytest.mark.parametrize("sample_every", [1, 2])
def test_step_that_exchanges_with_nobody_is_timed(sample_every: int) -> None:
    job = job_of("mlp", 0, SGD, Passes(micro_batch_size=4))
    steps = steps_of(job, RankShare(rank=0, ranks=2))
    runner = Runner(MemoryDevice(), job.state(), steps, sample_every=sample_every)
    with measuring(2):
        runner.adopt((LIVENESS,) * 3, 1)
        for _ in range(4):
            runner.train(*job.batches[0], 0.1)
        measured = runner.measured()
    runner.close()
    assert measured is not None
    assert all(
        latency_ns > 0
        for operator, latency_ns in zip(steps[0].graph.operators, measured.latency_ns, strict=True)
        if operator.awaits is not None
    )
