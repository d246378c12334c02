"""The quickstart trains on the processor, and a second time on a GPU only where one is used.

Small programs stand for `tensile` and `ldconfig`.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TENSILE = """#!/bin/sh
echo "$*" >>calls
[ "$*" != "up --json" ] || echo '{"device": "'"$DEVICE"'", "budget_bytes": 1}'
"""
DRIVER = "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1"
ON_PROCESSOR = "up --device cpu --capacity 1GB --budget 360MB --policy tensile+"
SECOND_PART = ["up --device auto", "up --json"]
TRAINING = ["psql -q -f examples/sql/train.sql", "watch", "psql -q -f examples/sql/report.sql"]


def calls_of_tensile(directory: Path, libraries: str, device: str) -> tuple[list[str], str]:
    """Run the quickstart where `ldconfig` lists these libraries. Return the calls of tensile, and the output."""
    for folder in ("examples", ".venv/bin", "bin"):
        (directory / folder).mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "quickstart.sh", directory / "examples")
    (directory / "examples" / "setup.sh").write_text('say() { echo "== $*"; }\nsetup() { :; }\n')
    for path, text in ((".venv/bin/tensile", TENSILE), ("bin/ldconfig", f"#!/bin/sh\necho '{libraries}'\n")):
        (directory / path).write_text(text)
        (directory / path).chmod(0o755)
    done = subprocess.run(
        ("sh", "examples/quickstart.sh"),
        cwd=directory,
        env={"PATH": f"{directory / 'bin'}:{os.environ['PATH']}", "DEVICE": device},
        capture_output=True,
        text=True,
        check=True,
    )
    return (directory / "calls").read_text().splitlines(), done.stdout


@pytest.mark.skipif(Path("/usr/lib/wsl/lib/libcuda.so.1").exists(), reason="WSL2 has a driver here")
def test_machine_without_a_driver_trains_on_the_processor_alone(tmp_path: Path) -> None:
    calls, _ = calls_of_tensile(tmp_path, "", "cpu")
    assert (calls[0], calls[-1]) == (ON_PROCESSOR, "psql -q -f examples/sql/compare.sql")


def test_gpu_trains_the_same_networks_without_the_sizes_of_the_processor(tmp_path: Path) -> None:
    calls, _ = calls_of_tensile(tmp_path, DRIVER, "cuda:NVIDIA H200")
    assert (calls[0], calls[-5:]) == (ON_PROCESSOR, [*SECOND_PART, *TRAINING])


def test_gpu_that_cannot_be_used_is_named_as_such(tmp_path: Path) -> None:
    calls, output = calls_of_tensile(tmp_path, DRIVER, "cpu")
    assert calls[-2:] == SECOND_PART
    assert "the GPU is not used; .venv/bin/tensile doctor says why" in output
