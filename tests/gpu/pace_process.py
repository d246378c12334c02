"""More roles of a trainer of the GPU suite: `python -m tests.gpu.pace_process ROLE SETTINGS`."""

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from indb_tensile.device.cuda import CudaRegions
from tests.gpu.trainer_process import open_device, say


def train_for(told: dict[str, Any]) -> None:
    """Steps of a small network for so many seconds from our allocator, each waited for: how many, and their cost."""
    import torch

    from indb_tensile.executor.run.open_device import serve_torch

    device, _ = open_device(told)
    serve_torch(device)
    layers = [torch.nn.Linear(told["width"], told["width"]), torch.nn.ReLU()] * told["depth"]
    network = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    batch = torch.randn(told["rows"], told["width"], device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
        torch.cuda.current_stream().synchronize()

    for _ in range(10):
        step()
    say(ready=1)
    sys.stdin.readline()
    start_s, start_cpu_s, steps = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start_s < told["seconds"]:
        step()
        steps += 1
    taken_s = time.perf_counter() - start_s
    say(steps_per_s=steps / taken_s, of_a_processor=(time.process_time() - start_cpu_s) / taken_s)


def become_graphs(told: dict[str, Any]) -> None:
    """One network of tests/gpu/kinds.py: how many iterations ran as one graph, and what the executor said of it."""
    from tests.gpu import kinds

    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    logger = logging.getLogger("executor")
    logger.setLevel(logging.INFO)
    logger.addHandler(Ear())
    regions = CudaRegions(0, told["socket"])
    try:
        found = kinds.recorded((told["ledger"], told["slot"], told["epoch"]), regions, told["network"])
    except Exception as error:  # noqa: BLE001 - what a network meets is what is asked
        found = {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    say(**found, said=heard)


ROLES: dict[str, Callable[[dict[str, Any]], None]] = {role.__name__: role for role in (train_for, become_graphs)}

if __name__ == "__main__":
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
