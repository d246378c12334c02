"""A process that answers test_strict.py: it follows plans in strict mode, then reads a tensor that is away."""

import ctypes
import sys

import torch

from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.device.device import REGION_BYTES, EmulatedDevice
from indb_tensile.device.ledger import Ledger
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.runner import Runner
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive
from tests.executor.eager import Eager
from tests.executor.plans import random_plan, random_rewritten_plan


def write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


torch.set_num_threads(1)
job, steps = prepared("cnn")
size_bytes = 64 * REGION_BYTES
with Ledger.create(size_bytes, REGION_BYTES, 10**12, 10**12) as ledger:
    slot, epoch = ledger.claim_slot(1)
    ledger.grant(slot, size_bytes)
    device = EmulatedDevice(ledger.fd, slot, epoch, size_bytes, strict=True)
    serving = ArenaServing.of(device.hook_address())
    assert serving is not None
    serving.be_strict("job 7")
    placer = Placer(serving)
    runner = Runner(device, job.state(), steps, placer=placer)
    eager = Eager(job)
    for generation, plan_of in enumerate((random_plan, random_rewritten_plan)):
        runner.adopt(tuple(plan_of(step.graph, 1) for step in steps), generation)
        same = bits(drive(runner, job, 1)) == bits(drive(eager, job, 1))
        write_line(f"as in eager: {same} {serving.served().planned > 0}")
    assert placer._current is not None
    resident = set(placer._current.offsets.home.values())
    away = (row for rows in placer._current.offsets.positions for row in rows if row[1] not in resident)
    longest_bytes, offset = max(away)
    write_line(f"reads {longest_bytes} bytes")
    ctypes.string_at(serving.block + offset, longest_bytes)
    write_line("and lives")
