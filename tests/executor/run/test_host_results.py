"""Where iterations leave what they return."""

import torch

from indb_tensile.executor.run.host_results import HostResults
from tests.executor.conftest import prepared


def test_a_block_is_made_once_for_each_step_and_what_is_taken_from_it_stays() -> None:
    _, steps = prepared("mlp")
    landing = HostResults(pinned=False, reused=True)
    blocks = [landing.room(step) for step in steps]
    assert all(landing.room(step) is block for step, block in zip(steps, blocks, strict=True))
    assert len({result.data_ptr() for block in blocks for result in block}) == sum(map(len, blocks))
    (loss,) = blocks[0]
    loss.fill_(1.0)
    (kept,) = landing.take(blocks[0])
    loss.fill_(2.0)
    assert torch.equal(kept, torch.ones_like(loss))


def test_where_the_host_computes_each_iteration_has_memory_of_its_own_and_nothing_is_copied() -> None:
    _, steps = prepared("mlp")
    landing = HostResults(pinned=False, reused=False)
    first, second = landing.room(steps[0]), landing.room(steps[0])
    assert first[0].data_ptr() != second[0].data_ptr()
    assert landing.take(first) is first
