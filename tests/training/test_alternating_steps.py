"""Batches of short and of long texts are steps of their own: no plan of any changes a bit, and each has its peak."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import islice

import pytest
import torch

from indb_tensile.device.hardware import PROCESSOR_SPEED
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.step_capture import CapturedStep, StepKind
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State, restore_rng_state, rng_state
from indb_tensile.job import JobId
from indb_tensile.learning.batches.batch_order import batches, ordered_batches
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.learning.batches.batch_sources import BatchShapes, TrainingSources, ordered_sources
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, floor, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import Workload, plan_jobs
from indb_tensile.scheduler.timing.latency import estimate
from tests.device.memory_device import MemoryDevice
from tests.executor.driving import bits, state_bits
from tests.executor.eager import Eager
from tests.executor.models import Job
from tests.executor.plans import random_plan
from tests.learning.test_length_buckets import prepared
from tests.nightly import nightly_unless
from worker.captured_steps import CapturedSteps, optimizer_settings
from worker.training.epochs import work_of
from worker.training.remaining import Position

RATE = 1e-2
Planned = tuple[Plan, ...]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads, fused = torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.set_num_threads(threads)
    torch.backends.mha.set_fastpath_enabled(fused)


@cache
def _training(encoder: str, micro_batch_size: int | None = None) -> tuple[Prepared, tuple[CapturedStep, ...]]:
    """Return a training and its calibrated steps."""
    architecture = {"type": "wide_and_deep", "text_encoder": encoder, "text_width": 16, "hidden": [8]}
    own = prepared(rows=150, architecture=architecture)
    own = replace(own, settings=replace(own.settings, micro_batch_size=micro_batch_size))
    captured = CapturedSteps.capture(own).captured
    return own, calibrate(captured, unknown_signatures(captured, {}), {}, 1 << 30).steps


def _epochs(
    train: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor],
    own: Prepared,
    first: int = 0,
    most: int = 1000,
) -> list[torch.Tensor]:
    """Train two epochs from step `first` on, at most `most` steps, and return the losses."""
    sources, losses = TrainingSources(part=own.train, settings=own.settings, buckets=own.buckets), []
    with BatchPrefetcher() as feed:
        for epoch in range(2):
            orders = list(batches(own.train, epoch, own.settings, own.buckets))
            start = max(0, first - epoch * len(orders))
            wanted = islice(orders, start, max(start, most - epoch * len(orders)))
            with closing(feed.batches(sources.parts_of, wanted, sources.of_epoch(epoch))) as loaded:
                losses += [train(x, y, RATE) for _, (x, y) in loaded]
    return losses


def _validated(
    evaluate: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]], own: Prepared
) -> list[bytes]:
    """Return loss and outputs of each full validation batch."""
    assert own.buckets is not None
    part, buckets = own.valid, own.buckets.of_part(own.valid)
    orders = [rows for rows in ordered_batches(part, 4, buckets) if len(rows) == 4]
    padded = [rows.repeat_interleave(buckets.batch_rows // 4) for rows in orders]
    with BatchPrefetcher() as feed:
        fed = feed.batches(BatchShapes(part, buckets), padded, ordered_sources(part, buckets))
        return [own for _, (x, y) in fed for own in bits(list(evaluate(x, y)))]


def _runner(own: Prepared, steps: tuple[CapturedStep, ...], plans: Planned) -> tuple[Runner, State, MemoryDevice]:
    device, state = MemoryDevice(), State.create(own.module, optimizer_settings(own.settings))
    runner = Runner(device, state, steps)
    runner.adopt(plans, 1)
    return runner, state, device


def _tight(steps: tuple[CapturedStep, ...]) -> tuple[int, Planned]:
    """Return the least budget that holds every step, and the planner's plans within it."""
    graphs = tuple(step.graph for step in steps)
    latency_ns = tuple(estimate(graph, PROCESSOR_SPEED) for graph in graphs)
    work = Workload(job=JobId(1), graphs=graphs, latency_ns=latency_ns)
    budget_bytes = max(floor(graph) for graph in graphs)
    link = Link(out_bytes_per_s=400_000_000, in_bytes_per_s=400_000_000)
    planned = plan_jobs([work], budget_bytes=budget_bytes, link=link)
    assert isinstance(planned, tuple)
    return budget_bytes, planned[0].plans


CASES = [(encoder, micro) for encoder in ("pooling", "convolution", "transformer") for micro in (None, 6)]


@pytest.mark.parametrize(
    ("encoder", "micro_batch_size"), nightly_unless(lambda case: case == ("pooling", None), CASES)
)
def test_no_plan_of_any_length_changes_a_bit_and_each_step_has_the_peak_of_its_plan(
    encoder: str, micro_batch_size: int | None
) -> None:
    own, steps = _training(encoder, micro_batch_size)
    assert own.buckets is not None
    lengths = len(own.buckets.lengths)
    kinds = [StepKind.TRAINING] * (len(steps) - lengths) + [StepKind.EVALUATION] * lengths
    assert [step.kind for step in steps] == kinds
    assert lengths <= len(steps) - lengths <= lengths + 1
    budget_bytes, tight = _tight(steps)
    job = Job(
        module=own.module,
        settings=optimizer_settings(own.settings),
        batches=(),
        held_out=(own.valid.x, own.valid.y),
        loss=own.loss,
        passes=Passes(micro_batch_size=micro_batch_size),
    )
    eager = Eager(job)
    torch.manual_seed(7)
    expected = bits(_epochs(eager.train, own)) + _validated(eager.evaluate, own)
    swapped = tuple(random_plan(step.graph, seed, share=1.0) for seed, step in enumerate(steps))
    for plans in ((LIVENESS,) * len(steps), tight, swapped):
        runner, state, device = _runner(own, steps, plans)
        torch.manual_seed(7)
        assert bits(_epochs(runner.train, own)) + _validated(runner.evaluate, own) == expected
        assert state_bits(state.export()) == state_bits(eager.export())
        assert device.high_water_bytes == max(peak(s.graph, p) for s, p in zip(steps, plans, strict=True))
        runner.close()
        assert device.used_bytes == 0
    assert max(peak(step.graph, plan) for step, plan in zip(steps, tight, strict=True)) <= budget_bytes


@pytest.mark.nightly  # by day test_length_buckets.py repeats orders, and other tests resume a training
@pytest.mark.parametrize("encoder", ["pooling", "transformer"])
def test_a_training_that_goes_on_within_an_epoch_has_the_bits_of_one_that_was_not_interrupted(encoder: str) -> None:
    own, steps = _training(encoder)
    plans = _tight(steps)[1]
    runner, state, _ = _runner(own, steps, plans)
    torch.manual_seed(7)
    expected = bits(_epochs(runner.train, own))
    whole = state_bits(state.export())

    runner, state, _ = _runner(own, steps, plans)
    torch.manual_seed(7)
    seen = bits(_epochs(runner.train, own, most=3))
    kept, drawn = state.export(), rng_state(state.device)
    runner, state, _ = _runner(own, steps, (LIVENESS,) * len(steps))
    state.load(kept)
    restore_rng_state(drawn, state.device)
    seen += bits(_epochs(runner.train, own, first=3))
    assert seen == expected
    assert state_bits(state.export()) == whole


@pytest.mark.nightly
def test_short_batches_count_as_a_share_of_a_long_one() -> None:
    own, captured = _training("pooling")
    assert own.buckets is not None
    steps = CapturedSteps(captured, own.buckets.batch_rows, shorter=own.buckets.last)
    work = work_of(own, steps)
    share = work.step_share
    assert own.buckets.token_share < share < 1
    assert work.evaluation_share < sum(steps.latency_ns[-1]) / sum(steps.latency_ns[0])
    assert work.steps_left(Position(epochs=2)) == pytest.approx(work.test_batches * work.evaluation_share)
    whole = replace(work, step_share=1.0)
    assert whole.steps_left(Position()) - work.steps_left(Position()) == pytest.approx(2 * work.steps * (1 - share))
