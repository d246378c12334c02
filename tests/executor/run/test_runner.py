"""Results never change: under every plan, every bit is that of a plain PyTorch loop."""

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from indb_tensile.device.device import REGION_BYTES, CpuDevice, Device, EmulatedDevice, Ticket
from indb_tensile.device.hardware import PROCESSOR_SPEED
from indb_tensile.device.ledger import Ledger
from indb_tensile.errors import ComputationError, DeviceMemoryError, InvariantError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.step_capture import with_host_uploads
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State, restore_rng_state, rng_state
from indb_tensile.job import JobId
from indb_tensile.scheduler.host_memory import host_bytes
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA, floor, peak, resident_at_start
from indb_tensile.scheduler.planner import Workload, plan_jobs
from indb_tensile.scheduler.timing.latency import estimate
from tests.device.fake_device import FakeDevice
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.models import SHAPES
from tests.executor.plans import random_plan, random_plans, random_rewritten_plan
from tests.nightly import nightly_unless

SETTINGS = (
    OptimizerSettings(),
    OptimizerSettings(kind="adamw", weight_decay=0.1, clip_norm=0.1),
    OptimizerSettings(kind="sgd", momentum=0.9, nesterov=True, weight_decay=0.01, clip_norm=0.5),
    OptimizerSettings(kind="sgd"),
)


# Every model with three optimizers, and two models with every optimizer. In the day most models with Adam, whose
# steps most other tests use too, and every optimizer with the smallest model.
CASES = [(kind, s) for kind in SHAPES for s in (SETTINGS if kind in ("mlp", "cnn") else SETTINGS[:3])]


@pytest.mark.by_day("mlp-adamw-", "cnn-adam-", "lstm-adam-")
@pytest.mark.parametrize("seeds", nightly_unless(lambda seeds: seeds == range(2), [range(2), range(2, 6)]), ids=str)
@pytest.mark.parametrize(
    ("kind", "settings"),
    nightly_unless(lambda c: c[0] == "mlp" or (c[1] is SETTINGS[0] and " " not in c[0]), CASES),
    ids=[f"{k}-{s.kind}-{s.clip_norm}" for k, s in CASES],
)
def test_every_plan_gives_the_bits_of_the_eager_loop_at_exactly_its_peak(
    kind: str, settings: OptimizerSettings, seeds: range
) -> None:
    job, steps = prepared(kind, settings=settings)
    eager = Eager(job)
    expected_seen, expected = bits(drive(eager, job)), state_bits(eager.export())
    plans = [(LIVENESS,) * 3, (VANILLA,) * 3, *(random_plans(steps, seed) for seed in seeds)]
    for chosen in plans:
        device, state = MemoryDevice(), job.state()
        runner = Runner(device, state, steps)
        runner.adopt(chosen, 1)
        assert {piece.tensor for piece in state.resident} == resident_at_start(steps[0].graph, chosen[0])
        seen = bits(drive(runner, job))
        assert seen == expected_seen, chosen
        assert state_bits(state.export()) == expected, chosen
        assert device.high_water_bytes == max(peak(s.graph, p) for s, p in zip(steps, chosen, strict=True))
        runner.close()
        assert device.used_bytes == 0
        assert not device.buffers
        assert state_bits(state.export()) == expected, "the state has the same bits after it returned to the host"


IN_PARTS = Passes(micro_batch_size=3)
IN_HALF = Passes(precision="bfloat16")
IN_BOTH = Passes(micro_batch_size=4, precision="bfloat16")
PASSES = [
    *((kind, IN_PARTS) for kind in SHAPES),
    *((kind, IN_HALF) for kind in ("cnn", "normalised", "transformer")),
    *((kind, IN_BOTH) for kind in ("mlp", "lstm")),
]
DAILY_PASSES = [("cnn", IN_PARTS), ("lstm", IN_PARTS), ("normalised", IN_HALF), ("mlp", IN_BOTH)]


@pytest.mark.by_day("mlp-4-bfloat16")
@pytest.mark.parametrize(
    ("kind", "passes"),
    nightly_unless(lambda case: case in DAILY_PASSES, PASSES),
    ids=[f"{k}-{p.micro_batch_size}-{p.precision}" for k, p in PASSES],
)
def test_batches_in_parts_and_half_precision_give_the_bits_of_eager_accumulation_and_autocast(
    kind: str, passes: Passes
) -> None:
    job, steps = prepared(kind, settings=SETTINGS[2], passes=passes)
    eager = Eager(job)
    expected_seen, expected = bits(drive(eager, job)), state_bits(eager.export())
    for chosen in ((LIVENESS,) * 3, random_plans(steps, 0)):
        device, state = MemoryDevice(), job.state()
        runner = Runner(device, state, steps)
        runner.adopt(chosen, 1)
        assert bits(drive(runner, job)) == expected_seen, chosen
        assert state_bits(state.export()) == expected, chosen
        assert device.high_water_bytes == max(peak(s.graph, p) for s, p in zip(steps, chosen, strict=True))
        runner.close()


def _emulated(link_bytes_per_s: int) -> Iterator[Device]:
    with Ledger.create(64 * REGION_BYTES, REGION_BYTES, link_bytes_per_s, link_bytes_per_s) as ledger:
        slot, epoch = ledger.claim_slot(os.getpid())
        ledger.grant(slot, 32 * REGION_BYTES)
        with EmulatedDevice(ledger.fd, slot, epoch, 1 << 24) as device:
            yield device


def _cpu() -> Iterator[Device]:
    with Ledger.create(64 * REGION_BYTES, REGION_BYTES, 1, 1) as ledger:
        slot, epoch = ledger.claim_slot(os.getpid())
        ledger.grant(slot, 32 * REGION_BYTES)
        with CpuDevice(ledger.fd, slot, epoch, 1 << 24, tempfile.gettempdir()) as device:
            yield device


def _in_memory() -> Iterator[Device]:
    yield FakeDevice(1 << 24, 1 << 24)


# With a slow link copies are late everywhere, with a fast link almost nowhere.
DEVICES: dict[str, Callable[[], Iterator[Device]]] = {
    "fake": _in_memory,
    "cpu": _cpu,
    "slow link": partial(_emulated, 20_000_000),
    "fast link": partial(_emulated, 20_000_000_000),
}


@pytest.mark.by_day("cnn-")
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("kind", ["cnn", "lstm"])
def test_every_device_gives_the_same_bits_at_the_same_peak(kind: str, name: str) -> None:
    job, steps = prepared(kind)
    eager = Eager(job)
    expected_seen = bits(drive(eager, job))
    with contextmanager(DEVICES[name])() as device:
        if device.is_host:
            steps = tuple(map(with_host_uploads, steps))
        for seed in (1, 2):
            chosen = tuple(random_plan(step.graph, seed, share=1.0) for step in steps)
            state = job.state()
            runner = Runner(device, state, steps)
            device.reset_high_water()
            runner.adopt(chosen, 1)
            assert bits(drive(runner, job)) == expected_seen
            assert state_bits(state.export()) == state_bits(eager.export())
            assert device.usage().high_water_bytes == max(
                peak(s.graph, p) for s, p in zip(steps, chosen, strict=True)
            )
            runner.close()
            assert device.usage().used_bytes == 0


class _FailOnHostWait(MemoryDevice):
    """Fails, once `ahead` is set, if the host itself waits for a copy.

    Computation may still be queued after a copy.
    """

    ahead = False

    def wait(self, ticket: Ticket) -> int:
        assert not self.ahead, "the host waited for a copy during training"
        return super().wait(ticket)

    def compute_after(self, ticket: Ticket) -> int:
        return super().wait(ticket)


@pytest.mark.parametrize("kind", ["cnn", "lstm"])
def test_the_host_waits_for_no_copy_within_or_between_iterations(kind: str) -> None:
    job, steps = prepared(kind)
    device = _FailOnHostWait()
    runner = Runner(device, job.state(), steps[:1])
    runner.adopt((random_plan(steps[0].graph, 1, share=1.0),), 1)
    runner.train(*job.batches[0], 0.01)
    device.ahead, copied_bytes = True, device.copied_bytes
    for _ in range(3):
        runner.train(*job.batches[0], 0.01)
    assert device.copied_bytes > copied_bytes + 3 * sum(tensor.nbytes for tensor in job.batches[0])
    device.ahead = False
    runner.close()


@pytest.mark.by_day("cnn-1", "lstm-1")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", ["mlp", "cnn", "transformer", "lstm"])
def test_other_seeds_and_plans_that_swap_every_gap_change_no_bit(kind: str, seed: int) -> None:
    job, steps = prepared(kind, seed)
    eager = Eager(job)
    expected_seen = bits(drive(eager, job))
    chosen = tuple(random_plan(step.graph, seed, share=1.0) for step in steps)
    device, state = MemoryDevice(), job.state()
    runner = Runner(device, state, steps)
    runner.adopt(chosen, 1)
    assert bits(drive(runner, job)) == expected_seen
    assert state_bits(state.export()) == state_bits(eager.export())
    assert device.copied_bytes > 0


@pytest.mark.by_day("wide-", "cnn-0-0.3", "lstm-0-0.3")
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("seed", nightly_unless(lambda seed: seed == 0, [0, 1]))
@pytest.mark.parametrize("kind", ["wide", "cnn", "transformer", "lstm"])
def test_the_planners_plans_stay_within_their_budget_and_change_no_bit(kind: str, seed: int, share: float) -> None:
    job, steps = prepared(kind, seed=seed)
    eager = Eager(job)
    graphs = tuple(step.graph for step in steps)
    floors = [floor(graph) for graph in graphs]
    liveness = [peak(graph, LIVENESS) for graph in graphs]
    budget_bytes = max(floors) + round(share * (max(liveness) - max(floors)))
    workload = Workload(
        job=JobId(1), graphs=graphs, latency_ns=tuple(estimate(graph, PROCESSOR_SPEED) for graph in graphs)
    )
    link = Link(out_bytes_per_s=400_000_000, in_bytes_per_s=400_000_000)
    planned = plan_jobs([workload], budget_bytes=budget_bytes, link=link)
    assert isinstance(planned, tuple)
    assert all(plan.executions for plan in planned[0].plans[:2])
    device, state = MemoryDevice(), job.state()
    runner = Runner(device, state, steps)
    runner.adopt(planned[0].plans, 1)
    assert bits(drive(runner, job)) == bits(drive(eager, job))
    assert state_bits(state.export()) == state_bits(eager.export())
    assert device.high_water_bytes == planned[0].peak_bytes <= budget_bytes


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_on_a_host_device_no_tensor_is_copied_over_a_link(kind: str) -> None:
    job, steps = prepared(kind)
    steps = tuple(map(with_host_uploads, steps))
    device, eager = MemoryDevice(is_host=True), Eager(job)
    runner = Runner(device, job.state(), steps)
    runner.adopt((LIVENESS,) * 3, 1)
    assert bits(drive(runner, job)) == bits(drive(eager, job))
    assert (device.copied_bytes, device.buffers) == (0, {})


def test_nothing_is_on_the_device_before_a_plan_is_adopted() -> None:
    job, steps = prepared("mlp")
    device = MemoryDevice()
    runner = Runner(device, job.state(), steps)
    assert (device.used_bytes, device.high_water_bytes, device.buffers) == (0, 0, {})
    with pytest.raises(InvariantError, match="no training step for a batch of 8 has a plan"):
        runner.train(*job.batches[0], 0.1)


@pytest.mark.by_day("cnn-True", "lstm-False")
@pytest.mark.parametrize("is_host", [False, True])
@pytest.mark.parametrize("kind", ["cnn", "lstm"])
def test_new_plans_in_mid_training_change_no_bit_and_never_exceed_the_larger_peak(kind: str, is_host: bool) -> None:
    job, steps = prepared(kind)
    if is_host:
        steps = tuple(map(with_host_uploads, steps))
    eager = Eager(job)
    device, state = MemoryDevice(is_host=is_host), job.state()
    runner = Runner(device, state, steps)
    sequence = [(LIVENESS,) * 3, *(random_plans(steps, seed) for seed in range(20, 26)), (VANILLA,) * 3]
    before = 0
    for generation, chosen in enumerate(sequence):
        after = max(peak(s.graph, p) for s, p in zip(steps, chosen, strict=True))
        device.reset_high_water()
        runner.adopt(chosen, generation)
        assert device.high_water_bytes <= max(before, after)
        assert device.used_bytes == sum(
            steps[0].graph.tensors[t].size_bytes for t in resident_at_start(steps[0].graph, chosen[0])
        )
        device.reset_high_water()
        assert bits(drive(runner, job, 1)) == bits(drive(eager, job, 1))
        assert device.high_water_bytes == after
        before = after
    assert state_bits(state.export()) == state_bits(eager.export())


def test_memory_of_the_old_plan_is_released_before_adopt_returns() -> None:
    job, steps = prepared("mlp")
    device, state = MemoryDevice(), job.state()
    runner = Runner(device, state, steps)
    runner.adopt((LIVENESS,) * 3, 1)
    old_bytes = device.used_bytes
    chosen = tuple(random_plan(step.graph, 5, share=1.0) for step in steps)
    runner.adopt(chosen, 2)
    assert device.used_bytes < old_bytes
    device.granted_bytes = max(peak(s.graph, p) for s, p in zip(steps, chosen, strict=True))
    drive(runner, job)
    assert runner.generation == 2


def test_the_device_refuses_memory_beyond_the_grant_and_close_releases_everything() -> None:
    job, steps = prepared("mlp")
    device, state = MemoryDevice(peak(steps[0].graph, LIVENESS) - 1), job.state()
    runner = Runner(device, state, steps)
    runner.adopt((LIVENESS,) * 3, 1)
    with pytest.raises(DeviceMemoryError):
        runner.train(*job.batches[0], 0.1)
    with pytest.raises(InvariantError, match="failed half way"):
        state.export()
    runner.close()
    assert device.used_bytes == 0
    assert not device.buffers


@pytest.mark.by_day("cnn")
@pytest.mark.parametrize("kind", ["cnn", "transformer"])
def test_a_job_resumes_from_its_checkpoint_with_equal_bits(kind: str) -> None:
    job, steps = prepared(kind)
    first = job.state()
    runner = Runner(MemoryDevice(), first, steps)
    runner.adopt(random_plans(steps, 1), 1)
    drive(runner, job)
    saved, random = first.export(), rng_state()
    expected_seen = bits([runner.train(x, y, 0.01) for x, y in job.batches])
    restore_rng_state(random)
    second = job.state()
    second.load(saved)
    runner = Runner(MemoryDevice(), second, steps)
    runner.adopt(random_plans(steps, 2), 1)
    assert bits([runner.train(x, y, 0.01) for x, y in job.batches]) == expected_seen
    assert state_bits(second.export()) == state_bits(first.export())


@pytest.mark.by_day("0-True", "1-False", "2-True", "4-False")
@pytest.mark.parametrize("is_host", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_checkpoint_loaded_under_an_adopted_plan_replaces_every_host_copy(seed: int, is_host: bool) -> None:
    job, steps = prepared("mlp")
    eager, state = Eager(job), job.state()
    runner = Runner(MemoryDevice(is_host=is_host), state, steps)
    runner.adopt(random_plans(steps, seed), 1)
    initial = state.export()
    drive(runner, job)
    state.load(initial)
    assert bits(drive(runner, job)) == bits(drive(eager, job))
    assert state_bits(state.export()) == state_bits(eager.export())


def test_a_batch_of_another_shape_is_refused_with_both_shapes() -> None:
    job, steps = prepared("mlp")
    runner = Runner(MemoryDevice(), job.state(), steps)
    runner.adopt((LIVENESS,) * 3, 1)
    x, y = job.batches[0]
    with pytest.raises(InvariantError, match=r"batch x is torch.float32 of shape \(8, 7\)"):
        runner.train(torch.zeros(8, 7), y, 0.1)
    with pytest.raises(InvariantError, match=r"batch y is torch.int32"):
        runner.train(x, y.int(), 0.1)


def test_a_batch_in_any_memory_order_is_uploaded_correctly() -> None:
    job, steps = prepared("mlp")
    eager, state = Eager(job), job.state()
    runner = Runner(MemoryDevice(), state, steps)
    runner.adopt((LIVENESS,) * 3, 1)
    x, y = job.batches[0]
    transposed = x.t().contiguous().t()
    assert not transposed.is_contiguous()
    assert bits([runner.train(transposed, y, 0.1)]) == bits([eager.train(x, y, 0.1)])


def test_steps_of_unmeasured_size_are_refused() -> None:
    job, _ = prepared("lstm")
    with pytest.raises(InvariantError, match="has not been measured"):
        Runner(MemoryDevice(), job.state(), job.steps)


def test_the_learning_rate_is_an_input_of_every_iteration() -> None:
    job, steps = prepared("mlp", settings=OptimizerSettings(kind="sgd"))
    state = State.create(job.module, job.settings)
    runner = Runner(MemoryDevice(), state, steps)
    runner.adopt((LIVENESS,) * 3, 1)
    before = state.export()
    loss = runner.train(*job.batches[0], 0.0)
    after = state.export()
    assert math.isfinite(float(loss))
    assert all(torch.equal(before[name], after[name]) for name in before if name != "steps")
    runner.train(*job.batches[0], 0.1)
    assert not torch.equal(state.export()["0.weight"], before["0.weight"])


def test_an_error_after_a_device_fault_names_the_operator_and_the_faults_cause() -> None:
    class Broken(MemoryDevice):
        def move(self, freed_bytes: int, taken_bytes: int) -> None:
            if freed_bytes == 0:
                return  # the state is moved before any step runs
            raise RuntimeError("CUDA error: misaligned address")

    def check() -> None:
        raise ComputationError("waiting: cuX failed: CUDA_ERROR_MISALIGNED_ADDRESS", hint="look at it")

    job, steps = prepared("mlp")
    runner = Runner(Broken(), job.state(), steps, check=check)
    runner.adopt((LIVENESS,) * 3, 1)
    with pytest.raises(ComputationError) as raised:
        runner.train(*job.batches[0], 0.1)
    assert re.fullmatch(
        r"the training step for 8 rows, in operator \S+ or one before it: waiting: cuX failed: \S+_ADDRESS",
        raised.value.message,
    )
    assert raised.value.hint == "look at it"


@pytest.mark.by_day("1")
@pytest.mark.parametrize("seed", [1, 2])
def test_plans_stay_within_their_host_pool_also_while_one_replaces_another(
    seed: int,
) -> None:
    """The pool has exactly the pages that the largest plan needs. The change of plans may take no further page."""
    job, steps = prepared("cnn")
    graphs = [step.graph for step in steps]
    sequence = [tuple(random_rewritten_plan(graph, seed + more) for graph in graphs) for more in (0, 10, 20)]
    limit_bytes = max(host_bytes(graphs, plans) for plans in sequence)
    eager = Eager(job)
    with Ledger.create(64 * REGION_BYTES, REGION_BYTES, 10**12, 10**12, host_bytes=limit_bytes) as ledger:
        slot, epoch = ledger.claim_slot(1)
        ledger.grant(slot, 64 * REGION_BYTES)
        with EmulatedDevice(ledger.fd, slot, epoch, 1 << 30) as device:
            runner = Runner(device, job.state(), steps)
            for generation, plans in enumerate(sequence):
                runner.adopt(plans, generation)
                assert 0 < ledger.usage(slot).host_bytes <= host_bytes(graphs, plans)
                assert bits(drive(runner, job, 1)) == bits(drive(eager, job, 1))
            assert ledger.usage(slot).host_bytes <= host_bytes(graphs, sequence[-1])
            runner.close()
