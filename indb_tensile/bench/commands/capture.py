"""Measure the processor time of capturing a training step, by its number of operators, and torch's share of it.

    python -m indb_tensile.bench capture [--cells 2 8 24] [--rounds 3] [--json]

The networks consist of NASNet-A cells (bench/harness/exactness/convolutional.py) of some 200 operators each. 24 cells
have 5,000 operators. In each round a network is first traced alone and then captured. The figures are medians of the
rounds, in seconds of processor time. The networks are on the meta device, so no tensor memory is allocated.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from indb_tensile.bench.harness.exactness.convolutional import Cells
from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.executor.capture.step_trace import trace_alone


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", type=whole(), nargs="+", default=[2, 8, 24], help="cells of each network")
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object per network")
    options = parser.parse_args(arguments)
    measure(1, 1)  # torch's imports and caches at its first tracing are not part of a capture
    for cells in options.cells:
        row = measure(cells, options.rounds)
        print(json.dumps(row) if options.json else _line(row), flush=True)


def measure(cells: int, rounds: int) -> dict[str, Any]:
    """Return the processor time of capturing a network of this number of cells, and of tracing it alone."""
    with torch.device("meta"):
        module, x, y = Cells(cells), torch.empty(4, 3, 16, 16), torch.empty(4, dtype=torch.int64)
    traced, captured, operators = [], [], 0

    def capture() -> None:
        nonlocal operators
        step = capture_training(module, functional.cross_entropy, x, y, OptimizerSettings())
        operators = len(step.graph.operators)

    for _ in range(rounds):
        traced.append(_seconds(lambda: trace_alone(module, functional.cross_entropy, (x, y))))
        captured.append(_seconds(capture))
    return {
        "cells": cells,
        "operators": operators,
        "captured_s": round(median(captured), 2),
        "traced_s": round(median(traced), 2),
        "ratio": round(median(c / t for c, t in zip(captured, traced, strict=True)), 2),
    }


def _seconds(work: Callable[[], object]) -> float:
    """Return the processor time of this work without garbage collection, which a capture turns off too."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        work()
        return time.process_time() - start
    finally:
        gc.enable()


def _line(row: dict[str, Any]) -> str:
    figures = f"{row['captured_s']:7.2f} s, {row['ratio']:.2f} of torch's tracing alone ({row['traced_s']:.2f} s)"
    return f"{row['cells']:4} cells {row['operators']:7,} operators {figures}"


if __name__ == "__main__":
    run(main)
