"""The parts of the GPU suite: the commands of each, their order and their time limits. `run.sh` calls this script.

Each part runs in its own process and needs no other part: a part that fails, hangs or is left out does not affect the
next. The limits of all parts and the time for the build add up to less than `WHOLE_S`. Time that a part does not use
is added to the limits of those that follow. This script needs the standard library alone.

With TENSILE_GPU_PLACE as `cpu` torch computes on the host, for the driver's double, whose device memory is host
memory. Parts that need kernels on a GPU are then absent.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHOLE_S = 1740  # time limit of the build and all parts together
BUILD_S = 100  # the part of it that is meant for the build
LONGEST_S = 590  # time limit of a part that has the time of others
NO_TESTS = 5  # pytest's exit code if it collects no test
# The project's settings of pytest need plugins that this machine may lack.
WITHOUT_SETTINGS = ("-c", os.devnull, f"--rootdir={ROOT}")
MPS_PROGRAM = "nvidia-cuda-mps-control"
_MPS_DEADLINE_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Commands that run one after the other within `limit_s`, under MPS if `mps` is set.

    If `computes` is set the part needs a torch that computes on the device. With `only_gpu` it cannot run on the
    driver's double. It also needs the Python modules in `modules`. With `prints_rows` the JSON objects that it prints
    belong to the results.
    """

    name: str
    about: str
    commands: tuple[tuple[str, ...], ...]
    limit_s: int
    mps: bool = False
    computes: bool = True
    only_gpu: bool = False
    modules: tuple[str, ...] = ()
    prints_rows: bool = False


def _suite(names: str) -> tuple[str, ...]:
    options = ("-p", "no:cacheprovider", "-s", "-ra", "--confcutdir=tests/gpu", "tests/gpu")
    return (sys.executable, "-m", "pytest", *WITHOUT_SETTINGS, *options, "-k", names)


# What limits each benchmark to the figures that are wanted of a GPU, with a limit in seconds.
_BENCHMARKS = {
    "step": (("--segments", "4", "--activations", "0.5", "--budgets", "0.8", "0.6", "--rounds", "5"), 140),
    "exact": (("--seeds", "1", "--policies", "tensile+", "capuchin", "--budgets", "0.6"), 50),
    "forecast": (("--rounds", "3"), 60),
    "maxbatch": (("--shares", "0.5"), 60),
}
_NETWORKS = {"resnet50": "torchvision", "bert": "transformers"}  # with the library that each comes from


def _bench(noun: str, network: str) -> Part:
    options, limit_s = _BENCHMARKS[noun]
    command = (sys.executable, "-m", "indb_tensile.bench", noun, "--device", "cuda", "--models", network, "--json")
    return Part(
        name=f"bench-{noun}-{network}",
        about=f"{noun} of {network}",
        commands=((*command, *options),),
        limit_s=limit_s,
        only_gpu=True,
        modules=(_NETWORKS[network],),
        prints_rows=True,
    )


PARTS = (
    Part(
        name="probe",
        about="the machine; 64 MiB regions over the whole device, NVML before and after, seconds",
        commands=((sys.executable, "-m", "tests.gpu.machine"), _suite("whole_device")),
        limit_s=60,
        computes=False,
    ),
    Part(
        name="footprint",
        about="memory of 1, 2, 4 and 8 trainers beside the regions, and their use of the processor",
        commands=(_suite("kernels_for_this_gpu or leaves_room or of_the_processor"),),
        limit_s=110,
    ),
    Part(
        name="device",
        about="broker, mapping, released regions, swapped tensors, both lanes of one and of two processes",
        commands=(
            _suite(
                "broker or mapped_at_once or released or maps_and_writes or swapped_over or lanes or every_device"
            ),
        ),
        limit_s=90,
        computes=False,
    ),
    Part(name="allocator", about="our allocator for torch", commands=(_suite("our_allocator"),), limit_s=50),
    Part(name="recording", about="iterations as one graph", commands=(_suite("recorded_as_a_graph"),), limit_s=40),
    Part(
        name="plans",
        about="planned steps beside torch's own methods to save memory",
        commands=(_suite("keep_their_peaks"),),
        limit_s=120,
    ),
    Part(
        name="kills",
        about="a process killed inside a kernel",
        commands=(_suite("killed"),),
        limit_s=50,
        only_gpu=True,
    ),
    Part(
        name="graphs",
        about="the networks that become graphs, and the reasons why others do not",
        commands=(_suite("networks_become or float32_becomes"),),
        limit_s=90,
    ),
    Part(name="calibration", about="a grant that is too small", commands=(_suite("too_small"),), limit_s=30),
    Part(
        name="precision",
        about="TF32 on and off beside plain eager; the time of a graph beside the sum of latencies",
        commands=(_suite("tf32"),),
        limit_s=80,
    ),
    Part(name="together", about="1, 2 and 4 jobs by time slices", commands=(_suite("jobs_at_once"),), limit_s=60),
    Part(
        name="mps",
        about="the same, and killed processes, under NVIDIA's MPS",
        commands=(_suite("jobs_at_once"), _suite("killed or lanes")),
        limit_s=80,
        mps=True,
        only_gpu=True,
    ),
    *(_bench(noun, network) for noun in _BENCHMARKS for network in _NETWORKS),
    Part(
        name="batches",
        about="how much of collecting and uploading batches a training waits for, with and without a second thread",
        commands=(_suite("page_locked"),),
        limit_s=40,
    ),
    Part(
        name="rounds",
        about="regions handed from process to process at gates; two jobs in a round, with the bits of each alone",
        commands=(_suite("round"),),
        limit_s=60,
    ),
    Part(
        name="ranks",
        about="one training on two GPUs by NCCL: bits, pace, memory of the connection, and a rank that is lost",
        commands=(_suite("ranks_by_nccl"),),
        limit_s=60,
    ),
)


def chosen_parts(selected: Sequence[str], skipped: Sequence[str]) -> tuple[Part, ...]:
    """Return the parts of these names in the script's order, or all parts. Raises ValueError for an unknown name."""
    unknown = [name for name in (*selected, *skipped) if not any(_is_named(part, (name,)) for part in PARTS)]
    if unknown:
        raise ValueError(f"no part is called {unknown[0]!r}; there are {', '.join(part.name for part in PARTS)}")
    return tuple(
        part for part in PARTS if (not selected or _is_named(part, selected)) and not _is_named(part, skipped)
    )


def run(parts: Sequence[Part], directory: Path, machine: str, whole_s: float = WHOLE_S) -> int:
    """Run the parts, and record the outcome of each. Return 1 if a part failed."""
    directory.mkdir(parents=True, exist_ok=True)
    results = directory / "results.jsonl"
    environment = {**os.environ, "TENSILE_GPU_RESULTS": str(results), "TENSILE_GPU_MACHINE": machine}
    start_s, failed = time.monotonic(), False
    for number, part in enumerate(parts):
        left_s = whole_s - (time.monotonic() - start_s)
        limit_s = time_limit_s(part, parts[number + 1 :], left_s)
        output = directory / f"{part.name}.log"
        outcome = _run_part(part, output, environment, limit_s)
        failed |= outcome["ended"] in ("failed", "stopped")
        with results.open("a", encoding="utf-8") as file:
            for row in _printed_rows(output) if part.prints_rows else ():
                file.write(json.dumps({"of_part": part.name, "machine": machine, **row}) + "\n")
            file.write(json.dumps({"part": part.name, "machine": machine, **outcome}) + "\n")
        print(f"{part.name}: {outcome['ended']} after {outcome['seconds']} s", flush=True)
    return int(failed)


def _printed_rows(output: Path) -> Iterator[dict[str, object]]:
    """Yield the JSON objects of a part's output, each on a line of its own. A killed part may leave half of one."""
    for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if output.exists() else ():
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                yield row


def time_limit_s(part: Part, later: Sequence[Part], left_s: float) -> float:
    """Return the part's limit: its own, and the time that earlier parts have left to it and to all later ones."""
    spare_s = left_s - sum(other.limit_s for other in later)
    return min(left_s, max(part.limit_s, min(spare_s, LONGEST_S)))


def _run_part(part: Part, output: Path, environment: Mapping[str, str], limit_s: float) -> dict[str, object]:
    """Run a part.

    Return its outcome: done, failed, stopped at its limit, absent if it cannot run, or left out for time.
    """
    if limit_s < 1:
        return {"ended": "left out", "seconds": 0, "reason": "the time of all parts is spent"}
    lack = _missing_requirement(part)
    if lack:
        return {"ended": "absent", "seconds": 0, "reason": lack}
    start_s = time.monotonic()
    ended, codes = "done", list[int | None]()
    with output.open("w", encoding="utf-8") as log, _served(part, environment) as served:
        if served is None:
            return {"ended": "absent", "seconds": 0, "reason": f"there is no {MPS_PROGRAM}, or it does not start"}
        for command in part.commands:
            left_s = limit_s - (time.monotonic() - start_s)
            codes.append(_exit_code(command, log.fileno(), served, left_s))
    if None in codes:
        ended = "stopped"
    elif any(code not in (0, NO_TESTS) for code in codes):
        ended = "failed"
    elif all(code == NO_TESTS for code in codes):
        ended = "absent"
    return {"ended": ended, "seconds": round(time.monotonic() - start_s, 1), "exit_codes": codes}


def _missing_requirement(part: Part) -> str:
    """Return the requirement of the part that is not installed, or an empty string."""
    absent = [name for name in part.modules if find_spec(name) is None]
    if absent:
        return f"{absent[0]} is not installed"
    on_double = os.environ.get("TENSILE_GPU_PLACE") == "cpu"
    if part.only_gpu and on_double:
        return "the driver's double has no kernels"
    return "the installed torch has no CUDA" if part.computes and not on_double and not _torch_has_cuda() else ""


@cache
def _torch_has_cuda() -> bool:
    source = "import sys; from indb_tensile.device.backend import torch_cuda; sys.exit(torch_cuda() is None)"
    return subprocess.run((sys.executable, "-c", source), cwd=ROOT, check=False).returncode == 0


def _exit_code(command: Sequence[str], log: int, environment: Mapping[str, str], limit_s: float) -> int | None:
    """Return the command's exit code, or None if it was killed at its limit with all its processes."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        return process.wait(max(0.1, limit_s))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


@contextmanager
def _served(part: Part, environment: Mapping[str, str]) -> Iterator[Mapping[str, str] | None]:
    """Yield the part's environment, with its own MPS daemon if it needs one. Yield None if MPS does not start."""
    if not part.mps:
        yield environment
        return
    program = shutil.which(MPS_PROGRAM)
    if program is None:
        yield None
        return
    directory = Path(environment["TENSILE_GPU_RESULTS"]).parent / "mps"
    (directory / "log").mkdir(parents=True, exist_ok=True)
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(directory), "CUDA_MPS_LOG_DIRECTORY": str(directory / "log")}
    served = {**environment, **pipes}
    with (directory / "log" / "start.log").open("wb") as output:
        code = subprocess.run(
            (program, "-d"), env=served, stdout=output, stderr=output, stdin=subprocess.DEVNULL, check=False
        ).returncode
    try:
        yield served if code == 0 else None
    finally:
        subprocess.run(
            (program,), input=b"quit -t 5\n", env=served, check=False, timeout=_MPS_DEADLINE_S, capture_output=True
        )


def _is_named(part: Part, names: Sequence[str]) -> bool:
    """Return whether the part or its family has one of these names: `bench` and `bench-step` are families."""
    return any(part.name == name or part.name.startswith(f"{name}-") for name in names)


def _machine() -> str:
    """Return the GPU's name, or a description of a machine without one."""
    source = (
        "from indb_tensile.device.cuda import probe; gpus = probe();"
        "print(gpus.devices[0].name if hasattr(gpus, 'devices') else f'no GPU ({gpus.reason})')"
    )
    done = subprocess.run((sys.executable, "-c", source), cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that the command line names."""
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to run; default: all")
    parser.add_argument("--skip", nargs="+", default=[], metavar="PART")
    parser.add_argument("--to", type=Path, default=Path(os.environ.get("TENSILE_GPU_RESULTS", "gpu-results")))
    parser.add_argument("--list", action="store_true", help="list the parts and exit")
    options = parser.parse_args(arguments)
    if options.list:
        for part in PARTS:
            print(f"{part.name:23} {part.limit_s:3} s  {part.about}")
        return 0
    try:
        parts = chosen_parts(options.parts, options.skip)
    except ValueError as error:
        parser.error(str(error))
    directory = Path(os.environ.get("TENSILE_GPU_START", "")).absolute() / options.to
    return run(parts, directory, _machine(), WHOLE_S - int(os.environ.get("TENSILE_GPU_BUILD_S", "0")))


if __name__ == "__main__":
    sys.exit(main())
