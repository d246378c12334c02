"""Check that batches are uploaded from the buffers into which another thread has gathered them."""

from contextlib import closing

import pytest
import torch

from indb_tensile.device.device import HostBuffer, Ticket
from indb_tensile.errors import InvariantError
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.upload_buffers import UploadBuffers
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA
from indb_tensile.scheduler.plan import Plan
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared
from tests.executor.driving import bits, state_bits
from tests.executor.models import Job
from tests.executor.plans import random_plan


class WatchedDevice(MemoryDevice):
    """Records the host buffers that the calling thread writes, and those from which bytes come to the device."""

    def __init__(self, *, is_host: bool = False) -> None:
        super().__init__(is_host=is_host)
        self.written: list[HostBuffer] = []
        self.read: list[HostBuffer] = []

    def host_write(self, buffer: HostBuffer, address: int, size_bytes: int) -> None:
        self.written.append(buffer)
        super().host_write(buffer, address, size_bytes)

    def copy_in(self, address: int, host: HostBuffer, size_bytes: int) -> Ticket:
        self.read.append(host)
        return super().copy_in(address, host, size_bytes)


def table(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of all batches of a job."""
    return torch.cat([x for x, _ in job.batches]), torch.cat([y for _, y in job.batches])


def train(job: Job, runner: Runner, feed: BatchPrefetcher, plans: list[tuple[Plan, ...]]) -> list[torch.Tensor]:
    """Train two epochs, with other plans before every second iteration. Return all losses and outputs."""
    torch.manual_seed(99)
    results, pending = [], list(plans)
    parts, size = table(job), len(job.batches[0][0])
    for epoch in range(2):
        rows = torch.randperm(len(parts[0]), generator=torch.Generator().manual_seed(epoch))
        orders = [rows[first : first + size] for first in range(0, len(rows), size)]
        with closing(feed.batches(parts, orders)) as fed:
            for number, (_, (x, y)) in enumerate(fed):
                if pending and number % 2:
                    runner.adopt(pending.pop(), 10 - len(pending))
                results.append(runner.train(x, y, 0.05))
        with closing(feed.batches(job.held_out, [torch.arange(len(job.held_out[0]))])) as fed:
            for _, (x, y) in fed:
                results += runner.evaluate(x, y)
    return results


@pytest.mark.parametrize("kind", ["mlp", "cnn", "lstm", "regression"])
def test_results_have_the_bits_of_batches_that_the_training_thread_copies(kind: str) -> None:
    job, steps = prepared(kind)
    plans = [tuple(random_plan(step.graph, seed * 10 + k) for k, step in enumerate(steps)) for seed in range(3)]
    results = []
    for gathers_in_place in (False, True):
        runner = Runner(MemoryDevice(), job.state(), steps)
        runner.adopt((LIVENESS,) * 3, 1)
        with BatchPrefetcher(runner if gathers_in_place else None) as feed:
            losses = bits(train(job, runner, feed, plans))
        runner.close()
        results.append((losses, state_bits(runner._state.export())))
    assert results[0] == results[1]


def test_training_thread_copies_no_row_of_a_batch() -> None:
    job, steps = prepared("mlp")
    device = WatchedDevice()
    runner = Runner(device, job.state(), steps)
    runner.adopt((LIVENESS,) * 3, 1)
    sets = [[room.data_ptr() for room in rooms if room is not None] for rooms in runner.rooms(table(job), 1)]
    assert [len(addresses) for addresses in sets] == [2, 2]
    with BatchPrefetcher(runner) as feed:
        device.written.clear()
        device.read.clear()
        train(job, runner, feed, [])
        assert not device.written
    uploaded = [buffer for buffer in device.read if buffer in sets[0] + sets[1]]
    # Three training iterations and one evaluation in each epoch; every pass begins with the first set.
    assert uploaded == 2 * [*sets[0], *sets[1], *sets[0], *sets[0]]


def test_batch_elsewhere_in_memory_is_copied_to_the_first_set() -> None:
    job, steps = prepared("mlp")
    device = WatchedDevice()
    runner = Runner(device, job.state(), steps)
    runner.adopt((LIVENESS,) * 3, 1)
    first, _ = runner.rooms(table(job), 1)
    device.written.clear()
    runner.train(*job.batches[0], 0.05)
    assert device.written == [room.data_ptr() for room in first if room is not None]


def test_buffers_are_allocated_once_for_all_plans_and_returned_at_the_end() -> None:
    job, steps = prepared("mlp")
    device = WatchedDevice()
    runner = Runner(device, job.state(), steps)
    runner.adopt((VANILLA,) * 3, 1)
    before = [[room.data_ptr() for room in rooms if room is not None] for rooms in runner.rooms(table(job), 4)]
    for generation in range(2, 5):
        runner.adopt(tuple(random_plan(step.graph, generation) for step in steps), generation)
        after = runner.rooms(table(job), 4)
        assert [[room.data_ptr() for room in rooms if room is not None] for rooms in after] == before
    runner.close()
    assert not device.buffers


def test_set_is_free_again_when_the_upload_from_it_has_ended() -> None:
    device = MemoryDevice()
    uploads = UploadBuffers(device, {"x": 400})
    assert uploads.new_bytes == 2 * 448  # whole units of 64 bytes
    uploads.allocate()
    assert uploads.new_bytes == 0
    whole = torch.arange(100, dtype=torch.float32).reshape(10, 10)
    ((first,), (second,)) = uploads.rooms(("x",), (whole,), 10)
    assert first is not None
    assert second is not None
    target = torch.zeros(10, 10)
    first.copy_(whole)
    buffer = uploads.source("x", first)
    assert buffer is not None
    uploads.note_read(buffer, device.copy_in(target.data_ptr(), buffer, 400))
    uploads.wait_until_read(1)
    assert not torch.equal(target, whole)  # the double copies as late as possible
    uploads.wait_until_read(0)
    first.zero_()
    assert torch.equal(target, whole)


def test_part_that_is_not_uploaded_or_too_large_or_empty_has_no_room() -> None:
    uploads = UploadBuffers(MemoryDevice(), {"x": 400})
    uploads.allocate()
    rows = torch.zeros(20, 10)
    assert uploads.rooms(("x", "y"), (rows, rows), 11) == ((None, None), (None, None))
    assert uploads.rooms(("x",), (rows[:, :0],), 5) == ((None,), (None,))


def test_device_whose_memory_is_the_hosts_needs_no_buffers() -> None:
    job, steps = prepared("mlp")
    device = WatchedDevice(is_host=True)
    runner = Runner(device, job.state(), steps)
    runner.adopt((LIVENESS,) * 3, 1)
    assert runner.rooms(table(job), 4) == ((None, None), (None, None))
    with BatchPrefetcher(runner) as feed:
        train(job, runner, feed, [])
    runner.close()


def test_buffers_that_the_pool_has_moved_are_an_error_and_not_a_wrong_batch() -> None:
    uploads = UploadBuffers(MemoryDevice(), {"x": 400})
    uploads.allocate()
    moved = uploads.first("x")
    with pytest.raises(InvariantError, match="the host buffer of batch x was moved"):
        uploads.check_unmoved({moved: HostBuffer(1)})
