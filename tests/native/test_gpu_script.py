"""The script for a machine with a GPU (tests/gpu/run.sh) runs its parts, as far as the driver's double allows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.parts import BUILD_S, LONGEST_S, PARTS, WHOLE_S, Part, chosen_parts, run, time_limit_s
from tests.native.cuda_double import ROOT, build, environment

HANGING = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"


def names(selected: tuple[str, ...] = (), skipped: tuple[str, ...] = ()) -> list[str]:
    return [part.name for part in chosen_parts(selected, skipped)]


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]


def part_running(name: str, source: str, limit_s: int = 60, *, mps: bool = False) -> Part:
    command = (sys.executable, "-c", source)
    return Part(name=name, about="", commands=(command,), limit_s=limit_s, mps=mps, computes=False)


def test_the_parts_have_a_fixed_order_none_takes_ten_minutes_and_all_take_less_than_thirty() -> None:
    order = ["probe", "footprint", "device", "allocator", "recording", "plans", "kills", "graphs", "calibration"]
    benches = [
        f"bench-{noun}-{n}" for noun in ("step", "exact", "forecast", "maxbatch") for n in ("resnet50", "bert")
    ]
    assert names() == [*order, "precision", "together", "mps", *benches, "batches", "rounds", "ranks"]
    assert max(part.limit_s for part in PARTS) <= LONGEST_S < 600
    assert BUILD_S + sum(part.limit_s for part in PARTS) <= WHOLE_S <= 29 * 60


def test_time_that_earlier_parts_have_not_used_is_added_to_the_limits_of_later_ones() -> None:
    first, second, third = (part_running(str(number), "", 100) for number in range(3))
    assert time_limit_s(first, (second, third), 300) == 100
    assert time_limit_s(second, (third,), 290) == 190
    assert time_limit_s(second, (third,), 2_000) == LONGEST_S
    assert time_limit_s(second, (third,), 150) == 100, "time is short, so the last part gets less"
    assert time_limit_s(third, (), 50) == 50


def test_parts_are_selected_and_excluded_by_name() -> None:
    assert names(("kills", "probe")) == ["probe", "kills"]
    assert names(("bench-step",)) == ["bench-step-resnet50", "bench-step-bert"]
    assert len(names(("bench",))) == 8
    assert names((), ("bench", "mps")) == [*names()[:11], "batches", "rounds", "ranks"]
    with pytest.raises(ValueError, match="no part is called 'kill'; there are probe, footprint"):
        chosen_parts(("kill",), ())


@pytest.mark.nightly
def test_a_part_that_hangs_fails_or_has_no_tests_does_not_affect_the_next(tmp_path: Path) -> None:
    parts = (
        part_running("hangs", HANGING, 1),
        part_running("fails", "raise SystemExit(3)"),
        part_running("has no tests", "raise SystemExit(5)"),
        part_running("runs", "print('out'); import os; assert os.environ['TENSILE_GPU_MACHINE'] == 'a machine'"),
    )
    assert run(parts, tmp_path, "a machine", whole_s=sum(part.limit_s for part in parts)) == 1
    assert [(row["part"], row["ended"], row["machine"]) for row in lines(tmp_path)] == [
        ("hangs", "stopped", "a machine"),
        ("fails", "failed", "a machine"),
        ("has no tests", "absent", "a machine"),
        ("runs", "done", "a machine"),
    ]
    assert (tmp_path / "runs.log").read_text() == "out\n"


def test_rows_that_a_benchmark_prints_are_among_the_results(tmp_path: Path) -> None:
    source = """print('planning'); print('{"model": "bert", "eor": 1.25}'); print('{"model": "be')"""
    command = (sys.executable, "-c", source)
    part = Part(name="b", about="", commands=(command,), limit_s=60, computes=False, prints_rows=True)
    assert run((part,), tmp_path, "m") == 0
    row, outcome = lines(tmp_path)
    assert row == {"of_part": "b", "machine": "m", "model": "bert", "eor": 1.25}
    assert outcome["ended"] == "done"


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


# The parts that need kernels on a GPU; the double has none.
ABSENT = {"kills", "mps", *(name for name in names() if name.startswith("bench-"))}


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # it starts about forty trainers
def test_on_the_double_every_part_runs_that_needs_no_kernel(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("results")
    variables = environment(
        build(tmp_path_factory.mktemp("driver")),
        FAKE_CUDA_HOST_COMPUTES="1",
        FAKE_CUDA_GRANULARITY_KB="256",
        FAKE_CUDA_MEMORY_MB="4096",
        TENSILE_GPU_PLACE="cpu",
        OMP_NUM_THREADS="1",
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
    assert not any("fake CUDA" in log for log in logs.values()), "the driver's double reported a violated rule"
    rows = lines(directory)
    assert {row["machine"] for row in rows} == {"Fake GPU 0"}
    ended = {row["part"]: row["ended"] for row in rows if "part" in row}
    assert ended == {name: "absent" if name in ABSENT else "done" for name in names()}
    assert list(ended) == names()
    measured = {name: [row for row in rows if row.get("measured") == name] for name in MEASURED}
    assert [name for name, measurements in measured.items() if not measurements] == []
    assert measured["machine"][0]["devices"][0]["name"] == "Fake GPU 0"
    (whole,) = measured["whole device"]
    assert (whole["regions"], whole["region_bytes"]) == (32, 64 << 20)
    assert [row["way"] for row in measured["batches"]] == ["none", "one thread", "two threads", "lent"]
    assert all(row["handover_us"] > 0 for row in measured["handover of a round's regions"][0]["members"])
    (together,) = measured["two jobs in a round"]
    assert together["budget_bytes"] < together["blocks_bytes"]


# What the script measures, as far as the double has it; without NVML there is no memory of other processes.
MEASURED = (
    *("machine", "whole device", "waiting trainers", "mapping", "capacity", "change of regions", "lanes"),
    *("allocator", "recorded", "planned", "rival", "graph", "attention", "overflow", "precision", "jobs at once"),
    *("batches", "handover of a round's regions", "two jobs in a round"),
)
