"""Further roles of a trainer of the GPU suite: `python -m tests.gpu.pace_process ROLE SETTINGS`."""

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from indb_tensile.device.cuda import CudaRegions
from tests.gpu.place import PLACE, allocate_from, synchronise
from tests.gpu.trainer_process import open_device, write_figures


def train_for(settings: dict[str, Any]) -> None:
    """Train a small network for some seconds from our allocator, and wait for each step.

    Report the pace and its cost.
    """
    import torch

    device, _ = open_device(settings)
    allocate_from(device)
    layers = [torch.nn.Linear(settings["width"], settings["width"]), torch.nn.ReLU()] * settings["depth"]
    network = torch.nn.Sequential(*layers).to(PLACE)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    batch = torch.randn(settings["rows"], settings["width"], device=PLACE)

    def step() -> None:
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
        synchronise()

    for _ in range(10):
        step()
    write_figures(ready=1)
    sys.stdin.readline()
    start_s, start_cpu_s, steps = time.perf_counter(), time.process_time(), 0
    while steps == 0 or time.perf_counter() - start_s < settings["seconds"]:
        step()
        steps += 1
    taken_s = time.perf_counter() - start_s
    write_figures(steps_per_s=steps / taken_s, of_a_processor=(time.process_time() - start_cpu_s) / taken_s)


def become_graphs(settings: dict[str, Any]) -> None:
    """Train a network of tests/gpu/kinds.py. Report how many iterations ran as one graph, and the executor's log."""
    from tests.gpu import kinds

    log_lines: list[str] = []

    class LogLines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log_lines.append(record.getMessage())

    logger = logging.getLogger("executor")
    logger.setLevel(logging.INFO)
    logger.addHandler(LogLines())
    regions = CudaRegions(0, settings["socket"])
    try:
        claim = (settings["ledger"], settings["slot"], settings["epoch"])
        figures = kinds.recorded(claim, regions, settings["network"])
    except Exception as error:  # noqa: BLE001 - any error of a network is part of the answer
        figures = {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    write_figures(**figures, log_lines=log_lines)


ROLES: dict[str, Callable[[dict[str, Any]], None]] = {role.__name__: role for role in (train_for, become_graphs)}

if __name__ == "__main__":
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
