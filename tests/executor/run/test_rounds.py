"""Jobs that train in a round have the bits of the same jobs alone, and together keep to less than their blocks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from indb_tensile.device.allocator_shim import preload_environment
from tests.device.preloaded import run
from tests.native.cuda_double import ROOT, build, environment

_MEMBER = {"bits": True, "beyond its base": True, "at planned addresses": True, "nothing lent": True}
_DEVICES = ("emulated", "cpu", "cuda")  # the last with a double of the driver


@pytest.mark.nightly
@pytest.mark.parametrize("device", _DEVICES)
def test_members_of_a_round_train_bit_for_bit_in_less_memory_than_their_blocks(device: str, tmp_path: Path) -> None:
    assert _asked(tmp_path, "undisturbed", device) == _answer(device, members=3)


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["emulated", "cuda"])
def test_members_go_on_when_one_is_killed_inside_an_iteration(device: str, tmp_path: Path) -> None:
    assert _asked(tmp_path, "killed", device) == _answer(device, members=2)


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["emulated", "cuda"])
def test_nobody_waits_for_a_member_that_does_other_work_between_its_iterations(device: str, tmp_path: Path) -> None:
    assert _asked(tmp_path, "resting", device) == _answer(device, members=3)


def _asked(directory: Path, scene: str, device: str) -> dict[str, object]:
    module = "tests.executor.run.round_process"
    done = _run_on_double(directory, module, scene) if device == "cuda" else run(module, scene, device)
    assert done.returncode == 0, done.stderr
    assert "fake CUDA" not in done.stderr, "the driver's double reported a violated rule"
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _run_on_double(directory: Path, module: str, scene: str) -> "subprocess.CompletedProcess[str]":
    """Run a scene with the double of a GPU's driver, in regions of two pages."""
    double = environment(build(directory), FAKE_CUDA_HOST_COMPUTES="1", FAKE_CUDA_GRANULARITY_KB="8")
    return subprocess.run(
        (sys.executable, "-m", module, scene, "cuda"),
        cwd=ROOT,
        env=preload_environment({**double, "OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        check=False,
    )


def _answer(device: str, *, members: int) -> dict[str, object]:
    """Return the right answers. On a GPU the steps without gates, in two of the four epochs each, run as graphs."""
    member = {**_MEMBER, "launched as graphs": 4 if device == "cuda" else 0}
    return {"members": [member] * members, "within the budget": True, "less than the blocks": True, "gates": True}
