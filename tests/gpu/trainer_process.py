"""The roles of a trainer of the GPU suite: `python -m tests.gpu.trainer_process ROLE SETTINGS`."""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from indb_tensile.device.cuda import CudaDevice, CudaRegions
from tests.gpu.place import ON_DOUBLE, PLACE, allocate_from, synchronise

PATTERN = 0x5A
HOST_POOL_BYTES = 1 << 30


def open_device(settings: dict[str, Any]) -> tuple[CudaDevice, float]:
    """Return the job's device, and the time that mapping every region took."""
    start_s = time.perf_counter()
    regions = CudaRegions(0, settings["socket"])
    device = CudaDevice(settings["ledger"], settings["slot"], settings["epoch"], HOST_POOL_BYTES, regions=regions)
    return device, time.perf_counter() - start_s


def write_figures(**figures: object) -> None:
    """Print one line of figures for the test."""
    print(json.dumps(figures), flush=True)


def map_regions(settings: dict[str, Any]) -> None:
    """Report the time of mapping, then hold the regions until the test sends a line."""
    device, mapping_s = open_device(settings)
    write_figures(mapping_s=mapping_s, bytes=len(device.arena_range))
    sys.stdin.readline()
    device.close()


def follow_regions(settings: dict[str, Any]) -> None:
    """Map the regions and follow their changes until the test sends a line."""
    regions = CudaRegions(0, settings["socket"])
    regions.touch()
    write_figures(mapped=True)
    sys.stdin.readline()
    regions.touch()  # those that are mapped now


def round_trip(settings: dict[str, Any]) -> None:
    """Copy a pattern in and out of memory that another tensor uses in between."""
    device, _ = open_device(settings)
    size_bytes = 48 << 20
    device.host_prepare(3 * size_bytes)
    tensor = device.allocate(size_bytes)
    host = device.host_allocate(size_bytes)
    back = device.host_allocate(size_bytes)
    ctypes.memset(host, PATTERN, size_bytes)
    device.copy_in(tensor, host, size_bytes)
    out = device.copy_out(back, tensor, size_bytes)
    device.free(tensor)
    again = device.allocate(size_bytes)
    zeros = device.host_allocate(size_bytes)
    ctypes.memset(zeros, 0, size_bytes)
    device.copy_in(again, zeros, size_bytes)
    device.wait(out)
    device.drain()
    write_figures(same=ctypes.string_at(back, size_bytes) == bytes([PATTERN]) * size_bytes, moved=again != tensor)
    device.close()


def copy(settings: dict[str, Any]) -> None:
    """Copy over both lanes, or one of them, for some rounds. Report the bytes per second."""
    device, _ = open_device(settings)
    size_bytes, rounds = 64 << 20, 32
    device.host_prepare(2 * size_bytes)
    tensors = [device.allocate(size_bytes) for _ in range(2)]
    hosts = [device.host_allocate(size_bytes) for _ in range(2)]
    write_figures(ready=1)
    sys.stdin.readline()
    start_s = time.perf_counter()
    for _ in range(rounds):
        if "out" in settings["lanes"]:
            device.copy_out(hosts[0], tensors[0], size_bytes)
        if "in" in settings["lanes"]:
            device.copy_in(tensors[1], hosts[1], size_bytes)
    device.drain()
    write_figures(bytes_per_s=rounds * size_bytes / (time.perf_counter() - start_s))
    device.close()


def spin(settings: dict[str, Any]) -> None:
    """Start a kernel that runs for minutes, in memory of the job's regions."""
    import torch

    device, _ = open_device(settings)
    allocate_from(device)
    torch.empty(1 << 20, device="cuda").fill_(1)
    torch.cuda.synchronize()
    wait: Any = torch.cuda._sleep
    wait(1 << 40)  # clock cycles, which last minutes
    write_figures(spinning=1)
    sys.stdin.readline()


def planned(settings: dict[str, Any]) -> None:
    """Run one captured step under plans for some budgets. Report the forecasts, the measurements and the bits.

    The setting `method` is ours, or one of torch's own methods to save memory, on the same network and batch.
    """
    import torch

    from tests.gpu import steps

    torch.manual_seed(3)
    if settings["method"] != "planned":
        CudaRegions(0, settings["socket"])  # the broker waits until the trainer has received them
        write_figures(**steps.rival(settings["method"], settings.get("precision", "torch")))
        return
    regions = CudaRegions(0, settings["socket"])
    claim = (settings["ledger"], settings["slot"], settings["epoch"])
    write_figures(rows=steps.planned(claim, regions, settings["grant_bytes"]))


def recorded(settings: dict[str, Any]) -> None:
    """Run one captured step with and without CUDA graphs."""
    from tests.gpu import steps

    regions = CudaRegions(0, settings["socket"])
    write_figures(rows=steps.recorded((settings["ledger"], settings["slot"], settings["epoch"]), regions))


def attach(settings: dict[str, Any]) -> None:
    """Open a context with torch's kernels loaded. Report its memory beside the regions, and wait for a line."""
    from tests.gpu import steps

    regions = CudaRegions(0, settings["socket"])
    with steps.attached((settings["ledger"], settings["slot"], settings["epoch"]), regions):
        write_figures(processor_s=time.process_time())
        sys.stdin.readline()


def overflow(settings: dict[str, Any]) -> None:
    """Calibrate in fewer regions than the operators need."""
    from tests.gpu import steps

    regions = CudaRegions(0, settings["socket"])
    write_figures(**steps.overflowing((settings["ledger"], settings["slot"], settings["epoch"]), regions))


def attention(settings: dict[str, Any]) -> None:
    """Run a step with float32 attention and dropout as a graph."""
    from tests.gpu import steps

    regions = CudaRegions(0, settings["socket"])
    write_figures(**steps.attending((settings["ledger"], settings["slot"], settings["epoch"]), regions))


def precision(settings: dict[str, Any]) -> None:
    """Report the convolutions' latencies and the pace of their graph, in one precision."""
    from tests.gpu import steps

    regions = CudaRegions(0, settings["socket"])
    claim = (settings["ledger"], settings["slot"], settings["epoch"])
    write_figures(**steps.precise(claim, regions, settings["precision"]))


def train(settings: dict[str, Any]) -> None:
    """Train a small network for a few steps from torch's allocator or from ours. Report its bits and its pace."""
    import torch

    own = settings["allocator"] == "own"
    if own:
        device, _ = open_device(settings)
        allocate_from(device)
    else:
        CudaRegions(0, settings["socket"])  # the broker waits until the trainer has received them
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(mode=True)
    width, rows, steps = (32, 8, 25) if ON_DOUBLE else (1024, 512, 120)
    layers = [torch.nn.Linear(width, width), torch.nn.ReLU()] * 4
    network = torch.nn.Sequential(*layers).to(PLACE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    batch = torch.randn(rows, width, device=PLACE)
    for step in range(steps):
        if step == 20:
            synchronise()
            start_s = time.perf_counter()
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
    synchronise()
    step_ms = (time.perf_counter() - start_s) * 1000 / (steps - 20)
    total = torch.cat([parameter.detach().flatten() for parameter in network.parameters()]).view(torch.int32)
    write_figures(bits=int(total.to(torch.int64).sum()), step_ms=step_ms)


_ROLES = (
    *(map_regions, follow_regions, round_trip, copy, spin),
    *(attach, overflow, attention, precision, planned, recorded, train),
)
ROLES: dict[str, Callable[[dict[str, Any]], None]] = {role.__name__: role for role in _ROLES}

if __name__ == "__main__":
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
