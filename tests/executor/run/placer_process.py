"""What test_placer.py looks at: the suite's models trained under plans, their tensors at planned addresses."""

import sys
from dataclasses import replace
from typing import Any

import torch

from indb_tensile import _native
from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.executor.capture.capture import CapturedStep
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.program_offsets import plan_offsets
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.timeline import unroll
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA
from indb_tensile.scheduler.memory.placement import place_plan
from indb_tensile.scheduler.plan import Plan
from tests.device.memory_device import MemoryDevice
from tests.device.preloaded import answer, private
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import RATES, Eager
from tests.executor.models import Job
from tests.executor.plans import random_plan, random_rewritten_plan

_REGION_BYTES = 1 << 14  # small, so that rounding gives little away
KINDS = ("mlp", "cnn", "transformer", "lstm")

torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)


_serving = private()


def _plans(steps: tuple[CapturedStep, ...]) -> dict[str, tuple[Plan, ...]]:
    """One of each sort, in turn: what a runner may be told to go on with."""
    chosen: dict[str, tuple[Plan, ...]] = {"liveness": (LIVENESS,) * len(steps)}
    chosen["vanilla"] = (VANILLA,) * len(steps)
    for seed in (1, 2):
        chosen[f"swaps {seed}"] = tuple(random_plan(step.graph, seed) for step in steps)
        chosen[f"orders {seed}"] = tuple(random_rewritten_plan(step.graph, seed) for step in steps)
    return chosen


def trained() -> dict[str, dict[str, Any]]:
    """By model and sort of plan: whether bits are eager's, and what is unplanned once the plan is taken up."""
    return {f"{kind} {name}": found for kind in KINDS for name, found in _trained(kind)}


def _trained(kind: str) -> list[tuple[str, dict[str, Any]]]:
    job, steps = prepared(kind)
    eager, state = Eager(job), job.state()
    serving = _serving
    placer = Placer(serving)
    device = MemoryDevice()
    runner = Runner(device, state, steps, placer=placer)
    found = []
    for generation, (name, plans) in enumerate(_plans(steps).items()):
        runner.adopt(plans, generation)
        before = serving.served()
        serving.reset_high_water()
        same = bits(drive(runner, job, 1)) == bits(drive(eager, job, 1))
        same = same and state_bits(state.export()) == state_bits(eager.export())
        after = serving.served()
        torch.manual_seed(5)
        odd = _followed(runner, placer, serving, job)
        torch.manual_seed(5)
        for _ in range(2):
            eager.train(*job.batches[0], RATES[0])
        answers = {
            "bits": same,
            "planned": after.planned > before.planned,
            "unplanned": after.unplanned - before.unplanned,
            "elsewhere than planned": odd,
            "more than accounted for": max(0, after.high_water_bytes - device.high_water_bytes),
        }
        found.append((name, answers))
    runner.close()
    found.append(("closed", {"used_bytes": serving.served().used_bytes}))
    return found


def _followed(runner: Runner, placer: Placer, serving: ArenaServing, job: Job) -> list[str]:
    """The allocations of one iteration that are not where the plan has them."""
    runner.train(*job.batches[0], RATES[0])  # to go home to this program
    serving.record()
    runner.train(*job.batches[0], RATES[0])
    recorded = serving.recorded()
    assert placer._current is not None
    positions = placer._current.offsets.positions[: len(runner._current.wiring.turns) + 1]  # type: ignore[union-attr]
    expected = [(p, size, serving.block + offset) for p, rows in enumerate(positions) for size, offset in rows]
    real = [(one.position, one.size_bytes, one.address) for one in recorded]
    return [f"{theirs} for {mine}" for mine, theirs in zip(expected, real, strict=False) if mine != theirs] + (
        [f"{len(real)} allocations for {len(expected)}"] if len(real) != len(expected) else []
    )


def crowded() -> dict[str, Any]:
    """An arena that has no room for the block."""
    job, steps = prepared("mlp")
    serving = ArenaServing.of(_native.private_arena(_most(steps) // 2))
    assert serving is not None
    return _without_plan(job, steps, serving)


def granted() -> dict[str, Any]:
    """A plan in just the regions that a controller grants for it, and in one region less."""
    job, steps = prepared("cnn")
    plans = tuple(random_plan(step.graph, 1) for step in steps)
    placed = (
        place_plan(step.graph, plan, region_bytes=_REGION_BYTES) for step, plan in zip(steps, plans, strict=True)
    )
    grant_bytes = -(-max(one.size_bytes for one in placed) // _REGION_BYTES) * _REGION_BYTES
    device = ArenaServing.of(_native.private_arena(grant_bytes))
    assert device is not None
    found = {}
    for name, bytes_ in (("enough", grant_bytes), ("less", grant_bytes - _REGION_BYTES)):
        before = device.served()
        runner = Runner(MemoryDevice(), job.state(), steps, placer=Placer(device, region_bytes=_REGION_BYTES))
        runner.adopt(plans, 1, bytes_)
        drive(runner, job, 1)
        runner.close()
        after = device.served()
        found[name] = {
            "planned": after.planned > before.planned,
            "refused or unplanned": after.unplanned + after.refused - before.unplanned - before.refused,
        }
    return found


def without_scripts() -> dict[str, Any]:
    """As where an operator's allocations did not repeat."""
    job, steps = prepared("mlp")
    return _without_plan(job, tuple(replace(step, scripts={}) for step in steps), _serving)


def _most(steps: tuple[CapturedStep, ...]) -> int:
    placed = (plan_offsets(step, LIVENESS, unroll(step.graph, LIVENESS), _REGION_BYTES) for step in steps)
    return max(one.size_bytes for one in placed)


def _without_plan(job: Job, steps: tuple[CapturedStep, ...], serving: ArenaServing) -> dict[str, Any]:
    before = serving.served()
    runner = Runner(MemoryDevice(), job.state(), steps, placer=Placer(serving))
    runner.adopt((LIVENESS,) * len(steps), 1)
    same = bits(drive(runner, job, 1)) == bits(drive(Eager(job), job, 1))
    runner.close()
    after = serving.served()
    return {
        "bits": same,
        "unplanned": after.unplanned - before.unplanned,
        "planned": after.planned - before.planned,
        "used_bytes": after.used_bytes,
    }


if __name__ == "__main__":
    answer(sys.modules["__main__"])
