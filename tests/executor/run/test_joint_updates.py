"""Where memory is the host's, one call makes updates between which nothing happens, with the same bits."""

from dataclasses import replace

import pytest

from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import CapturedStep, with_host_uploads
from indb_tensile.executor.run.program import compile_program
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.graph import Role
from indb_tensile.scheduler.memory.peak import LIVENESS
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager

_SETTINGS = {
    "adam": OptimizerSettings(),
    "adamw": OptimizerSettings(kind="adamw", weight_decay=0.1),
    "adagrad": OptimizerSettings(kind="adagrad"),
    "sgd": OptimizerSettings(kind="sgd", momentum=0.9),
}


def _calls(step: CapturedStep, *, on_host: bool = True) -> int:
    """Return how many operators the program calls."""
    source = compile_program(step, LIVENESS, on_host=on_host).source
    return sum(f"f{position}(" in source for position in range(len(step.steps)))


def _parameters(step: CapturedStep) -> int:
    return sum(tensor.role is Role.PARAMETER for tensor in step.persistent)


@pytest.mark.by_day("adamw")
@pytest.mark.parametrize("kind", _SETTINGS)
def test_one_call_makes_all_updates_with_the_bits_of_eager(kind: str) -> None:
    job, steps = prepared("mlp", settings=_SETTINGS[kind])
    steps = tuple(map(with_host_uploads, steps))
    assert _calls(steps[0]) == len(steps[0].steps) - _parameters(steps[0]) + 1
    state, eager = job.state(), Eager(job)
    runner = Runner(MemoryDevice(is_host=True), state, steps)
    runner.adopt((LIVENESS,) * len(steps), 1)
    assert bits(drive(runner, job)) == bits(drive(eager, job))
    assert state_bits(state.export()) == state_bits(eager.export())
    runner.close()


def test_updates_with_scratch_memory_and_those_of_devices_with_a_link_have_calls_of_their_own() -> None:
    step = with_host_uploads(prepared("mlp", settings=_SETTINGS["adamw"])[1][0])
    scratch = replace(step.graph, operators=tuple(replace(o, workspace_bytes=64) for o in step.graph.operators))
    assert _calls(replace(step, graph=scratch)) == len(step.steps)
    assert _calls(step, on_host=False) == len(step.steps)


def test_updates_with_other_settings_have_a_call_of_their_own() -> None:
    settings = replace(_SETTINGS["adamw"], decays_all=False)  # a weight decays and the bias that follows does not
    step = with_host_uploads(prepared("mlp", settings=settings)[1][0])
    assert _calls(step) == len(step.steps)
