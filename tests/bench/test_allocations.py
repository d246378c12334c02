"""What PyTorch really holds in an iteration, to the byte."""

import torch

from indb_tensile.bench.harness.allocations import StepMemory, measure_memory

MIB = 1 << 20


def test_what_is_held_at_once_counts_beside_what_stands() -> None:
    standing = torch.zeros(MIB, dtype=torch.uint8)

    def iterate() -> None:
        first = torch.empty(4 * MIB, dtype=torch.uint8)
        second = torch.empty(2 * MIB, dtype=torch.uint8)
        del first
        third = torch.empty(3 * MIB, dtype=torch.uint8)
        del second, third

    iterate()
    found = measure_memory(iterate, [standing, standing.view(2, -1)])
    assert found == StepMemory(allocated_bytes=7 * MIB, reserved_bytes=22 * MIB)  # of segments of 2 and of 20


def test_results_and_workspaces_count_alike() -> None:
    x = torch.randn(512, 512)

    def iterate() -> None:
        torch.relu(x @ x)

    iterate()
    assert measure_memory(iterate, [x]).allocated_bytes == 3 * x.nbytes
