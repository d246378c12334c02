"""The next batch is uploaded while the present iteration computes, in memory that the plan has and does not use."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from indb_tensile.executor.capture.replay import INPUTS
from indb_tensile.executor.run.runner import Runner
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.scheduler.memory.next_batch import BATCH_NAMES, aligned_bytes
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA, peak
from indb_tensile.scheduler.plan import Plan
from tests.device.memory_device import MemoryDevice
from tests.device.preloaded import ask
from tests.executor.conftest import prepared
from tests.executor.driving import bits, state_bits
from tests.executor.models import Job
from tests.executor.plans import random_plan, random_rewritten_plan

Batch = tuple[torch.Tensor, ...]


@dataclass
class Feed:
    """Batches gathered in the runner's buffers. The next one is always ready, so every run is the same."""

    feed: BatchPrefetcher
    after: dict[int, Callable[[], None]] = field(default_factory=dict)  # what happens before a step
    steps: int = 0

    def next_batch(self, *, wait: bool) -> Batch | None:
        del wait
        upcoming = self.feed._upcoming
        if upcoming is not None:
            upcoming.result()
        return self.feed.next_batch(wait=False)


def table(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of all full batches of a job, several times."""
    full = [batch for batch in job.batches if len(batch[0]) == len(job.batches[0][0])]
    return torch.cat([x for x, _ in full] * 3), torch.cat([y for _, y in full] * 3)


def train(job: Job, runner: Runner, feed: Feed, *, ahead: bool) -> list[torch.Tensor]:
    """Train three epochs with a validation in each, and return all losses and outputs."""
    torch.manual_seed(99)
    results, parts, size = [], table(job), len(job.batches[0][0])
    runner._next.source = feed.next_batch if ahead else None
    for epoch in range(3):
        rows = torch.randperm(len(parts[0]), generator=torch.Generator().manual_seed(epoch))
        orders = [rows[first : first + size] for first in range(0, len(rows), size)]
        with closing(feed.feed.batches(parts, orders)) as fed:
            for _, (x, y) in fed:
                feed.after.get(feed.steps, lambda: None)()
                feed.steps += 1
                results.append(runner.train(x, y, 0.05))
        with closing(feed.feed.batches(job.held_out, [torch.arange(len(job.held_out[0]))])) as fed:
            for _, (x, y) in fed:
                results += runner.evaluate(x, y)
    return results


@contextmanager
def fed(runner: Runner) -> Iterator[Feed]:
    """Yield a feed all of whose batches are gathered on the second thread."""
    with BatchPrefetcher(runner, few_bytes=0) as feed:
        yield Feed(feed)


def lendable_bytes(job: Job) -> int:
    return sum(aligned_bytes(part.nbytes) for part in job.batches[0])


def plans_of(kind: str) -> list[tuple[Plan, ...]]:
    _, steps = prepared(kind)
    random = [tuple(random_plan(s.graph, seed * 10 + k) for k, s in enumerate(steps)) for seed in range(2)]
    rewritten = tuple(random_rewritten_plan(s.graph, 7 + k) for k, s in enumerate(steps))
    return [(LIVENESS,) * 3, (VANILLA,) * 3, *random, rewritten]


@pytest.mark.parametrize("kind", ["mlp", pytest.param("cnn", marks=pytest.mark.nightly)])
def test_every_plan_has_its_bits_and_exactly_its_peak_with_batches_uploaded_ahead(kind: str) -> None:
    job, steps = prepared(kind)
    for chosen in plans_of(kind):
        rows = []
        for ahead in (False, True):
            device = MemoryDevice()
            runner = Runner(device, job.state(), steps)
            runner.adopt(chosen, 1)
            with fed(runner) as feed:
                seen = bits(train(job, runner, feed, ahead=ahead))
            taken = runner.uploaded_ahead
            assert device.high_water_bytes == max(peak(s.graph, p) for s, p in zip(steps, chosen, strict=True))
            runner.close()
            assert (device.used_bytes, device.buffers) == (0, {})
            rows.append((seen, state_bits(runner._state.export())))
        assert rows[0] == rows[1]
        if chosen[0] == LIVENESS:
            assert taken == feed.steps - 3, "all batches but the first of each epoch"


@pytest.mark.parametrize("kind", ["mlp", pytest.param("cnn", marks=pytest.mark.nightly)])
def test_lent_memory_adds_a_batch_to_the_peak_of_the_device_and_changes_no_bit_and_no_planned_peak(kind: str) -> None:
    job, steps = prepared(kind)
    for chosen in plans_of(kind):
        rows = []
        for lent in (False, True):
            device = MemoryDevice()
            runner = Runner(device, job.state(), steps, sample_every=1)
            runner.adopt(chosen, 1)
            own_bytes = device.used_bytes
            size_bytes = runner.lend_for_batch(1 << 20) if lent else 0
            assert device.used_bytes == own_bytes + size_bytes
            with fed(runner) as feed:
                seen = bits(train(job, runner, feed, ahead=lent))
            planned_bytes = max(peak(s.graph, p) for s, p in zip(steps, chosen, strict=True))
            assert device.high_water_bytes == planned_bytes + size_bytes
            measured = runner.measured()
            assert measured is not None
            assert measured.peak_bytes == planned_bytes
            rows.append((seen, state_bits(runner._state.export())))
            taken = runner.uploaded_ahead
            runner.close()
            assert (device.used_bytes, device.buffers) == (0, {})
        assert rows[0] == rows[1]
        if not chosen[0].swaps:
            assert taken == feed.steps - 3, "all batches but the first of each epoch"


def test_loan_ends_with_the_plan_with_parking_and_when_it_is_given_back() -> None:
    job, steps = prepared("mlp")
    device = MemoryDevice()
    runner = Runner(device, job.state(), steps)
    runner.adopt((LIVENESS,) * 3, 1)
    own_bytes = device.used_bytes
    batch_bytes = lendable_bytes(job)

    def lend() -> None:
        assert runner.lend_for_batch(batch_bytes) == runner.lent_for_batch == batch_bytes
        assert device.used_bytes == own_bytes + batch_bytes

    lend()
    lend()
    assert runner.lend_for_batch(0) == 0
    assert device.used_bytes == own_bytes
    lend()
    runner.adopt((LIVENESS,) * 3, 2)
    assert (runner.lent_for_batch, device.used_bytes) == (0, own_bytes)
    lend()
    runner.relocate(steps)
    assert runner.lent_for_batch == batch_bytes, "the controller has sent no other plans"
    runner.park()
    assert (runner.lent_for_batch, device.used_bytes) == (0, 0)
    runner.adopt((LIVENESS,) * 3, 3)
    assert runner.lend_for_batch(batch_bytes - 1) == 0, "too small for a batch"
    device.granted_bytes = own_bytes + 1
    assert runner.lend_for_batch(batch_bytes) == 0, "the ledger does not grant it"
    assert device.used_bytes == own_bytes
    runner.close()
    assert (device.used_bytes, device.buffers) == (0, {})


def interrupted(
    runner: Runner, plans: list[tuple[Plan, ...]], *, lent: bool = False
) -> dict[int, Callable[[], None]]:
    """Return what happens before some steps, when the next batch is on the device already."""

    def park_and_resume() -> None:
        runner.park()
        runner.adopt(plans[0], 2)

    def replace_state() -> None:
        runner._state.load(runner._state.export())

    def give_back_and_lend() -> None:
        runner.lend_for_batch(0)
        runner.lend_for_batch(1 << 20)

    if lent:
        runner.lend_for_batch(1 << 20)
        return {
            1: give_back_and_lend,
            2: lambda: runner.adopt(plans[2], 1),
            3: give_back_and_lend,
            4: park_and_resume,
        }
    return {2: lambda: runner.adopt(plans[2], 1), 4: park_and_resume, 8: replace_state}


@pytest.mark.parametrize("lent", [False, True])
def test_batch_uploaded_ahead_of_other_plans_or_of_parking_is_uploaded_again(*, lent: bool) -> None:
    kind = "mlp"
    job, steps = prepared(kind)
    plans, rows = plans_of(kind), []
    for ahead in (False, True):
        device = MemoryDevice()
        runner = Runner(device, job.state(), steps)
        runner.adopt(plans[0], 1)
        with fed(runner) as feed:
            feed.after = interrupted(runner, plans, lent=lent)
            seen = bits(train(job, runner, feed, ahead=ahead))
        allowed_bytes = max(peak(s.graph, p) for n in (0, 2) for s, p in zip(steps, plans[n], strict=True))
        allowed_bytes += lendable_bytes(job) if lent else 0
        assert device.high_water_bytes <= allowed_bytes
        rows.append((seen, state_bits(runner._state.export())))
        assert (runner.uploaded_ahead > 0) == ahead
        runner.close()
        assert (device.used_bytes, device.buffers) == (0, {})
    assert rows[0] == rows[1]


def test_parts_of_a_batch_have_the_names_by_which_forecasts_know_them() -> None:
    assert INPUTS == BATCH_NAMES


def test_other_batch_than_the_announced_one_is_trained_on_as_given() -> None:
    job, steps = prepared("mlp")
    device = MemoryDevice()
    runner = Runner(device, job.state(), steps)
    runner.adopt((LIVENESS,) * 3, 1)
    first, second = runner.rooms(table(job), len(job.batches[0][0]))
    batches = [(x, y) for x, y in (first, second) if x is not None and y is not None]
    for (x, y), (rows, labels) in zip(batches, job.batches, strict=False):
        x.copy_(rows)
        y.copy_(labels)
    x, y = batches[0]
    runner.upload_ahead(lambda *, wait: batches[1])
    losses = [runner.train(x, y, 0.05), runner.train(x, y, 0.05)]
    assert runner.uploaded_ahead == 0
    runner.upload_ahead(lambda *, wait: None)
    losses.append(runner.train(x, y, 0.05))
    runner.close()
    alone = Runner(MemoryDevice(), job.state(), steps)
    alone.adopt((LIVENESS,) * 3, 1)
    assert bits(losses) == bits([alone.train(*job.batches[0], 0.05) for _ in range(3)])
    assert device.used_bytes == 0


def test_upload_runs_beside_the_operators_after_its_boundary() -> None:
    job, steps = prepared("mlp")
    device = MemoryDevice()
    runner = Runner(device, job.state(), steps)
    runner.adopt((LIVENESS,) * 3, 1)
    source = runner._current.source if runner._current is not None else ""
    lines = source.splitlines()
    starts = [n for n, line in enumerate(lines) if "start_next(" in line]
    assert starts
    assert len(lines) - starts[0] > len(starts), "operators follow the first boundary with room"
    with fed(runner) as feed:
        train(job, runner, feed, ahead=True)
    runner.close()


def test_failed_gathering_is_an_error_of_its_own_batch() -> None:
    class Broken:
        in_memory = False

        def take(self, rows: object, out: object) -> None:
            raise OSError("the table is gone")

    job, steps = prepared("mlp")
    runner = Runner(MemoryDevice(), job.state(), steps)
    runner.adopt((LIVENESS,) * 3, 1)
    parts, size = table(job), len(job.batches[0][0])
    with BatchPrefetcher(runner, few_bytes=0) as feed:
        runner.upload_ahead(feed.next_batch)
        sources = (Broken(), Broken())
        with pytest.raises(OSError, match="the table is gone"):
            next(feed.batches(parts, [torch.arange(size)], sources))
        assert feed.next_batch(wait=True) is None
    runner.close()


@pytest.mark.nightly
def test_next_batch_lies_in_the_plans_block_on_the_emulated_device() -> None:
    answers = ask("tests.executor.run.next_batch_process")
    answers.pop("stderr")
    held = {"bits": True, "taken": True, "high water is the peak": True, "unaccounted_bytes": 0, "unplanned": 0}
    sizes = {"liveness": 0, "swaps": 0, "lent": lendable_bytes(prepared("cnn")[0])}
    assert answers == {name: {**held, "lent": size_bytes} for name, size_bytes in sizes.items()}
