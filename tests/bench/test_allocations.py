"""The memory of an iteration is measured to the byte of PyTorch's allocations."""

import torch

from indb_tensile.bench.harness.comparisons.allocations import StepMemory, measure_memory

MIB = 1 << 20


def test_the_peak_of_an_iteration_counts_in_addition_to_the_standing_tensors() -> None:
    standing = torch.zeros(MIB, dtype=torch.uint8)

    def iterate() -> None:
        first = torch.empty(4 * MIB, dtype=torch.uint8)
        second = torch.empty(2 * MIB, dtype=torch.uint8)
        del first
        third = torch.empty(3 * MIB, dtype=torch.uint8)
        del second, third

    iterate()
    memory = measure_memory(iterate, [standing, standing.view(2, -1)])
    assert memory == StepMemory(allocated_bytes=7 * MIB, reserved_bytes=22 * MIB)  # segments of 2 and of 20 MiB


def test_results_and_workspaces_are_counted_in_the_same_way() -> None:
    x = torch.randn(512, 512)

    def iterate() -> None:
        torch.relu(x @ x)

    iterate()
    assert measure_memory(iterate, [x]).allocated_bytes == 3 * x.nbytes
