"""A process that answers test_placer.py: it trains the models that its arguments name, under plans, with tensors at
planned addresses.
"""

import sys
from dataclasses import replace
from typing import Any

import torch

from indb_tensile import _native
from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.program_offsets import plan_offsets
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.timeline import unroll
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA
from indb_tensile.scheduler.memory.tensor_placement import place_plan
from indb_tensile.scheduler.plan import Plan
from tests.device.memory_device import MemoryDevice
from tests.device.preloaded import answer, private
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import RATES, Eager
from tests.executor.models import Job
from tests.executor.plans import random_plan, random_rewritten_plan

_REGION_BYTES = 1 << 14  # small, so that rounding up to regions adds little

torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)


_serving = private()


def _plans(steps: tuple[CapturedStep, ...]) -> dict[str, tuple[Plan, ...]]:
    """Return plans of each kind. A runner adopts them one after another."""
    chosen: dict[str, tuple[Plan, ...]] = {"liveness": (LIVENESS,) * len(steps)}
    chosen["vanilla"] = (VANILLA,) * len(steps)
    for seed in (1, 2):
        chosen[f"swaps {seed}"] = tuple(random_plan(step.graph, seed) for step in steps)
        chosen[f"orders {seed}"] = tuple(random_rewritten_plan(step.graph, seed) for step in steps)
    return chosen


def trained() -> dict[str, dict[str, Any]]:
    """Return for each model and kind of plan whether its bits are eager's, and which allocations are unplanned."""
    return {f"{kind} {name}": result for kind in sys.argv[1:] for name, result in _trained(kind)}


def _trained(kind: str) -> list[tuple[str, dict[str, Any]]]:
    job, steps = prepared(kind)
    eager, state = Eager(job), job.state()
    serving = _serving
    placer = Placer(serving)
    device = MemoryDevice()
    runner = Runner(device, state, steps, placer=placer)
    results = []
    for generation, (name, plans) in enumerate(_plans(steps).items()):
        runner.adopt(plans, generation)
        before = serving.served()
        serving.reset_high_water()
        same = bits(drive(runner, job, 1)) == bits(drive(eager, job, 1))
        same = same and state_bits(state.export()) == state_bits(eager.export())
        after = serving.served()
        torch.manual_seed(5)
        misplaced = _misplaced(runner, placer, serving, job)
        torch.manual_seed(5)
        for _ in range(2):
            eager.train(*job.batches[0], RATES[0])
        answers = {
            "bits": same,
            "planned": after.planned > before.planned,
            "unplanned": after.unplanned - before.unplanned,
            "elsewhere than planned": misplaced,
            "more than accounted for": max(0, after.high_water_bytes - device.high_water_bytes),
        }
        results.append((name, answers))
    runner.close()
    results.append(("closed", {"used_bytes": serving.served().used_bytes}))
    return results


def _misplaced(runner: Runner, placer: Placer, serving: ArenaServing, job: Job) -> list[str]:
    """Return the allocations of one iteration that are not at their planned addresses."""
    runner.train(*job.batches[0], RATES[0])  # after it, the tensors are in this program's initial places
    serving.record()
    runner.train(*job.batches[0], RATES[0])
    recorded = serving.recorded()
    assert placer._current is not None
    positions = placer._current.offsets.positions[: len(runner._current.wiring.turns) + 1]  # type: ignore[union-attr]
    expected = [(p, size, serving.block + offset) for p, rows in enumerate(positions) for size, offset in rows]
    actual = [(made.position, made.size_bytes, made.address) for made in recorded]
    return [f"{have} for {plan}" for plan, have in zip(expected, actual, strict=False) if plan != have] + (
        [f"{len(actual)} allocations for {len(expected)}"] if len(actual) != len(expected) else []
    )


def crowded() -> dict[str, Any]:
    """Train in an arena without room for the block."""
    job, steps = prepared("mlp")
    serving = ArenaServing.of(_native.private_arena(_block_bytes(steps) // 2))
    assert serving is not None
    return _without_plan(job, steps, serving)


def granted() -> dict[str, Any]:
    """Follow a plan in exactly the regions that a controller grants for it, and in one region fewer."""
    job, steps = prepared("cnn")
    plans = tuple(random_plan(step.graph, 1) for step in steps)
    placed = (
        place_plan(step.graph, plan, region_bytes=_REGION_BYTES) for step, plan in zip(steps, plans, strict=True)
    )
    grant_bytes = -(-max(placement.size_bytes for placement in placed) // _REGION_BYTES) * _REGION_BYTES
    device = ArenaServing.of(_native.private_arena(grant_bytes))
    assert device is not None
    answers = {}
    for name, bytes_ in (("enough", grant_bytes), ("less", grant_bytes - _REGION_BYTES)):
        before = device.served()
        runner = Runner(MemoryDevice(), job.state(), steps, placer=Placer(device, region_bytes=_REGION_BYTES))
        runner.adopt(plans, 1, bytes_)
        drive(runner, job, 1)
        runner.close()
        after = device.served()
        answers[name] = {
            "planned": after.planned > before.planned,
            "refused or unplanned": after.unplanned + after.refused - before.unplanned - before.refused,
        }
    return answers


def without_scripts() -> dict[str, Any]:
    """Train as if no operator's allocations repeated."""
    job, steps = prepared("mlp")
    return _without_plan(job, tuple(replace(step, scripts={}) for step in steps), _serving)


def _block_bytes(steps: tuple[CapturedStep, ...]) -> int:
    placed = (plan_offsets(step, LIVENESS, unroll(step.graph, LIVENESS), _REGION_BYTES) for step in steps)
    return max(offsets.size_bytes for offsets in placed)


def _without_plan(job: Job, steps: tuple[CapturedStep, ...], serving: ArenaServing) -> dict[str, Any]:
    before = serving.served()
    runner = Runner(MemoryDevice(), job.state(), steps, placer=Placer(serving))
    runner.adopt((LIVENESS,) * len(steps), 1)
    same = bits(drive(runner, job, 1)) == bits(drive(Eager(job), job, 1))
    unplaced_bytes = runner.unplaced_bytes
    runner.close()
    after = serving.served()
    return {
        "bits": same,
        "unplaced": unplaced_bytes > 0,
        "unplanned": after.unplanned - before.unplanned,
        "planned": after.planned - before.planned,
        "used_bytes": after.used_bytes,
    }


if __name__ == "__main__":
    answer(sys.modules["__main__"])
