"""A run that is parked at any boundaries, and resumed under any plans, has the bits of an undisturbed run."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from indb_tensile.device.device import REGION_BYTES, CpuDevice, Device, EmulatedDevice, HostBuffer
from indb_tensile.device.ledger import Ledger
from indb_tensile.errors import DeviceMemoryError, InvariantError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import CapturedStep, with_host_uploads
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import rng_state
from indb_tensile.job import Slot
from indb_tensile.scheduler.host_memory import host_bytes, parked_bytes, pooled_bytes
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA
from indb_tensile.scheduler.plan import Plan
from tests.device.memory_device import MemoryDevice
from tests.device.preloaded import ask
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.models import Job
from tests.executor.plans import random_plan, random_rewritten_plan
from tests.nightly import few_examples

Result = TypeVar("Result")

KINDS = ("wide", "cnn", "deep gru", "tied")  # three of them draw random numbers for dropout
CALLS = 8  # of the runner by `drive`
GRANT_BYTES = 32 * REGION_BYTES
ADAM, PLAIN = OptimizerSettings(kind="adamw", weight_decay=0.1, clip_norm=0.1), OptimizerSettings()
OPTIMIZERS = {"wide": ADAM, "cnn": PLAIN, "deep gru": ADAM, "tied": PLAIN}  # other tests have captured the plain ones


class _Interrupted:
    """Drives a runner, and parks it before the iterations that `parks` names, each time with other plans after."""

    def __init__(self, runner: Runner, steps: tuple[CapturedStep, ...], parks: dict[int, int], ledger: Any) -> None:
        self._runner = runner
        self._steps = steps
        self._parks = parks
        self._ledger = ledger
        self._iteration = 0
        self.parked = 0

    def train(self, x: torch.Tensor, y: torch.Tensor, lr: float) -> torch.Tensor:
        self._park()
        return self._runner.train(x, y, lr)

    def evaluate(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._park()
        return self._runner.evaluate(x, y)

    def _park(self) -> None:
        seed = self._parks.get(self._iteration)
        self._iteration += 1
        if seed is None:
            return
        self.parked += 1
        host_bytes = self._runner.park()
        assert 0 < host_bytes <= parked_bytes(tuple(step.graph for step in self._steps))
        self._ledger.give_up()
        with pytest.raises(InvariantError, match="has a plan"):
            self._runner.train(torch.zeros(8, 6), torch.zeros(8, dtype=torch.long), 0.1)
        self._ledger.grant()
        self._runner.adopt(_plans(self._steps, seed), self.parked + 1, GRANT_BYTES)


def _plans(steps: tuple[CapturedStep, ...], seed: int) -> tuple[Plan, ...]:
    if seed == 0:
        return (LIVENESS,) * len(steps)
    if seed == 1:
        return (VANILLA,) * len(steps)
    make = random_plan if seed % 2 else random_rewritten_plan
    return tuple(make(step.graph, seed * 10 + k) for k, step in enumerate(steps))


class _RealLedger:
    """The controller's end: takes all regions of the parked job away, and grants them again."""

    def __init__(self, ledger: Ledger, slot: Slot) -> None:
        self._ledger = ledger
        self._slot = slot

    def give_up(self) -> None:
        self._ledger.grant(self._slot, 0)
        usage = self._ledger.usage(self._slot)
        assert (usage.granted_bytes, usage.held_bytes, usage.used_bytes) == (0, 0, 0)
        other, _ = self._ledger.claim_slot(os.getpid())
        self._ledger.grant(other, self._ledger.device_usage().capacity_bytes)  # all of it is another job's now
        self._ledger.release_slot(other)

    def grant(self) -> None:
        self._ledger.grant(self._slot, GRANT_BYTES)


class _Account:
    """The same for a device in this process's memory."""

    def __init__(self, device: MemoryDevice) -> None:
        self._device = device

    def give_up(self) -> None:
        assert self._device.used_bytes == 0
        self._device.granted_bytes = 0

    def grant(self) -> None:
        self._device.granted_bytes = GRANT_BYTES


@contextmanager
def _device(name: str, pool_bytes: int = 1 << 24) -> Iterator[tuple[Device, Any]]:
    if name in ("lazy", "lazy host"):
        lazy = MemoryDevice(is_host=name == "lazy host")
        yield lazy, _Account(lazy)
        return
    with Ledger.create(2 * GRANT_BYTES, REGION_BYTES, 10**9, 10**9) as ledger:
        slot, epoch = ledger.claim_slot(os.getpid())
        ledger.grant(slot, GRANT_BYTES)
        account = _RealLedger(ledger, slot)
        if name == "cpu":
            with CpuDevice(ledger.fd, slot, epoch, 1 << 24, tempfile.gettempdir()) as cpu:
                yield cpu, account
        else:
            with EmulatedDevice(ledger.fd, slot, epoch, pool_bytes) as emulated:
                yield emulated, account


def _job(kind: str, *, is_host: bool) -> tuple[Job, tuple[CapturedStep, ...]]:
    job, steps = prepared(kind, settings=OPTIMIZERS[kind])
    return job, tuple(map(with_host_uploads, steps)) if is_host else steps


@pytest.mark.nightly
@given(
    kind=st.sampled_from(KINDS),
    name=st.sampled_from(["lazy", "lazy host", "emulated", "cpu"]),
    first=st.integers(0, 9),
    parks=st.dictionaries(st.integers(0, CALLS - 1), st.integers(0, 9), min_size=1),
)
@example(kind="wide", name="emulated", first=0, parks={0: 4})  # plans that cut one storage into different pieces
@example(kind="wide", name="emulated", first=0, parks={0: 2})  # storages that all leave to be cut anew
@few_examples()
def test_run_parked_at_random_boundaries_has_the_bits_of_the_undisturbed_run(
    kind: str, name: str, first: int, parks: dict[int, int]
) -> None:
    job, steps = _job(kind, is_host=name in ("lazy host", "cpu"))
    with _device(name, _least_pool_bytes(steps, (first, *parks.values()))) as (device, ledger):
        eager = Eager(job)
        expected, expected_random = bits(drive(eager, job)), rng_state()
        state = job.state()
        runner = Runner(device, state, steps)
        runner.adopt(_plans(steps, first), 1)
        interrupted = _Interrupted(runner, steps, parks, ledger)
        assert bits(drive(interrupted, job)) == expected
        assert interrupted.parked
        assert state_bits(state.export()) == state_bits(eager.export())
        assert torch.equal(rng_state(), expected_random)
        runner.close()
        assert device.usage().used_bytes == 0


def _least_pool_bytes(steps: tuple[CapturedStep, ...], seeds: Sequence[int]) -> int:
    """Return the bytes of the host pool that a controller counts for the job, parked or under one of these plans."""
    graphs = tuple(step.graph for step in steps)
    return max(parked_bytes(graphs), *(host_bytes(graphs, _plans(steps, seed)) for seed in seeds))


class _CountedPool(MemoryDevice):
    """Refuses a buffer for which `host_fit` has made no room. `peak_bytes` is the most that the pool had acquired."""

    def __init__(self) -> None:
        super().__init__()
        self._acquired_bytes = 0
        self.peak_bytes = 0

    def host_allocate(self, size_bytes: int) -> HostBuffer:
        buffer = super().host_allocate(size_bytes)
        assert self._used_bytes <= self._acquired_bytes
        return buffer

    def host_fit(self, free_bytes: int) -> None:
        self._acquired_bytes = self._used_bytes + free_bytes
        self.peak_bytes = max(self.peak_bytes, self._acquired_bytes)

    def reset_peak(self) -> None:
        """Measure the peak from now on."""
        self.peak_bytes = self._acquired_bytes

    @property
    def _used_bytes(self) -> int:
        return sum(pooled_bytes(len(buffer)) for buffer in self.buffers.values())


class _Replanned:
    """Drives a runner, and before some iterations parks it (or not) and adopts other plans.

    Checks after each call that the pool has stayed within what the controller counts.
    """

    def __init__(
        self,
        runner: Runner,
        steps: tuple[CapturedStep, ...],
        changes: dict[int, tuple[int, bool]],
        pool: _CountedPool,
    ) -> None:
        self._runner = runner
        self._steps = steps
        self._changes = changes
        self._pool = pool
        self._iteration = 0
        self._counted_bytes = 0

    def adopt(self, seed: int, *, parks: bool) -> None:
        """Adopt the plans of a seed, from the present plans or from the host pool."""
        graphs, plans = tuple(step.graph for step in self._steps), _plans(self._steps, seed)
        if parks:
            self._counted_bytes = max(self._counted_bytes, parked_bytes(graphs))
            self._counted_bytes = self._check(self._runner.park)
        counted_bytes = host_bytes(graphs, plans)
        self._counted_bytes = max(self._counted_bytes, counted_bytes)
        self._check(lambda: self._runner.adopt(plans, self._iteration))
        self._counted_bytes = counted_bytes
        self._pool.reset_peak()

    def train(self, x: torch.Tensor, y: torch.Tensor, lr: float) -> torch.Tensor:
        self._change()
        return self._check(lambda: self._runner.train(x, y, lr))

    def evaluate(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._change()
        return self._check(lambda: self._runner.evaluate(x, y))

    def _change(self) -> None:
        self._iteration += 1
        if self._iteration in self._changes:
            seed, parks = self._changes[self._iteration]
            self.adopt(seed, parks=parks)

    def _check(self, call: Callable[[], Result]) -> Result:
        result = call()
        assert self._pool.peak_bytes <= self._counted_bytes
        self._pool.reset_peak()
        return result


@pytest.mark.nightly
@given(
    kind=st.sampled_from(KINDS),
    first=st.integers(0, 9),
    changes=st.dictionaries(
        st.integers(1, CALLS), st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=4
    ),
)
@example(kind="wide", first=4, changes={1: (2, False), 5: (6, True), 8: (4, True)})
@few_examples()
def test_pool_never_exceeds_the_larger_of_the_parked_state_and_the_counted_bytes_of_the_plans(
    kind: str, first: int, changes: dict[int, tuple[int, bool]]
) -> None:
    job, steps = prepared(kind, settings=OPTIMIZERS[kind])
    pool = _CountedPool()
    expected = bits(drive(Eager(job), job))
    runner = Runner(pool, job.state(), steps)
    replanned = _Replanned(runner, steps, changes, pool)
    replanned.adopt(first, parks=False)
    assert bits(drive(replanned, job)) == expected
    runner.close()
    assert not pool.buffers


def test_parked_state_can_be_exported_and_is_freed_by_close() -> None:
    job, steps = prepared("wide")
    device, state = MemoryDevice(), job.state()
    runner = Runner(device, state, steps)
    runner.adopt(_plans(steps, 3), 1)
    drive(runner, job)
    before = state_bits(state.export())
    runner.park()
    assert (device.used_bytes, state.resident) == (0, set())
    assert state_bits(state.export()) == before
    runner.close()
    assert not device.buffers
    assert state_bits(state.export()) == before


@pytest.mark.parametrize("parks", [False, True])
def test_close_that_keeps_no_state_frees_all_memory_and_lets_nobody_export_what_is_lost(parks: bool) -> None:
    job, steps = prepared("wide")
    device, state = MemoryDevice(), job.state()
    runner = Runner(device, state, steps)
    runner.adopt(_plans(steps, 3), 1)
    drive(runner, job)
    if parks:
        runner.park()
    runner.close(keeps_state=False)
    assert (device.used_bytes, device.buffers, state.resident) == (0, {}, set())
    assert not any(tensor.untyped_storage().nbytes() for tensor in state.tensors.values())
    with pytest.raises(InvariantError, match="given up"):
        state.export()


@pytest.mark.parametrize("kind", [EmulatedDevice, CpuDevice])
def test_host_pool_without_room_refuses_to_park_and_leaves_a_whole_state(kind: type[Device]) -> None:
    job, steps = _job("wide", is_host=kind is CpuDevice)
    eager = Eager(job)
    drive(eager, job)
    with Ledger.create(2 * GRANT_BYTES, REGION_BYTES, 10**9, 10**9) as ledger:
        slot, epoch = ledger.claim_slot(os.getpid())
        ledger.grant(slot, GRANT_BYTES)
        pool_bytes = 24 * 1024  # enough for the batch and one tensor, not for the whole state
        arguments = (ledger.fd, slot, epoch, pool_bytes)
        with (
            CpuDevice(*arguments, tempfile.gettempdir())
            if kind is CpuDevice
            else EmulatedDevice(*arguments) as device
        ):
            state = job.state()
            runner = Runner(device, state, steps)
            runner.adopt((LIVENESS,) * 3, 1)
            drive(runner, job)
            with pytest.raises(DeviceMemoryError, match="host"):
                runner.park()
            assert state_bits(state.export()) == state_bits(eager.export())
            runner.close()
            assert device.usage().used_bytes == 0


def test_state_loaded_while_parked_is_the_state_that_continues() -> None:
    job, steps = prepared("wide")
    runner = Runner(MemoryDevice(), state := job.state(), steps)
    runner.adopt(_plans(steps, 2), 1)
    start = state.export()
    expected = bits(drive(runner, job))
    runner.park()
    state.load(start)
    runner.adopt(_plans(steps, 5), 2)
    assert bits(drive(runner, job)) == expected


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return ask("tests.executor.run.parking_process", "mlp", "cnn")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_graphs_are_closed_by_parking_and_recorded_anew_after_it_with_equal_bits(
    recorded: dict[str, Any], kind: str
) -> None:
    expected = {"bits": True, "launched": True, "recorded anew": True, "open graphs": 0, "in the arena": 0}
    assert recorded[kind] == expected


@pytest.mark.nightly
def test_parked_job_gives_up_every_region_and_gets_other_regions_back_with_equal_bits() -> None:
    answers = ask("tests.executor.run.parking_process", "regions")
    assert answers["regions"] == {"bits": True, "held bytes while parked": [0, 0, 0], "at planned addresses": True}
