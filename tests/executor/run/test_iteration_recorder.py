"""Recorded iterations have the events of the plan, give the same bits, and leave other iterations as they are."""

from collections import Counter
from itertools import count

import pytest

from indb_tensile.catalog.stored_recordings import decode_recording, encode_recording
from indb_tensile.device.device import Ticket
from indb_tensile.errors import RequestError
from indb_tensile.executor.run.iteration_recorder import IterationRecorder
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.timeline import unroll
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.timing.job_runs import EventKind
from indb_tensile.scheduler.timing.recorded_iterations import (
    PauseKind,
    Recording,
)
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.plans import random_rewritten_plan


class WaitingDevice(MemoryDevice):
    """Waits a nanosecond for each copy that is not done."""

    def wait(self, ticket: Ticket) -> int:
        return int(super().wait(ticket) > 0)


def test_a_recording_has_every_operator_and_copy_of_the_plan_and_changes_no_bit() -> None:
    job, steps = prepared("mlp")
    plans = next(
        chosen
        for seed in count()
        if (chosen := tuple(random_rewritten_plan(s.graph, seed) for s in steps))[0].recomputed
        and sum(swap.copies for swap in chosen[0].swaps) >= 2
    )
    plain = Runner(WaitingDevice(), state := job.state(), steps)
    plain.adopt(plans, 1)
    expected = bits(drive(plain, job)), state_bits(state.export())
    plain.close()

    device, state = WaitingDevice(), job.state()
    runner = Runner(device, state, steps, sample_every=1)
    runner.adopt(plans, 7)
    clock = count(1000, 10).__next__
    recorder = IterationRecorder(device, most_iterations=2, until_ns=1 << 60, clock=clock)
    runner.recorder = recorder
    seen = bits(drive(runner, job)), state_bits(state.export())

    assert seen == expected
    assert runner.measured() is None  # a recorded iteration is no sample: recording takes time
    recording = decode_recording(encode_recording(recorder.recording()))
    (part,) = recording.parts
    assert recorder.is_full
    graph = effective(steps[0].graph, plans[0])
    events = Counter((event.kind, event.operator, event.tensor) for event in part.events)
    number = len(part.iterations)
    ran = {(e.kind, e.operator) for e in part.events if e.kind in (EventKind.COMPUTE, EventKind.UPLOAD)}
    assert sorted(operator for _, operator in ran) == list(range(len(graph.operators)))
    gaps = [swap for swap in plans[0].swaps if swap.copies]
    outs = {key: n for key, n in events.items() if key[0] is EventKind.SWAP_OUT}
    assert outs.keys() == {(EventKind.SWAP_OUT, swap.out_after, swap.tensor) for swap in gaps}
    assert set(outs.values()) <= {number, number - 1}  # a copy may be under way when the recording ends
    starts = {gap.tensor for boundary in unroll(steps[0].graph, plans[0]).boundaries for gap in boundary.ins}
    assert {tensor for kind, _, tensor in events if kind is EventKind.SWAP_IN and tensor is not None} == starts
    assert {kind for kind, _, _ in events} >= {EventKind.LATE_IN, EventKind.LATE_OUT}
    assert all(event.start_ns <= event.end_ns for event in part.events)
    assert max(size for _, size in part.used_bytes) <= device.high_water_bytes
    runner.close()


def test_pauses_and_iterations_end_a_recording_and_a_cut_off_one_is_refused_in_words() -> None:
    recorder = IterationRecorder(MemoryDevice(), most_iterations=1, until_ns=0)
    recorder.pause(PauseKind.BATCH, 5, 5)
    recorder.pause(PauseKind.PARKED, 5, 9)
    assert not recorder.is_full
    recording = recorder.recording()
    assert [(pause.kind, pause.start_ns, pause.end_ns) for pause in recording.pauses] == [(PauseKind.PARKED, 5, 9)]
    stored = encode_recording(Recording(epoch_ns=1, parts=(), pauses=recording.pauses))
    assert decode_recording(stored) == Recording(epoch_ns=1, parts=(), pauses=recording.pauses)
    for bad in (stored[:-6], b"\x80\x04pickle", encode_recording(recording)[:10]):
        with pytest.raises(RequestError, match="the stored recording"):
            decode_recording(bad)
