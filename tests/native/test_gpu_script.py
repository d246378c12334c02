"""The script for a machine with a GPU (tests/gpu/run.sh) runs its parts, as far as the driver's double allows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from indb_tensile.device.allocator_shim import preload_environment
from tests.gpu.parts import PARTS, Part, chosen_parts, run
from tests.native.cuda_double import ROOT, build, environment

HANGING = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"


def names(selected: tuple[str, ...] = (), skipped: tuple[str, ...] = ()) -> list[str]:
    return [part.name for part in chosen_parts(selected, skipped)]


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]


def part_running(name: str, source: str, limit_s: int = 60, *, mps: bool = False) -> Part:
    command = (sys.executable, "-c", source)
    return Part(name=name, about="", commands=(command,), limit_s=limit_s, mps=mps, computes=False)


def test_the_parts_have_a_fixed_order_and_none_takes_ten_minutes() -> None:
    order = ["probe", "footprint", "device", "allocator", "recording", "plans", "kills", "graphs", "calibration"]
    assert names() == [*order, "precision", "batches", "together", "rounds", "mps", "bench-resnet50", "bench-bert"]
    assert max(part.limit_s for part in PARTS) < 600


def test_parts_are_selected_and_excluded_by_name() -> None:
    assert names(("kills", "probe")) == ["probe", "kills"]
    assert names(("bench",)) == ["bench-resnet50", "bench-bert"]
    assert names((), ("bench", "mps")) == names()[:-3]
    with pytest.raises(ValueError, match="no part is called 'kill'; there are probe, footprint"):
        chosen_parts(("kill",), ())


def test_a_part_that_fails_hangs_or_has_no_tests_does_not_affect_the_next(tmp_path: Path) -> None:
    parts = (
        part_running("fails", "raise SystemExit(3)"),
        part_running("hangs", HANGING, 1),
        part_running("has no tests", "raise SystemExit(5)"),
        part_running("runs", "print('out'); import os; assert os.environ['TENSILE_GPU_MACHINE'] == 'a machine'"),
    )
    assert run(parts, tmp_path, "a machine") == 1
    assert [(row["part"], row["ended"], row["machine"]) for row in lines(tmp_path)] == [
        ("fails", "failed", "a machine"),
        ("hangs", "stopped", "a machine"),
        ("has no tests", "absent", "a machine"),
        ("runs", "done", "a machine"),
    ]
    assert (tmp_path / "runs.log").read_text() == "out\n"


def test_a_part_without_time_left_is_reported_as_left_out(tmp_path: Path) -> None:
    assert run((part_running("late", ""),), tmp_path, "m", whole_s=0) == 0
    assert [row["ended"] for row in lines(tmp_path)] == ["left out"]


MPS = """#!/bin/sh
if [ "$1" = -d ]; then : >"$CUDA_MPS_PIPE_DIRECTORY/control"; exit; fi
read command
echo "$command" >"$CUDA_MPS_PIPE_DIRECTORY/commands"
"""


def test_mps_is_started_for_the_part_that_needs_it_and_stopped_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(MPS)
    program.chmod(0o755)
    check = "import os, pathlib; assert (pathlib.Path(os.environ['CUDA_MPS_PIPE_DIRECTORY']) / 'control').exists()"
    parts = (part_running("mps", check, mps=True),)
    run(parts, tmp_path / "without", "m")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert run(parts, tmp_path / "with", "m") == 0
    assert [row["ended"] for part in ("without", "with") for row in lines(tmp_path / part)] == ["absent", "done"]
    assert (tmp_path / "with" / "mps" / "commands").read_text() == "quit -t 5\n"


def test_a_part_that_lacks_a_package_is_reported_with_its_name(tmp_path: Path) -> None:
    lacking = Part(name="a", about="", commands=(), limit_s=9, computes=False, modules=("json", "no_such_module"))
    assert run((lacking,), tmp_path, "m") == 0
    assert [row["reason"] for row in lines(tmp_path)] == ["no_such_module is not installed"]


@pytest.mark.nightly
def test_on_the_double_every_part_without_torch_runs_and_the_other_parts_are_absent(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("results")
    variables = environment(
        build(tmp_path_factory.mktemp("driver")), FAKE_CUDA_HOST_COMPUTES="1", FAKE_CUDA_MEMORY_MB="4096"
    )
    done = subprocess.run(
        [sys.executable, "tests/gpu/parts.py", "--to", str(directory)],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    logs = {path.name: path.read_text() for path in directory.glob("*.log")}
    assert done.returncode == 0, (done.stdout, done.stderr, logs)
    rows = lines(directory)
    assert {row["machine"] for row in rows} == {"Fake GPU 0"}
    ended = {row["part"]: row["ended"] for row in rows if "part" in row}
    assert list(ended) == names()
    assert (ended.pop("probe"), ended.pop("device")) == ("done", "done")
    if torch.version.cuda is None:
        assert set(ended.values()) == {"absent"}
    measured = {row["measured"]: row for row in rows if "measured" in row}
    assert measured["machine"]["devices"][0]["name"] == "Fake GPU 0"
    assert (measured["whole device"]["regions"], measured["whole device"]["region_bytes"]) == (32, 64 << 20)
    assert {"mapping", "lanes"} <= set(measured)


@pytest.mark.nightly
def test_on_the_double_jobs_share_a_round_hand_regions_over_and_gather_batches_on_a_second_thread(
    tmp_path: Path,
) -> None:
    variables = environment(
        build(tmp_path),
        FAKE_CUDA_HOST_COMPUTES="1",
        FAKE_CUDA_GRANULARITY_KB="256",
        FAKE_CUDA_MEMORY_MB="1024",
        TENSILE_GPU_PLACE="cpu",
        TENSILE_GPU_RESULTS=str(tmp_path / "results.jsonl"),
        OMP_NUM_THREADS="1",
    )
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "round or page_locked", "tests/gpu"),
        cwd=ROOT,
        env=preload_environment(variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert "fake CUDA" not in done.stderr + done.stdout, "the driver's double reported a violated rule"
    handover, together, *batches = lines(tmp_path)
    assert [row["way"] for row in batches] == ["none", "one thread", "two threads"]
    assert all(row["handover_us"] > 0 for row in handover["members"])
    assert together["budget_bytes"] < together["blocks_bytes"]
