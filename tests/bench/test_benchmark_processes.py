"""Each network runs in its own process."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from indb_tensile.bench.harness.execution.benchmark_processes import run_each_alone
code = int(sys.argv[1])
if "--models" in sys.argv:
    print(sys.argv[-1], flush=True)
    sys.exit(code if sys.argv[-1] == "vgg16" else 1)
run_each_alone(["vgg16", "lstm"])
"""


@pytest.mark.parametrize(
    ("code", "ran"),
    [
        (2, ["vgg16", "lstm"]),  # the network refuses the request, and others may accept it
        (5, ["vgg16"]),  # a device error ends the run
    ],
)
def test_each_network_runs_until_a_device_error_and_the_worst_exit_code_is_returned(
    code: int, ran: list[str]
) -> None:
    done = subprocess.run(
        (sys.executable, "-c", PROGRAM, str(code)), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout.split(), done.stderr) == (ran, "")
    assert done.returncode == max(code, len(ran) - 1)
