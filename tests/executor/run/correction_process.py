"""A process that answers test_workspace_correction.py: an operator's scratch grows while its network trains."""

import sys
from typing import Any

import torch

from indb_tensile import _native
from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.run.operator_excess import OperatorExcess
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.program_offsets import plan_offsets
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.timeline import unroll
from indb_tensile.executor.run.workspace_correction import correct_workspaces, outgrown_operators
from indb_tensile.scheduler.memory.peak import LIVENESS
from tests.device.memory_device import MemoryDevice
from tests.device.preloaded import answer, private
from tests.executor.driving import bits, drive, state_bits
from tests.executor.growing import Need, Scratch, growing_job

_REGION_BYTES = 1 << 14
_PLANS = (LIVENESS,) * 3

torch.set_num_threads(1)
_job = growing_job()
_serving = private()


def _calibrated() -> tuple[CapturedStep, ...]:
    Need.scratch = Scratch()
    steps = _job.steps
    return calibrate(steps, unknown_signatures(steps, {}), {}, 1 << 30).steps


_steps = _calibrated()


class _Training:
    """Trains beside an undisturbed training of the same job."""

    def __init__(self, serving: ArenaServing) -> None:
        Need.scratch = Scratch()
        self.serving = serving
        self.state = _job.state()
        self.runner = Runner(MemoryDevice(), self.state, _steps, placer=Placer(serving, region_bytes=_REGION_BYTES))
        self.runner.adopt(_PLANS, 1)
        self.undisturbed_state = _job.state()
        self.undisturbed = Runner(MemoryDevice(), self.undisturbed_state, _steps)
        self.undisturbed.adopt(_PLANS, 1)
        self.same = True

    def epoch(self) -> dict[str, int]:
        """Train an epoch, and return the allocations that had no planned place."""
        before = self.serving.served()
        results = bits(drive(self.runner, _job, 1))
        after = self.serving.served()
        need, Need.scratch = Need.scratch, Scratch()
        self.same = self.same and results == bits(drive(self.undisturbed, _job, 1))
        Need.scratch = need
        return {
            "unplanned": after.unplanned - before.unplanned,
            "refused": after.refused - before.refused,
            "planned": int(after.planned > before.planned),
        }

    def end(self) -> dict[str, Any]:
        same = self.same and state_bits(self.state.export()) == state_bits(self.undisturbed_state.export())
        self.runner.close()
        self.undisturbed.close()
        return {"bits": same}


def _corrected(
    training: _Training, steps: tuple[CapturedStep, ...], seen: frozenset[str]
) -> tuple[tuple[CapturedStep, ...], frozenset[str], list[Any]]:
    correction = correct_workspaces(steps, training.runner.take_excesses(), seen)
    steps = tuple(step.with_measured(correction.bytes_by_signature) for step in correction.steps)
    rows = [(w.name, w.planned_bytes, w.measured_bytes) for w in correction.outgrown]
    return steps, correction.unexplained, sorted(set(rows))


def grows() -> dict[str, Any]:
    """Enlarge the scratch of every run."""
    training = _Training(_serving)
    answers: dict[str, Any] = {"before": training.epoch(), "excess before": _told(training.runner.take_excesses())}
    Need.scratch = Scratch(at_once=3, in_turn=2)
    answers["grown"] = training.epoch()
    steps, unexplained, answers["corrected"] = _corrected(training, _steps, frozenset())
    answers["unexplained"] = len(unexplained)
    training.runner.adopt(_PLANS, 2, steps=steps)
    answers["after"] = training.epoch()
    answers["excess after"] = _told(training.runner.take_excesses())
    return answers | training.end()


def grows_without_room() -> dict[str, Any]:
    """Enlarge the scratch in an arena that has room for the block alone."""
    placed = (plan_offsets(step, LIVENESS, unroll(step.graph, LIVENESS), _REGION_BYTES) for step in _steps)
    block_bytes = max(offsets.size_bytes for offsets in placed)
    serving = ArenaServing.of(_native.private_arena(-(-block_bytes // _REGION_BYTES) * _REGION_BYTES))
    assert serving is not None
    training = _Training(serving)
    Need.scratch = Scratch(at_once=3, in_turn=2)
    answers: dict[str, Any] = {"grown": training.epoch()}
    excesses = training.runner.take_excesses()
    answers["excess"] = _told(excesses)
    answers["corrected"] = sorted({w.measured_bytes for w in correct_workspaces(_steps, excesses).outgrown})
    return answers | training.end()


def depends_on_data() -> dict[str, Any]:
    """Enlarge the scratch only for the batch with the largest numbers, which made-up inputs do not have."""
    training = _Training(_serving)
    Need.scratch = Scratch(at_once=3, above=8.0)
    answers: dict[str, Any] = {"first": training.epoch()["unplanned"]}
    steps, unexplained, answers["corrected first"] = _corrected(training, _steps, frozenset())
    answers["unexplained"] = len(unexplained)
    answers["second"] = training.epoch()["unplanned"]
    steps, _, answers["corrected second"] = _corrected(training, steps, unexplained)
    training.runner.adopt(_PLANS, 2, steps=steps)
    answers["after"] = training.epoch()
    return answers | training.end()


def changes_sizes() -> dict[str, Any]:
    """Use other sizes than planned, within the planned workspace."""
    large = tuple(
        step.with_measured({o.signature: 1 << 19 for o in step.graph.operators if "growing" in o.name})
        for step in _steps
    )
    training = _Training(_serving)
    training.runner.adopt(_PLANS, 2, steps=large)
    Need.scratch = Scratch(at_once=4, in_turn=3)
    answers: dict[str, Any] = {
        "in the workspace's rest": training.epoch(),
        "excess": len(training.runner.take_excesses()),
    }
    return answers | training.end()


def changes_every_size() -> dict[str, Any]:
    """Use one piece of another size in a workspace of two pieces, all of which is listed."""
    Need.scratch = Scratch(at_once=2)
    steps = calibrate(_job.steps, unknown_signatures(_job.steps, {}), {}, 1 << 30).steps
    training = _Training(_serving)
    training.runner.adopt(_PLANS, 2, steps=steps)
    Need.scratch = Scratch(first=5)
    answers: dict[str, Any] = {"first": training.epoch()["unplanned"]}
    moved, unexplained, answers["corrected"] = _corrected(training, steps, frozenset())
    answers["unexplained"] = len(unexplained)
    training.runner.relocate(moved)
    answers["after"] = training.epoch()
    return answers | training.end()


def outgrown() -> dict[str, Any]:
    """Compare recorded allocations with a smaller workspace, which an earlier process has measured."""
    smaller = tuple(
        step.with_measured({o.signature: 0 for o in step.graph.operators if "growing" in o.name}) for step in _steps
    )
    return {
        "none": len(outgrown_operators(_steps)),
        "found": sorted({(w.name, w.planned_bytes, w.measured_bytes) for w in outgrown_operators(smaller)}),
    }


def _told(excesses: tuple[OperatorExcess, ...]) -> list[Any]:
    return sorted({(excess.name, excess.planned_bytes, excess.excess_bytes) for excess in excesses})


if __name__ == "__main__":
    answer(sys.modules["__main__"])
