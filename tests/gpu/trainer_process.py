"""What a trainer of the GPU suite does, by its role: `python -m tests.gpu.trainer_process ROLE SETTINGS`."""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from indb_tensile.device.cuda import CudaDevice, CudaRegions

PATTERN = 0x5A
HOST_POOL_BYTES = 1 << 30


def open_device(told: dict[str, Any]) -> tuple[CudaDevice, float]:
    """The job's device, and how long it took to map every region."""
    start_s = time.perf_counter()
    regions = CudaRegions(0, told["socket"])
    device = CudaDevice(told["ledger"], told["slot"], told["epoch"], HOST_POOL_BYTES, regions=regions)
    return device, time.perf_counter() - start_s


def say(**figures: object) -> None:
    """One line for the test."""
    print(json.dumps(figures), flush=True)


def map_regions(told: dict[str, Any]) -> None:
    """How long mapping takes; then hold the regions until told to end."""
    device, mapping_s = open_device(told)
    say(mapping_s=mapping_s, bytes=len(device.arena_range))
    sys.stdin.readline()
    device.close()


def round_trip(told: dict[str, Any]) -> None:
    """A pattern there and back, over memory that another tensor had in between."""
    device, _ = open_device(told)
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
    say(same=ctypes.string_at(back, size_bytes) == bytes([PATTERN]) * size_bytes, moved=again != tensor)
    device.close()


def copy(told: dict[str, Any]) -> None:
    """Both lanes, or one of them, for some rounds: bytes per second in each direction."""
    device, _ = open_device(told)
    size_bytes, rounds = 64 << 20, 32
    device.host_prepare(2 * size_bytes)
    tensors = [device.allocate(size_bytes) for _ in range(2)]
    hosts = [device.host_allocate(size_bytes) for _ in range(2)]
    say(ready=1)
    sys.stdin.readline()
    start_s = time.perf_counter()
    for _ in range(rounds):
        if "out" in told["lanes"]:
            device.copy_out(hosts[0], tensors[0], size_bytes)
        if "in" in told["lanes"]:
            device.copy_in(tensors[1], hosts[1], size_bytes)
    device.drain()
    say(bytes_per_s=rounds * size_bytes / (time.perf_counter() - start_s))
    device.close()


def spin(told: dict[str, Any]) -> None:
    """A kernel that does not end soon, in memory of the job's regions."""
    import torch

    from indb_tensile.executor.run.open_device import serve_torch

    device, _ = open_device(told)
    serve_torch(device)
    torch.empty(1 << 20, device="cuda").fill_(1)
    torch.cuda.synchronize()
    wait: Any = torch.cuda._sleep
    wait(1 << 40)  # clock cycles: minutes
    say(spinning=1)
    sys.stdin.readline()


def planned(told: dict[str, Any]) -> None:
    """One captured step under the plans for some budgets: what was foreseen and what came, and whether bits differ.

    `method` is ours, or one of torch's own ways to train in less memory, on the same network and batch.
    """
    import torch

    from tests.gpu import steps

    torch.manual_seed(3)
    if told["method"] != "planned":
        CudaRegions(0, told["socket"])  # the broker waits until somebody has taken them
        say(**steps.rival(told["method"]))
        return
    regions = CudaRegions(0, told["socket"])
    claim = (told["ledger"], told["slot"], told["epoch"])
    say(rows=steps.planned(claim, regions, told["grant_bytes"]))


def recorded(told: dict[str, Any]) -> None:
    """One captured step with and without CUDA graphs."""
    from tests.gpu import steps

    regions = CudaRegions(0, told["socket"])
    say(rows=steps.recorded((told["ledger"], told["slot"], told["epoch"]), regions))


def attach(told: dict[str, Any]) -> None:
    """A context with torch's kernels loaded, and what torch takes beside the regions; then stay until told to end."""
    from tests.gpu import steps

    regions = CudaRegions(0, told["socket"])
    with steps.attached((told["ledger"], told["slot"], told["epoch"]), regions):
        say(processor_s=time.process_time())
        sys.stdin.readline()


def overflow(told: dict[str, Any]) -> None:
    """Calibration in fewer regions than its operators need."""
    from tests.gpu import steps

    regions = CudaRegions(0, told["socket"])
    say(**steps.overflowing((told["ledger"], told["slot"], told["epoch"]), regions))


def attention(told: dict[str, Any]) -> None:
    """A step with float32 attention and dropout as a graph."""
    from tests.gpu import steps

    regions = CudaRegions(0, told["socket"])
    say(**steps.attending((told["ledger"], told["slot"], told["epoch"]), regions))


def precision(told: dict[str, Any]) -> None:
    """The convolutions' latencies and the pace of their graph, in one precision."""
    from tests.gpu import steps

    regions = CudaRegions(0, told["socket"])
    claim = (told["ledger"], told["slot"], told["epoch"])
    say(**steps.precise(claim, regions, told["precision"]))


def train(told: dict[str, Any]) -> None:
    """A few steps of a small network, from torch's own allocator or ours: the bits it ends with, and its pace."""
    import torch

    own = told["allocator"] == "own"
    if own:
        from indb_tensile.executor.run.open_device import serve_torch

        device, _ = open_device(told)
        serve_torch(device)
    else:
        CudaRegions(0, told["socket"])  # the broker waits until somebody has taken them
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(mode=True)
    layers = [torch.nn.Linear(1024, 1024), torch.nn.ReLU()] * 4
    network = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    batch = torch.randn(512, 1024, device="cuda")
    for step in range(120):
        if step == 20:
            torch.cuda.synchronize()
            start_s = time.perf_counter()
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    step_ms = (time.perf_counter() - start_s) * 10
    total = torch.cat([parameter.detach().flatten() for parameter in network.parameters()]).view(torch.int32)
    say(bits=int(total.to(torch.int64).sum()), step_ms=step_ms)


_ROLES = (
    *(map_regions, round_trip, copy, spin),
    *(attach, overflow, attention, precision, planned, recorded, train),
)
ROLES: dict[str, Callable[[dict[str, Any]], None]] = {role.__name__: role for role in _ROLES}

if __name__ == "__main__":
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
