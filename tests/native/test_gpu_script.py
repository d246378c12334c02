"""The script for a machine with a GPU (tests/gpu/run.sh): its parts, and what of them the driver's double can run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.parts import PARTS, Part, chosen, run
from tests.native.cuda_double import ROOT, build, environment


def names(wanted: tuple[str, ...] = (), skipped: tuple[str, ...] = ()) -> list[str]:
    return [part.name for part in chosen(wanted, skipped)]


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]


def doing(name: str, source: str, limit_s: int = 60, *, mps: bool = False) -> Part:
    command = (sys.executable, "-c", source)
    return Part(name=name, about="", commands=(command,), limit_s=limit_s, mps=mps, computes=False)


def test_the_parts_come_in_the_order_of_what_each_needs_and_none_takes_ten_minutes() -> None:
    order = ["probe", "footprint", "device", "allocator", "recording", "plans", "kills", "graphs", "calibration"]
    assert names() == [*order, "precision", "together", "mps", "bench-resnet50", "bench-bert"]
    assert max(part.limit_s for part in PARTS) < 600


def test_parts_are_chosen_and_left_out_by_name() -> None:
    assert names(("kills", "probe")) == ["probe", "kills"]
    assert names(("bench",)) == ["bench-resnet50", "bench-bert"]
    assert names((), ("bench", "mps")) == names()[:-3]
    with pytest.raises(ValueError, match="no part is called 'kill'; there are probe, footprint"):
        chosen(("kill",), ())


def test_a_part_that_fails_hangs_or_finds_nothing_changes_nothing_for_the_next(tmp_path: Path) -> None:
    parts = (
        doing("fails", "raise SystemExit(3)"),
        doing("hangs", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])", 1),
        doing("finds nothing", "raise SystemExit(5)"),
        doing("runs", "print('out'); import os; assert os.environ['TENSILE_GPU_MACHINE'] == 'a machine'"),
    )
    assert run(parts, tmp_path, "a machine") == 1
    assert [(row["part"], row["ended"], row["machine"]) for row in lines(tmp_path)] == [
        ("fails", "failed", "a machine"),
        ("hangs", "stopped", "a machine"),
        ("finds nothing", "absent", "a machine"),
        ("runs", "done", "a machine"),
    ]
    assert (tmp_path / "runs.log").read_text() == "out\n"


def test_parts_for_which_no_time_is_left_are_told(tmp_path: Path) -> None:
    assert run((doing("late", ""),), tmp_path, "m", whole_s=0) == 0
    assert [row["ended"] for row in lines(tmp_path)] == ["left out"]


MPS = """#!/bin/sh
if [ "$1" = -d ]; then : >"$CUDA_MPS_PIPE_DIRECTORY/control"; exit; fi
read command
echo "$command" >"$CUDA_MPS_PIPE_DIRECTORY/told"
"""


def test_mps_serves_the_part_that_wants_it_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(MPS)
    program.chmod(0o755)
    seen = "import os, pathlib; assert (pathlib.Path(os.environ['CUDA_MPS_PIPE_DIRECTORY']) / 'control').exists()"
    parts = (doing("mps", seen, mps=True),)
    run(parts, tmp_path / "without", "m")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert run(parts, tmp_path / "with", "m") == 0
    assert [row["ended"] for part in ("without", "with") for row in lines(tmp_path / part)] == ["absent", "done"]
    assert (tmp_path / "with" / "mps" / "told").read_text() == "quit -t 5\n"


def test_a_part_that_lacks_something_says_what(tmp_path: Path) -> None:
    lacking = Part(name="a", about="", commands=(), limit_s=9, computes=False, modules=("json", "no_such_module"))
    assert run((lacking,), tmp_path, "m") == 0
    assert [row["reason"] for row in lines(tmp_path)] == ["no_such_module is not installed"]


def test_on_the_double_all_parts_that_need_no_torch_run_and_the_others_say_what_they_lack(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("results")
    given = environment(
        build(tmp_path_factory.mktemp("driver")), FAKE_CUDA_HOST_COMPUTES="1", FAKE_CUDA_MEMORY_MB="4096"
    )
    done = subprocess.run(
        [sys.executable, "tests/gpu/parts.py", "--to", str(directory)],
        cwd=ROOT,
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )
    logs = {path.name: path.read_text() for path in directory.glob("*.log")}
    assert done.returncode == 0, (done.stdout, done.stderr, logs)
    found = lines(directory)
    assert {row["machine"] for row in found} == {"Fake GPU 0"}
    ended = {row["part"]: row["ended"] for row in found if "part" in row}
    assert list(ended) == names()
    assert (ended.pop("probe"), ended.pop("device")) == ("done", "done")
    if torch.version.cuda is None:
        assert set(ended.values()) == {"absent"}
    measured = {row["measured"]: row for row in found if "measured" in row}
    assert measured["machine"]["devices"][0]["name"] == "Fake GPU 0"
    assert (measured["whole device"]["regions"], measured["whole device"]["region_bytes"]) == (32, 64 << 20)
    assert {"mapping", "lanes"} <= set(measured)
