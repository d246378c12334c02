"""A trainer of the GPU suite that reads batches from a table: `python -m tests.gpu.feed_process fed SETTINGS`.

With the setting `place` as `cpu` torch computes on the host, for the driver's double, whose device memory is host
memory.
"""

import json
import sys
import time
from contextlib import closing
from typing import Any

import torch
from torch import nn

from indb_tensile.device.bandwidth import SIZES_BYTES, measure_copies
from indb_tensile.device.cuda import CudaRegions
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.run.open_device import OpenDevice, capturing_on, open_device
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.scheduler.link import link_of
from indb_tensile.scheduler.memory.peak import LIVENESS
from tests.gpu.trainer_process import write_figures

WAYS = ("none", "one thread", "two threads", "lent")
CLASSES, DEPTH, BATCHES, EPOCHS = 10, 4, 12, 3
RATE = 1e-3
_SETTINGS = OptimizerSettings(kind="adam")

Part = tuple[torch.Tensor, torch.Tensor]


def fed(settings: dict[str, Any]) -> None:
    """Train from a shuffled table in four ways, and report the pace and the bits of each.

    `none`: the batch lies in page-locked memory already, whatever its values. `one thread`: the training thread
    gathers the batch and copies it to page-locked memory. `two threads`: a second thread gathers it there while the
    device computes. `lent`: the same, operator by operator, and each batch is uploaded ahead of its iteration, to
    memory that the job is lent beside its plan.
    """
    claim = (settings["ledger"], settings["slot"], settings["epoch"])
    regions, place = CudaRegions(0, settings["socket"]), torch.device(settings["place"])
    with open_device("cuda:0", claim, settings["host_pool_bytes"], regions, place) as opened:
        table = _table(settings)
        step = _captured(settings, opened, table)
        in_bytes_per_s = link_of(measure_copies(opened.device, SIZES_BYTES[0])).in_bytes_per_s
        batch_bytes = sum(part[: settings["rows"]].nbytes for part in table)
        rows = [_trained(settings, opened, step, table, way) for way in WAYS]
    write_figures(batch_bytes=batch_bytes, upload_ms=batch_bytes / in_bytes_per_s * 1000, ways=rows)


def _table(settings: dict[str, Any]) -> Part:
    torch.manual_seed(5)
    count = BATCHES * settings["rows"]
    return torch.randn(count, settings["width"]), torch.randint(CLASSES, (count,))


def _module(settings: dict[str, Any]) -> nn.Module:
    torch.manual_seed(3)
    hidden = settings["hidden"]
    body = [nn.Linear(hidden, hidden), nn.ReLU()] * DEPTH
    return nn.Sequential(nn.Linear(settings["width"], hidden), nn.ReLU(), *body, nn.Linear(hidden, CLASSES))


def _captured(settings: dict[str, Any], opened: OpenDevice, table: Part) -> CapturedStep:
    x, y = (part[: settings["rows"]] for part in table)
    with capturing_on(opened.torch_device):
        captured = (capture_training(_module(settings), nn.CrossEntropyLoss(), x, y, _SETTINGS),)
    (step,) = calibrate(captured, unknown_signatures(captured, {}), {}, 1 << 40).steps
    return step


def _trained(
    settings: dict[str, Any], opened: OpenDevice, step: CapturedStep, table: Part, way: str
) -> dict[str, Any]:
    state = State.create(_module(settings), _SETTINGS, opened.torch_device)
    placer = Placer(opened.serving, region_bytes=settings["region_bytes"])
    graphs = None if way == "lent" else opened.graphs
    runner = Runner(opened.device, state, (step,), placer=placer, graphs=graphs, operator_clock=opened.clock)
    runner.adopt((LIVENESS,), 1)
    lent_bytes = runner.lend_for_batch(1 << 30) if way == "lent" else 0
    with BatchPrefetcher(runner) as feed:
        if way == "lent":
            runner.upload_ahead(feed.next_batch)
        _train_epoch(runner, feed, table, settings["rows"], way, 0)  # loads kernels and records graphs
        start_s = time.perf_counter()
        waited_s = sum(_train_epoch(runner, feed, table, settings["rows"], way, e) for e in range(1, EPOCHS))
        taken_s = time.perf_counter() - start_s
    ahead = runner.uploaded_ahead
    runner.close()
    return {
        "way": way,
        "step_ms": taken_s * 1000 / BATCHES / (EPOCHS - 1),
        "waited_share": waited_s / taken_s,
        "lent_bytes": lent_bytes,
        "ahead": ahead,
        "bits": _digest(list(state.export().values())),
    }


def _train_epoch(runner: Runner, feed: BatchPrefetcher, table: Part, rows: int, way: str, epoch: int) -> float:
    """Train on all rows in an order of their own. Return the seconds for which the training waited for batches."""
    order = torch.randperm(len(table[0]), generator=torch.Generator().manual_seed(epoch))
    orders = [order[first : first + rows] for first in range(0, len(order), rows)]
    if way in ("two threads", "lent"):
        before_s = feed.waiting.waited_s
        with closing(feed.batches(table, orders)) as gathered:
            for _, (x, y) in gathered:
                runner.train(x, y, RATE)
        return feed.waiting.waited_s - before_s
    waited_s, lying = 0.0, [room.zero_() for room in runner.rooms(table, rows)[0] if room is not None]
    for numbers in orders:
        start_s = time.perf_counter()
        x, y = lying if way == "none" else (part[numbers] for part in table)
        waited_s += time.perf_counter() - start_s
        runner.train(x, y, RATE)
    return waited_s


def _digest(values: list[torch.Tensor]) -> int:
    """Return a digest that is equal for equal bits of any type."""
    parts = [value.contiguous().flatten().view(torch.uint8).to(torch.int64) for value in values if value.numel()]
    return sum(int((part * torch.arange(1, part.numel() + 1)).sum()) for part in parts)


if __name__ == "__main__":
    ROLES = {"fed": fed}
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
