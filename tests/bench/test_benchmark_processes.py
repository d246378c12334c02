"""Networks that run in a process each."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from indb_tensile.bench.harness.benchmark_processes import run_each_alone
code = int(sys.argv[1])
if "--models" in sys.argv:
    print(sys.argv[-1], flush=True)
    sys.exit(code if sys.argv[-1] == "vgg16" else 1)
run_each_alone(["vgg16", "lstm"])
"""


@pytest.mark.parametrize(
    ("code", "ran"),
    [
        (2, ["vgg16", "lstm"]),  # it does not take what was asked: others may
        (5, ["vgg16"]),  # the device
    ],
)
def test_each_runs_unless_what_ended_one_would_end_the_next_and_the_worst_is_told(code: int, ran: list[str]) -> None:
    done = subprocess.run(
        (sys.executable, "-c", PROGRAM, str(code)), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout.split(), done.stderr) == (ran, "")
    assert done.returncode == max(code, len(ran) - 1)
