"""A process that answers test_next_batch.py: it trains in the memory of an emulated device, with batches ahead."""

import os
import sys
from contextlib import closing
from typing import Any

import torch

from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.device.device import REGION_BYTES, EmulatedDevice
from indb_tensile.device.ledger import Ledger
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.runner import Runner
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.scheduler.memory.peak import LIVENESS, peak
from indb_tensile.scheduler.plan import Plan
from tests.device.memory_device import MemoryDevice
from tests.device.preloaded import answer
from tests.executor.conftest import prepared
from tests.executor.driving import bits, state_bits
from tests.executor.models import Job
from tests.executor.plans import random_plan
from tests.executor.run.test_next_batch import table

_GRANT_BYTES = 64 * REGION_BYTES

torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)


def _train(job: Job, runner: Runner, *, ahead: bool) -> list[bytes]:
    torch.manual_seed(3)
    losses, parts, size = [], table(job), len(job.batches[0][0])
    orders = [torch.arange(first, first + size) for first in range(0, len(parts[0]), size)]
    with BatchPrefetcher(runner, few_bytes=0) as feed:
        if ahead:
            runner.upload_ahead(lambda *, wait: feed.next_batch(wait=True))
        for _ in range(4):
            with closing(feed.batches(parts, orders)) as fed:
                losses += [runner.train(x, y, 0.05) for _, (x, y) in fed]
    return bits(losses)


def _compared(job: Job, steps: Any, plans: tuple[Plan, ...], *, lends: bool = False) -> dict[str, Any]:
    plain = Runner(MemoryDevice(), job.state(), steps)
    plain.adopt(plans, 1)
    expected = _train(job, plain, ahead=False), state_bits(plain._state.export())
    with Ledger.create(_GRANT_BYTES, REGION_BYTES, 1 << 28, 1 << 28) as ledger:
        slot, epoch = ledger.claim_slot(os.getpid())
        ledger.grant(slot, _GRANT_BYTES)
        with EmulatedDevice(ledger.fd, slot, epoch, 1 << 28) as device:
            serving = ArenaServing.of(device.hook_address())
            assert serving is not None
            runner = Runner(device, job.state(), steps, placer=Placer(serving))
            runner.adopt(plans, 1)
            lent_bytes = runner.lend_for_batch(REGION_BYTES) if lends else 0
            device.reset_high_water()
            seen = _train(job, runner, ahead=True), state_bits(runner._state.export())
            figures = {
                "bits": seen == expected,
                "taken": runner.uploaded_ahead > 0,
                "high water is the peak": device.usage().high_water_bytes
                == peak(steps[0].graph, plans[0]) + lent_bytes,
                "unaccounted_bytes": device.arena_usage().unaccounted_bytes,
                "unplanned": serving.served().unplanned,
                "lent": lent_bytes,
            }
            runner.close()
    return figures


def liveness() -> dict[str, Any]:
    """Train without swaps."""
    return _compared(*_prepared, (LIVENESS,) * 3)


def lent() -> dict[str, Any]:
    """Train without swaps, with the next batch in memory beside the plan."""
    return _compared(*_prepared, (LIVENESS,) * 3, lends=True)


def swaps() -> dict[str, Any]:
    """Train under a plan that swaps."""
    return _compared(*_prepared, tuple(random_plan(step.graph, 1) for step in _prepared[1]))


if __name__ == "__main__":
    _prepared = prepared("cnn")
    answer(sys.modules[__name__])
