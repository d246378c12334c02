"""Tests of the memory into which iterations write their results."""

import torch

from indb_tensile.executor.run.host_results import HostResults
from tests.executor.conftest import prepared


def test_a_result_block_is_allocated_once_for_each_step_and_a_taken_result_does_not_change() -> None:
    _, steps = prepared("mlp")
    host_results = HostResults(pinned=False, reused=True)
    blocks = [host_results.room(step) for step in steps]
    assert all(host_results.room(step) is block for step, block in zip(steps, blocks, strict=True))
    assert len({buffer.data_ptr() for block in blocks for buffer in block}) == sum(map(len, blocks))
    (loss,) = blocks[0]
    loss.fill_(1.0)
    (result,) = host_results.take(blocks[0])
    loss.fill_(2.0)
    assert torch.equal(result, torch.ones_like(loss))


def test_a_host_device_gives_each_iteration_its_own_memory_and_copies_nothing() -> None:
    _, steps = prepared("mlp")
    host_results = HostResults(pinned=False, reused=False)
    first, second = host_results.room(steps[0]), host_results.room(steps[0])
    assert first[0].data_ptr() != second[0].data_ptr()
    assert host_results.take(first) is first
